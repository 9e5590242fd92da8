"""Names that people type, and the names of losses here."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path

import yaml


@functools.cache
def aliases() -> Mapping[str, list[str] | str]:
    """Return what people call losses and algorithms -> names here, or a sentence."""
    return yaml.safe_load(Path(__file__).with_name("aliases.yaml").read_text(encoding="utf-8"))


def explain_absence(name: str, known: list[str]) -> str:
    """Return a sentence about a name that `jaxrl.losses` does not have: what is meant by it."""
    by_name = {x.casefold().replace(" ", "_").replace("-", "_"): x for x in aliases()}
    said = aliases().get(by_name.get(name.casefold(), ""))
    if isinstance(said, str):
        hint = f"; {said}"
    elif said:
        hint = f"; what people call so is here: {', '.join(said)}."
    else:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"jaxrl.losses has no '{name}'{hint}"
