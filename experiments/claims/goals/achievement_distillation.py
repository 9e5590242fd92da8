"""Achievement distillation's matching of achievements across episodes, by tables of latents of the
sets of what was achieved, and its prediction of the next one, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.goals import achievement_distillation as distillation
from jaxrl.core.types import Array, Key, TimeStep, Transition

KINDS, FEWEST, WIDTH = 5, 2, 6  # kinds of achievements, fewest of an episode, numbers of a latent
STEPS, STREAMS, PAIRS = 32, 16, 32
UPDATES, RATE, NOISE, OFTEN = 200, 0.02, 0.2, 0.6
TEMPERATURE, REGULARIZATION = 0.1, 0.05
PLACES = 3  # what is observed where the next achievement is predicted
FOUND = 0.97  # share of common achievements that are matched after learning
Change = Callable[[Any], Any]


def play(key: Key) -> Transition:
    """Return steps [T, B] of episodes in which the first n kinds, n at random, are achieved in a
    random order, with pauses; what is observed is the set of those achieved, as a number."""

    def begin(key: Key) -> tuple[Array, Array]:
        number_key, order_key = jax.random.split(key)
        number = jax.random.randint(number_key, (STREAMS, 1), FEWEST, KINDS + 1)
        rank = jax.random.uniform(order_key, (STREAMS, KINDS), float)
        return number[:, 0], jnp.where(jnp.arange(KINDS) < number, rank, 2.0).argsort(-1)

    def step(carry: Any, key: Key) -> tuple[Any, Transition]:
        number, order, count, first = carry
        begin_key, key = jax.random.split(key)
        unlocks = jax.random.uniform(key, (STREAMS,), float) < OFTEN
        after = count + unlocks
        sets = lambda n: jnp.where(jnp.arange(KINDS) < n[:, None], 2**order, 0).sum(-1)
        done = after == number
        none = jnp.zeros(STREAMS)
        now = TimeStep(sets(count), none, none > 0, none > 0, first)
        then = TimeStep(sets(after), unlocks.astype(float), done, none > 0, none > 0)
        x = Transition(now, count, then, (), {"achievement": jnp.zeros((STREAMS, WIDTH))})
        new_number, new_order = begin(begin_key)
        number = jnp.where(done, new_number, number)
        order = jnp.where(done[:, None], new_order, order)
        return (number, order, jnp.where(done, 0, after), done), x

    begin_key, key = jax.random.split(key)
    start = (*begin(begin_key), jnp.zeros(STREAMS, int), jnp.ones(STREAMS, bool))
    return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]


def act(*given: Any) -> tuple[Any, Array]:
    """Return a policy and a value that are the same everywhere."""
    none = jnp.zeros(given[0].first.shape)
    return SimpleNamespace(logits=jnp.zeros((*none.shape, 2))), none


HYPER = SimpleNamespace(
    temperature=TEMPERATURE, regularization=REGULARIZATION, policy_weight=0.0, old_value_weight=0.0
)


def part_of(encode: Callable, predict: Callable = act) -> Callable:
    """Return a part of the net, a function of its inputs and the method that is applied."""
    methods = {"encode": encode, "predict": predict, "act": act}
    return lambda *given, method: methods[method](*given)


def learn_matches(
    key: Key, change: Change, noise: Array | float = NOISE
) -> tuple[Array, Array, Array]:
    """Return the shares of matches of unlike achievements before and after learning, and that of
    common achievements that are matched.

    noise: of the latents before learning.
    """
    keys = jax.random.split(key, 5)
    x = play(keys[0])
    kept = distillation.find_episodes(x, jnp.ones(x.reward.shape, bool), 0.5)
    begin = ((jnp.arange(2**KINDS)[:, None] >> jnp.arange(WIDTH)) & 1).astype(float)
    begin += noise * jax.random.normal(keys[1], begin.shape)

    def draw(key: Key) -> Any:
        pairs = distillation.draw_pairs(key, x, jnp.zeros(x.reward.shape), kept, PAIRS, KINDS).x
        return change(pairs)

    def loss(table: Array, key: Key) -> Array:
        encode = lambda t: table[t.observation]
        net: Any = SimpleNamespace(matching=part_of(encode), actor_critic=part_of(encode))
        net.hyper = HYPER
        output: Any = distillation.matching_loss(net, draw(key))
        return output.value.mean()

    optimizer = optax.adam(RATE)

    def update(carry: Any, key: Key) -> tuple[Any, None]:
        table, state = carry
        moves, state = optimizer.update(jax.grad(loss)(table, key), state)
        return (optax.apply_updates(table, moves), state), None

    keys_of_updates = jax.random.split(keys[2], UPDATES)
    learned = jax.lax.scan(update, (begin, optimizer.init(begin)), keys_of_updates)[0][0]

    def judge(table: Array) -> tuple[Array, Array]:
        d = distillation.draw_pairs(keys[3], x, jnp.zeros(x.reward.shape), kept, 256, KINDS).x
        embedded, kinds = [], []
        for one in (d.own, d.other):
            before, after = one.timestep.observation, one.next_timestep.observation
            embedded.append(distillation.embed(table[before], table[after]))
            kinds.append(after - before)
        exists = d.own_exists, d.other_exists
        index, found = distillation.match(*embedded, *exists, REGULARIZATION)  # pyright: ignore[reportCallIssue]
        same = kinds[0] == jnp.take_along_axis(kinds[1], index, -1)
        common = (kinds[0][..., None] == kinds[1][..., None, :]) & d.other_exists[..., None, :]
        common = common.any(-1) & d.own_exists
        unlike = (found & ~same).sum() / jnp.maximum(found.sum(), 1)
        return unlike, (found & same).sum() / common.sum()

    (before, _), (after, shared) = judge(begin), judge(learned)
    return before, after, shared


def learn_predictions(key: Key, remembered: Array | float) -> Array:
    """Return the share of places and memories from which another achievement than the next one is
    predicted. Kinds are achieved in one order, and a place says nothing of it.

    remembered: by what the memory of the last achievement is multiplied.
    """
    one, other = (x.ravel() for x in jnp.meshgrid(*[jnp.arange(KINDS * PLACES)] * 2))
    order = jax.random.permutation(key, KINDS)
    latent = jnp.eye(KINDS + 1)[order] * (jnp.arange(KINDS + 1) < KINDS)  # of achievements
    latents = jnp.concatenate([jnp.zeros((1, KINDS + 1)), jnp.cumsum(latent, 0)])

    def at(pair: Array) -> Transition:
        """Return steps at a place, after some achievements."""
        done, place = pair // PLACES, pair % PLACES
        none = jnp.zeros(pair.shape)
        last = jnp.where((done > 0)[:, None], latent[done - 1], 0.0) * remembered
        see = TimeStep((done, place), none, none > 0, none > 0, none > 0)
        after = dataclasses.replace(see, observation=(done + 1, place))
        return Transition(see, none, after, (), {"achievement": last})

    none = jnp.zeros(one.shape)
    data = distillation.Prediction(at(one), at(other), none, none, at(one), none == 0)

    def predict(params: Any, t: TimeStep, achievement: Array, action: Array) -> Array:
        of_place, of_memory = params
        return losses.unit_vector(of_place[t.observation[1]] + achievement @ of_memory)

    def loss(params: Any) -> Array:
        encode = lambda t: latents[t.observation[0]]
        part = part_of(encode, lambda *given: predict(params, *given))
        net: Any = SimpleNamespace(prediction=part, actor_critic=part, hyper=HYPER)
        output: Any = distillation.prediction_loss(net, data)
        return output.value.mean()

    optimizer = optax.adam(10 * RATE)

    def update(carry: Any, _: None) -> tuple[Any, None]:
        params, state = carry
        moves, state = optimizer.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, moves), state), None

    size = KINDS + 1
    begin = jnp.ones((PLACES, size)) / size, jnp.zeros((size, size))
    params = jax.lax.scan(update, (begin, optimizer.init(begin)), None, length=UPDATES)[0][0]
    every = at(jnp.arange(KINDS * PLACES))
    said = predict(params, every.timestep, every.extras["achievement"], every.action)
    following = jnp.repeat(jnp.arange(KINDS), PLACES)
    return ((said @ latent[:KINDS].T).argmax(-1) != following).mean(dtype=float)


def errors_of(
    key: Key, remembered: Array | float = 1.0, change: Change = lambda pairs: pairs
) -> dict[str, Array]:
    """Return the errors of matching and of prediction.

    "unlike": share of matches of unlike achievements, after learning, beyond half of that before.
    "found": what the share of common achievements that are matched lacks of `FOUND`. "next": see
    `learn_predictions`.
    """
    match_key, key = jax.random.split(key)
    before, after, shared = learn_matches(match_key, change)
    return {
        "unlike": jnp.maximum(after - before / 2, 0),
        "found": jnp.maximum(FOUND - shared, 0),
        "next": learn_predictions(key, remembered),
    }


def with_matches_as_negatives(pairs: Any) -> Any:
    """Return pairs whose negatives are of the same kind, where the other episode has one."""
    kind = lambda t: t.next_timestep.observation - t.timestep.observation
    same = kind(pairs.own)[..., None] == kind(pairs.other)[..., None, :]
    return dataclasses.replace(pairs, negative=same.argmax(-1))


def count_padding(pairs: Any) -> Any:
    """Return pairs in which what pads a short episode counts as achievements."""
    exists = jnp.ones_like(pairs.own_exists)
    return dataclasses.replace(pairs, own_exists=exists, other_exists=exists)


compiled = jax.jit(errors_of, static_argnames="change")


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the losses as they are."""
    return compiled(key, 1.0)


