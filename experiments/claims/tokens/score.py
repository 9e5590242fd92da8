"""SCoRe against its ablations where first attempts can be memorized, by sums over all attempts.

A policy answers problems twice. Logits of answers, its memory, are a table by the problem, which
both attempts read. The second attempt also depends on two weights that all problems share: how much
the first answer is kept, and how much it is kept or left by a check that is right more often than
not. Memory of the problems of training is of no use for new ones; the weights are. So it is
measured how much more often second attempts at new problems are right than first ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.score import attempt_credits
from jaxrl.core.types import Array, Key

PROBLEMS, NEW, ANSWERS, RUNS = 32, 512, 4, 4  # answer 0 is right
SCALE = PROBLEMS**0.5  # of memory, so that a problem's is learned as fast as what all share
RELIABLE, KEEP = 0.85, 2.0  # share of right checks; how much an answer is kept at the beginning
UPDATES, FIRST, ALPHA, ANCHOR, WEIGHT = 400, 100, 10.0, 0.1, 0.01
RATES = jnp.array([0.3, 1.0, 3.0, 10.0, 30.0])
BETTER, ALONE, NEAR, STAGE = 0.05, 0.01, 0.01, 0.003
Credits = Callable[..., Array]  # like `attempt_credits`
Hold = Callable[..., Array]  # like `losses.first_attempt_penalty`


class Policy(NamedTuple):
    """Memory [X, A] of problems, and weights that they share."""

    memory: Array
    keep: Array
    check: Array


def draw(key: Key, number: int) -> tuple[Policy, Array]:
    """Draw a policy for new problems, and checks [X, A] of their answers, 1 or -1."""
    memory_key, check_key = jax.random.split(key)
    memory = jax.random.normal(memory_key, (number, ANSWERS))
    right = jax.random.bernoulli(check_key, RELIABLE, memory.shape)
    truth = jnp.where(jnp.arange(ANSWERS) == 0, 1.0, -1.0)
    return Policy(memory / SCALE, jnp.array(KEEP), jnp.array(0.0)), jnp.where(right, truth, -truth)


def attempts(policy: Policy, checks: Array) -> tuple[Array, Array]:
    """Return the log-probabilities of first [X, A] and second [X, A, A] attempts."""
    same = jnp.eye(ANSWERS) * (policy.keep + policy.check * checks)[..., None]
    memory = SCALE * policy.memory
    return jax.nn.log_softmax(memory), jax.nn.log_softmax(memory[:, None] + same)


def shares(policy: Policy, checks: Array) -> tuple[Array, Array]:
    """Return how often first and second attempts are right."""
    first, second = attempts(policy, checks)
    p = jnp.exp(first)
    return p[:, 0].mean(), (p * jnp.exp(second)[..., 0]).sum(-1).mean()


def learn(
    begin: Policy,
    checks: Array,
    rate: Array,
    stage: int,
    alpha: float,
    credits: Credits,
    hold: Hold,
) -> Policy:
    """Return the policy after training.

    stage: updates of the first stage. alpha: bonus of the second one.
    """
    reference = attempts(begin, checks)
    held_first, held_second = reference[0][..., None], reference[1]
    right = jnp.arange(ANSWERS) == 0
    pair = jnp.ones((ANSWERS, ANSWERS))
    rewards = jnp.stack([pair * right[:, None], pair * right])  # of first and second attempts

    def loss(policy, number):
        first, second = attempts(policy, checks)
        first = jnp.broadcast_to(first[..., None], second.shape)
        both = jnp.stack([first, second], 1)  # [X, 2, A, A]
        p = jax.lax.stop_gradient(jnp.exp(first + second))[:, None]
        held = hold(rewards[1], first, held_first, ANCHOR)[:, None]
        given = jnp.where(number < stage, held, credits(rewards, alpha, False))
        advantage = given - (p * given).sum((-2, -1), keepdims=True)
        reference = jnp.stack([jnp.broadcast_to(held_first, second.shape), held_second], 1)
        penalty = WEIGHT * losses.kl_k2(both, reference)
        each = losses.policy_gradient(both, advantage) + penalty
        return (p * each).sum((1, 2, 3)).mean()

    def step(policy, number):
        slope = jax.grad(loss)(policy, number)
        return jax.tree.map(lambda y, g: y - rate * g, policy, slope), None

    return jax.lax.scan(step, begin, jnp.arange(UPDATES))[0]


def results(credits: Credits, hold: Hold, key: Key) -> dict[str, Array]:
    """Return by how much more second attempts at new problems are right than first ones, for each
    side at each step size."""
    own_key, new_key = jax.random.split(key)
    (begin, checks), (new, new_checks) = draw(own_key, PROBLEMS), draw(new_key, NEW)
    own = credits, hold
    sides = {
        "score": (FIRST, ALPHA, *own),
        "no first stage": (0, ALPHA, *own),
        "no bonus": (FIRST, 0.0, *own),
        "neither": (0, 0.0, *own),
    }

    def run(rate, side):
        policy = learn(begin, checks, rate, *side)
        first, second = shares(policy._replace(memory=new.memory), new_checks)
        return second - first

    return {name: jax.vmap(lambda rate, s=s: run(rate, s))(RATES) for name, s in sides.items()}


def errors_of(credits: Credits, hold: Hold, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed."""
    found = jax.vmap(lambda k: results(credits, hold, k))(jax.random.split(key, RUNS))
    gain = jax.tree.map(lambda y: y.mean(0), found)
    alone = jnp.stack([gain[name] - gain["neither"] for name in ("no first stage", "no bonus")])
    return {
        "gain at the best step size below that of neither part, and more": shortfall(
            gain["score"].max(), gain["neither"].max() + BETTER
        ),
        "gain at a step size by one part alone below that of neither, and more": shortfall(
            alone.min(), ALONE
        ),
        "gain at a step size below that without the bonus": shortfall(
            (gain["score"] - gain["no bonus"]).min(), -NEAR
        ),
        "mean gain below that without the first stage, and more": shortfall(
            gain["score"].mean(), gain["no first stage"].mean() + STAGE
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of SCoRe."""
    return errors_of(attempt_credits, losses.first_attempt_penalty, key)


def wrong(credits: Credits, hold: Hold) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other credits and another penalty of first attempts."""
    return jax.jit(lambda key: errors_of(credits, hold, key))


def without_bonus(reward: Array, bonus: Array, credit_first: bool) -> Array:
    """Return the credits of attempts without a bonus."""
    return attempt_credits(reward, 0.0 * bonus, credit_first)


def ignore_bonus(shape: Credits) -> Credits:
    """Pay no bonus."""
    return lambda reward, scale: shape(reward, 0.0 * scale)


def release(hold: Hold) -> Hold:
    """Hold no first attempt in the first stage."""
    return lambda reward, log_prob, reference, beta: hold(reward, log_prob, reference, 0.0 * beta)


CLAIM = Exact(
    paper=Paper(
        "Training Language Models to Self-Correct via Reinforcement Learning",
        "Kumar, Zhuang, Agarwal, Su, Co-Reyes, Singh, Baumli, Iqbal, Bishop, Roelofs, Zhang, "
        "McKinney, Shrivastava, Paduraru, Tucker, Precup, Behbahani and Faust",
        2024,
        "2409.12917",
        "Rewarding two attempts alone collapses into good first attempts that are left as they "
        "are. A first stage that holds first attempts, and a bonus for what the second one gains, "
        "let second attempts correct first ones, by 4.4 points at new mathematical problems; "
        "without either part it is less.",
    ),
    claim="At new problems second attempts gain 0.05 more by SCoRe than by rewards of both "
    "attempts; the first stage or the bonus alone helps too.",
    left_out="Language models, samples, and first attempts that improve at new problems: here "
    "their answers are memorized, which helps at no new one. An attempt is one answer out of four.",
    parts=("jaxrl/algorithms/tokens/score.py", "jaxrl/losses/tokens/rewards.py"),
    errors=errors,
    planted={
        "no bonus": wrong(without_bonus, losses.first_attempt_penalty),
        "first attempts are not held": wrong(
            attempt_credits, release(losses.first_attempt_penalty)
        ),
    },
    tolerance=1e-9,
    effect=1e-3,
    seeds=5,
    minutes=3.0,
    notes="A gain is how much more second attempts are right than first ones. Each side is "
    "compared at the best of five step sizes; either part alone gains 0.01 more than neither at "
    "every one of them, SCoRe 0.003 more than without the first stage in their mean, and nowhere "
    "0.01 less than without the bonus. That the bonus adds to the first stage is not claimed. "
    "Means are of four sets of 32 problems. That memory is learned as fast as what problems share, "
    "and the margins, were set after a pilot on other seeds: where it is learned more slowly, all "
    "sides gain alike, and beside the first stage the bonus added nothing.",
    mutations=(
        Mutation("no bonus", "jaxrl.losses:self_correction_reward", ignore_bonus),
        Mutation("first attempts are not held", "jaxrl.losses:first_attempt_penalty", release),
    ),
)
