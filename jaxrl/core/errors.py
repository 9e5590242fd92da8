"""Errors that a user can mend, each in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 100  # names that a message lists; a longer list helps nobody
NEAR = 0.75  # least ratio of `difflib` for a near name: one letter in four differs

# Names that other libraries give to the settings here.
SYNONYMS = {
    "algo": "algorithm",
    "alg": "algorithm",
    "environment": "env",
    "env_id": "env",
    "env_name": "env",
    "lr": "learning_rate",
    "gamma": "discount",
    "lambda": "gae_lambda",
    "tau": "target.rate",
    "ent_coef": "entropy_weight",
    "vf_coef": "value_weight",
    "clip_range": "clip",
    "clip_eps": "clip",
    "n_envs": "num_envs",
    "n_steps": "num_steps",
    "n_epochs": "epochs",
    "update_epochs": "epochs",
    "num_minibatches": "minibatches",
    "total_timesteps": "steps",
    "buffer_size": "capacity",
    "learning_starts": "warmup",
    "net_arch": "hidden",
    "render": "video",
}


class UserError(ValueError):
    """Bad input: one sentence that names the thing, its value, and what would be right.

    The commands print it and exit with code 2.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Make the error for a name that does not exist. It suggests the nearest name that does; if
    none is near it lists all names, unless they are too many to read."""
    options = sorted(known)
    near = nearest(name, options)
    if near:
        hint = f"did you mean '{near}'?"
    elif not options:
        hint = "there are none."
    elif len(options) <= MOST:
        hint = f"it may be one of: {', '.join(options)}."
    else:
        hint = f"none of the {len(options)} existing names is near it."
    return UserError(f"Unknown {kind} '{name}'; {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that was most likely meant by `name`; None if none is near.

    A name is near if it differs in one letter, in one letter of four, in case, or in - and _; if
    its letters are in another order; if it lacks a part before a dot (`agent.learning_rate` for
    `agent.optimizer.learning_rate`); or if other libraries call the setting so (`lr`). A common
    prefix that ends with / or a dot is not compared, since it would make all names of a suite near.
    """

    def score(option: str) -> float:
        a, b = (x.casefold().replace("-", "_").lstrip("_") for x in (name, option))
        meant = SYNONYMS.get(a.removeprefix("agent."))
        if b.endswith(f".{a}") or (meant and f".{b}".endswith(f".{meant}")):
            return 2.0
        place = a[: max(a.rfind("/"), a.rfind(".")) + 1]
        if b.startswith(place):
            a, b = a[len(place) :], b[len(place) :]
        return max(_likeness(a, x) for x in (b, b.rpartition(".")[2]))

    # The shortest wins a tie: a letter too many is the likelier slip.
    best = max(known, key=lambda x: (score(x), -len(x)), default=None)
    return best if best is not None and score(best) >= NEAR else None


def _likeness(a: str, b: str) -> float:
    if a == b:
        return 2.0
    if sorted(a) == sorted(b) or (max(len(a), len(b)) > 2 and _one_slip(a, b)):
        return 1.0
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def _one_slip(a: str, b: str) -> bool:
    """Return whether `a` and `b` differ by one letter: another, an extra, or a missing one."""
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    start = min(len(a), len(b)) if start is None else start
    return a[start + 1 :] in (b[start:], b[start + 1 :]) or a[start:] == b[start + 1 :]
