"""Decision transformer (Chen et al., 2021, "Decision transformer: reinforcement learning via
sequence modeling", arXiv:2106.01345): clone the actions of a dataset as the continuation of
returns-to-go, observations and actions, and act by asking for a return.

Three tokens a step; the policy at a step sees the last `context` steps, with the return that was
still to come from each. While it acts the first return-to-go is `target_return`, and each later one
is less by the rewards seen. Returns are not discounted, and those of an episode that a time limit
ended are of what was recorded. Sizes and optimizer are those of the authors' code for Gym, without
its warm-up of the step size and its dropout. Its actions of a box are its network's outputs, within
the bounds by a tanh, and the loss is their mean squared error; those of other spaces are sampled,
and the loss is the cross-entropy, as in the authors' Atari code.
"""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.offline.shared.sequences import (
    Sequence,
    act_by_sequence,
    action_error,
    no_steps,
    read_window,
    sequence_part,
)
from jaxrl.core.types import Array, Environment, Source, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, loss
from jaxrl.kit.groups import Normalization, Optimizer
from jaxrl.sources.played import windows


@group
class Config:
    """Settings of the decision transformer: cloning under the return that followed
    (arXiv:2106.01345)."""

    data: Data = Data(batch_size=64)
    sequence: Sequence = Sequence()
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, weight_decay=1e-4, max_grad_norm=0.25)
    """Optimizer settings of the transformer. AdamW, 1e-4, weight decay 1e-4, gradient norms up to
    0.25: authors' code."""
    normalization: Normalization = Normalization(observation=True)

    target_return: float = hyper(0.0)
    """Return that an episode is asked for while the policy acts."""
    return_scale: float = hyper(1000.0, above=0)
    """Divisor of returns before the network sees them."""


def ask_target(net: Net, timestep: Any) -> Array:
    """Return the return that the settings ask for."""
    return net.hyper.target_return


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("sequence")
    def sequence_loss(net: Net, x: Transition) -> Array:
        """Compute the error of each step's action, given what came before it."""
        steps = read_window(env, x, x.extras["to_go"] / net.hyper.return_scale)
        policy = net.sequence(steps, x.timestep.legal_actions).policy
        return action_error(env.action_space, policy, x.action)

    return Recipe(
        parts={"sequence": sequence_part(env, config.sequence, config.optimizer)},
        act=act_by_sequence(env, "sequence", ask_target),
        losses=(sequence_loss,),
        memory=lambda n: no_steps(env, config.sequence.context, n),
        needs=("transitions.extras.to_go", "transitions.extras.time"),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows within episodes of the dataset, that begin at any step."""
    return config.data.view_source(env, windows(config.sequence.context, pad=True))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where no sequence policy can act in `env`, and for an environment beside
    the dataset."""
    config.sequence.check(env, name)
    config.data.check_alone(name, "its returns-to-go are those of recorded episodes")


decision_transformer = AlgorithmBuilder("decision_transformer", Config, recipe, source, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "context": 3,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "target_return": -200.0,
}
