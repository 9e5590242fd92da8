"""Families of algorithms: the one list for folders of algorithms, claims, papers and pages."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl.core.errors import unknown


class Family(NamedTuple):
    """A family by the name of its folder, with its heading on pages."""

    name: str
    heading: str


FAMILIES = (
    Family("policy_gradient", "Policy gradient"),
    Family("value", "Value"),
    Family("continuous_control", "Continuous control"),
    Family("exploration", "Exploration"),
    Family("offline", "Offline"),
    Family("imitation", "Imitation"),
    Family("goals", "Goals"),
    Family("planning", "Planning"),
    Family("diffusion", "Diffusion"),
    Family("multi_agent", "Multi-agent"),
    Family("games", "Games"),
    Family("preferences", "Preferences"),
    Family("tokens", "Tokens"),
    Family("language", "Language"),
    Family("lifelong", "Lifelong"),
    Family("meta", "Meta"),
    Family("evolution", "Evolution"),
    Family("evaluation", "Evaluation"),
)
NAMES = tuple(family.name for family in FAMILIES)


def heading(name: str) -> str:
    """Return the heading of a family. Raises `UserError` for a name that does not exist."""
    for family in FAMILIES:
        if family.name == name:
            return family.heading
    raise unknown("family", name, NAMES)
