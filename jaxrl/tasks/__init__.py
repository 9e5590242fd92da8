"""Which environment the next episode is played in."""

from jaxrl.tasks.basic import drawn, each, fixed, randomize, schedule
from jaxrl.tasks.groups import repeated, starts

__all__ = ["drawn", "each", "fixed", "randomize", "repeated", "schedule", "starts"]
