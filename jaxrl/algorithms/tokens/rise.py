"""RISE (Qu et al., 2024, "Recursive introspection: teaching language model agents how to
self-improve", arXiv:2407.18219): rounds in which a policy learns to answer better what it answered
wrong before. It makes attempts at a prompt, each with the earlier ones and the replies to them in
sight. One attempt, to which none was right before, is replaced by a better one: the best of N by
the policy itself (self-distillation), or one by the expert (distillation). What was attempted up to
there is learned by likelihood, with the weight exp(r / tau) of each attempt's reward.

This follows the published code, whose weights are not normalized. It keeps all attempts, or but
those that are better than the last (better), no worse than any earlier one (best), or right
(success); the first is always kept, except by success. There the improved attempt is the last of
as many as there were rounds; here it is any, drawn uniformly. There the mean over an attempt's
tokens is weighted; here each token, which is the same where attempts are equally long. Each round
goes on from the policy of the last one and learns its own attempts alone. The majority vote over
attempts, by which the paper evaluates, is left out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import Sample, evaluate, on_episodes
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Episodes, Optimizer, Passes
from jaxrl.sources import episodes, improve_utterances

CRITERIA = ("all", "better", "best", "success")
WRITERS = ("policy", "expert")


@group
class Attempts(Episodes):
    """Conversations of the policy, each with one attempt that is improved."""

    num_envs: int = static(256, low=1, high=MANY)
    """Number of conversations in a round."""
    writer: str = static("policy", choices=WRITERS)
    """Writer of better attempts: policy (the one that is trained), or expert (the
    environment's)."""
    tries: int = static(16, low=1, high=MANY)
    """Number of new attempts of which the best is learned (N). 16: the published example."""
    right: float = static(1.0)
    """Reward from which an attempt is right."""

    def source(self, env: Environment) -> Source:  # type: ignore[override]
        """Return a source of conversations that end with an improved attempt. Raises `UserError`
        without an expert if it is to write."""
        by_expert = self.writer == "expert"
        env = expert_channel(env) if by_expert else env
        played = episodes(env, self.num_envs, None, self.num_shards, keep_states=True)
        writer = expert_policy(env) if by_expert else None
        return improve_utterances(played, env, self.tries, self.right, writer)


@group
class Config(Tokens):
    """Settings of RISE: likelihood of improved attempts, weighted by their reward
    (arXiv:2407.18219)."""

    attempts: Attempts = Attempts()
    passes: Passes = Passes(epochs=4, minibatches=4, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    tau: float = hyper(0.4, above=0, high=INF)
    """Temperature of the rewards in weights. 0.4: the published code."""
    criterion: str = static("all", choices=CRITERIA)
    """Attempts that are learned: all, better (than the last), best (no worse than any earlier one),
    or success (right)."""


def attempt_weights(
    reward: Array, tau: Array | float, criterion: str = "all", right: float = 1.0
) -> Array:
    """Return the weights [K, B] of K attempts, 0 for those that are not learned.

    reward: [K, B]. tau, criterion, right: see `Config` and `Attempts`.
    """
    none = jnp.full_like(reward[:1], -jnp.inf)
    before = jnp.concatenate([none, reward[:-1]])
    kept = {
        "all": reward > -jnp.inf,
        "better": reward > before,
        "best": reward >= jax.lax.cummax(before),
        "success": reward >= right,
    }[criterion]
    return jnp.where(kept, losses.advantage_weight(reward, tau, jnp.inf), 0.0)


@loss("actor_critic", name="loss")
def rise_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the weighted cross-entropy of the attempts' tokens, less an entropy bonus."""
    now = evaluate(net, x, as_sampled=False)
    value = x.advantage * losses.behavior_cloning(now.log_prob)
    metrics = {"policy_loss": value, "entropy": now.entropy, "weight": x.advantage}
    return LossOutput(value - net.hyper.entropy_weight * now.entropy, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        turn = jnp.where(mask, t.timestep.tokens["turn"], -1)
        reward = losses.segment_sum(jnp.where(mask, t.reward, 0.0), turn, len(turn))
        weight = attempt_weights(reward, net.hyper.tau, config.criterion, config.attempts.right)
        return Sample(x.timestep, x.action, advantage=losses.segment_to_tokens(weight, turn))

    return on_episodes(env, config, (rise_loss,), prepare, learned=lambda x: x.advantage > 0)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `turns.check`, and if early stopping is on."""
    if config.passes.early_stop:
        raise UserError(f"{name} cannot stop early; leave passes.early_stop off.")
    turns.check(env, config, name)


rise = AlgorithmBuilder("rise", Config, recipe, check=check)

TINY = SMALL | {"env": "second_try", "num_envs": 8, "num_shards": 4, "tries": 2}
