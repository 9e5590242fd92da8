"""MA-RLHF (Chai et al., 2024, "MA-RLHF: reinforcement learning from human feedback with macro
actions", arXiv:2410.02743): PPO for tokens whose decisions are macro actions, runs of tokens. A
macro action is worth the mean value of its tokens and earns the sum of their rewards; generalized
advantages go from one macro action to the next, which shortens the way from an answer's reward to
its beginning, and all tokens of a macro action share its advantage and its target.

As in the authors' code, the ratio is clipped for each token, and perplexities are the reference's.
That code takes means of rewards too, except for an answer's last token, a macro action of its own;
it begins macro actions of falling perplexity one token earlier, and clips rewards and the values'
loss, which token_ppo does not. Here advantages are standardized over all decisions, as token_ppo's;
there they are not. Macro actions of one token are token_ppo. Those by a parser are left out."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens import token_ppo
from jaxrl.algorithms.tokens.shared.answers import (
    check,
    estimate_values,
    on_answers,
    restrict,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import Optimizer

ENDS = ("fixed", "random", "perplexity")


@group
class Macro:
    """Macro actions: where one ends and the next begins."""

    ends: str = static("fixed", choices=ENDS)
    """End of a macro action: fixed (after `size` tokens), random (after one of `sizes`), or
    perplexity (before one less likely for the reference)."""
    size: int = static(5, low=1, high=MANY)
    """Number of tokens of a macro action, if it is fixed."""
    sizes: tuple[int, ...] = static((1, 2, 3, 5, 10), low=1, least_length=1)
    """Numbers of tokens of a macro action, equally likely, if they are random."""


@group
class Config(token_ppo.Config):
    """Settings of MA-RLHF: PPO for tokens with macro actions (arXiv:2410.02743). The defaults are
    those of the authors' script for summaries, without its warm-up and decay of the step size."""

    optimizer: Optimizer = Optimizer(learning_rate=1.5e-5, weight_decay=0.1, max_grad_norm=1.0)
    kl: Divergence = Divergence(weight=0.05)
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation, per macro action."""
    macro: Macro = Macro()


def fixed_macros(mask: Array, size: int) -> Array:
    """Return the macro action of each step [T, B], of `size` decisions (`mask`) each."""
    return losses.segment_ids(mask, size)


def random_macros(mask: Array, sizes: tuple[int, ...], key: Key) -> Array:
    """Return the macro action of each step [T, B], of random numbers of decisions (`mask`)."""
    lengths = jax.random.choice(key, jnp.array(sizes), mask.shape)
    place = jnp.cumsum(mask, 0) - mask  # decisions before
    return (jnp.cumsum(lengths, 0)[:, None] <= place).sum(0)


def perplexity_macros(mask: Array, log_prob: Array) -> Array:
    """Return the macro action of each step [T, B]: decisions (`mask`) in a row, none less likely
    than the one before it by `log_prob` [T, B]."""

    def step(before: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        mask, log_prob = now
        return jnp.where(mask, log_prob, before), mask & (log_prob < before)

    begins = jax.lax.scan(step, jnp.full(mask.shape[1], -jnp.inf), (mask, log_prob))[1]
    return jnp.cumsum(begins, 0)


def recipe(env: Environment, config: Config) -> Recipe:
    own = config.macro

    def macros(net: Net, batch: Batch) -> Array:
        t, mask = batch.transitions, batch.mask
        assert mask is not None
        if own.ends == "fixed":
            return fixed_macros(mask, own.size)
        if own.ends == "random":
            return random_macros(mask, own.sizes, net.key("macro"))
        policy, _ = unroll(net.target.actor_critic, net, t.timestep)
        policy = restrict(net, policy, t.extras.get("allowed"))
        return perplexity_macros(mask, policy.log_prob(t.action))

    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        value, next_value = estimate_values(net, batch)
        advantage, target = macro_advantages(net, batch, macros(net, batch), value, next_value)
        return {"advantage": losses.standardize(advantage, batch.mask), "target": target}

    return on_answers(env, config, judge, (token_ppo.ppo_loss,), kl_in_reward=True)


def macro_advantages(
    net: Net, batch: Batch, macro: Array, value: Array, next_value: Array
) -> tuple[Array, Array]:
    """Return the advantage and the value target of each step's macro action, [T, B].

    batch: with rewards 0 after the episodes; its mask marks the steps that are decisions.
    macro: int32 [T, B], the macro action of each step. value, next_value: [T, B], of its steps and
        of their successors.
    """
    x, mask, h = batch.transitions, batch.mask, net.hyper
    assert mask is not None
    macro, number = jnp.where(mask, macro, -1), len(mask)
    worth = losses.segment_to_tokens(losses.segment_mean(value, macro, number), macro)
    begins = macro > jnp.concatenate([jnp.full_like(macro[:1], -1), _largest_before(macro)])
    after = jnp.where(x.done, next_value, jnp.concatenate([worth[1:], next_value[-1:]]))
    each = losses.masked_gae(
        x.reward, worth, after, x.terminated, x.done, begins, h.discount, h.gae_lambda
    )
    advantage = losses.segment_to_tokens(losses.segment_sum(each, macro, number), macro)
    return advantage, advantage + worth


def _largest_before(macro: Array) -> Array:
    """Return the number of the last macro action up to each step but the last, [T - 1, B]."""
    return jax.lax.cummax(macro, 0)[:-1]


ma_rlhf = AlgorithmBuilder("ma_rlhf", Config, recipe, check=check)

TINY = token_ppo.TINY | {"macro.ends": "random", "macro.sizes": (1, 2)}
