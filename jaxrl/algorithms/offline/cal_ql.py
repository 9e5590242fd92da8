"""Cal-QL (Nakamoto et al., 2023, "Cal-QL: calibrated offline RL pre-training for efficient online
fine-tuning", arXiv:2303.05479): CQL that does not lower the values of the policy's actions below
the return that the data got from the same state. Values of a usual scale do not have to be learned
again online, which is where an agent of CQL unlearns at first.

This is the phase on a dataset, which has all returns; `cql` has the same parts. A return ends where
a time limit cut the episode off.
"""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.offline import cql
from jaxrl.algorithms.offline.shared.outcomes import add_outcomes
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static


@group
class Config(cql.Config):
    """Settings of Cal-QL: CQL that lowers no value below the data's return (arXiv:2303.05479)."""

    next_samples: int = static(10, low=1)
    """Number of actions of the policy in the next state, of which the best one's value is
    bootstrapped from. 10: authors' code."""


def recipe(env: Environment, config: Config) -> Recipe:
    def reference(net, x):
        """Return the discounted return of the data from the state on."""
        return net.hyper.reward_scale * x.extras["return"]

    plain = cql.recipe(env, config, bound=reference)
    return dataclasses.replace(plain, needs=("transitions.extras.return",))


def source(env: Environment, config: Config) -> Source:
    """Return the dataset, with the return of each step."""
    return add_outcomes(config.data.dataset(env, config.data.batch_size))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, and for an environment beside the
    dataset."""
    soft.check(env, config, name)
    config.data.check_alone(name, "it needs the return of each step")


cal_ql = AlgorithmBuilder("cal_ql", Config, recipe, source, check=check)

TINY = cql.TINY
