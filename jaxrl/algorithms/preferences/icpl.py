"""ICPL (Yu, Tan, Lu, Gao, Yang, Wang, Wu and Vinitsky, 2024, "Few-shot In-Context Preference
Learning Using Large Language Models", arXiv:2410.17233): reward functions are searched for by
preferences between whole behaviors.

In each round K reward functions are proposed, an agent learns from each, and a person who watches
the agents says which is the best and which the worst. The next round's proposals refine the best
one, knowing the worst. The result is the best agent of all rounds. K is 6 and there are 5 rounds in
the authors' code.

In place of the language model, which writes rewards as code from an environment's source and a
task's text, stands a scripted proposer. It writes weighted sums of named features of a step: the
numbers of the observation, their magnitudes, and the size of the action. It first draws a few
features with random signs; later it tunes the best weights found so far, adds and drops terms, and
steps away from the worst reward of the last round. So nothing of a language model's knowledge of
tasks is here, nor is the difference of two rewards put into words, nor do the means of features
during training go back to the proposer. What is left of the claim is the loop: preferences between
few trained agents, whether refining finds better rewards than drawing new ones
(`proposer: random`), and how many comparisons it takes. In place of the person stands the
environment's own return, as with the authors' synthetic preferences: of two agents the one with
the larger mean return is preferred, and the environment's reward has no other use.

All K agents learn side by side, from new weights in each round, by PPO. A round takes 2 K - 3
comparisons for its best and worst agent, and from the second on one with the best agent so far:
49 for five rounds of six agents.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.learn import LearnerState, learn
from jaxrl.core.settings import settings_of
from jaxrl.core.spaces import Box
from jaxrl.core.types import Algorithm, Array, Environment, Key, Tree, struct
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers import reward_components
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import Direct, DirectBuilder, group, hyper, static
from jaxrl.kit.normalization import add_normalization
from jaxrl.kit.wrapping import params_of, within
from jaxrl.sources.rollouts import rollouts, window

PROPOSERS = ("refine", "random")
PLAYED = 16, 256  # streams and steps of random play that tell the scales of features


@group
class Config:
    """Settings of a search for rewards by preferences between agents (arXiv:2410.17233)."""

    ppo: PPOConfig = PPOConfig()
    """Settings of PPO, by which each agent learns."""
    agents: int = static(6, low=3, high=MANY)
    """Number of rewards in each round (K), each with an agent. 6: authors' code."""
    updates: int = static(100, low=1)
    """Number of PPO's updates for each agent."""
    episodes: int = static(16, low=1, high=MANY)
    """Number of episodes of each agent that are watched."""
    terms: int = static(2, low=1, high=MANY)
    """Number of features in a reward of the first round, at most all."""
    proposer: str = static("refine", choices=PROPOSERS)
    """Proposals after the first round: refine the best reward so far, or draw random ones again."""
    mutation: float = hyper(0.3, low=0)
    """Standard deviation of the logarithm of the factors on the best reward's weights."""
    away: float = hyper(0.5, low=0)
    """Largest step away from the worst reward of the last round; rewards have length 1."""
    change: float = hyper(0.5, low=0, high=1)
    """Probability that a term is added to the best reward, and that one of several is dropped."""


@struct
class State:
    """State of the search.

    agent: state of the best agent so far. best: its reward's weights, of features divided by their
    scales, float32 [F]. worst: those of the worst agent of the last round, [F]. score: the best
    agent's mean return, -inf before the first round. scale: standard deviation of each feature in
    random play, [F]. rounds: int32. queries: comparisons so far, int32.
    """

    agent: Tree
    best: Array
    worst: Array
    score: Array
    scale: Array
    rounds: Array
    queries: Array


def feature_names(env: Environment) -> tuple[str, ...]:
    """Return the names of the features of a step, in order."""
    return tuple(_measures(env))


def _measures(env: Environment) -> dict[str, Any]:
    """Return the features of a step by name, of the observation that it leads to and the action."""
    size = env.observation_space.shape[0]  # type: ignore[union-attr]
    found: dict[str, Any] = {}
    for i in range(size):
        found[f"observation.{i}"] = lambda before, action, after, i=i: after.observation[i]
    for i in range(size):
        found[f"|observation.{i}|"] = lambda *step, i=i: jnp.abs(step[2].observation[i])
    if isinstance(env.action_space, Box):
        found["effort"] = lambda before, action, after: jnp.square(action).mean()
    return found


