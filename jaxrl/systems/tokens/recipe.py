"""What token policies have in common.

They write G answers to each of P prompts, judge each answer once, before any gradient step, and
descend the mean loss of the tokens, for some epochs over minibatches of answers; with one epoch of
one minibatch they are exactly on-policy. Prompts, and what else is no decision, do not count.

What tells them apart are values: how answers are judged, and the loss of a token.

| file | advantage of an answer | loss of a token |
|---|---|---|
| token_supervised | - | cross-entropy with the expert's token |
| token_reinforce | its return | policy gradient |
| rloo | less the mean of the group's others | policy gradient |
| gpg | less the group's mean, rescaled | policy gradient |
| grpo | standardised in its group | clipped surrogate |
| pass_at_k | for pass@k | clipped surrogate |
| token_ppo | of each token, by a critic | clipped surrogate |
| rpg | as rloo | its own, with the KL divergence from the reference in it |
| rpg_clipped | as rloo, with the divergence in it | clipped surrogate |

The `reference`, the policy that is not to be left, is the copy of the parameters (`net.target`).
Cloning makes it follow at once (rate 1); all others leave it where it is (rate 0), so that it stays
what the policy was when reinforcement learning began. The state has the same parts whatever the
method: any is warm-started from a run of token_supervised, or of another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, hyper, static
from jaxrl.core.settings import group
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Tree, struct
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit.groups import LinearTorso, Memory, Optimizer, Passes, Target
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Loss, Part, Recipe
from jaxrl.kit.system import source_group
from jaxrl.sources import episodes
from jaxrl.systems.policy_gradient.ppo import (
    check_policy,
    policy_network,
    sampled,
    too_far,
)
from jaxrl.tasks import repeated, starts

Judge = Callable[[Net, Batch], tuple[Array, Tree]]  # -> advantage [T, B]; a critic's target or None
TokenLoss = Callable[..., Array]  # (net, config, log-probabilities now, Sample) -> [T, B]

# Estimates of the KL divergence from the reference, of a token.
KL_ESTIMATES = {"k2": losses.kl_k2, "k3": losses.kl_k3}

# What counts alike: how much a token counts, by the length of its sequence, the sequences' mean
# length, and the longest possible.
AVERAGES = {
    "sequence": lambda length, mean, longest: mean / length,
    "token": lambda length, mean, longest: 1.0,
    "constant": lambda length, mean, longest: mean / longest,
}


@group
class Tokens:
    """Settings of every token policy."""

    passes: Passes = Passes(epochs=1, minibatches=1, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=2)
    torso: LinearTorso = LinearTorso(hidden=(), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0, eps=1e-5)
    reference: Target = Target(rate=0.0)

    average: str = static("sequence", choices=AVERAGES)
    """What counts alike: every sequence (GRPO), every token (DAPO), or a constant for every token
    (Dr. GRPO): sequence, token or constant."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""


@group
class Groups:
    """Groups of answers to the same prompt."""

    prompts: int = static(32, low=1, high=MANY)
    """Prompts (P) in one update, each one group."""
    answers: int = static(8, low=1, high=MANY)
    """Answers (G) to each prompt."""

    @property
    def num_envs(self) -> int:
        """Episodes in one update."""
        return self.prompts * self.answers

    def source(self, env: Environment) -> Source:
        """Whole episodes, those of a group side by side; what begins an episode (the prompt) is
        drawn for a whole group."""
        prompts = repeated(starts(env.params, Start), self.answers)
        return episodes(start_key(env), self.num_envs, prompts)


@group
class Penalty:
    """What it costs to leave the reference policy."""

    weight: float = hyper(0.0, low=0)
    """Weight of the KL divergence from the reference."""
    estimate: str = static("k3", choices=KL_ESTIMATES)
    """Of the divergence: k3 (GRPO's), or k2, whose gradient is right on average."""


@group
class Grouped(Tokens):
    """Settings of token policies that learn from their own answers, in groups."""

    groups: Groups = Groups()
    kl: Penalty = Penalty()


@struct
class Sample:
    """What a gradient step sees of whole episodes, [T, B]."""

    timestep: TimeStep
    action: Tree
    log_prob: Tree = None  # when the action was chosen
    reference: Tree = None  # log-probability by the reference policy
    advantage: Tree = None
    target: Tree = None  # of a critic

    @property
    def reward(self) -> Array:
        """Its shape is that of a batch."""
        return self.timestep.first


def decisions(timestep: TimeStep, mask: Array) -> Array:
    """Which steps [T, B] of the running episodes (`mask`) were the policy's to decide."""
    return mask if timestep.tokens is None else mask & timestep.tokens["decision"]


def token_weights(mask: Array, average: str) -> Array:
    """Weights [T, B] of tokens: the mean of weighted losses over `mask` is what
    `losses.aggregate_tokens` makes of the losses. `average` is one of `AVERAGES`."""
    length = jnp.maximum(mask.sum(0), 1)
    mean = mask.sum() / jnp.maximum(mask.any(0).sum(), 1)
    return jnp.broadcast_to(AVERAGES[average](length, mean, mask.shape[0]), mask.shape)


