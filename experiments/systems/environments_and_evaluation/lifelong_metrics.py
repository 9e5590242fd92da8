"""The metrics of a life rank fine-tuning, EWC, replay and separate experts as they should."""

from __future__ import annotations

import jax
import numpy as np

from experiments.systems.check import FAILS, HOLDS, INCONCLUSIVE, Budget, Check, figure, verdict
from experiments.systems.lifelong import _lives
from jaxrl.evaluation import lifelong as worth

PAPER = {
    "title": "A Domain-Agnostic Approach for Characterization of Lifelong Learning Systems",
    "authors": "Baker, New, Aguilar-Simon, Al-Halah, Arnold, Ben-Iwhiwhu, Brna, Brooks, Brown, "
    "Daniels et al.",
    "year": 2023,
    "arxiv": "2301.07799",
}
CLAIM = "The metrics of a life tell apart systems that forget, that forget less and that cannot."
PARTS = ("jaxrl/evaluation/lifelong.py",)

METRIC = "performance maintenance: change of a task's success rate while others are learnt"
BETTER = 0.05  # by more than this EWC and replay must maintain and perform better than fine-tuning
AS_GOOD = -0.05  # separate experts may not be worse than any by more
SYSTEMS = {"fine-tuning": (), "ewc": ("ewc",), "replay": ("replay",)}
NOTES = (
    "Paper: five case studies of large systems; here fine-tuning, EWC and replay in the life of "
    "check l2rlcf, and separate experts, each trained on one task alone as long as the others are "
    "on it. Expected beforehand: fine-tuning below EWC and replay, and no system above the "
    "experts, in performance maintenance and in performance. Measured: the weaker of EWC and "
    "replay; baseline: fine-tuning. That hand-made logs give hand-computed values is tested in "
    "tests/evaluation/test_lifelong.py."
)


def separate(experts: list[worth.History], config) -> worth.History:
    """The life of a system that has an expert for each task, from those experts' lives: each stays
    as it was when its task was last learnt. Leaves [seeds, ...]."""
    first = experts[0]
    returns = np.array(first.returns)
    for row in range(1, returns.shape[1]):
        for task, expert in enumerate(experts):
            learnt = np.clip(row - task * config.periods, 0, config.periods)
            returns[:, row, task] = expert.returns[:, learnt, task]
    return worth.History(jax.numpy.asarray(returns), first.task, first.recorded)


def check(key: jax.Array, budget: Budget) -> Check:
    """All metrics of all systems, seed by seed."""
    keys = jax.random.split(key, budget.num_seeds(2, 10))
    config = budget.choose(_lives.TINY, _lives.CONFIG)
    alone = {f"expert {task}": () for task in range(len(config.values))}
    found = _lives.histories(config, (), SYSTEMS | alone, keys)
    experts = [found.pop(name) for name in alone]
    found["experts"] = separate(experts, config)
    curves = np.stack(
        [e.returns[:, 1 : config.periods + 1, task] for task, e in enumerate(experts)], 1
    )

    @jax.jit
    @jax.vmap
    def everything(history, curves):
        alone = [worth.performance, worth.forgetting, worth.backward_transfer]
        alone += [worth.forward_transfer, worth.performance_maintenance]
        compared = [worth.relative_performance, worth.forward_transfer_area]
        compared += [worth.sample_efficiency]
        values = {f.__name__: f(history) for f in alone}
        values |= {f.__name__: f(history, curves) for f in compared}
        return {name: x.mean().value() for name, x in values.items()}

    table = {name: everything(history, curves) for name, history in found.items()}
    value = lambda name, metric: np.asarray(table[name][metric], np.float64)
    verdicts = []
    for metric in ("performance_maintenance", "performance"):
        for name in ("ewc", "replay"):
            gain = value(name, metric) - value("fine-tuning", metric)
            room = value("experts", metric) - value(name, metric)
            verdicts += [verdict(gain, BETTER), verdict(room, AS_GOOD)]
    result = FAILS if FAILS in verdicts else HOLDS if set(verdicts) == {HOLDS} else INCONCLUSIVE
    metric = "performance_maintenance"
    weaker = min(("ewc", "replay"), key=lambda name: value(name, metric).mean())
    details = [
        figure(f"{metric}: {name}", value(name, metric), rate=metric == "performance")
        for metric in next(iter(table.values()))
        for name in table
        if np.isfinite(value(name, metric)).all()  # not where no task of some seed has it
    ]
    measured, baseline = value(weaker, metric), value("fine-tuning", metric)
    return Check(
        CLAIM,
        METRIC,
        measured=figure(weaker, measured),
        baseline=figure("fine-tuning", baseline),
        verdict=result,
        budget=budget,
        difference=figure(f"{weaker} - fine-tuning", measured - baseline),
        margin=BETTER,
        details=tuple(details),
        notes=NOTES,
    )
