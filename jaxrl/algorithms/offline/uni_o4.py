"""Uni-O4 (Lei et al., 2024, "Uni-O4: Unifying online and offline deep reinforcement learning with
multi-step on-policy optimization", arXiv:2311.03351): PPO's objective offline and online.

This is its supervised phase, which learns from the data everything that PPO needs offline: Q and V
of the policies that collected it, a model of the dynamics, and a diverse ensemble of clones.
`uni_o4_improvement` continues from it, and PPO online from that (`--warm-start`).

The authors' code can learn Q and V in two ways: by Sarsa and the returns of the data (its default),
or by implicit Q-learning, which most of its scripts select (except those for medium-expert data of
HalfCheetah and Hopper). After a time limit it continues into the next episode as if that followed;
here a return ends there, and V replaces the Q-value of the missing next action.

Each member is pushed away from that other member which finds the data's action likeliest, by their
divergence, as in the authors' code with `kl_type=distribution`, but for its mean over the
dimensions of an action, which is the sum here, so that `alpha` weighs as many times more. (Their
`heuristic`, `losses.diverse_cloning`, has the gradient of cloning alone, times 1 + alpha.)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.iql import critic_loss, value_loss
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.algorithms.offline.shared.dynamics_loss import dynamics_loss
from jaxrl.algorithms.offline.shared.outcomes import add_outcomes
from jaxrl.algorithms.offline.shared.two_phases import TwoPhases, check, dataset_source, make_recipe
from jaxrl.core.types import Array, Environment, Source, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss
from jaxrl.networks.heads import Distribution


@group
class Config(TwoPhases):
    """Settings of Uni-O4's supervised phase: learn Q, V, a dynamics model and an ensemble of clones
    from data (arXiv:2311.03351). A warm start needs the same sizes in both phases."""


@loss("critic", name="critic_loss")
def sarsa_loss(net: Net, x: Transition) -> Array:
    """Regress Q on r + gamma Q(s', a') of the data's next action, each critic on its own target
    network. A truncated episode has no next action; V(s') replaces Q there."""
    h = net.hyper
    after = net.target.critic(x.next_timestep, x.extras["next_action"])
    after = jnp.where(x.truncated[..., None], net.value(x.next_timestep)[..., None], after)
    reward, terminated = h.reward_scale * x.reward[..., None], x.terminated[..., None]
    target = losses.td_target(reward, terminated, h.discount, after)
    return losses.squared_error(net.critic(x.timestep, x.action), target).sum(-1)


@loss("value", name="value_loss")
def return_loss(net: Net, x: Transition) -> LossOutput:
    """Regress V on the discounted return of the rest of the episode in the data."""
    value = net.value(x.timestep)
    target = net.hyper.reward_scale * x.extras["return"]
    return LossOutput(losses.squared_error(value, target), {"mean_value": value})


# Losses of V and of Q, by `Config.values`.
LOSSES = {"sarsa": (return_loss, sarsa_loss), "iql": (value_loss, critic_loss)}


def disagreement(policies: Distribution, action: Tree) -> Array:
    """Compute the divergence [n, B] of each of n policies [n, B] from that other policy which finds
    `action` [B] likeliest. The other policy gets no gradient."""
    log_prob: Any = policies.log_prob(action)
    count = log_prob.shape[0]
    other = jnp.where(jnp.eye(count, dtype=bool)[..., None], -jnp.inf, log_prob[None]).argmax(1)
    rows = jnp.arange(log_prob.shape[1])
    others = jax.tree.map(lambda x: jax.lax.stop_gradient(x[other, rows]), policies)
    return jnp.asarray(policies.kl_divergence(others))


@loss("behaviors")
def behaviors_loss(net: Net, x: Transition) -> LossOutput:
    """Imitate the data's actions by all members, less alpha times their disagreement."""
    policies = net.behaviors(x.timestep)
    cloning = losses.behavior_cloning(policies.log_prob(x.action))
    apart = disagreement(policies, x.action)
    error = (cloning - net.hyper.alpha * apart).sum(0)
    return LossOutput(error, {"cloning_loss": cloning, "disagreement": apart})


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("model")
    def model_loss(net, x):
        """Compute the negative log-likelihood of the next time step, summed over models."""
        space: Any = env.observation_space
        prediction = net.model(x.timestep, x.action)
        return dynamics_loss(prediction, space, x.timestep, x.next_timestep).sum(0)

    def step(net, minibatch):
        for each in descended:
            net = net.descend(each, minibatch)
        return net.update_targets()

    def update(net, batch):
        net = net.minibatches(config.data.updates, batch, step)
        # Until improvement begins, the policies are their own behavior policies.
        return net.with_params(policies=net.parts["behaviors"].params)

    descended = (*LOSSES[config.values], behaviors_loss, model_loss)
    extras = ("next_action", "return") if config.values == "sarsa" else ()
    needs = tuple(f"transitions.extras.{name}" for name in extras)
    return make_recipe(env, config, descended, update, needs=needs)


def source(env: Environment, config: Config) -> Source:
    """Return the dataset, with outcomes of each action if Sarsa needs them.

    Raises `UserError` as `dataset_source`.
    """
    data = dataset_source(env, config)
    return add_outcomes(data) if config.values == "sarsa" else data


uni_o4 = AlgorithmBuilder(
    "uni_o4", Config, recipe, source, lambda config: 1, check
)  # one round per update

TINY = TINY_DATA | {
    "env": "pendulum",
    "torso.hidden": (8,),
    "model_hidden": (8,),
    "num_policies": 2,
    "num_models": 2,
}