@functools.cache
def with_proposed_reward(env: Environment) -> Environment:
    """Return `env` with the weighted sum of its features as its reward, by `params.reward_weights`
    [F]."""
    measures = _measures(env)
    return reward_components(env, measures, dict.fromkeys(measures, 0.0))


def draw_rewards(key: Key, count: int, size: int, terms: int) -> Array:
    """Draw weights [count, size] of rewards of length 1: of `terms` features each, of either sign,
    the largest at most three times the least."""
    order_key, sign_key, weight_key = jax.random.split(key, 3)
    order = jax.random.uniform(order_key, (count, size)).argsort(-1).argsort(-1)
    weight = jax.random.uniform(weight_key, (count, size), minval=0.5, maxval=1.5)
    signed = jnp.where(jax.random.bernoulli(sign_key, 0.5, (count, size)), weight, -weight)
    return _unit(jnp.where(order < terms, signed, 0))


def refine_rewards(key: Key, count: int, best: Array, worst: Array, hyper: Any) -> Array:
    """Propose weights [count, F] of rewards of length 1, all from the best one.

    best, worst: [F]. hyper: `mutation`, `away` and `change`, see `Config`.
    """
    tune_key, add_key, drop_key, which_key, step_key = jax.random.split(key, 5)
    size = len(best)
    tuned = best * jnp.exp(hyper.mutation * jax.random.normal(tune_key, (count, size)))
    # Drop one of at least two terms.
    place = jnp.where(best != 0, jax.random.uniform(which_key, (count, size)), 2).argmin(-1)
    several = jnp.sum(best != 0) > 1
    drops = jax.random.bernoulli(drop_key, hyper.change, (count, 1)) & several
    kept = jnp.where(drops & (jnp.arange(size) == place[:, None]), 0, tuned)
    whether_key, which_key = jax.random.split(add_key)
    adds = jax.random.bernoulli(whether_key, hyper.change, (count, 1))
    added = jnp.where(adds, draw_rewards(which_key, count, size, 1), 0)
    step = hyper.away * jax.random.uniform(step_key, (count, 1)) * (best - worst)
    return _unit(_unit(kept) + 0.5 * added + step)


def _unit(x: Array) -> Array:
    """Scale vectors along the last axis to length 1; zeros stay."""
    length = jnp.sqrt(jnp.square(x).sum(-1, keepdims=True))
    return x / jnp.where(length > 0, length, 1)


def rank(returns: Array) -> tuple[Array, Array]:
    """Return the numbers of the agents that are preferred to all others and to none, by their mean
    returns [K], which are not finite where an agent failed."""
    sound = jnp.where(jnp.isfinite(returns), returns, -jnp.inf)
    return sound.argmax(), sound.argmin()


def _learner(env: Environment, config: Config) -> Algorithm:
    """Return the algorithm by which an agent learns from a proposed reward."""
    paid, own = with_proposed_reward(env), settings_of(config.ppo)
    agent = add_normalization(ppo.agent(paid, own), paid, own)
    return learn(within(agent, "ppo"), own.rollouts.source(paid))


