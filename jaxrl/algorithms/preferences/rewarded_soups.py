"""Rewarded soups (Rame et al., 2023, "Rewarded soups: towards Pareto-optimal alignment by
interpolating weights fine-tuned on diverse rewards", arXiv:2306.04488): one policy for each reward,
all fine-tuned from the same weights, each by its own reward alone. What acts is the soup, the
policy with the mean of their parameters,

    theta = sum_k lambda_k theta_k

so one training gives a policy for any trade-off lambda between the rewards.

The rewards are the components of the environment's (`TimeStep.reward_components`). Each policy
learns by the policy gradient of whole answers with a leave-one-out baseline (RLOO); the paper has
PPO. The coefficients are the hyperparameters `share` of the first reward and the rest in equal
parts; parameters of a checkpoint can be mixed anew by `soup`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import gradients, losses
from jaxrl.algorithms.preferences.shared.measures import all_answers, is_small, log_probs
from jaxrl.algorithms.preferences.shared.pairs import begin_as
from jaxrl.algorithms.preferences.shared.players import played_as
from jaxrl.algorithms.preferences.shared.ratings import ratings_of, rewards_of
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    decisions,
    restrict,
    speak,
    token_scores,
    unroll,
)
from jaxrl.algorithms.tokens.shared.models import check_network, token_network
from jaxrl.algorithms.tokens.shared.settings import Divergence, Grouped, Groups
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, TimeStep, Tree, struct
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    Loss,
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
from jaxrl.kit.acting import sample_tempered
from jaxrl.kit.parts import trainable, with_shared
from jaxrl.networks.heads import log_prob_and_entropy
from jaxrl.sources import Player, cast


@struct
class Sample:
    """Whole episodes for a gradient step of one policy, [T, B].

    advantage: of each answer, [1, B]. allowed: see `answers.Sample`.
    """

    timestep: TimeStep
    action: Tree
    advantage: Array
    allowed: Tree = None


@group
class Cooks(Groups):
    """Groups of answers to the same prompt, by the policies in turns."""

    answers: int = static(8, low=2, high=MANY)
    """Number of answers (G) to each prompt, as many by each policy; at least two by each."""


@group
class Config(Grouped):
    """Settings of rewarded soups: the mean of the parameters of policies that were fine-tuned on
    one reward each (arXiv:2306.04488)."""

    groups: Cooks = Cooks()
    kl: Divergence = Divergence()
    share: float = hyper(0.5, low=0, high=1)
    """Coefficient of the policy of the first reward in the soup; the others share the rest."""


def soup(parameters: tuple[Tree, ...], share: Array | float) -> Tree:
    """Return the mean of the parameters of K policies, the first of which has the weight `share`
    and the others the rest in equal parts."""
    others = len(parameters) - 1
    weight = jnp.append(share, jnp.full(others, (1 - share) / max(others, 1)))
    mix = lambda *x: gradients.parameter_soup(jnp.stack(x, -1), weight)
    return jax.tree.map(mix, *parameters)


def policies(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the parts that learn the rewards `names`."""
    return tuple(f"policy_{name}" for name in names)


def loss_of(part: str) -> Loss:
    """Return the policy gradient of whole answers of a part."""

    @loss(part, name=f"loss_of_{part}", unit=SEQUENCE)
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        sample: Sample = x.x
        policy, _ = unroll(getattr(net, part), net, sample.timestep)
        policy = restrict(net, policy, sample.allowed)
        each, entropy = log_prob_and_entropy(policy, sample.action)
        log_prob, entropy = (losses.sequence_log_prob(y, x.mask) for y in (each, entropy))
        value = losses.policy_gradient(log_prob, sample.advantage[0])
        return LossOutput(value - net.hyper.entropy_weight * entropy, {f"entropy_{part}": entropy})

    return policy_loss


