"""Run the command `jaxrl` as `python -m jaxrl`."""

from jaxrl.commands import run

if __name__ == "__main__":
    run()
