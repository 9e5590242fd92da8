"""Every combination of components against forgetting, in one life of conflicting tasks."""

from __future__ import annotations

import itertools

import jax
import numpy as np

from experiments.systems.check import FAILS, HOLDS, INCONCLUSIVE, Budget, Check, figure, verdict
from experiments.systems.lifelong import _lives
from jaxrl.evaluation import lifelong as worth

PAPER = {
    "title": "System Design for an Integrated Lifelong Reinforcement Learning Agent for Real-Time "
    "Strategy Games",
    "authors": "Sur, Daniels, Rahman, Faber, Gallardo, Hayes, Taylor, Gurbuz, Smith, Joshi, "
    "Japkowicz, Baron, Kira, Kanan, Corizzo, Divakaran, Piacentino, Hostetler and Raghavan",
    "year": 2022,
    "arxiv": "2212.04603",
}
CLAIM = (
    "Components that plug in one by one each reduce forgetting, and the best combination is at "
    "least as good as the best single one."
)
PARTS = (
    "jaxrl/systems/lifelong/lifelong.py",
    "jaxrl/systems/lifelong/components.py",
    "jaxrl/systems/lifelong/ewc.py",
    "jaxrl/systems/lifelong/clone.py",
    "jaxrl/systems/lifelong/infer_task.py",
    "jaxrl/sources/rehearsal.py",
)

METRIC = "forgetting: success rate lost since a task was last learnt, mean over the tasks left"
REDUCED = 0.05  # forgetting must fall by more than this, for every component alone
PERFORMANCE = -0.05  # the best combination may not perform worse than the best single by more
NOTES = (
    "Paper: StarCraft 2 minigames; here three corners of a room, each the wrong place in the other "
    "tasks. Components: replay (cloning of what was done), ewc, and heads (one for each task, "
    "which is inferred from observations); switched off replay and ewc are of strength 0. "
    "Baseline: PPO without components, which is the mechanism switched off. Measured: the "
    "component that reduces forgetting least. The best single and the best combination of two or "
    "three are chosen by their mean performance on these seeds. PPO's settings and the world were "
    "chosen in one trial on other seeds; strengths beforehand, without trials."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """All eight combinations, seed by seed."""
    keys = jax.random.split(key, budget.num_seeds(2, 10))
    config = budget.choose(_lives.TINY, _lives.CONFIG)
    switched = [
        c for n in range(len(_lives.SWITCHED) + 1)
        for c in itertools.combinations(_lives.SWITCHED, n)
    ]  # fmt: skip
    lives = {}
    for more, named in (((), ()), (("heads", "infer"), ("heads",))):
        variants = {"+".join((*on, *named)) or "none": on for on in switched}
        lives |= _lives.histories(config, more, variants, keys)

    value = lambda name, metric: np.asarray(
        jax.vmap(lambda h: metric(h).mean().value())(lives[name])
    )
    forgotten = {name: value(name, worth.forgetting) for name in lives}
    performed = {name: value(name, worth.performance) for name in lives}
    singles = [name for name in lives if name != "none" and "+" not in name]
    several = [name for name in lives if "+" in name]
    best = lambda names: max(names, key=lambda name: performed[name].mean())
    weakest = max(singles, key=lambda name: forgotten[name].mean())
    gain = performed[best(several)] - performed[best(singles)]
    verdicts = [verdict(forgotten["none"] - forgotten[name], REDUCED) for name in singles]
    verdicts.append(verdict(gain, PERFORMANCE))
    result = FAILS if FAILS in verdicts else HOLDS if set(verdicts) == {HOLDS} else INCONCLUSIVE
    details = [figure(f"forgetting: {name}", x) for name, x in forgotten.items()]
    details += [figure(f"performance: {name}", x, rate=True) for name, x in performed.items()]
    details.append(
        figure(f"performance: best combination {best(several)} - best single {best(singles)}", gain)
    )
    return Check(
        CLAIM,
        METRIC,
        measured=figure(f"{weakest} alone, the weakest component", forgotten[weakest]),
        baseline=figure("PPO without components", forgotten["none"]),
        verdict=result,
        budget=budget,
        difference=figure("forgetting that it prevents", forgotten["none"] - forgotten[weakest]),
        margin=REDUCED,
        details=tuple(details),
        notes=NOTES,
    )
