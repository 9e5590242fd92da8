"""Discrete batch-constrained Q-learning (Fujimoto, Conti, Ghavamzadeh and Pineau, 2019,
"Benchmarking batch deep reinforcement learning algorithms", arXiv:1910.01708): double Q-learning
from a dataset that chooses only among actions which a clone of the data finds likely enough,
compared with the likeliest one.

This is the variant for discrete actions of `bcq`. Values and clone share no layers, as in the
authors' code without images. An action that is not greedy is chosen in the same way (in their code
for Atari at random once in 1,000).
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.shared import discrete_values
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.algorithms.offline.shared.discrete_values import outputs, q_error, value_part
from jaxrl.algorithms.value.shared.q_learning import check_q_learning
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss
from jaxrl.networks.heads import categorical


@group
class Config(discrete_values.DiscreteValues):
    """Settings of discrete BCQ: Q-learning among the actions that a clone finds likely
    (arXiv:1910.01708). The defaults are those of the authors' code without images."""

    data: Data = Data(batch_size=64)

    threshold: float = hyper(0.3, low=0, below=1)
    """Probability relative to the likeliest action's above which an action may be chosen: 0 for
    Q-learning, toward 1 for cloning."""
    logit_weight: float = hyper(0.01, low=0)
    """Weight of the mean square of the clone's logits in its loss."""


@loss("q")
def q_loss(net, x):
    """Regress Q(s, a) on r + gamma Q'(s', a'), a' the best allowed action by Q."""
    allowed = losses.bcq_mask(outputs(net.clone, x.next_timestep), net.hyper.threshold)
    error, q = q_error(net, x, allowed)
    return LossOutput(error, {"value": losses.at_action(q, x.action)})


@loss("clone")
def clone_loss(net, x):
    """Compute -log G(a|s) of the data's actions, and the weighted square of the logits."""
    logits = net.clone(x.timestep)[..., 0]
    log_prob = categorical(logits, x.timestep.legal_actions).log_prob(x.action)
    square = jnp.square(logits).mean(-1)
    return losses.behavior_cloning(log_prob) + net.hyper.logit_weight * square


def recipe(env: Environment, config: Config) -> Recipe:
    def act(net, timestep, memory, key, greedy):
        allowed = losses.bcq_mask(outputs(net.clone, timestep), net.hyper.threshold)
        best = jnp.where(allowed, outputs(net.q, timestep), -jnp.inf).argmax(-1)
        return best.astype(env.action_space.dtype), memory, {}

    return Recipe(
        parts={"q": value_part(env, config), "clone": value_part(env, config, target=False)},
        act=act,
        losses=(q_loss, clone_loss),
    )


discrete_bcq = AlgorithmBuilder("discrete_bcq", Config, recipe, check=check_q_learning)

TINY = discrete_values.TINY
