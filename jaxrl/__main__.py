"""`python -m jaxrl`: the same as the command `jaxrl`."""

from jaxrl.commands import run

if __name__ == "__main__":
    run()
