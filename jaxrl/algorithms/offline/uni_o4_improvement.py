"""Uni-O4's second phase, multi-step on-policy improvement without an environment (see `uni_o4`).

Q, V and the model are frozen; Q is the target network (in the authors' code the network). Each
member follows PPO on the data's states, with actions sampled from its behavior policy and
advantages Q - V. After each round of gradient steps the member becomes its own behavior policy if
it has the higher AM-Q, the mean Q along rollouts of the model. Online, PPO continues with the best
member and V (`--warm-start`).

Here AM-Q compares a member with its behavior policy on the same states and noise; the authors' code
compares it with the best score so far, which was measured on other states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline import uni_o4
from jaxrl.algorithms.offline.shared import two_phases
from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.core import schedules, spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.descent import OwnDescent
from jaxrl.kit.groups import INF
from jaxrl.kit.state import State, Trained
from jaxrl.networks.dynamics import draw_next


@group
class Config(two_phases.TwoPhases):
    """Settings of Uni-O4's improvement phase: PPO on the data's states, gated by AM-Q
    (arXiv:2311.03351)."""

    starts: int = static(256, low=1, high=MANY)
    """Number of states of the data at which rollouts of the model begin."""
    horizon: int = static(100, low=1, high=MANY)
    """Number of steps of a model rollout."""

    clip: float = hyper(0.25, above=0, high=INF)
    """Initial clip range of the probability ratio around 1; it falls to 0 over
    `improvement.learning_rate_steps`."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""
    margin: float = hyper(0.0, low=0, high=INF)
    """Gain in AM-Q that a member needs to become its own behavior policy; infinite for never, which
    is one-step PPO."""


@struct
class Sample:
    """Data for a gradient step of n members at B states."""

    timestep: TimeStep  # [B]
    action: Tree  # [n, B]
    log_prob: Array  # [n, B]: by the behavior policy that sampled the action
    advantage: Array  # [n, B]


def sample_behaviors(net: Net, timestep: TimeStep, space: Space, weighted: bool) -> Sample:
    """Sample actions of the behavior policies at time steps [B], with standardized advantages Q -
    V.

    weighted: weigh positive advantages by the expectile, others by 1 minus the expectile.
    """
    behaviors = net.behaviors(timestep)
    action = behaviors.sample(seed=net.key("actions"))
    # The environment clips actions to their bounds, and Q was learned on clipped actions.
    played = spaces.clip(space, action)
    q = jax.vmap(lambda action: net.target.critic(timestep, action).min(-1))(played)
    advantage = q - net.value(timestep)
    advantage = advantage - advantage.mean(-1, keepdims=True)
    advantage = advantage / (advantage.std(-1, keepdims=True) + 1e-8)
    if weighted:
        share = net.hyper.expectile
        advantage = jnp.where(advantage > 0, share, 1 - share) * advantage
    return Sample(timestep, action, behaviors.log_prob(action), advantage)


@loss("policies")
def policies_loss(net: Net, x: Sample) -> LossOutput:
    """Compute PPO's clipped surrogate of each member, less an entropy bonus."""
    h = net.hyper
    policies = net.policies(x.timestep)
    log_prob = policies.log_prob(x.action)
    left = 1 - schedules.progress(net.env_steps, h.improvement.learning_rate_steps)
    surrogate = losses.clipped_surrogate(log_prob, x.log_prob, x.advantage, left * h.clip)
    each = surrogate - h.entropy_weight * policies.entropy()
    metrics = {"policy_loss": each, "approximate_kl": losses.kl_k3(x.log_prob, log_prob)}
    return LossOutput(each.sum(0), metrics)


def amq(
    act: Callable[[TimeStep], Tree],
    q_value: Callable[[TimeStep, Tree], Array],
    step: Callable[[TimeStep, Tree, Key], TimeStep],
    start: TimeStep,
    keys: Key,
) -> Array:
    """Compute AM-Q, a scalar: the mean of `q_value` along rollouts of a policy in a model, one from
    each of `start` [B], with one step for each of `keys`."""

    def one(timestep, key):
        action = act(timestep)
        after = step(timestep, action, key)
        return after, (q_value(timestep, action), after.terminated)

    _, (q, ended) = jax.lax.scan(one, start, keys)
    return losses.amq_estimate(q, ended)


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space

    def scores(net, policies, start):
        """Return AM-Q [n] of greedy policies [n] in the learned model."""
        keys = jax.random.split(net.key("score"), config.horizon)
        policy = net.network("policies")
        one = lambda params: amq(
            lambda timestep: spaces.clip(space, policy.apply(params, timestep).mode()),
            lambda timestep, action: net.target.critic(timestep, action).min(-1),
            lambda timestep, action, key: draw_next(net.model(timestep, action), timestep, key),
            start,
            keys,
        )
        return jax.vmap(one)(policies)

    def step(net, minibatch):
        weighted = config.values == "sarsa"  # as in the authors' code
        sample = sample_behaviors(net, minibatch.x.timestep, space, weighted)
        return net.descend(policies_loss, sample, mask=minibatch.mask, weight=minibatch.weight)

    def update(net, batch):
        net = net.minibatches(config.data.updates, batch, step)
        policies, behaviors = (net.parts[name].params for name in ("policies", "behaviors"))
        start = jax.tree.map(lambda x: x[: config.starts], batch.transitions.timestep)
        both = jax.tree.map(lambda *x: jnp.concatenate(x), policies, behaviors)
        new, old = jnp.split(scores(net, both, start), 2)
        better = new > old + net.hyper.margin
        net = net.with_params(behaviors=trees.where(better, policies, behaviors))
        return net.replace(extra={"scores": new}).report(
            score=new.max(),
            score_gain=(new - old).mean(),
            replaced=better.mean(dtype=jnp.float32),
        )

    def hand_over(state: State) -> State:
        """Return PPO's state with the best member and the value of unscaled rewards."""
        best = two_phases.best_policy(state.parts["policies"].params, state.extra["scores"])[
            "params"
        ]
        value = state.parts["value"].params["params"]
        head = jax.tree.map(lambda x: x / state.hyper["reward_scale"], value["value_head"])
        params = {"params": {**best, **value, "value_head": head}}
        descent = OwnDescent(ppo.Config().optimizer, "optimizer")
        trained = Trained(params, descent.init(params))
        return dataclasses.replace(state, parts={"actor_critic": trained}, extra=())

    return two_phases.make_recipe(
        env,
        config,
        (policies_loss,),
        update,
        hand_over=hand_over,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as in the first phase, and if a round has too few states for `starts`."""
    two_phases.check(env, config, name)
    rows = config.data.updates * config.data.batch_size
    if config.starts > rows:
        raise UserError(f"starts is {config.starts}; a round has only {rows} transitions.")


uni_o4_improvement = AlgorithmBuilder(
    "uni_o4_improvement",
    Config,
    recipe,
    two_phases.dataset_source,
    lambda config: 1,
    check,
    goes_on_from="uni_o4",
)

TINY = uni_o4.TINY | {"starts": 4, "horizon": 2, "improvement.learning_rate_steps": 8.0}
