"""ILQL and MC returns against cloning and filtered cloning, from all conversations of tables.

A conversation has four turns. The agent says one of three tokens, which is rewarded, and a random
reply leads to another state. Another policy held the conversations of the dataset. All methods know
it exactly, as sums over all conversations: what they differ in is what they make of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.tokens import ilql, mc_returns
from jaxrl.algorithms.tokens.shared.token_values import Valued, steer
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.networks.heads import Categorical

TURNS, STATES, TOKENS, REPLIES, PROBLEMS = 4, 3, 3, 2, 16
ROWS = TURNS * STATES  # of states, by turn; one more is read where the agent does not speak
JUNK = 9.0  # value of that row, which nobody may look at
STEPS = 2 * TURNS - 1  # tokens of a conversation, and replies between them
SWEEPS, STRENGTH = 200, 16.0  # the latter is the default of the algorithms
EXPECTILES = 0.7, 0.95  # the default, and one that is nearly the maximum
SHARES = (0.5, 0.3, 0.1)  # of the best conversations, that filtered cloning may keep
EACH, PART = 0.25, 0.5  # by how much returns must differ; share of the gap to the best policy
# Tokens of four turns and replies between them, int [E, 7].
TALKS = np.array(
    list(itertools.product(*(range(TOKENS if i % 2 == 0 else REPLIES) for i in range(STEPS))))
)
COUNT = len(TALKS)
DECIDES = np.repeat(np.arange(STEPS)[:, None] % 2 == 0, COUNT, 1)
Learn = Callable[[Any, Valued], Any]  # like `ilql.values_loss`


class Game(NamedTuple):
    """Next states [H, S, A, R], rewards [H, S, A] and chances of replies [H, S, A, R], and the
    logits [H, S, A] of who held the conversations."""

    following: Array
    reward: Array
    reply: Array
    behavior: Array


def draw(key: Key) -> Game:
    """Draw a game and who held the conversations."""
    keys = jax.random.split(key, 4)
    shape = TURNS, STATES, TOKENS
    following = jax.random.randint(keys[0], (*shape, REPLIES), 0, STATES)
    reply = jax.nn.softmax(jax.random.normal(keys[1], (*shape, REPLIES)))
    reward, behavior = (jax.random.normal(k, shape) for k in keys[2:])
    return Game(following, reward, reply, behavior)


class Talks(NamedTuple):
    """All conversations: rows of tables [8, E] and rewards [7, E], how probable each is [E]."""

    row: Array
    reward: Array
    chance: Array


def talk(x: Game) -> Talks:
    """Return all conversations."""
    state, chance = jnp.zeros(COUNT, int), jnp.ones(COUNT)
    rows, rewards = [], []
    policy = jax.nn.softmax(x.behavior)
    for t in range(TURNS):
        said = TALKS[:, 2 * t]
        rows.append(t * STATES + state)
        rewards.append(x.reward[t, state, said])
        chance = chance * policy[t, state, said]
        if t < TURNS - 1:
            heard = TALKS[:, 2 * t + 1]
            chance = chance * x.reply[t, state, said, heard]
            state = x.following[t, state, said, heard]
        rows.append(jnp.full(COUNT, ROWS))  # the reply, or what follows the end
        rewards.append(jnp.zeros(COUNT))
    return Talks(jnp.stack(rows), jnp.stack(rewards[:-1]), chance)


def read_values(x: Talks) -> Valued:
    """Return the conversations as values see them."""
    over = jnp.asarray(np.repeat(np.arange(STEPS)[:, None] == STEPS - 1, COUNT, 1))
    none = jnp.zeros((STEPS + 1, COUNT), bool)
    legal = jnp.ones((STEPS + 1, COUNT, TOKENS), bool)
    text = TimeStep(x.row, none.astype(float), none, none, none, legal_actions=legal)
    said = jnp.asarray(TALKS.T)
    return Valued(text, said, x.reward, over, over, jnp.asarray(DECIDES))


def net_of(tables: Mapping[str, Array], expectile: float, clone: Array | None = None) -> Any:
    """Return a net whose values are tables, and whose clone has the logits `clone` [X, A]."""
    q, v = (jnp.concatenate([tables[n], jnp.full_like(tables[n][:1], JUNK)]) for n in ("q", "v"))

    def values(timestep, memory, method=None):
        row = timestep.observation
        return q[row], v[row], memory

    def policy(timestep, memory):
        assert clone is not None
        return Categorical(clone[timestep.observation]), None, memory

    hyper = {"discount": 1.0, "conservative": 0.0, "expectile": expectile, "strength": STRENGTH}
    return SimpleNamespace(
        values=values,
        actor_critic=policy,
        target=SimpleNamespace(values=values),
        hyper=Values(hyper),
        network=lambda name: SimpleNamespace(initial=lambda n: ()),
    )


def learn(x: Talks, values_loss: Learn, critics: int, expectile: float) -> dict[str, Array]:
    """Return the tables that minimize a loss over all conversations."""
    read, weight = read_values(x), DECIDES * x.chance
    begin = jnp.arange(float(critics))[:, None] + jnp.zeros((critics, TOKENS))
    tables = {"q": jnp.zeros((ROWS, 1, 1)) + begin, "v": jnp.zeros(ROWS)}
    here = jax.nn.one_hot(x.row[:-1], ROWS)[..., None]
    said = jax.nn.one_hot(read.action, TOKENS)[..., None, :]
    count = jnp.maximum((weight[..., None, None] * here * said).sum((0, 1)), 1e-12)
    curvature = {"q": count[:, None], "v": count.sum(-1)}

    def step(_, tables):
        held = jax.lax.stop_gradient(tables)

        def total(tables):
            net = net_of(tables, expectile)
            net.target = net_of(held, expectile).target
            return (weight * values_loss(net, read).value).sum()

        return jax.tree.map(lambda y, g, c: y - g / c, tables, jax.grad(total)(tables), curvature)

    return jax.lax.fori_loop(0, SWEEPS, step, tables)


def worth(x: Game, policy: Array) -> Array:
    """Return the expected return of a policy [H, S, A]."""
    value = jnp.zeros(STATES)
    for t in reversed(range(TURNS)):
        later = (x.reply[t] * value[x.following[t]]).sum(-1) if t < TURNS - 1 else 0.0
        value = (policy[t] * (x.reward[t] + later)).sum(-1)
    return value[0]


def clone_best(x: Game, talks: Talks, share: float) -> Array:
    """Return the policy [H, S, A] that is cloned from the share of conversations with the highest
    returns."""
    order = jnp.argsort(-talks.reward.sum(0))
    before = jnp.cumsum(talks.chance[order]) - talks.chance[order]
    kept = jnp.zeros(COUNT).at[order].set(jnp.where(before < share, talks.chance[order], 0.0))
    policy = jax.nn.softmax(x.behavior)
    for t in range(TURNS):
        counts = jnp.zeros((STATES, TOKENS))
        counts = counts.at[talks.row[2 * t] - t * STATES, TALKS[:, 2 * t]].add(kept)
        total = counts.sum(-1, keepdims=True)
        cloned = jnp.where(total > 0, counts / jnp.where(total > 0, total, 1), policy[t])
        policy = policy.at[t].set(cloned)
    return policy


def results(
    by_ilql: Learn, by_returns: Learn, expectiles: tuple[float, float], key: Key
) -> dict[str, Array]:
    """Return the expected return of each method, and the best one of all policies."""
    x = draw(key)
    talks = talk(x)
    clone = jax.nn.log_softmax(x.behavior)

    def steer_by(values_loss, critics, expectile):
        tables = learn(talks, values_loss, critics, expectile)
        net = net_of(tables, expectile, clone.reshape(ROWS, TOKENS))
        none = jnp.zeros(ROWS, bool)
        timestep = TimeStep(jnp.arange(ROWS), none.astype(float), none, none, none)
        policy, _, _ = steer(net, timestep, ((), ()))
        return worth(x, jnp.exp(policy.logits).reshape(TURNS, STATES, TOKENS))

    value = jnp.zeros(STATES)
    for t in reversed(range(TURNS)):
        later = (x.reply[t] * value[x.following[t]]).sum(-1) if t < TURNS - 1 else 0.0
        value = (x.reward[t] + later).max(-1)
    return {
        "ilql": steer_by(by_ilql, 2, expectiles[0]),
        "high": steer_by(by_ilql, 2, expectiles[1]),
        "returns": steer_by(by_returns, 1, expectiles[0]),
        "filtered": jnp.stack([worth(x, clone_best(x, talks, s)) for s in SHARES]).max(),
        "cloned": worth(x, jnp.exp(clone)),
        "best": value[0],
    }


def errors_of(
    by_ilql: Learn, by_returns: Learn, expectiles: tuple[float, float], key: Key
) -> dict[str, Array]:
    """Return by how much each finding is missed by two losses of values."""
    run = lambda k: results(by_ilql, by_returns, expectiles, k)
    found = jax.vmap(run)(jax.random.split(key, PROBLEMS))
    mean = jax.tree.map(lambda y: y.mean(), found)
    return {
        "MC returns below filtered cloning, and more": shortfall(
            mean["returns"], mean["filtered"] + EACH
        ),
        "filtered cloning below cloning, and more": shortfall(
            mean["filtered"], mean["cloned"] + EACH
        ),
        "ILQL below filtered cloning, and more": shortfall(mean["ilql"], mean["filtered"] + EACH),
        "ILQL with a high expectile farther from the best than half of MC returns": shortfall(
            PART * (mean["best"] - mean["returns"]), mean["best"] - mean["high"]
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of both algorithms."""
    return errors_of(ilql.values_loss, mc_returns.values_loss, EXPECTILES, key)


