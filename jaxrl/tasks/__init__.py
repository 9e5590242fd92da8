"""Tasks: distributions over the environment parameters of the next episode."""

from jaxrl.tasks.basic import draw_once, each, fixed, randomize, schedule
from jaxrl.tasks.curriculum import (
    EVENLY,
    Draw,
    by_failure,
    by_rank,
    by_value,
    by_window,
    curriculum,
)
from jaxrl.tasks.groups import hinted_starts, repeat, starts
from jaxrl.tasks.prompts import prompts

__all__ = [
    "EVENLY",
    "Draw",
    "by_failure",
    "by_rank",
    "by_value",
    "by_window",
    "curriculum",
    "draw_once",
    "each",
    "fixed",
    "hinted_starts",
    "prompts",
    "randomize",
    "repeat",
    "schedule",
    "starts",
]
