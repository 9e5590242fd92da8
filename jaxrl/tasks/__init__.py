"""Tasks: distributions over the environment parameters of the next episode."""

from jaxrl.tasks.basic import draw_once, each, fixed, randomize, schedule
from jaxrl.tasks.groups import repeat, starts
from jaxrl.tasks.scored import EVENLY, Draw, by_rank, by_value, scored

__all__ = [
    "EVENLY",
    "Draw",
    "by_rank",
    "by_value",
    "draw_once",
    "each",
    "fixed",
    "randomize",
    "repeat",
    "schedule",
    "scored",
    "starts",
]
