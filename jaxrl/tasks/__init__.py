"""Tasks: distributions over the environment parameters of the next episode."""

from jaxrl.tasks.basic import draw_once, each, fixed, randomize, schedule
from jaxrl.tasks.groups import repeat, starts

__all__ = ["draw_once", "each", "fixed", "randomize", "repeat", "schedule", "starts"]
