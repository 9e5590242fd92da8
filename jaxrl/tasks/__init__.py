"""Which world the next episode is played in."""

from jaxrl.tasks.basic import fixed, randomise, schedule

__all__ = ["fixed", "randomise", "schedule"]
