"""StarPO with the quarter of starts whose returns vary most against all of them, in long training.

A start is a chain of one to six rooms. In each a move leads on, and three do not; a move costs a
tenth, the end of the chain pays 1, and an agent may give up. Policies are linear in features of
moves, and giving up has one weight, so that what is learned at one start is learned at all. Where
all attempts at a start fail, their returns differ by what giving up has saved, and dividing by the
group's deviation makes that as large as success elsewhere. Success at new starts is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.tokens.starpo_s import starpo_s
from jaxrl.core.types import Array, Key

MOVES, FEATURES, ROOMS, TURNS, COST = 4, 16, 6, 10, 0.1
STARTS, NEW, GROUPS, SIZE = 64, 256, 16, 16
UPDATES, LOOKS, RUNS = 1000, 20, 4
RATES = jnp.array([0.1, 0.3, 1.0])
MORE, STABLE, FALLS = 0.01, 0.02, 0.04  # of success
SETTINGS = starpo_s.Config()  # the upper clip is never reached
Filter = Callable[..., Array]  # like `losses.high_variance_groups`


class Starts(NamedTuple):
    """Features [X, ROOMS, MOVES, F] of moves, of which one leads on [X, ROOMS], and rooms [X]."""

    features: Array
    right: Array
    rooms: Array


class Policy(NamedTuple):
    """Weights of moves [F], and the logit of giving up."""

    move: Array
    stop: Array


def draw(key: Key) -> tuple[Starts, Starts, Policy]:
    """Draw starts, new starts, and a policy."""
    keys = jax.random.split(key, 5)
    shape = STARTS + NEW, ROOMS, MOVES
    features = jax.random.normal(keys[0], (*shape, FEATURES))
    ideal = jax.random.normal(keys[1], (FEATURES,)) / FEATURES**0.5
    right = jnp.argmax(features @ ideal + 0.3 * jax.random.normal(keys[2], shape), -1)
    rooms = jax.random.randint(keys[3], shape[:1], 1, ROOMS + 1)
    begin = 0.1 * jax.random.normal(keys[4], (FEATURES,))
    x = Starts(features, right, rooms)
    cut = lambda where: jax.tree.map(lambda y: y[where], x)
    return cut(slice(STARTS)), cut(slice(STARTS, None)), Policy(begin, jnp.array(-1.0))


def log_probs(policy: Policy, features: Array) -> Array:
    """Return the log-probabilities [..., MOVES + 1] of moves and of giving up."""
    logits = features @ policy.move
    stop = jnp.broadcast_to(policy.stop, logits[..., :1].shape)
    return jax.nn.log_softmax(jnp.concatenate([logits, stop], -1))


def success(policy: Policy, x: Starts) -> Array:
    """Return how probably the ends of chains are reached."""
    p = jnp.exp(log_probs(policy, x.features))
    on = jnp.take_along_axis(p, x.right[..., None], -1)[..., 0]
    stay = p[..., :-1].sum(-1) - on
    inside = jnp.arange(ROOMS) < x.rooms[:, None]
    on, stay = jnp.where(inside, on, 0), jnp.where(inside, stay, 1)
    pad = lambda y, value: jnp.pad(y, ((0, 0), (0, 1)), constant_values=value)

    def turn(_, at):
        return at * pad(stay, 1) + jnp.roll(at * pad(on, 0), 1, 1)

    begin = jnp.zeros((len(x.rooms), ROOMS + 1)).at[:, 0].set(1)
    at = jax.lax.fori_loop(0, TURNS, turn, begin)
    return jnp.take_along_axis(at, x.rooms[:, None], 1).mean()


def play(key: Key, policy: Policy, x: Starts, start: Array) -> tuple[Array, Array, Array, Array]:
    """Return rooms, actions and which of them were taken, each [T, B], and returns [B]."""
    row, table = jnp.arange(len(start)), log_probs(policy, x.features)[start]
    right, rooms = x.right[start], x.rooms[start]

    def turn(carry, key):
        room, open_, paid = carry
        here = jnp.minimum(room, ROOMS - 1)
        action = jax.random.categorical(key, table[row, here])
        moves = open_ & (action < MOVES)
        after = room + (moves & (action == right[row, here]))
        solved = open_ & (after == rooms)
        paid += jnp.where(moves, -COST, 0) + solved
        return (after, moves & ~solved, paid), (here, action, open_)

    begin = jnp.zeros(len(start), int), jnp.ones(len(start), bool), jnp.zeros(len(start))
    (_, _, paid), (room, action, taken) = jax.lax.scan(turn, begin, jax.random.split(key, TURNS))
    return room, action, taken, paid


def learn(key: Key, policy: Policy, x: Starts, new: Starts, rate: Array, keep: Filter) -> Array:
    """Return success at new starts on the way, [LOOKS]."""

    def update(policy, key):
        keys = jax.random.split(key)
        start = jnp.repeat(jax.random.choice(keys[0], STARTS, (GROUPS,), False), SIZE)
        room, action, taken, paid = play(keys[1], policy, x, start)
        groups = paid.reshape(-1, SIZE)
        advantage = losses.group_relative(groups).reshape(-1)
        mask = taken & jnp.repeat(keep(groups, SETTINGS.keep), SIZE)
        features = x.features[start, room]

        def log_prob(policy):
            return jnp.take_along_axis(log_probs(policy, features), action[..., None], -1)[..., 0]

        old, clip = log_prob(policy), (SETTINGS.clip, SETTINGS.clip_high)

        def loss(policy):
            each = losses.clipped_surrogate(log_prob(policy), old, advantage, *clip)
            return losses.masked_mean(each, mask)

        slope = jax.grad(loss)(policy)
        return jax.tree.map(lambda y, g: y - rate * g, policy, slope), None

    def part(policy, keys):
        policy, _ = jax.lax.scan(update, policy, keys)
        return policy, success(policy, new)

    keys = jax.random.split(key, (LOOKS, UPDATES // LOOKS))
    return jax.lax.scan(part, policy, keys)[1]


def errors_of(keep: Filter, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed by a filter like `losses.high_variance_groups`."""
    everything = lambda returns, share: losses.high_variance_groups(returns, 1.0)

    def one(key):
        keys = jax.random.split(key)
        old, new, begin = draw(keys[0])

        def side(keep):
            return jax.vmap(lambda rate: learn(keys[1], begin, old, new, rate, keep))(RATES)

        return side(keep), side(everything)

    found = jax.vmap(one)(jax.random.split(key, RUNS))
    ours, all_of = (y.mean(0) for y in found)  # [RATES, LOOKS]
    fall = lambda y: y[-1].max() - y[-1, -1]  # at the largest step size
    return {
        "success at the end, that with all groups and more": shortfall(
            ours[:, -1].max(), all_of[:, -1].max() + MORE
        ),
        "success falls in long training": shortfall(-fall(ours), -STABLE),
        "success falls more with all groups": shortfall(fall(all_of), FALLS),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the quarter that varies most."""
    return errors_of(losses.high_variance_groups, key)


@jax.jit
def first_quarter(key: Key) -> dict[str, Array]:
    """Return the errors of any quarter of the groups."""
    return errors_of(lambda returns, share: jnp.arange(GROUPS) < share * GROUPS, key)


CLAIM = Exact(
    paper=Paper(
        "RAGEN: Understanding Self-Evolution in LLM Agents via Multi-Turn Reinforcement Learning",
        "Wang, Wang, Wang, Zhang, Li, Yang, Jin, Yu, Nguyen, Liu, Gottlieb, Lu, Cho, Wu, Fei-Fei, "
        "Wang, Choi and Li",
        2025,
        "2504.20073",
        "Agents that learn from whole trajectories of several turns collapse in long training, "
        "the echo trap. Learning from the starts alone whose returns vary most, with a critic and "
        "a higher upper clip, delays or prevents it and ends with more success.",
    ),
    claim="In 1000 updates success falls by 0.04 or more with all groups and not with the quarter "
    "that varies most, which ends above all.",
    left_out="Language models, reasoning, the critic, the higher clip (updates are on-policy, so "
    "no ratio is clipped), and the paper's other findings. Policies are linear in features.",
    parts=(
        "jaxrl/algorithms/tokens/starpo_s.py",
        "jaxrl/losses/advantages/group_filters.py",
        "jaxrl/losses/advantages/groups.py",
    ),
    errors=errors,
    planted={"any quarter": first_quarter},
    tolerance=1e-9,
    effect=5e-3,
    seeds=4,
    minutes=8.0,
    notes="Both sides play 16 groups of 16 in an update and make as many updates, and the end is "
    "that of the best of three step sizes; falls are from the peak, at the largest of them. Costs "
    "of moves are the paper's in Sokoban. Means are of four sets of starts. Margins were set after "
    "pilots of three other draws. In one of 1000 updates the quarter ended at 0.76 and all groups "
    "at 0.73, 0.70 and 0.59 by step size, from 0.73. Early in training all groups are ahead by up "
    "to 0.03; half of the groups did better than either in 400 updates.",
    diagnosis="The end at the best of three step sizes missed its margin on one seed of four, "
    "where the quarter was 0.003 above all groups. On all four, success fell by 0.04 or more with "
    "all groups at the largest step size, and by at most 0.02 with the quarter. In the pilot a "
    "small step size spared all groups the fall.",
    mutations=(
        Mutation(
            "the groups that vary least",
            "jaxrl.losses:high_variance_groups",
            lambda f: (
                lambda reward, share: f(reward / (1e-3 + reward.var(-1, keepdims=True)), share)
            ),
        ),
    ),
)