CLAIM = Exact(
    paper=Paper(
        "Discovering Hierarchical Achievements in Reinforcement Learning via Contrastive Learning",
        "Moon, Yeom, Park and Song",
        2023,
        "2307.03486",
        "Contrastive losses, which predict the next achievement and match achievements across "
        "episodes, make PPO's latents tell the next achievement, and its agent the best in Crafter "
        "with few steps and parameters.",
    ),
    claim="From latents that are noisy, the matching loss learns a table by which transport "
    "matches at most half as many achievements of two episodes wrongly as before, and 97 % of the "
    "common ones; the prediction loss learns to tell the next achievement everywhere from the last "
    "one, in places that say nothing of it.",
    left_out="Networks, PPO, policies and Crafter. Of two episodes one has all kinds of the other: "
    "where either has kinds of its own, transport of all mass matches unlike ones.",
    notes="Noise and bounds were chosen on six other seeds before the claim was declared: with 0.2 "
    "transport matched 3 to 9 % wrongly before learning and at most 1 % afterwards; with 0.25, 10 "
    "to 24 % and then 0 to 14 %; with 0.3, 18 to 49 % and then 1 to 51 %, since learning confirms "
    "wrong matches, too; with 0.5 it failed.",
    parts=(
        "jaxrl/algorithms/goals/achievement_distillation.py",
        "jaxrl/solvers/transport.py",
    ),
    errors=errors,
    planted={
        "negatives are matches": lambda key: compiled(key, 1.0, change=with_matches_as_negatives),
        "padding counts as achievements": lambda key: compiled(key, 1.0, change=count_padding),
        "no memory": lambda key: compiled(key, 0.0),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=6,
    minutes=3.0,
    mutations=(
        Mutation(
            "matches are the nearest ones",
            "jaxrl.solvers:soft_matching",
            lambda matching: lambda cost, width, own, other: jax.nn.softmax(-cost / 1e-3, -1),
        ),
        Mutation(
            "achievements are embedded backward",
            "jaxrl.algorithms.goals.achievement_distillation:embed",
            lambda embed: lambda before, after: embed(after, before),
        ),
    ),
)
