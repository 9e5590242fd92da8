"""What a user did that cannot work, said in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 100  # names that are listed; more help nobody
NEAR = 0.75  # of `difflib`'s ratio: one letter of four is another

# What other libraries call the settings that are here.
SYNONYMS = {
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
}


class UserError(ValueError):
    """Bad input: one sentence with the thing, the value, and what would be right. The scripts
    print it and exit with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, naming the nearest one that does; where none is
    near, all of them, unless those are too many to be read."""
    options = sorted(known)
    near = nearest(name, options)
    if near:
        hint = f"did you mean '{near}'?"
    elif not options:
        hint = "there is none."
    elif len(options) <= MOST:
        hint = f"it may be one of: {', '.join(options)}."
    else:
        hint = f"none of the {len(options)} names that there are is near it."
    return UserError(f"Unknown {kind} '{name}'; {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` is most likely a slip of; None if none is near.

    Near is what differs in one letter, or in a letter of four, or in case or - and _ alone, has its
    letters in another order, or lacks the part before a dot, or some of it (`agent.learning_rate`
    for `agent.optimizer.learning_rate`), or is what other libraries say (`lr`). Where
    both lie in the same place (before a / or a dot), that is not compared: it would make all names
    of one suite near.
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

    # Of equals the shortest: who types a letter too many is nearer to it.
    best = max(known, key=lambda x: (score(x), -len(x)), default=None)
    return best if best is not None and score(best) >= NEAR else None


def _likeness(a: str, b: str) -> float:
    if a == b:
        return 2.0
    if sorted(a) == sorted(b) or (max(len(a), len(b)) > 2 and _one_slip(a, b)):
        return 1.0
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def _one_slip(a: str, b: str) -> bool:
    """Whether one letter is another, too many or missing."""
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    start = min(len(a), len(b)) if start is None else start
    return a[start + 1 :] in (b[start:], b[start + 1 :]) or a[start:] == b[start + 1 :]
