"""GRPO with an advantage that entropy adds to, where a thought has to say which call is meant.

A prompt wants one call of two tokens. The policy writes a thought, a token by a table of prompts,
and then the call, which it reads from the thought alone, so that thoughts have to become different
ones. At first one thought is usual for all prompts. A call is paid if both of its tokens are right.
The policy learns from samples, and how probable right calls are is computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.function_call_grpo import function_call_grpo
from jaxrl.core.types import Array, Key

CALLS = np.array([[0, 1], [1, 3], [2, 0], [3, 2]])  # wanted by each prompt
THOUGHTS, TOKENS, SIZE, UPDATES, PROBLEMS = 4, 4, 8, 300, 64
RATES = np.array([3.0, 6.0, 12.0, 25.0, 50.0])
USUAL, MORE, LEARNED = 2.0, 0.02, 0.9
SETTINGS = function_call_grpo.Config()
Shape = Callable[..., Array]  # like `losses.entropy_shaped_advantage`


class Tables(NamedTuple):
    """Logits of thoughts [P, Z], and of the tokens of calls [Z, L, V]."""

    thought: Array
    call: Array


def draw(key: Key) -> Tables:
    """Draw a policy with a usual thought."""
    keys = jax.random.split(key)
    thought = 0.3 * jax.random.normal(keys[0], (len(CALLS), THOUGHTS))
    call = 0.3 * jax.random.normal(keys[1], (THOUGHTS, CALLS.shape[1], TOKENS))
    return Tables(thought.at[:, 0].add(USUAL), call)


def log_probs(tables: Tables, thought: Array, call: Array) -> Array:
    """Return the log-probabilities [P, G, 1 + L] of the tokens of answers."""
    first = jnp.take_along_axis(jax.nn.log_softmax(tables.thought), thought, 1)[..., None]
    policy = jax.nn.log_softmax(tables.call)[thought]
    rest = jnp.take_along_axis(policy, call[..., None], -1)[..., 0]
    return jnp.concatenate([first, rest], -1)


def entropies(tables: Tables, thought: Array) -> Array:
    """Return the entropies [P, G, 1 + L] of the policy at the tokens of answers."""
    first = losses.categorical_entropy(tables.thought)[:, None, None]
    first = jnp.broadcast_to(first, (*thought.shape, 1))
    return jnp.concatenate([first, losses.categorical_entropy(tables.call)[thought]], -1)


def rightness(tables: Tables) -> Array:
    """Return how probable a right call is, a mean over prompts."""
    call = jax.nn.softmax(tables.call)
    each = call[:, np.arange(CALLS.shape[1]), CALLS]  # [Z, P, L]
    return (jax.nn.softmax(tables.thought) * each.prod(-1).T).sum(-1).mean()


def learn(key: Key, shape: Shape | None, rate: Array) -> Array:
    """Return how probable a right call is after training. shape: None for GRPO."""
    draw_key, key = jax.random.split(key)

    def step(tables, key):
        keys = jax.random.split(key)
        size = len(CALLS), SIZE
        thought = jax.random.categorical(keys[0], tables.thought[:, None], shape=size)
        call = jax.random.categorical(keys[1], tables.call[thought])
        right = (call == CALLS[:, None]).all(-1)
        advantage = losses.group_relative(right.astype(tables.call.dtype))[..., None]
        old = log_probs(tables, thought, call)
        advantage = jnp.broadcast_to(advantage, old.shape)
        if shape is not None:
            entropy = entropies(tables, thought)
            bonus = SETTINGS.entropy_scale, SETTINGS.entropy_bound
            advantage = shape(advantage, entropy, *bonus)

        def loss(tables):
            now = log_probs(tables, thought, call)
            return losses.clipped_surrogate(now, old, advantage, SETTINGS.clip).mean()

        return jax.tree.map(lambda x, g: x - rate * g, tables, jax.grad(loss)(tables)), None

    tables, _ = jax.lax.scan(step, draw(draw_key), jax.random.split(key, UPDATES))
    return rightness(tables)


def errors_of(shape: Shape, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by an advantage like that of the paper."""
    keys = jax.random.split(key, PROBLEMS)

    def best(shape):
        of_rates = lambda key: jax.vmap(lambda rate: learn(key, shape, rate))(jnp.asarray(RATES))
        return jax.vmap(of_rates)(keys).mean(0).max()

    own, plain = best(shape), best(None)
    return {
        "right calls, GRPO's and more": shortfall(own, plain + MORE),
        "right calls": shortfall(own, LEARNED),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of entropy in the advantage."""
    return errors_of(losses.entropy_shaped_advantage, key)


def negate(shaped: Shape) -> Shape:
    """Unlearn what was right."""
    return lambda advantage, *given: -shaped(advantage, *given)


@jax.jit
def unlearn(key: Key) -> dict[str, Array]:
    """Return the errors of the opposite advantage."""
    return errors_of(negate(losses.entropy_shaped_advantage), key)


CLAIM = Exact(
    paper=Paper(
        "Exploring Superior Function Calls via Reinforcement Learning",
        "Hao, Wang, Xu, Chen, Peng, Gu and Zhuang",
        2025,
        "2508.05118",
        "Function calls need exploration and reasoned thoughts. GRPO whose advantage has a bonus "
        "for the entropy of thoughts is above GRPO by up to 6 % in calls of several functions.",
    ),
    claim="With the best rate of each, entropy in the advantage ends with 0.02 more right calls "
    "than GRPO.",
    left_out="Language models, the filters of training data, and structured parameters: here are "
    "four prompts, four thoughts and calls of two tokens. The bonus is that of all tokens.",
    parts=(
        "jaxrl/losses/advantages/segments.py",
        "jaxrl/losses/advantages/groups.py",
        "jaxrl/algorithms/tokens/function_call_grpo.py",
    ),
    errors=errors,
    planted={"the opposite advantage": unlearn},
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=3.0,
    notes="Both sides have the best of five rates, by means over 64 problems; clip, scale and "
    "bound are the algorithm's. In a trial of one other key, before this was declared, both came "
    "to 0.98 with their best rates, and with the same rate of 1, in a run that was too short for "
    "it, the bonus had 0.40 and GRPO 0.33: it makes advantages larger. The claim was declared as "
    "the paper makes it all the same, with the least margin that the trial's room allows.",
    diagnosis="Where the bonus is not clipped it is the same for all tokens that might have been "
    "written, so that it is no expected push; what remains is a larger step, which a rate gives "
    "as well.",
    mutations=(
        Mutation("what was right is unlearned", "jaxrl.losses:entropy_shaped_advantage", negate),
    ),
)
