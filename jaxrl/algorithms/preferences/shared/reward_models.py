"""Reward models: how they read and score answers, and how policies learn from their scores.

A reward model is the part `reward` of an agent: one or several networks of a policy's kind, whose
value after an answer's last token is the answer's score. The algorithm `reward_model` trains it on
labeled pairs. `judged_by` puts the scores in the place of the environment's reward for any recipe
of token policies, in which the reward model is frozen:

    @group
    class Config(grpo.Config):
        reward: Judges = Judges(members=4, combine="worst")

    builder = on_scores("grpo_on_scores", grpo.grpo, Config)
    both = stages(reward_model(env, first), steps, builder(env, second))

| file | learner | score of an answer |
|---|---|---|
| reward_ensembles | PPO | mean, minimum, or mean less the variance of the members |
| reward_robust_rlhf | PPO | a share of the mean, the rest of the minimum |
| pf_ppo | PPO on the answers with the most reliable scores | of one reward model |
| salmon | PPO | by principles that the reward model is told |

A reward model that writes instead of scoring is in `preferences/shared/correctors.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.shared.measures import measure_proxy, proxy_scores
from jaxrl.algorithms.tokens.shared.answers import blank_memory, decisions
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, TimeStep, Tree, struct
from jaxrl.exact.answers import Answers
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.state import State, Trained
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.features import FeatureReward

PART = "reward"

# Score of an answer by those of its members [..., M] and the hyperparameters of `Judges`.
COMBINATIONS: dict[str, Callable[[Values, Array], Array]] = {
    "mean": lambda h, scores: scores.mean(-1),
    "worst": lambda h, scores: losses.robust_reward(scores.mean(-1), scores, 0.0),
    "uncertainty": lambda h, scores: losses.uncertainty_weighted_reward(scores, h.variance_weight),
    "robust": lambda h, scores: losses.robust_reward(scores.mean(-1), scores, h.nominal_weight),
}


@group
class RewardModel:
    """Reward model of answers."""

    members: int = static(1, low=1, high=100)
    """Number of reward models with first weights of their own, trained on the same pairs."""
    dense: bool = False
    """Score every token, and an answer by their sum; if not, an answer is scored at its end."""
    reads: str = static("text", choices=("text", "features"))
    """Input of the reward model: text, or features. Features of an answer are the components of the
    environment's reward, numbers by name."""
    feature_hidden: tuple[int, ...] = static((32,), low=1, high=MANY)
    """Widths of the hidden layers of a reward model that reads features."""


@group
class Judges(RewardModel):
    """Reward models whose combined scores are a policy's reward."""

    combine: str = static("mean", choices=COMBINATIONS)
    """Score of an answer by those of the members: mean, worst (the smallest), uncertainty (mean
    less variance) or robust (a share of the mean, the rest of the worst)."""
    variance_weight: float = hyper(0.1, low=0)
    """Weight of the variance between members, for uncertainty."""
    nominal_weight: float = hyper(0.5, low=0, high=1)
    """Share of the mean, for robust; the rest is the worst member's."""


Instruct = Callable[[TimeStep], TimeStep]
"""Function that tells a reward model in time steps how to score what it reads."""


def instruct_nothing(timestep: TimeStep) -> TimeStep:
    """Return time steps as they are."""
    return timestep


@struct
class Reading:
    """Whole episodes as a reward model reads them.

    first: their first time steps, [1, B]. after: the successors of their steps, [T, B].
    """

    first: TimeStep
    after: TimeStep

    def with_instruction(self, instruct: Instruct) -> Reading:
        """Return the same with an instruction in each time step."""
        return Reading(instruct(self.first), instruct(self.after))

    @property
    def text(self) -> TimeStep:
        """All time steps, [T + 1, B]."""
        join = lambda a, b: jnp.concatenate([a, b])
        return jax.tree.map(join, self.first, self.after)


def reading_of(batch: Batch) -> Reading:
    """Return what a reward model reads of whole episodes [T, B]."""
    t = batch.transitions
    return Reading(jax.tree.map(lambda x: x[:1], t.timestep), t.next_timestep)


