"""Uni-O4 (Lei et al., 2024, "Uni-O4: Unifying online and offline deep reinforcement learning with
multi-step on-policy optimization", arXiv:2311.03351): PPO's objective offline and online.

In the phase `supervised` all that PPO needs offline is learnt from the data: Q and V in-sample by
implicit Q-learning, a model of the dynamics, and an ensemble of clones that disagree. In the phase
`improvement` these stand still. Each member follows PPO on the data's states, with actions that its
behaviour policy samples itself and advantages Q - V; after each round of gradient steps the member
becomes its own behaviour policy if AM-Q, its mean Q along rollouts of the model, says that it is
better. Online, PPO goes on with the best member and V (`--warm-start`).

A member is pushed from that other one which finds the data's action likeliest, by their divergence,
as in the authors' code with `kl_type=distribution`. (Their `heuristic`, `losses.diverse_cloning`,
has the gradient of cloning alone, times 1 + alpha.) AM-Q compares a member with its behaviour
policy on the same states and noise; the authors' code compares it with the best score so far, which
was measured on others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import losses
from jaxrl.agents.offline.experience import DEFAULT, Experience
from jaxrl.agents.offline.iql import CriticNetworks, Critics
from jaxrl.agents.policy_gradient import ppo
from jaxrl.core import schedules, spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, select, static
from jaxrl.core.spaces import Box
from jaxrl.core.types import Agent, Array, Environment, Info, Key, TimeStep, Tree, struct
from jaxrl.kit.optimisation import as_one, descend, transform
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.dynamics import Dynamics, draw_next, dynamics_loss
from jaxrl.networks.heads import Distribution, check_action_space
from jaxrl.networks.torsos import ACTIVATIONS

PHASES = ("supervised", "improvement")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of Uni-O4."""

    experience: Experience = DEFAULT
    """What is learnt from: a data set. `updates` gradient steps are one round."""
    phase: str = static("supervised", choices=PHASES)
    """supervised (first), or improvement (warm-started from it)."""

    hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of policies, value and each critic."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    policies: int = static(4, low=1, high=MANY)
    """Members of the ensemble of policies."""
    members: int = static(2, low=1, high=MANY)
    """Critics, of which the most cautious counts."""
    model_hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of each model of the dynamics."""
    models: int = static(3, low=1, high=MANY)
    """Models, of which a random one draws each step."""
    starts: int = static(256, low=1, high=MANY)
    """States of the data at which rollouts of the model begin."""
    horizon: int = static(100, low=1)
    """Steps of a rollout."""
    normalize_observation: bool = True
    """Standardise observations with running statistics."""

    learning_rate: float = hyper(3e-4, low=0)
    """Step size of all that is learnt in the supervised phase."""
    target_rate: float = hyper(0.005, low=0, high=1)
    """Share of the critics that goes into the target critics in each step."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    reward_scale: float = hyper(1.0, above=0)
    """What rewards are multiplied by offline."""
    expectile: float = hyper(0.7, above=0, below=1)
    """0.5 is the mean over the data's actions, towards 1 their best."""
    alpha: float = hyper(0.1, low=0)
    """Weight of the clones' disagreement."""
    policy_learning_rate: float = hyper(1e-4, low=0)
    """Step size of the policies' improvement at the start."""
    clip: float = hyper(0.25, above=0, high=math.inf)
    """How far the probability ratio may move from 1 before its gradient stops, at the start;
    infinite for no limit."""
    improvement_steps: float = hyper(math.inf, above=0, high=math.inf)
    """Gradient steps over which this step size and the clip fall to 0; infinite: they do not."""
    max_grad_norm: float = hyper(0.5, above=0, high=math.inf)
    """Longer gradients of a policy's improvement are scaled down to this norm; infinite for
    none."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""
    margin: float = hyper(0.0, low=0, high=math.inf)
    """By how much AM-Q must say that a member is better before it becomes its own behaviour policy;
    infinite for never, which is PPO of one step."""


@struct
class State:
    policies: Tree  # [n]
    behaviours: Tree  # [n]: whom PPO's ratios are measured against
    critics: Critics
    model: Tree
    cloning: Tree  # optimisers
    improvement: Tree  # [n]
    modelling: Tree
    scores: Array  # [n]: AM-Q of the policies after the last round of improvement; 0 before
    hyper: Tree


@dataclasses.dataclass(frozen=True)
class Half:
    """The policy or the value of an actor-critic as a network of its own."""

    network: Any
    method: str

    def init(self, key: Key, timestep: TimeStep) -> Tree:
        return self.network.init(key, timestep, method=self.method)

    def apply(self, params: Tree, timestep: TimeStep) -> Any:
        return self.network.apply(params, timestep, method=self.method)


def whole(policy: Tree, value: Tree) -> Tree:
    """The weights of an actor-critic from those of its halves."""
    return {"params": policy["params"] | value["params"]}


def disagreement(policies: Distribution, action: Tree) -> Array:
    """The divergence [n, B] of each of n policies [n, B] from that other one which finds `action`
    [B] likeliest. Others get no gradient."""
    log_prob: Any = policies.log_prob(action)
    count = log_prob.shape[0]
    other = jnp.where(jnp.eye(count, dtype=bool)[..., None], -jnp.inf, log_prob[None]).argmax(1)
    rows = jnp.arange(log_prob.shape[1])
    others = jax.tree.map(lambda x: jax.lax.stop_gradient(x[other, rows]), policies)
    return jnp.asarray(policies.kl_divergence(others))


def amq(
    act: Callable[[TimeStep], Tree],
    q_value: Callable[[TimeStep, Tree], Array],
    step: Callable[[TimeStep, Tree, Key], TimeStep],
    start: TimeStep,
    keys: Key,
) -> Array:
    """AM-Q, a scalar: the mean of `q_value` along rollouts of a policy in a model, one from each of
    `start` [B], a step for each of `keys`."""

    def one(timestep, key):
        action = act(timestep)
        after = step(timestep, action, key)
        return after, (q_value(timestep, action), after.terminated)

    _, (q, ended) = jax.lax.scan(one, start, keys)
    return losses.amq_estimate(q, ended)


def chosen(policies: Tree, scores: Array) -> Tree:
    """The policy with the highest score, the first among equals."""
    return jax.tree.map(lambda x: x[scores.argmax()], policies)


def agent(env: Environment, config: Config) -> Agent:
    """The Uni-O4 agent for `env` in one of its phases. A batch holds the transitions
    [updates * batch_size] of a round. What it hands over online is the state of PPO with the same
    `hidden` and `activation`. Raises `UserError` unless observations are one box of numbers."""
    _check(env, config)
    x = config.experience
    policy_config = ppo.Config(hidden=config.hidden, activation=config.activation)
    network = ppo.policy_network(env, policy_config)
    player = ppo.agent(env, policy_config)
    policy, value = Half(network, "policy_alone"), Half(network, "value_alone")
    critic: Any = ActionValues(
        env.observation_space, env.action_space, config.hidden, config.members, config.activation
    )
    model: Any = Dynamics(
        env.observation_space,  # pyright: ignore[reportArgumentType]
        env.action_space,
        config.model_hidden,
        config.models,
    )
    optimiser = transform("adam")
    networks = CriticNetworks(value, critic, optimiser)
    clip = lambda action: spaces.clip(env.action_space, action)

    def init(key, hyper):
        keys, timestep = jax.random.split(key, 3), example_timestep(env)
        action = jax.tree.map(lambda x: x[None], spaces.example(env.action_space))
        many = jax.random.split(keys[0], config.policies)
        policies = jax.vmap(policy.init, (0, None))(many, timestep)
        params = model.init(keys[2], timestep, action)
        return State(
            policies,
            jax.tree.map(jnp.copy, policies),
            networks.init(keys[1], timestep, action),
            params,
            optimiser.init(policies),
            jax.vmap(optimiser.init)(policies),
            optimiser.init(params),
            jnp.zeros(config.policies),
            select(config, hyper),
        )

    def act(state, timestep, memory, key, greedy):
        params = whole(chosen(state.policies, state.scores), state.critics.value)
        return player.act(ppo.State(params, (), {}), timestep, memory, key, greedy)

    def hand_over(state):
        if config.phase == "supervised":
            return state
        value = state.critics.value["params"]
        unscaled = jax.tree.map(lambda x: x / state.hyper["reward_scale"], value["value_head"])
        value = {"params": {**value, "value_head": unscaled}}
        params = whole(chosen(state.policies, state.scores), value)
        return ppo.State(params, transform(policy_config.optimiser).init(as_one(params)), {})

    # ------------------------------------------------------------------- what is learnt from data

    def clone(state: State, x):
        def loss(policies):
            all_of_them = jax.vmap(policy.apply, (0, None))(policies, x.timestep)
            cloning = losses.behaviour_cloning(all_of_them.log_prob(x.action))
            apart = disagreement(all_of_them, x.action)
            total = (cloning - state.hyper["alpha"] * apart).mean(1).sum()
            return total, {"cloning_loss": cloning.mean(), "disagreement": apart.mean()}

        gradient, info = jax.grad(loss, has_aux=True)(state.policies)
        rate = state.hyper["learning_rate"]
        policies, moments, _ = descend(optimiser, gradient, state.cloning, state.policies, rate)
        return policies, moments, info | {"policy_norm": optax.tree.norm(policies)}

    def learn_dynamics(state: State, x):
        def loss(params):
            prediction = model.apply(params, x.timestep, x.action)
            space: Any = env.observation_space
            return dynamics_loss(prediction, space, x.timestep, x.next_timestep).mean(1).sum()

        loss_now, gradient = jax.value_and_grad(loss)(state.model)
        rate = state.hyper["learning_rate"]
        params, moments, _ = descend(optimiser, gradient, state.modelling, state.model, rate)
        return params, moments, {"model_loss": loss_now, "model_norm": optax.tree.norm(params)}

    def supervise(state, batch, key):
        def step(state, x):
            critics, info = networks.update(state.critics, x, state.hyper)
            policies, cloning, said = clone(state, x)
            params, modelling, and_said = learn_dynamics(state, x)
            state = dataclasses.replace(
                state,
                policies=policies,
                behaviours=policies,
                critics=critics,
                model=params,
                cloning=cloning,
                modelling=modelling,
            )
            return state, info | said | and_said

        state, info = jax.lax.scan(step, state, _rounds(batch.transitions, x.updates))
        return state, Info({name: values.mean() for name, values in info.items()})

    # ------------------------------------------------------------------- multi-step improvement

    def improve_one(member, timestep, key, critics, rate, clip_range, hyper):
        """One gradient step of one member: a policy, its behaviour policy, its optimiser."""
        params, behaviour, moments = member
        old = policy.apply(behaviour, timestep)
        action = jax.lax.stop_gradient(old.sample(seed=key))
        # A world clips what is beyond its bounds, and Q knows nothing else.
        advantage = networks.advantage(critics, timestep, clip(action))
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def loss(params):
            new = policy.apply(params, timestep)
            log_prob, old_log_prob = new.log_prob(action), old.log_prob(action)
            surrogate = losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip_range)
            total = (surrogate - hyper["entropy_weight"] * new.entropy()).mean()
            return total, losses.kl_k3(old_log_prob, log_prob).mean()

        (total, kl), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments, _ = descend(
            optimiser, gradient, moments, params, rate, hyper["max_grad_norm"]
        )
        return (params, behaviour, moments), {"policy_loss": total, "approximate_kl": kl}

    def improve(state, batch, key):
        step_key, score_key = jax.random.split(key)
        hyper, rounds = state.hyper, _rounds(batch.transitions.timestep, x.updates)
        done = schedules.progress(batch.frames - x.updates, hyper["improvement_steps"])
        rate = (1 - done) * hyper["policy_learning_rate"]
        clip_range = (1 - done) * hyper["clip"]

        def step(members, inputs):
            timestep, key = inputs
            one = lambda member, key: improve_one(
                member, timestep, key, state.critics, rate, clip_range, hyper
            )
            return jax.vmap(one)(members, jax.random.split(key, config.policies))

        members = (state.policies, state.behaviours, state.improvement)
        keys = jax.random.split(step_key, x.updates)
        (policies, behaviours, moments), info = jax.lax.scan(step, members, (rounds, keys))
        start = jax.tree.map(lambda leaf: leaf[: config.starts], batch.transitions.timestep)
        both = jax.vmap(jax.vmap(lambda params: score(state, params, start, score_key)))(
            jax.tree.map(lambda a, b: jnp.stack([a, b]), policies, behaviours)
        )
        better = both[0] > both[1] + hyper["margin"]
        state = dataclasses.replace(
            state,
            policies=policies,
            behaviours=trees.where(better, policies, behaviours),
            improvement=moments,
            scores=both[0],
        )
        metrics = {name: values.mean() for name, values in info.items()} | {
            "score": both[0].max(),
            "score_gain": (both[0] - both[1]).mean(),
            "replaced": better.mean(dtype=jnp.float32),
            "policy_norm": optax.tree.norm(policies),
        }
        return state, Info(metrics)

    def score(state: State, params: Tree, start: TimeStep, key: Key) -> Array:
        """AM-Q of one policy, greedy, in the model that was learnt."""
        return amq(
            lambda timestep: clip(policy.apply(params, timestep).mode()),
            lambda timestep, action: critic.apply(state.critics.target, timestep, action).min(-1),
            lambda timestep, action, key: draw_next(
                model.apply(state.model, timestep, action), timestep, key
            ),
            start,
            jax.random.split(key, config.horizon),
        )

    return Agent(
        f"uni_o4 ({config.phase})",
        init,
        act,
        supervise if config.phase == "supervised" else improve,
        hyper=hypers(config),
        config=config,
        hand_over=hand_over,
    )


def _rounds(tree: Tree, count: int) -> Tree:
    """Leaves [count * n] as [count, n]."""
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), tree)


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_action_space(env.action_space, "uni_o4")
    if not isinstance(env.observation_space, Box):
        raise UserError(
            f"uni_o4 learns a model of observations that are one Box; those of '{env.name}' are "
            f"{env.observation_space!r}."
        )
    rows = config.experience.updates * config.experience.batch_size
    if config.starts > rows:
        raise UserError(f"starts is {config.starts}; a round has only {rows} transitions.")
