"""HNPG (Zhou, Sekhari, Song and Sun, 2024, "Offline data enhanced on-policy policy gradient with
provable guarantees", arXiv:2311.08384): natural policy gradient whose critic Q learns from the
returns of its own steps and from Bellman errors on a dataset at once,

    weight (Q(s, a) - return)^2 + (Q(s', a') - (r' + E_pi Q_target(s'', .)))^2

so that the data lead where exploration does not, and the policy is improved as by on-policy
learning where they cannot be trusted. As in the authors' code the natural gradient is TRPO's step,
and improves the policy in the dataset's states too, for an action of its own with Q - V there. For
its own steps the advantages are generalized, by V = E_pi Q. Nothing is standardized.

The code has a policy and a critic for each step of an episode and fits them from the last step
backwards, with continuous actions; here there is one of each, with a target network that is copied
after each window, and actions are discrete, so that expectations under the policy are exact. The
dataset is played by the environment's expert with random actions in between, in each run anew.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.offline.shared.discrete_values import outputs
from jaxrl.algorithms.policy_gradient import trpo
from jaxrl.algorithms.policy_gradient.shared.actor_critic import Sample, sample_of
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core import settings
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Transition, struct
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import Target
from jaxrl.losses.reductions import at_action
from jaxrl.networks.heads import check_discrete
from jaxrl.sources.beside import beside
from jaxrl.sources.imagined import keep_predicted
from jaxrl.sources.played import played_dataset

DATA = "data"  # the extra that holds a transition of the dataset beside each step


@group
class Offline:
    """Dataset of the environment's expert, some of whose actions are random."""

    size: int = static(4_000, low=1, high=MANY)
    """Number of steps in the dataset."""
    skill: float = static(0.9, low=0, high=1)
    """Probability that an action is the expert's; otherwise it is random. Authors' code: 1 less the
    inverse of the horizon."""


@group
class Config(trpo.Config):
    """Settings of HNPG: TRPO whose critic learns from returns and from Bellman errors on data
    (arXiv:2311.08384)."""

    data: Offline = Offline()
    target: Target = Target(rate=1.0)
    """Target network of the critic, for Bellman errors; it is updated once for each window."""

    weight: float = hyper(1.0, low=0)
    """Weight of the squared errors of returns beside the Bellman errors on the data; lambda in the
    paper. 1: authors' code."""


@struct
class Hybrid:
    """Steps [T, B] that the critic learns from, and as many of the dataset.

    target: returns of the steps. data_target: what values of the dataset's actions regress on.
    """

    timestep: TimeStep
    action: Array
    target: Array
    data: Transition
    data_target: Array


@loss("critic")
def hybrid_loss(net: Any, x: Hybrid) -> LossOutput:
    """Compute the squared error of returns, and that of Bellman targets on the data (algorithm
    2)."""
    q = at_action(outputs(net.critic, x.timestep), x.action)
    data_q = at_action(outputs(net.critic, x.data.timestep), x.data.action)
    error = losses.squared_error(q, x.target)
    data_error = losses.squared_error(data_q, x.data_target)
    metrics = {"return_error": error, "bellman_error": data_error}
    return LossOutput(net.hyper.weight * error + data_error, metrics)


def value(net: Any, critic: Any, timestep: TimeStep) -> Array:
    """Return E_pi Q(s, .) [...] of a critic, under the policy as it is."""
    return losses.expected_value(outputs(critic, timestep), jnp.exp(net.actor(timestep).logits))


def make_targets(net: Any, batch: Batch) -> Hybrid:
    """Return what the critic regresses on: discounted returns, bootstrapped where the window or a
    time limit cuts an episode off, and Bellman targets of the dataset."""
    x, h = batch.transitions, net.hyper
    data = x.extras[DATA]
    now, following = (value(net, net.critic, t) for t in (x.timestep, x.next_timestep))
    steps = (x.reward, now, following, x.terminated, x.done)
    returns = losses.gae(*steps, h.discount, 1.0) + now
    after = value(net, net.target.critic, data.next_timestep)
    bellman = losses.td_target(data.reward, data.terminated, h.discount, after)
    return Hybrid(x.timestep, x.action, returns, data, bellman)


def policy_sample(net: Any, batch: Batch) -> Sample:
    """Return what the policy is improved on, [2 T, B]: its own steps with generalized advantages,
    and the dataset's states with an action of the policy and Q - V."""
    x = batch.transitions
    seen = x.extras[DATA].timestep
    now, following = (value(net, net.critic, t) for t in (x.timestep, x.next_timestep))
    own = sample_of(net, batch, now, following)
    policy = net.actor(seen)
    action = policy.sample(seed=net.key("actions"))
    q = outputs(net.critic, seen)
    advantage = at_action(q, action) - losses.expected_value(q, jnp.exp(policy.logits))
    both = lambda a, b: jax.tree.map(lambda a, b: jnp.concatenate([a, b]), a, b)
    return dataclasses.replace(
        own,
        timestep=both(keep_predicted(own.timestep), keep_predicted(seen)),
        action=both(own.action, action),
        log_prob=both(own.log_prob, policy.log_prob(action)),
        advantage=both(own.advantage, advantage),
    )


def recipe(env: Environment, config: Config) -> Recipe:
    plain = trpo.recipe(env, config)
    network = q_network(env, config.torso)

    def update(net: Net, batch: Batch) -> Net:
        window = Minibatch(make_targets(net, batch), batch.mask, batch.weight)
        net = net.report(entropy=net.actor(batch.transitions.timestep).entropy().mean())
        net = net.epochs(config.passes, window, lambda net, x: net.descend(hybrid_loss, x))
        sample = policy_sample(net, batch)
        net = trpo.improve_policy(
            net, sample, config.iterations, config.backtracks, config.shrinkage
        )
        return net.update_targets()

    critic = Part(network, (example_timestep(env),), config.optimizer, config.target)
    return dataclasses.replace(
        plain,
        parts={"actor": plain.parts["actor"], "critic": critic},
        losses=(hybrid_loss,),
        update=update,
        needs=(*plain.needs, f"transitions.extras.{DATA}"),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows of rollouts, with a transition of the dataset beside each of their steps."""
    x, advised = config.rollouts, expert_channel(env)
    data = played_dataset(
        advised,
        mixed_skill(advised, (config.data.skill,)),
        config.data.size,
        x.num_envs * x.num_steps,
        num_shards=x.num_shards,
    )
    return beside(x.source(env), data, DATA)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as TRPO, for actions that are not Discrete, for an environment without an
    expert, and for normalization, which the dataset would not go through."""
    trpo.check(env, config, name)
    check_discrete(env.action_space, name)
    expert_channel(env)
    wrong = ("normalization.observation", "normalization.reward")
    settings.refuse(config, wrong, "the dataset is not normalized")


hnpg = AlgorithmBuilder("hnpg", Config, recipe, source, check=check)

TINY = {"env": "diabolical_lock", "env_params": {"horizon": 3, "num_actions": 2}} | {
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "epochs": 2,
    "minibatches": 2,
    "hidden": (8,),
    "data.size": 64,
}