def recipe(env: Environment, config: Config) -> Recipe:
    names = rewards_of(env)
    parts, count, size = policies(names), len(names), config.groups.answers
    losses_of = {part: loss_of(part) for part in parts}
    network = token_network(env, config)

    def learn(net: Net, batch: Batch, name: str, part: str) -> Net:
        t, mask = batch.transitions, batch.mask
        assert mask is not None  # `Recipe.needs`
        decided = decisions(t.timestep, mask)
        reward = t.next_timestep.reward_components[name]
        allowed = t.extras.get("allowed")
        policy, _ = unroll(net.target.actor_critic, net, t.timestep)
        reference = restrict(net, policy, allowed).log_prob(t.action)
        total = jnp.where(mask, reward, 0).sum(0)
        drift = losses.sequence_log_prob(t.extras["log_prob"] - reference, decided)
        each = (total - net.hyper.kl.weight * drift).reshape(-1, size // count)
        advantage = losses.leave_one_out(each).reshape(1, -1)
        sample = Sample(t.timestep, t.action, advantage, allowed)
        step = lambda net, some: net.descend(losses_of[part], some)
        net = net.epochs(config.passes, Minibatch(sample, decided), step, unit=SEQUENCE)
        return net.report(**{f"return_{name}": total.mean()})

    def update(net: Net, batch: Batch) -> Net:
        for k, (name, part) in enumerate(zip(names, parts, strict=True)):
            own = lambda x, k=k: x[:, k::count]
            transitions, mask = jax.tree.map(own, (batch.transitions, batch.mask))
            net = learn(net, Batch(transitions, batch.env_steps, mask=mask), name, part)
        mixed = soup(tuple(trainable(net.parts[part].params) for part in parts), net.hyper.share)
        mixed = with_shared(mixed, net.parts["actor_critic"].params)
        return net.with_params(actor_critic=mixed).update_targets()

    inputs = example_timestep(env), network.initial(1)
    cook = Part(network, inputs, config.optimizer, begins_as="actor_critic")
    own = {f"exact_{name}": name.replace("_", " ") for name in names} | SCORES
    return Recipe(
        parts={
            "actor_critic": Part(network, inputs, target=config.reference),
            **dict.fromkeys(parts, cook),
        },
        act=sample_tempered(speak, config.sampling),
        losses=tuple(losses_of.values()),
        update=update,
        memory=network.initial,
        needs=("mask", "transitions.extras.log_prob"),
        adopt=begin_as("actor_critic"),
        scores={**token_scores(env), **(own if is_small(env) else {})},
        in_evaluation={f"sampling.{n}": f"evaluation.{n}" for n in ("temperature", "top_p")},
    )


SCORES = {"exact_return": "expected return", "exact_gain": "return above the mean of the policies"}


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures of the soup in a small environment, means over prompts: each expected
    reward, `exact_return`, their mean by the environment, and `exact_gain`, by how much that is
    above the mean of the policies' own, weighted as their parameters are."""
    if not is_small(env):
        return {}
    names, parts = rewards_of(env), policy.state.parts
    rewards, share = ratings_of(env), policy.state.hyper["share"]
    worth = lambda part, reward: (
        (jnp.exp(log_probs(env, config, parts[part].params)) * reward).sum(-1).mean()
    )
    gold = all_answers(env).reward
    mixed = worth("actor_critic", gold)
    each = [worth(part, gold) for part in policies(names)]
    straight = share * each[0] + (1 - share) * sum(each[1:]) / max(len(each) - 1, 1)
    found = {f"exact_{name}": worth("actor_critic", rewards[name]) for name in names}
    return {**found, "exact_return": mixed, "exact_gain": mixed - straight}


def source(env: Environment, config: Config) -> Source:
    """Return a source of whole episodes that the policies play in turns."""
    players = tuple(Player(played_as(part)) for part in policies(rewards_of(env)))
    return cast(config.groups.episodes(env), players)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for an environment without several rewards, for groups
    with fewer than two answers by each policy, for an early stop, for packing, and for an average
    of token losses."""
    check_network(env, config, name)
    answers.check_average(config)
    settings.refuse(config, ("passes.early_stop", "packed"), f"{name} always takes all its steps")
    names, size = rewards_of(env), config.groups.answers
    if len(names) < 2:
        raise UserError(
            f"{name} needs several rewards, the components of an environment's; '{env.name}' has "
            f"{len(names)} (see ruled_words)."
        )
    if size % len(names) or size < 2 * len(names):
        raise UserError(
            f"groups.answers is {size}; it must be a multiple of {len(names)}, the number of "
            "rewards, and at least twice that."
        )
    own = dataclasses.replace(config.groups, answers=size // len(names))
    answers.check(env, dataclasses.replace(config, groups=own), name)


rewarded_soups = AlgorithmBuilder(
    "rewarded_soups", Config, recipe, source, check=check, measure=measure
)

TINY = SMALL_PLAYED | {"env": "ruled_words", "answers": 4}