def unrolled(part: Callable[..., Any], net: Net, timestep: TimeStep) -> tuple[Any, Array]:
    """Policy and value of whole episodes [T, B], by `net.actor_critic` or its copy."""
    return part(timestep, blank(net, timestep), method="unroll")[:2]


def blank(net: Net, timestep: TimeStep) -> Tree:
    """The memory [B] before whole episodes [T, B]; another policy may have acted, so it is not the
    batch's. Made where it is read: a minibatch of it would be a gather from a constant, which XLA
    computes, for minutes, while it compiles."""
    return net.network("actor_critic").initial(timestep.first.shape[1])


def penalty(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """What it costs a token to leave the reference."""
    return net.hyper.kl.weight * KL_ESTIMATES[config.kl.estimate](log_prob, x.reference)


def policy_gradient(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """-A log p, and the penalty."""
    loss = losses.policy_gradient(log_prob, x.advantage)
    return loss + penalty(net, config, log_prob, x)


def clipped(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """PPO's surrogate, and the penalty."""
    loss = losses.clipped_surrogate(log_prob, x.log_prob, x.advantage, net.hyper.clip)
    return loss + penalty(net, config, log_prob, x)


def by_groups(
    advantage: Callable[[Array], Array], token_loss: TokenLoss
) -> Callable[[Environment, Any], Recipe]:
    """The recipe of answers that are judged by the returns [P, G] of their groups:
    `advantage(returns) -> [P, G]`."""

    def recipe(env, config):
        def judge(net, batch):
            reward = jnp.where(batch.mask, batch.transitions.reward, 0.0)
            each = advantage(reward.sum(0).reshape(-1, config.groups.answers)).reshape(-1)
            return jnp.broadcast_to(each, reward.shape), None

        return on_answers(env, config, judge, token_loss)

    return recipe


def on_answers(env: Environment, config: Any, judge: Judge, token_loss: TokenLoss) -> Recipe:
    """A token policy that learns from its own answers: `token_loss`, less an entropy bonus, and
    what its critic learns where `judge` has a target for one."""

    def seen(net, batch, x):
        policy, _ = unrolled(net.target.actor_critic, net, x.timestep)
        batch = dataclasses.replace(batch, memory=blank(net, x.timestep))
        advantage, target = judge(net, batch)
        return dataclasses.replace(
            x,
            log_prob=batch.transitions.extras["log_prob"],
            reference=policy.log_prob(x.action),
            advantage=advantage,
            target=target,
        )

    def loss(net, x):
        policy, value = unrolled(net.actor_critic, net, x.timestep)
        log_prob, entropy = policy.log_prob(x.action), policy.entropy()
        policy_loss = token_loss(net, config, log_prob, x)
        total = policy_loss - net.hyper.entropy_weight * entropy
        reports = {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "kl_to_reference": losses.kl_k3(log_prob, x.reference),
            "approximate_kl": losses.kl_k3(x.log_prob, log_prob),
        }
        if x.target is None:
            return total, reports
        value_loss = losses.squared_error(value, x.target)
        return total + net.hyper.value_weight * value_loss, reports | {"value_loss": value_loss}

    return on_episodes(env, config, loss, seen, too_far, ("mask", "transitions.extras.log_prob"))


def on_episodes(
    env: Environment,
    config: Any,
    loss: Callable[..., Any],
    seen: Callable[[Net, Batch, Sample], Sample] = lambda net, batch, x: x,
    stop: Callable[[Net], Array] | None = None,
    needs: tuple[str, ...] = ("mask",),
) -> Recipe:
    """A token policy that learns `loss(net, x)` from whole episodes; `seen` adds to each sample,
    before any gradient step, what the loss sees of it."""
    network = policy_network(env, config)

    def turn(net, batch):  # weights by the minibatch's own lengths
        weight = token_weights(batch.mask, config.average)
        return net.descend("loss", dataclasses.replace(batch, weight=weight))

    def update(net, batch):
        x = Sample(batch.transitions.timestep, batch.transitions.action)
        mask = decisions(x.timestep, batch.mask)
        batch = dataclasses.replace(batch, transitions=seen(net, batch, x), mask=mask)
        return net.passes(config.passes, batch, turn, stop).follow()

    return Recipe(
        parts={
            "actor_critic": Part(
                network, (example_timestep(env), network.initial(1)), target="reference"
            )
        },
        act=sampled(),
        losses={"loss": Loss(loss, ("actor_critic",))},
        update=update,
        memory=network.initial,
        needs=needs,
        sequences=True,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` where no policy of these settings can act in `env`, or the episodes of an
    update do not divide into the minibatches."""
    check_policy(env, config, name)
    number = source_group(config).num_envs
    config.passes.check(number, env.max_steps or 1, sequences=True)


# The smallest settings that take every branch.
TINY = {"env": "addition", "env_params": {"digits": 1}, "recurrent": 8, "transformer": 1}
TINY |= {"epochs": 2, "minibatches": 2}
TINY_GROUPS = TINY | {"prompts": 2, "answers": 4}