def wrong(by_ilql: Learn, expectiles: tuple[float, float]) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of another loss in place of ILQL's."""
    return jax.jit(lambda key: errors_of(by_ilql, mc_returns.values_loss, expectiles, key))


def ignore_later(target: Callable[..., Array]) -> Callable[..., Array]:
    """Regress Q on the reward of a token alone."""
    return lambda reward, done, discount, following: target(reward, done, 0.0, following)


def lower(error: Callable[..., Array]) -> Callable[..., Array]:
    """Regress V on the opposite expectile."""
    return lambda value, target, expectile: error(value, target, 1 - expectile)


CLAIM = Exact(
    paper=Paper(
        "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models",
        "Abdulhai, White, Snell, Sun, Hong, Zhai, Xu and Levine",
        2023,
        "2311.18232",
        "Eight tasks of several turns show what reinforcement learning adds to language models: "
        "policies steered by values that were learned offline, by MC returns or ILQL, exceed "
        "clones of all and of the best conversations. Some tasks ask for stitching parts of "
        "conversations.",
    ),
    claim="Values learned offline earn 0.25 more than clones of the best talks, these than of all; "
    "ILQL halves MC returns' gap to the best.",
    left_out="Language models, the tasks themselves, finite datasets, and PPO: all conversations "
    "are known, as sums. In the paper MC returns exceed ILQL in some tasks; here nothing but one "
    "step of improvement against several tells them apart, and ILQL halves the gap with an "
    "expectile of 0.95, not with its default.",
    parts=(
        "jaxrl/algorithms/tokens/ilql.py",
        "jaxrl/algorithms/tokens/mc_returns.py",
        "jaxrl/algorithms/tokens/shared/token_values.py",
    ),
    errors=errors,
    planted={
        "ILQL learns returns": wrong(mc_returns.values_loss, EXPECTILES),
        "the mean in place of an expectile": wrong(ilql.values_loss, (0.5, 0.5)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=3.0,
    notes="Clones of the best are of the better half, three tenths or one, whichever earns most "
    "in a problem. There is no discount and no conservative term. Means are of 16 problems. That "
    "ILQL is to exceed MC returns with an expectile of 0.95, and the margins, were set after a "
    "pilot on three other seeds, where 0.7 gained 0.04 to 0.1.",
    mutations=(
        Mutation("no delayed reward", "jaxrl.losses:td_target", ignore_later),
        Mutation("the opposite expectile", "jaxrl.losses:expectile_error", lower),
    ),
)
