"""RISE against independent attempts by a policy that learned single ones, with as many samples.

Policies are linear in features: of an answer itself, and of how it was attempted before, which say
the same of all problems. So what is learned of a problem is of little use at new ones, and what is
learned of attempts is. At first a policy mostly repeats its last attempt. An answer is told to be
wrong before the next attempt, and all that is measured is expected on new problems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.rise import attempt_weights, rise
from jaxrl.core.types import Array, Key

ANSWERS, FEATURES, ATTEMPTS, PROBLEMS, NEW = 8, 16, 5, 64, 256
CONVERSATIONS, TRIES, ROUNDS, STEPS = 256, 4, 6, 40
RATES = jnp.array([0.1, 0.3])
REPEATS, RUNS, PATHS = 2.0, 2, 4  # log-odds of the last attempt, sets of problems, and draws
MORE, GAIN, NEAR = 0.1, 0.05, 0.03  # shares of solved problems
SETTINGS = rise.Config()
Weigh = Callable[..., Array]  # like `attempt_weights`


class Policy(NamedTuple):
    """Weights of answers [F], of the last attempt, and of each attempt before."""

    answer: Array
    last: Array
    before: Array


class Problems(NamedTuple):
    """Features [X, A, F] of answers, and the right one, int [X]."""

    features: Array
    right: Array


def draw(key: Key) -> tuple[Problems, Problems, Policy]:
    """Draw problems, new problems, and a policy that repeats itself."""
    keys = jax.random.split(key, 4)
    shape = PROBLEMS + NEW, ANSWERS
    features = jax.random.normal(keys[0], (*shape, FEATURES))
    ideal = jax.random.normal(keys[1], (FEATURES,)) / FEATURES**0.5
    right = jnp.argmax(features @ ideal + jax.random.normal(keys[2], shape), -1)
    begin = 0.3 * ideal + 0.3 * jax.random.normal(keys[3], (FEATURES,)) / FEATURES**0.5
    x = Problems(features, right)
    cut = lambda where: jax.tree.map(lambda y: y[where], x)
    return (
        cut(slice(PROBLEMS)),
        cut(slice(PROBLEMS, None)),
        Policy(begin, jnp.array(REPEATS), jnp.array(0.0)),
    )


def log_probs(policy: Policy, features: Array, attempted: Array) -> Array:
    """Return the log-probabilities [K, B, A] of attempts, each after those before it.

    features: [B, A, F]. attempted: int [K, B].
    """
    each = jax.nn.one_hot(attempted, ANSWERS)
    last = jnp.concatenate([jnp.zeros_like(each[:1]), each[:-1]])
    before = jnp.cumsum(last, 0) > 0
    return jax.nn.log_softmax(
        features @ policy.answer + policy.last * last + policy.before * before
    )


def attempt(
    key: Key, policy: Policy, x: Problems, problem: Array, wrong: bool, count: int
) -> tuple[Array, Array]:
    """Return attempts at problems [B] in turn, int [K, B], and how probably each is right, if those
    before are wrong.

    wrong: whether only wrong attempts are drawn.
    """
    features, right = x.features[problem], jax.nn.one_hot(x.right[problem], ANSWERS) > 0

    def turn(attempted, given):
        k, key = given
        log_prob = log_probs(policy, features, attempted)[k]
        chance = jnp.where(right, jnp.exp(log_prob), 0).sum(-1)
        drawn = jax.random.categorical(key, jnp.where(right & wrong, -jnp.inf, log_prob))
        return attempted.at[k].set(drawn), chance

    begin = jnp.zeros((count, len(problem)), int)
    return jax.lax.scan(turn, begin, (jnp.arange(count), jax.random.split(key, count)))


def turns(key: Key, policy: Policy, x: Problems) -> Array:
    """Return how probably problems are solved by the end of each turn, [K]."""
    problem = jnp.repeat(jnp.arange(len(x.right)), PATHS)
    _, chance = attempt(key, policy, x, problem, True, ATTEMPTS)
    return 1 - jnp.cumprod(1 - chance, 0).mean(-1)


def alone(policy: Policy, x: Problems) -> Array:
    """Return how probably one of so many independent first attempts is right, [K]."""
    p = jax.nn.softmax(x.features @ policy.answer)
    right = jnp.take_along_axis(p, x.right[:, None], 1)
    return 1 - ((1 - right) ** jnp.arange(1, ATTEMPTS + 1)).mean(0)


def learn(key: Key, policy: Policy, x: Problems, rate: Array, weigh: Weigh, count: int) -> Policy:
    """Return the policy after rounds of RISE with up to `count` attempts, as many for all."""

    def round_of(policy, key):
        keys = jax.random.split(key, 4)
        number = CONVERSATIONS * (ATTEMPTS + TRIES) // (count + TRIES)
        problem = jax.random.randint(keys[0], (number,), 0, len(x.right))
        attempted, _ = attempt(keys[1], policy, x, problem, False, count)
        right = attempted == x.right[problem]
        open_ = jnp.cumsum(right, 0) - right == 0
        at = jnp.argmax(jnp.where(open_, jax.random.uniform(keys[2], right.shape), -1), 0)
        row = jnp.arange(number)
        logits = log_probs(policy, x.features[problem], attempted)[at, row]
        again = jax.random.categorical(keys[3], logits, shape=(TRIES, number))
        solved = (again == x.right[problem]).any(0)
        attempted = attempted.at[at, row].set(jnp.where(solved, x.right[problem], again[0]))
        reward = (attempted == x.right[problem]).astype(float)
        written = jnp.arange(count)[:, None] <= at
        weight = weigh(reward, SETTINGS.tau, SETTINGS.criterion) * written

        def loss(policy):
            log_prob = log_probs(policy, x.features[problem], attempted)
            chosen = jnp.take_along_axis(log_prob, attempted[..., None], -1)[..., 0]
            return losses.masked_mean(weight * losses.behavior_cloning(chosen), written)

        step = lambda _, p: jax.tree.map(lambda y, g: y - rate * g, p, jax.grad(loss)(p))
        return jax.lax.fori_loop(0, STEPS, step, policy), None

    return jax.lax.scan(round_of, policy, jax.random.split(key, ROUNDS))[0]


def results(weigh: Weigh, key: Key) -> dict[str, Array]:
    """Return how many new problems are solved by each number of attempts, [K], in turns and
    independently."""

    def one(key):
        keys = jax.random.split(key, 3)
        old, new, begin = draw(keys[0])
        train = lambda count: jax.vmap(lambda r: learn(keys[1], begin, old, r, weigh, count))(RATES)
        in_turns = jax.vmap(lambda p: turns(keys[2], p, new))
        found = {"begin": turns(keys[2], begin, new), "begin, alone": alone(begin, new)}
        ours, single = train(ATTEMPTS), train(1)
        return found | {
            "turns": in_turns(ours),
            "turns, alone": jax.vmap(lambda p: alone(p, new))(ours),
            "single": in_turns(single),
            "single, alone": jax.vmap(lambda p: alone(p, new))(single),
        }

    found = jax.vmap(one)(jax.random.split(key, RUNS))
    return jax.tree.map(lambda y: y.mean(0), found)


def errors_of(weigh: Weigh, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed."""
    found = results(weigh, key)
    begin, ours = found["begin"], found["turns"]
    best = ours[ours[:, -1].argmax()]
    single = jnp.maximum(found["single, alone"].max(0), found["begin, alone"])
    return {
        "solved in turns, those by independent attempts and more": shortfall(
            best[-1], single[-1] + MORE
        ),
        "gain over turns, that before learning and more": shortfall(
            best[-1] - best[0], begin[-1] - begin[0] + GAIN
        ),
        "gain over turns by single attempts, and more": shortfall(
            best[-1] - best[0], (found["single"][:, -1] - found["single"][:, 0]).max() + GAIN
        ),
        "first attempts below single ones": shortfall(best[0], found["single"][:, 0].max() - NEAR),
        "before learning, turns below independent attempts": shortfall(
            found["begin, alone"][-1], begin[-1] + GAIN
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of RISE."""
    return errors_of(attempt_weights, key)


def wrong(weigh: Weigh) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of other weights."""
    return jax.jit(lambda key: errors_of(weigh, key))


def alike(weigh: Weigh) -> Weigh:
    """Weigh all attempts alike."""
    return lambda reward, *more: weigh(0 * reward, *more)


def reverse(weigh: Weigh) -> Weigh:
    """Weigh wrong attempts more."""
    return lambda reward, *more: weigh(1 - reward, *more)


CLAIM = Exact(
    paper=Paper(
        "Recursive Introspection: Teaching Language Model Agents How to Self-Improve",
        "Qu, Zhang, Garg and Kumar",
        2024,
        "2407.18219",
        "Rounds of learning from own attempts that were improved let Llama 2, Llama 3 and Mistral "
        "answer better from turn to turn in mathematics, by more than single-turn methods with as "
        "much computation, and without harm to first answers.",
    ),
    claim="After RISE, five attempts in turn solve 0.1 more new problems than five independent "
    "ones by a policy that learned single attempts.",
    left_out="Language models, improvement by a stronger model, turns without a reply, and majority"
    " votes: here each attempt is told to be right or wrong, and one of several is to be right. "
    "Problems have eight answers, and the policy 18 weights.",
    parts=("jaxrl/algorithms/tokens/rise.py", "jaxrl/losses/policies/weighted_regression.py"),
    errors=errors,
    planted={
        "wrong attempts weigh more": wrong(reverse(attempt_weights)),
        "attempts weigh alike": wrong(alike(attempt_weights)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=3.0,
    notes="Single attempts are learned by RISE with one turn, from as many attempts of its own; "
    "independent attempts are those of this policy at the better of two step sizes, or those "
    "before learning, if these solve more. At the beginning a policy mostly repeats its last "
    "attempt. Chances of being right are computed exactly for sampled wrong attempts. Margins were "
    "set after a pilot of two other draws, in which five attempts in turn solved 0.84, and "
    "independent ones 0.58 and 0.56 without learning and 0.53 and 0.50 with it.",
    mutations=(
        Mutation(
            "wrong attempts weigh more",
            "jaxrl.losses:advantage_weight",
            lambda f: lambda advantage, *more: f(1 - advantage, *more),
        ),
    ),
)