def network_of(env: Environment, config: Any, values: int = 0) -> ActorCritic:
    """Return the network of a reward model, that of a policy whose value is the score.

    values: length of the value, if it is a vector; 0 for a number.

    Raises `UserError` for settings that want a language model instead.
    """
    if config.decoder.model:
        raise UserError(
            f"decoder.model is '{config.decoder.model}', but reward models, and what learns from "
            "them, have small networks of their own; leave it empty."
        )
    return policy_network(env, config.torso, config.memory, values=values)


def reward_network_of(env: Environment, config: Any) -> ActorCritic | FeatureReward:
    """Return the network of a reward model that reads what `config.reward.reads` says."""
    if config.reward.reads == "text":
        return network_of(env, config)
    return FeatureReward(config.reward.feature_hidden, config.torso.activation)


def check_reads(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if a reward model would read features that `env` does not say, or score
    every token by features of a whole answer."""
    reward = config.reward
    if reward.reads != "features":
        return
    if not example_timestep(env).reward_components:
        raise UserError(
            f"reward.reads is features, but '{env.name}' says none of its answers "
            "(TimeStep.reward_components, see ruled_words)."
        )
    if reward.dense:
        raise UserError(f"{name} cannot score every token by features; turn reward.dense off.")


def token_scores(value: Array, reading: Reading, mask: Array, dense: bool) -> Array:
    """Return the scores of the tokens of whole episodes, [..., T, B], whose sum is the answer's.

    value: [..., T + 1, B], of every time step. mask: [T, B], which steps belong to the episodes.
    dense: whether every decision has a score; if not, the last step has the answer's.
    """
    before = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:-1]]), reading.first, reading.after)
    scored = decisions(before, mask) if dense else mask & reading.after.done
    return jnp.where(scored, value[..., 1:, :], 0)


def score_tokens(net: Net, reading: Reading, mask: Array, dense: bool) -> Array:
    """Return the scores of tokens by each member of a net's reward model, [M, T, B]."""
    memory = blank_memory(net, reading.text)
    value = net.reward(reading.text, memory, method="unroll")[1]
    return token_scores(value, reading, mask, dense)


def score_answers(
    env: Environment,
    config: Any,
    parts: dict[str, Trained],
    found: Answers,
    instruct: Instruct = instruct_nothing,
) -> Array:
    """Return the scores of all answers by each member of a reward model, [M, P, A].

    config: settings with the groups `torso`, `memory` and `reward`. parts: of an agent's state.
    """
    network, t = reward_network_of(env, config), found.transitions
    reading = Reading(jax.tree.map(lambda x: x[:1], t.timestep), t.next_timestep)
    reading = reading.with_instruction(instruct)
    memory = network.initial(t.action.shape[1])
    read: Any = lambda params: network.apply(params, reading.text, memory, method="unroll")[1]
    scores = token_scores(
        jax.vmap(read)(parts[PART].params), reading, found.within, config.reward.dense
    )
    return scores.sum(1).reshape(-1, *found.reward.shape)


def combine_scores(config: Any, hyper: Any, scores: Array) -> Array:
    """Return the combined scores [...] of those of all members [M, ...].

    config: settings with a group `reward`, `Judges`. hyper: hyperparameters of the agent.
    """
    h = hyper[config.reward]
    return COMBINATIONS[config.reward.combine](h, jnp.moveaxis(scores, 0, -1))


def combine_sums(config: Any, hyper: Any, scores: Array, ended: Array) -> Array:
    """Return rewards [T, B] of tokens whose sums are the combined scores of whole answers.

    Each token has the mean of its scores by all members, and the last one what is missing, since
    most combinations of sums are no sums of combinations.

    scores: of tokens by each member, [M, T, B]. ended: which tokens are the last ones, [T, B].
    config, hyper: as in `combine_scores`.
    """
    mean = scores.mean(0)
    missing = combine_scores(config, hyper, scores.sum(1)) - mean.sum(0)
    return mean + jnp.where(ended, missing, 0)


class Reward(Protocol):
    """Function that pays for whole answers in the environment's place."""

    def __call__(self, net: Net, batch: Batch, /) -> tuple[Array, dict[str, Array]]:
        """Return the rewards [T, B] of whole episodes, 0 outside of them, and metrics to log.

        net: before the update. batch: whole episodes with their mask.
        """
        ...


def with_reward(recipe: Recipe, reward: Reward) -> Recipe:
    """Let a recipe of token policies learn from `reward` in place of the environment's rewards.

    The environment's reward is the batch's `true_reward` then. Logs the mean return of an answer by
    both: `proxy`, what the policy learns from, and `gold`, the environment's.
    """

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        assert batch.mask is not None  # `Recipe.needs`
        paid, metrics = reward(net, batch)
        gold = jnp.where(batch.mask, t.reward, 0)
        before = dataclasses.replace(t.timestep, true_reward=t.timestep.reward)
        after = dataclasses.replace(t.next_timestep, reward=paid, true_reward=gold)
        t = dataclasses.replace(t, timestep=before, next_timestep=after)
        net = recipe.update(net, dataclasses.replace(batch, transitions=t))
        return net.report(proxy=paid.sum(0).mean(), gold=gold.sum(0).mean(), **metrics)

    return dataclasses.replace(recipe, update=update)


def judged_by(
    recipe: Recipe, env: Environment, config: Any, instruct: Instruct = instruct_nothing
) -> Recipe:
    """Let a recipe of token policies learn from the scores of a frozen reward model.

    config: settings with the groups `torso`, `memory` and `reward`, a `Judges`.
    instruct: tells the reward model, and nobody else, how to score answers.

    The reward model is the part `reward`, taken over from `reward_model` in a warm start, with the
    policy that wrote its pairs: policy and reference begin as that one, and a separate critic as
    the first reward model, or as the policy if that model reads anything but the answer alone. Logs
    `disagreement`, the mean deviation between members.
    """
    network = reward_network_of(env, config)
    check_reads(env, config, "A reward model")
    inputs = instruct(example_timestep(env)), network.initial(1)
    part = Part(network, inputs, members=config.reward.members)

    def reward(net: Net, batch: Batch) -> tuple[Array, dict[str, Array]]:
        assert batch.mask is not None
        reading = reading_of(batch).with_instruction(instruct)
        scores = score_tokens(net, reading, batch.mask, config.reward.dense)
        disagreement = scores.sum(1).std(0).mean()
        if config.reward.dense:
            paid = combine_sums(config, net.hyper, scores, batch.mask & reading.after.done)
        else:
            paid = combine_scores(config, net.hyper, scores)
        return paid, {"disagreement": disagreement}

    def adopt(state: State, other: Tree) -> Tree:
        if not isinstance(other, State) or PART not in other.parts:
            return other  # which will not fit
        if other.parts["actor_critic"].target is not None:  # it learned from scores itself
            return recipe.adopt(state, other)
        copy = functools.partial(jax.tree.map, jnp.copy)
        writer, judges = other.parts["actor_critic"].params, other.parts[PART].params
        reads_text = config.reward.reads == "text" and instruct is instruct_nothing
        critic = jax.tree.map(lambda x: x[0], judges) if reads_text else writer
        begun = {"actor_critic": writer, PART: judges, "critic": critic}

        def begin(name: str, own: Trained) -> Trained:
            if name not in begun:
                return own
            target = None if own.target is None else copy(begun[name])
            return dataclasses.replace(own, params=copy(begun[name]), target=target)

        parts = {name: begin(name, own) for name, own in state.parts.items()}
        return dataclasses.replace(state, parts=parts)

    paid = with_reward(recipe, reward)
    scores = {**recipe.scores, **proxy_scores(env)}
    return dataclasses.replace(paid, parts={**recipe.parts, PART: part}, adopt=adopt, scores=scores)


def measure_judged(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measures.measure_proxy` of a policy that learns from the scores of reward models."""

    def proxy(found: Answers) -> Array:
        scores = score_answers(env, config, policy.state.parts, found)
        return combine_scores(config, Values(policy.state.hyper), scores)

    return measure_proxy(env, config, policy, proxy)


def on_scores(
    name: str, builder: AlgorithmBuilder, Config: type, **changes: Any
) -> AlgorithmBuilder:
    """Return the builder `name`: `builder`, which learns from a reward model's scores.

    builder: of token policies that learn from their own answers, such as `grpo`.
    Config: its settings with a group `reward`, a `Judges`.
    changes: as in `AlgorithmBuilder.variant`.
    """
    changes = {"measure": measure_judged, "goes_on_from": "reward_model", **changes}
    plain = changes.pop("recipe", builder.recipe)
    recipe = lambda env, config, **options: judged_by(plain(env, config, **options), env, config)
    return builder.variant(name, Config=Config, recipe=recipe, **changes)
