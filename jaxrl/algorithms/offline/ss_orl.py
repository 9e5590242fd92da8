"""SS-ORL (Zheng, Henaff, Amos and Grover, 2023, "Semi-supervised offline reinforcement learning
with action-free trajectories", arXiv:2210.06518): an inverse dynamics model of the few labeled
episodes labels all others, and TD3+BC learns from the true actions and the labels.

The model tells a_t from s_t-k .. s_t+1 with k = 1, labels are its means, and 10 % of the episodes
are labeled, drawn from the half with the lowest returns, as in the authors' code. Their model is a
squashed normal distribution, and the step at which it was best on held-out episodes is used; here
it is a normal one with a bounded mean, trained for a number of steps. Before an episode's first
step that one is repeated, where the authors put zeros.
"""

from __future__ import annotations

from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.offline import td3_bc
from jaxrl.algorithms.offline.shared import inverse_dynamics
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.algorithms.offline.shared.inverse_dynamics import Inverse
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(td3_bc.Config):
    """Settings of SS-ORL: TD3+BC on episodes labeled by an inverse dynamics model
    (arXiv:2210.06518)."""

    inverse: Inverse = Inverse()


def recipe(env: Environment, config: Config) -> Recipe:
    inner = td3_bc.recipe(env, config)
    steps = lambda net: net.hyper.inverse.steps
    return inverse_dynamics.learn_from_labels(inner, env, config.inverse, steps)


def source(env: Environment, config: Config) -> Source:
    """Return steps of the dataset with those around them, of which some are labeled."""
    return inverse_dynamics.source(env, config.data, config.inverse)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where TD3+BC cannot learn in `env`, and for an environment beside the
    dataset."""
    deterministic.check(env, config, name)
    config.data.check_alone(name, "an environment would tell the actions")


ss_orl = AlgorithmBuilder("ss_orl", Config, recipe, source, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "torso.hidden": (8,),
    "inverse.torso.hidden": (8,),
    "inverse.steps": 2.0,
    "labeled_below": 1.0,
}
