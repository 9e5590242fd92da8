"""What token policies have in common.

They write G answers to each of P prompts, judge each answer once, before any gradient step, and
descend the mean loss of the tokens, for some epochs over minibatches of answers; with one epoch of
one minibatch they are exactly on-policy. Prompts, and what else is no decision, do not count.

What tells them apart are values: how answers are judged, the loss of a token, and which tokens
count alike.

| file | advantage of an answer | loss of a token | average |
|---|---|---|---|
| token_supervised | - | cross-entropy with the expert's token | token |
| token_reinforce | its return, less the divergence | policy gradient | constant |
| rloo | the same, less the mean of the group's others | policy gradient | constant |
| gpg | less the group's mean, rescaled | policy gradient, and the divergence | token |
| grpo | standardized in its group | clipped surrogate, and the divergence | sequence |
| pass_at_k | for pass@k | the same | token |
| token_ppo | of each token, by a critic, less the divergence | clipped surrogate | token |
| ppo_max | the same, of rewards on a known scale, by a critic of its own | the same | token |
| rpg | as rloo | its own, with the divergence in it | token |
| rpg_clipped | as rloo, with the divergence in it | clipped surrogate | token |

The divergence is the KL divergence from a reference; where a paper takes it off the reward, what is
left is judged.

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
from jaxrl.algorithms.policy_gradient.ppo import (
    check_policy,
    policy_network,
    sampled,
    too_far,
)
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, KL_ESTIMATES
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import Loss, Net, Part, Recipe
from jaxrl.kit.builder import source_group

Judge = Callable[[Net, Batch], dict[str, Array]]  # -> fields of the sample, [T, B]: advantage, ...
TokenLoss = Callable[..., Array]  # (net, config, log-probabilities now, Sample) -> [T, B]
ValueLoss = Callable[..., Array]  # (net, Sample, values now [T, B]) -> [T, B]


@struct
class Sample:
    """What a gradient step sees of whole episodes, [T, B]."""

    timestep: TimeStep
    action: Tree
    log_prob: Tree = None  # when the action was chosen
    reference: Tree = None  # log-probability by the reference policy
    advantage: Tree = None
    value: Tree = None  # by a critic, when the answers were judged
    target: Tree = None  # of that critic

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


def policy_gradient(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """-A log p."""
    return losses.policy_gradient(log_prob, x.advantage)


def clipped(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """PPO's surrogate."""
    return losses.clipped_surrogate(log_prob, x.log_prob, x.advantage, net.hyper.clip)


def clipped_higher(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    """DAPO's, of the settings `ClippedHigher`."""
    h = net.hyper
    return losses.clipped_surrogate(log_prob, x.log_prob, x.advantage, h.clip, h.clip_high)


def penalized(token_loss: TokenLoss) -> TokenLoss:
    """`token_loss`, with what leaving the reference costs by the settings `Penalty` at `kl`."""

    def loss(net, config, log_prob, x):
        divergence = KL_ESTIMATES[config.kl.estimate](log_prob, x.reference)
        return token_loss(net, config, log_prob, x) + net.hyper.kl.weight * divergence

    return loss


def by_groups(
    advantage: Callable[[Array], Array], token_loss: TokenLoss, kl_in_reward: bool = False
) -> Callable[[Environment, Any], Recipe]:
    """The recipe of answers that are judged by the returns [P, G] of their groups:
    `advantage(returns) -> [P, G]`."""

    def recipe(env, config):
        def judge(net, batch):
            reward = batch.transitions.reward
            each = advantage(reward.sum(0).reshape(-1, config.groups.answers)).reshape(-1)
            return {"advantage": jnp.broadcast_to(each, reward.shape)}

        return on_answers(env, config, judge, token_loss, kl_in_reward)

    return recipe


def on_answers(
    env: Environment,
    config: Any,
    judge: Judge,
    token_loss: TokenLoss,
    kl_in_reward: bool = False,
    score: Callable[[Net, Array], Array] | None = None,
    value_loss: ValueLoss | None = None,
) -> Recipe:
    """A token policy that learns from its own answers: `token_loss`, less an entropy bonus. What is
    judged has no reward after an episode, and its mask says which steps are decisions.

    kl_in_reward: each token is rewarded by -beta log(p / reference) too, p when it was chosen: what
        RLHF maximizes (Ouyang et al., 2022, equation 2).
    score: what an answer's return [B] counts, at its last token, in the place of its rewards.
    value_loss: what the policy's network learns of values beside.
    """

    def seen(net, batch, x):
        t, mask = batch.transitions, decisions(x.timestep, batch.mask)
        policy, _ = unrolled(net.target.actor_critic, net, x.timestep)
        log_prob, reference = t.extras["log_prob"], policy.log_prob(x.action)
        reward = jnp.where(batch.mask, t.reward, 0.0)
        if kl_in_reward:
            end, beta = jnp.zeros(reward.shape[1]), net.hyper.kl.weight
            if score is not None:
                end, reward = score(net, reward.sum(0)), jnp.zeros_like(reward)
            reward += losses.kl_penalized_reward(end, log_prob, reference, beta, mask)
        after = dataclasses.replace(t.next_timestep, reward=reward)
        t, memory = dataclasses.replace(t, next_timestep=after), blank(net, x.timestep)
        batch = dataclasses.replace(batch, transitions=t, memory=memory, mask=mask)
        return Sample(x.timestep, x.action, log_prob, reference, **judge(net, batch))

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
        if value_loss is None:
            return total, reports
        error = value_loss(net, x, value)
        return total + net.hyper.value_weight * error, reports | {"value_loss": error}

    return on_episodes(env, config, loss, seen, too_far, ("mask", "transitions.extras.log_prob"))


def on_episodes(
    env: Environment,
    config: Any,
    loss: Callable[..., Any],
    seen: Callable[[Net, Batch, Sample], Sample] = lambda net, batch, x: x,
    stop: Callable[[Net], Array] | None = None,
    needs: tuple[str, ...] = ("mask",),
) -> Recipe:
    """A token policy that learns `loss(net, x)`, and what losses are added to the recipe, from
    whole episodes; `seen` adds to each sample, before any gradient step, what losses see of it."""
    network = policy_network(env, config)

    def turn(net, batch):  # weights by the minibatch's own lengths
        weight = token_weights(batch.mask, config.average)
        batch = dataclasses.replace(batch, weight=weight)
        for name in net.kit.recipe.losses:
            net = net.descend(name, batch)
        return net

    def update(net, batch):
        x = Sample(batch.transitions.timestep, batch.transitions.action)
        mask = decisions(x.timestep, batch.mask)
        batch = dataclasses.replace(batch, transitions=seen(net, batch, x), mask=mask)
        return net.epochs(config.passes, batch, turn, stop).update_targets()

    inputs = example_timestep(env), network.initial(1)
    return Recipe(
        parts={"actor_critic": Part(network, inputs, config.optimizer, config.reference)},
        act=sampled(),
        losses={"loss": Loss(loss, ("actor_critic",))},
        update=update,
        memory=network.initial,
        needs=needs,
        sequences=True,
        scores={"success": "pass@1"},  # the share of sampled answers that are right
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` where no policy of these settings can act in `env`, or the episodes of an
    update do not divide into the minibatches."""
    check_policy(env, config, name)
    config.passes.check(source_group(config).num_envs, env.max_steps or 1, sequences=True)