def build(env: Environment, config: Config) -> Direct:
    """Search for a reward; the resulting policy is that of the best agent so far.

    One step is a round. Its environment steps are those of PPO and of the episodes that are
    watched, as if all of these had full length.
    """
    inner, paid = _learner(env, config), with_proposed_reward(env)
    count, size = config.agents, len(feature_names(env))
    terms = min(config.terms, size)

    def pay(state: LearnerState, weights: Array) -> LearnerState:
        """Let an agent learn from the weighted sum of features."""
        source: Any = state.source
        tasks = dataclasses.replace(source.tasks, reward_weights=weights)
        return dataclasses.replace(state, source=dataclasses.replace(source, tasks=tasks))

    def init(key, hyper):
        agent_key, play_key = jax.random.split(key)
        begun = inner.init(agent_key, {name: hyper[name] for name in inner.hyper})
        zeros = jnp.zeros(size)
        counters = jnp.int32(0), jnp.int32(0)
        scale = measure_scales(paid, play_key)
        return State(begun.agent, zeros, zeros, jnp.float32(-jnp.inf), scale, *counters)

    def train(key: Key, weights: Array, known: dict[str, Array]) -> tuple[Tree, Array]:
        """Return an agent that learned from a reward, and its mean return in the environment."""
        init_key, learn_key, watch_key = jax.random.split(key, 3)
        state = pay(inner.init(init_key, known), weights)
        keys = jax.random.split(learn_key, config.updates)
        state, _ = jax.lax.scan(lambda state, key: (inner.step(state, key)[0], None), state, keys)
        watched = evaluate(env, inner.policy(state), watch_key, config.episodes)
        return state.agent, watched.returns.mean()

    def step(state: State, key, hyper):
        new_key, refine_key, train_key = jax.random.split(key, 3)
        proposed = draw_rewards(new_key, count, size, terms)
        first = state.rounds == 0
        if config.proposer == "refine":
            refined = refine_rewards(refine_key, count, state.best, state.worst, hyper)
            proposed = jnp.where(first, proposed, refined)
        known = {name: hyper[name] for name in inner.hyper}
        agents, returns = jax.vmap(lambda key, w: train(key, w / state.scale, known))(
            jax.random.split(train_key, count), proposed
        )
        best, worst = rank(returns)
        better = first | (returns[best] > state.score)
        at = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
        new = State(
            trees.where(better, at(agents, best), state.agent),
            jnp.where(better, proposed[best], state.best),
            proposed[worst],
            jnp.where(better, returns[best], state.score),
            state.scale,
            state.rounds + 1,
            state.queries + 2 * count - 3 + jnp.where(first, 0, 1),
        )
        report = {
            "best_return": m.Maximum(new.score),
            "round_return": m.Maximum(returns[best]),
            "mean_round_return": m.mean(returns, jnp.isfinite(returns)),
            "queries": m.Maximum(new.queries.astype(jnp.float32)),
        }
        return new, report

    def finite(state: State, metrics):
        own = params_of(state.agent), state.best, state.worst, metrics["best_return"]
        return trees.all_finite(own)

    return Direct(
        init,
        step,
        policy=inner.policy,
        finite=finite,
        env_steps=count * (config.updates * inner.env_steps + config.episodes * env.max_steps),  # type: ignore[operator]
        initial_env_steps=int(np.prod(PLAYED)),
        scores={"best_return": "best return"},
    )


def measure_scales(env: Environment, key: Key) -> Array:
    """Return the standard deviations [F] of the features in random play, 1 for those that are
    constant. `env` must come from `with_proposed_reward`."""
    start_key, key = jax.random.split(key)
    source, player = rollouts(env, *PLAYED), random_policy(env)
    begun = source.init(start_key, {}, player)
    played: Any = window(source, begun, player, key)[1].transitions.next_timestep
    deviation = jnp.stack([played.reward_components[name].std() for name in feature_names(env)])
    return jnp.where(deviation > 1e-6, deviation, 1)


def proposed_reward(env: Environment, state: Any) -> dict[str, float]:
    """Return the weights of the features in the best reward so far, without those that are 0.

    state: of `icpl`.
    """
    weights = np.asarray(state.own.best / state.own.scale)
    return {
        name: float(x) for name, x in zip(feature_names(env), weights, strict=True) if float(x) != 0
    }


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as PPO, for observations that are no flat Box, and for an environment
    without a time limit."""
    space = env.observation_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise UserError(
            f"{name} makes rewards of the numbers of a flat observation; '{env.name}' has "
            f"{space!r}."
        )
    if env.max_steps is None:
        raise UserError(f"{name} watches whole episodes; '{env.name}' has no time limit.")
    ppo.check(env, config.ppo, name)


icpl = DirectBuilder("icpl", Config, build, check)

TINY = {
    "env": "pendulum", "wrappers": [{"time_limit": {"max_steps": 8}}], "agents": 3, "updates": 1,
    "episodes": 2, "num_envs": 2, "num_steps": 4, "minibatches": 1, "epochs": 1, "hidden": (4,),
}  # fmt: skip
