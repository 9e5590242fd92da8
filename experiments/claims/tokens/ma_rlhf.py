"""MA-RLHF between PPO of tokens and bandits of whole answers, on random rewards and values."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.ma_rlhf import fixed_macros, macro_advantages
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Batch, Key, TimeStep, Transition

TOKENS, ANSWERS, LAMBDA, DISCOUNT = 12, 6, 0.8, 0.9
SIZES = (1, 2, 3, 4, 6, 12)  # of macro actions, that divide an answer
ENDS = np.repeat(np.arange(TOKENS)[:, None] == TOKENS - 1, ANSWERS, 1)
Macro = Callable[[Array, int], Array]  # like `fixed_macros`


class Case(NamedTuple):
    """Rewards of tokens, and values before and after each, [T, B]."""

    reward: Array
    value: Array
    following: Array


def draw(key: Key) -> Case:
    """Draw rewards and values; what follows an answer is worth something, which must not count."""
    reward_key, value_key = jax.random.split(key)
    value = jax.random.normal(value_key, (TOKENS + 1, ANSWERS))
    return Case(jax.random.normal(reward_key, (TOKENS, ANSWERS)), value[:-1], value[1:])


def advantages(macro: Macro, x: Case, size: int, discount: float, trace: float) -> tuple[Any, Any]:
    """Return the advantages and targets [T, B] by macro actions of a size."""
    none, mask = jnp.zeros((TOKENS, ANSWERS), bool), jnp.ones((TOKENS, ANSWERS), bool)
    before = TimeStep(none, jnp.zeros_like(x.reward), none, none, none)
    after = TimeStep(none, x.reward, jnp.asarray(ENDS), none, none)
    batch = Batch(Transition(before, none, after, (), {}), jnp.zeros(()), mask=mask)
    net: Any = SimpleNamespace(hyper=Values({"discount": discount, "gae_lambda": trace}))
    return macro_advantages(net, batch, macro(mask, size), x.value, x.following)


def errors_of(macro: Macro, x: Case) -> dict[str, Array]:
    """Return the errors of macro actions by a function like `fixed_macros`."""
    tokens, target = advantages(macro, x, 1, DISCOUNT, LAMBDA)
    done = jnp.asarray(ENDS)
    exact = losses.gae(x.reward, x.value, x.following, done, done, DISCOUNT, LAMBDA)
    whole, _ = advantages(macro, x, TOKENS, 1.0, LAMBDA)
    final = jnp.zeros_like(x.reward).at[-1].set(1.0)
    blank = Case(final, jnp.zeros_like(final), jnp.zeros_like(final))
    reached = jnp.stack([advantages(macro, blank, n, 1.0, LAMBDA)[0][0] for n in SIZES])
    far = LAMBDA ** (TOKENS / jnp.array(SIZES, float) - 1)
    by_one, _ = advantages(macro, x, 4, 1.0, 1.0)
    to_go = jnp.cumsum(x.reward[::-1], 0)[::-1][::4] - x.value.reshape(-1, 4, ANSWERS).mean(1)
    apart = lambda found, right: jnp.abs(found - right).max() / jnp.abs(right).max()
    return {
        "one token each, PPO's advantages": apart(tokens, exact),
        "one token each, PPO's targets": apart(target, exact + x.value),
        "a whole answer, its return less its value": apart(
            whole, jnp.broadcast_to(x.reward.sum(0) - x.value.mean(0), whole.shape)
        ),
        "how far a final reward reaches": apart(reached, far[:, None]),
        "four tokens each, what is to come less their value": apart(
            by_one, jnp.repeat(to_go, 4, 0)
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of MA-RLHF's advantages."""
    return errors_of(fixed_macros, draw(key))


def wrong(macro: Macro) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other macro actions."""
    return jax.jit(lambda key: errors_of(macro, draw(key)))


def late(macro: Macro) -> Macro:
    """Begin each macro action one token late."""

    def shift(mask, size):
        found = macro(mask, size)
        return jnp.concatenate([found[:1], found[:-1]])

    return shift


def tokens_alone(macro: Macro) -> Macro:
    """Make each token a macro action."""
    return lambda mask, size: macro(mask, 1)


def take_sums(mean: Callable[..., Array]) -> Callable[..., Array]:
    """Sum the values of a macro action's tokens, instead of taking their mean."""
    return lambda x, segment, number: (
        mean(x, segment, number) * losses.segment_sum(jnp.ones_like(x), segment, number)
    )


CLAIM = Exact(
    paper=Paper(
        "MA-RLHF: Reinforcement Learning from Human Feedback with Macro Actions",
        "Chai, Sun, Fang, Wang, Sun and Wu",
        2024,
        "2410.02743",
        "Macro actions of several tokens shorten the way from actions to a reward. One token each "
        "is PPO, a whole answer a contextual bandit; between them up to 30 % is gained in "
        "summaries and code, and parity is reached 1.7 to 2 times faster.",
    ),
    claim="Macro actions of 1 token are PPO's, of a whole answer a bandit's; by n of T tokens a "
    "final reward reaches the first times lambda^(T/n - 1).",
    left_out="Language models, learning, and so all gains; macro actions of random sizes and by "
    "perplexity, which the tests compare with loops.",
    parts=(
        "jaxrl/algorithms/tokens/ma_rlhf.py",
        "jaxrl/losses/advantages/segments.py",
        "jaxrl/losses/advantages/returns.py",
    ),
    errors=errors,
    planted={
        "macro actions begin late": wrong(late(fixed_macros)),
        "each token a macro action": wrong(tokens_alone(fixed_macros)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation("macro actions begin late", "jaxrl.algorithms.tokens.ma_rlhf:fixed_macros", late),
        Mutation("the sum of values, not their mean", "jaxrl.losses:segment_mean", take_sums),
    ),
)
