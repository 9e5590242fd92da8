"""Multi-objective decision transformer (Ghanem, Ciblat and Ghogho, 2023, "Multi-objective decision
transformers for offline reinforcement learning", arXiv:2308.16379): a decision transformer that
also predicts the next observation and the next return-to-go from the token of each action, so that
its attention has to look at more than what the action needs.

The loss is the sum of three errors, where the two new ones have weights of their own; with weights
0 this is `decision_transformer`. Only the paper's abstract was at hand: it says that states and
returns are predicted beside actions. Squared errors, their weights and the places of the
predictions are ours (the places are those of the outputs that the decision transformer's code has
and does not train). The paper's second idea, regions of the action space in the trajectories, is
not done.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline import decision_transformer as dt
from jaxrl.algorithms.offline.shared.sequences import (
    action_error,
    features_of,
    read_window,
    sequence_part,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment, Transition
from jaxrl.kit import LossOutput, Net, Recipe, group, hyper, loss


@group
class Config(dt.Config):
    """Settings of the multi-objective decision transformer: cloning beside predictions of
    observations and returns (arXiv:2308.16379)."""

    state_weight: float = hyper(1.0, low=0)
    """Weight of the error of predicted observations."""
    return_weight: float = hyper(1.0, low=0)
    """Weight of the error of predicted returns-to-go."""


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("sequence")
    def sequence_loss(net: Net, x: Transition) -> LossOutput:
        """Compute the errors of each step's action, next observation and next return-to-go."""
        h, to_go = net.hyper, x.extras["to_go"]
        steps = read_window(env, x, to_go / h.return_scale)
        found = net.sequence(steps, x.timestep.legal_actions)
        error = action_error(env.action_space, found.policy, x.action)
        state, left = features_of(env, x.next_timestep), (to_go - x.reward) / h.return_scale
        known = jnp.zeros((*error.shape, 1))  # `error` has the action's term for any action space
        value = error + losses.modt(
            known, known, found.features, state, found.to_go, left, h.state_weight, h.return_weight
        )
        return LossOutput(
            value,
            {
                "action_error": error,
                "state_error": jnp.square(found.features - state).mean(-1),
                "return_error": jnp.square(found.to_go - left),
            },
        )

    size = features_of(env, example_timestep(env)).shape[-1]
    part = sequence_part(env, config.sequence, config.optimizer, predicts=size)
    plain = dt.recipe(env, config)
    return Recipe(
        parts={"sequence": part},
        act=plain.act,
        losses=(sequence_loss,),
        memory=plain.memory,
        needs=plain.needs,
    )


modt = dt.decision_transformer.variant("modt", Config=Config, recipe=recipe)

TINY = dt.TINY
