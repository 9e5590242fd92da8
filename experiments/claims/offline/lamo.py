"""LaMo's language loss: what a small language model of characters still knows after its adapters
learned actions, with and without it."""

from __future__ import annotations

import dataclasses
import zlib
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import lamo
from jaxrl.core.settings import Values, replace
from jaxrl.core.types import Array, Key, TimeStep, Transition, Tree
from jaxrl.networks.actor_critic import context_length

CONTEXT, ROWS, PIECES, TESTED = 3, 16, 8, 64
LEARNED, ADAPTED, RATE = 300, 300, 1e-2  # gradient steps of either phase, and their size
WEIGHT = 0.1  # of the language loss: authors' code
KEPT, LEARNS = 0.5, 0.02  # share of the rise of the text's loss; error of actions, at most
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
CONFIG = replace(
    lamo.Config(),
    {
        "sequence.context": CONTEXT,
        "sequence.width": 16,
        "sequence.layers": 1,
        "sequence.heads": 2,
        "language.length": 32,
        "language.batch_size": PIECES,
        "language.rank": 4,
        "language.alpha": 8.0,
    },
)
RECIPE = lamo.recipe(ENV, CONFIG)
PRETRAINING, SEQUENCE = RECIPE.losses
ENDS = lamo.Ends(ENV.action_space, context_length(ENV) - 1, CONFIG.sequence.width)


def net_of(params: dict[str, Tree], key: Key, weight: Array | float) -> Any:
    return SimpleNamespace(
        parts={name: SimpleNamespace(params=x) for name, x in params.items()},
        ends=lambda *inputs, method: ENDS.apply(params["ends"], *inputs, method=method),  # type: ignore[arg-type]
        key=lambda name="": jax.random.fold_in(key, zlib.crc32(name.encode())),
        hyper=Values({"language_weight": weight, "return_scale": 1.0}),
    )


def draw_text(key: Key, count: int) -> Array:
    """Draw pieces of text [length, count]."""
    text, length = jnp.asarray(lamo.corpus()), CONFIG.language.length
    begin = jax.random.randint(key, (count,), 0, len(text) - length)
    return text[begin + jnp.arange(length)[:, None]]


def draw_windows(key: Key, gain: Array) -> Transition:
    """Draw windows [CONTEXT, ROWS] of a policy that is linear in the observation, within bounds."""
    keys = jax.random.split(key, 2)
    seen = jax.random.normal(keys[0], (CONTEXT, ROWS, 3), jnp.float32)
    action = 2 * jnp.tanh(seen @ gain)[..., None]
    none = jnp.zeros((CONTEXT, ROWS), jnp.float32)
    step = TimeStep(seen, none, none > 0, none > 0, none > 0)
    extras = {
        "to_go": jax.random.normal(keys[1], none.shape, jnp.float32),
        "time": jnp.broadcast_to(jnp.arange(CONTEXT)[:, None], none.shape),
    }
    return Transition(step, action, step, (), extras)


def descend(
    params: dict[str, Tree], names: tuple[str, ...], steps: int, key: Key, total: Any
) -> dict[str, Tree]:
    """Return the parameters after gradient steps of those of some parts."""
    adam = optax.adam(RATE)

    def step(state: Any, key: Key) -> tuple[Any, None]:
        own, memory = state
        slope = jax.grad(lambda own: total({**params, **own}, key))(own)
        change, memory = adam.update(slope, memory)
        return (optax.apply_updates(own, change), memory), None

    begin = {name: params[name] for name in names}
    (own, _), _ = jax.lax.scan(step, (begin, adam.init(begin)), jax.random.split(key, steps))
    return {**params, **own}


@jax.jit
def errors_of(key: Key, weight: Array | float) -> dict[str, Array]:
    """Return the errors of adapting a language model to actions.

    "start": of the text's loss with new adapters, beside other ones. "text": by how much the rise
    of the text's loss exceeds `KEPT` of that without a language loss. "actions": by how much the
    error of actions, with or without it, exceeds `LEARNS`.
    weight: of the language loss.
    """
    keys = jax.random.split(key, 8)
    params: dict[str, Tree] = {
        name: part.network.init(k, *part.inputs)  # type: ignore[union-attr]
        for (name, part), k in zip(RECIPE.parts.items(), keys, strict=False)
    }
    other = RECIPE.parts["adapters"].network.init(keys[3], *RECIPE.parts["adapters"].inputs)  # type: ignore[union-attr]
    gain = 0.5 * jax.random.normal(keys[4], (3,), jnp.float32)
    tested, windows = draw_text(keys[5], TESTED), draw_windows(keys[6], gain)

    def text_loss(params: dict[str, Tree], pieces: Array) -> Array:
        output: Any = PRETRAINING(net_of(params, key, 0.0), pieces)
        return output.value.mean()

    def sequence(params: dict[str, Tree], key: Key, weight: Array | float, x: Any) -> Any:
        output: Any = SEQUENCE(net_of(params, key, weight), x)
        return output

    def learn_text(params: dict[str, Tree], key: Key) -> Array:
        return text_loss(params, draw_text(key, PIECES))

    taught = descend(params, ("language",), LEARNED, keys[6], learn_text)

    def adapt(weight: Array) -> tuple[Array, Array]:
        def total(params: dict[str, Tree], key: Key) -> Array:
            one, two = jax.random.split(key)
            output = sequence(params, one, weight, draw_windows(two, gain))
            return output.value.mean() + sum(output.terms.values())

        ended = descend(taught, ("adapters", "ends"), ADAPTED, keys[7], total)
        error = sequence(ended, key, 0.0, windows).value.mean()
        return text_loss(ended, tested), error

    text, error = jax.lax.map(adapt, jnp.stack([0.0, 1.0 * weight]))
    before = text_loss(taught, tested)
    swapped = text_loss({**taught, "adapters": other}, tested)
    rise = (text - before).astype(float)
    error = error.astype(float)
    return {
        "start": jnp.abs(before - swapped).astype(float),
        "text": jnp.maximum(rise[1] - KEPT * rise[0], 0.0),
        "actions": jnp.maximum(error.max() - LEARNS, 0.0),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors with the authors' weight of the language loss."""
    return errors_of(key, WEIGHT)


CLAIM = Exact(
    paper=Paper(
        "Unleashing the Power of Pre-trained Language Models for Offline Reinforcement Learning",
        "Shi, Liu, Ze, Du and Xu",
        2023,
        "2310.20587",
        "Decision transformers that begin as a pretrained language model, with adapters, nonlinear "
        "embeddings and a language loss, are the best with sparse rewards and with few data.",
    ),
    claim="While adapters of a model of characters learn to clone a linear policy, its loss on "
    "text rises, and with LaMo's language loss by at most half as much; either way actions are "
    "learned to an error of 0.02, and new adapters do not change the model.",
    left_out="GPT-2, and that what a language model knows helps with actions, which is the paper's "
    "main claim: of a model of docstrings no gain was seen in the configuration, with so many "
    "data (three seeds). Returns that are asked for, sparse rewards, and comparisons.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/offline/lamo.py",),
    errors=errors,
    planted={
        "no language loss": lambda key: errors_of(key, 0.0),
    },
    tolerance=1e-5,
    effect=1e-2,
    seeds=10,
    minutes=5.0,
    mutations=(
        Mutation(
            "observations are not seen",
            "jaxrl.algorithms.offline.lamo:read_window",
            lambda read: (
                lambda env, x, to_go: dataclasses.replace(
                    steps := read(env, x, to_go), features=0.0 * steps.features
                )
            ),
        ),
    ),
)
