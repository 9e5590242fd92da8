"""Multi-objective cloning of noisy actions in random systems with a delay: attention over the steps
of a window is fitted with MoDT's loss and with that of a decision transformer, in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import decision_transformer, modt
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.networks.sequence_policy import Predictions, Steps

CONTEXT, SIZE, WINDOWS, SYSTEMS, STEPS = 6, 3, 12, 32, 400
LOUD, QUIET = 0.5, 0.1  # noise of actions, in half-widths; of observations and returns
GAIN = 0.3  # length of the gain of the data's policy, in half-widths
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
SCALE = 10.0  # of returns
MORE, SHARE = 0.3, 0.6  # attention that is gained at least, and share of the error left at most
MULTI = modt.recipe(ENV, modt.Config()).losses[0]
PLAIN = decision_transformer.recipe(ENV, decision_transformer.Config()).losses[0]


class Reader(SimpleNamespace):
    """A network that attends to the steps of a window by how long ago they were, and reads the
    action, the next observation and the next return linearly out of what it sees."""

    def __call__(self, steps: Steps, legal_actions: Any = None) -> Predictions:
        seen = jnp.einsum("k,kbf->bf", jax.nn.softmax(self.attention), steps.features)
        wide = lambda x: jnp.broadcast_to(x, (CONTEXT, *x.shape))
        policy: Any = SimpleNamespace(mode=lambda: wide(seen @ self.action))
        return Predictions(policy, wide(seen @ self.features), wide(seen @ self.to_go))


def draw_windows(key: Key, delay: Array, system: dict[str, Array], count: int) -> Transition:
    """Draw windows [CONTEXT, count] at whose last step the action, the next observation and the
    next return depend on the observation `delay` steps before."""
    keys = jax.random.split(key, 4)
    seen = jax.random.normal(keys[0], (CONTEXT, count, SIZE))
    cause = seen[CONTEXT - 1 - delay]
    noise = lambda key, size: jax.random.normal(key, (count, *size))
    action = cause @ system["action"] + LOUD * noise(keys[1], (1,))
    after = cause @ system["features"] + QUIET * noise(keys[2], (SIZE,))
    left = SCALE * (cause @ system["to_go"] + QUIET * noise(keys[3], ()))
    none = jnp.zeros((CONTEXT, count))
    see = lambda x: TimeStep(x, none, none > 0, none > 0, none > 0)
    # Steps before the last one do not count, so what they lead to does not matter.
    wide = lambda x: jnp.broadcast_to(x, (CONTEXT, *x.shape))
    low, high = (jnp.asarray(x, action.dtype) for x in (-2.0, 2.0))
    extras = {"to_go": wide(left), "time": jnp.zeros((CONTEXT, count), jnp.int32)}
    return Transition(
        see(seen), wide((low + high) / 2 + (high - low) / 2 * action), see(wide(after)), (), extras
    )


def net_of(params: dict[str, Array], weight: Array | float) -> Any:
    hyper = {"return_scale": SCALE, "state_weight": weight, "return_weight": weight}
    return SimpleNamespace(sequence=Reader(**params), hyper=Values(hyper))


def multi_loss(params: dict[str, Array], x: Transition, weight: Array | float) -> Array:
    """Return MoDT's loss at the last step."""
    output: Any = MULTI(net_of(params, weight), x)
    return output.value[-1].mean()


def plain_loss(params: dict[str, Array], x: Transition) -> Array:
    """Return the decision transformer's loss at the last step."""
    output: Any = PLAIN(net_of(params, 0.0), x)
    return output[-1].mean()


def fit(begin: dict[str, Array], x: Transition, weight: Array | float) -> dict[str, Array]:
    """Return the parameters after gradient steps."""
    adam = optax.adam(0.05)

    def descend(state: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        params, memory = state
        slope = jax.grad(multi_loss)(params, x, weight)
        change, memory = adam.update(slope, memory)
        return (optax.apply_updates(params, change), memory), None

    return jax.lax.scan(descend, (begin, adam.init(begin)), None, length=STEPS)[0][0]


def measure(key: Key, weight: Array | float, shuffled: Array | bool) -> dict[str, Array]:
    """Return what fits come to in one random system."""
    keys = jax.random.split(key, 8)
    delay = jax.random.randint(keys[0], (), 1, CONTEXT)
    gain, worth = (jax.random.normal(key, (SIZE,)) for key in keys[1:3])
    system = {
        "action": GAIN * (gain / jnp.linalg.norm(gain))[:, None],
        "features": jnp.linalg.qr(jax.random.normal(keys[3], (SIZE, SIZE)))[0],
        "to_go": worth / jnp.linalg.norm(worth),
    }
    x = draw_windows(keys[4], delay, system, WINDOWS)
    move = lambda leaf: jnp.where(shuffled, jnp.roll(leaf, 1, 1), leaf)
    after = dataclasses.replace(x.next_timestep, observation=move(x.next_timestep.observation))
    extras = x.extras | {"to_go": move(x.extras["to_go"])}
    told = dataclasses.replace(x, next_timestep=after, extras=extras)
    begin = {
        "attention": jnp.zeros(CONTEXT),
        "action": 0.1 * jax.random.normal(keys[5], (SIZE, 1)),
        "features": 0.1 * jax.random.normal(keys[6], (SIZE, SIZE)),
        "to_go": 0.1 * jax.random.normal(keys[7], (SIZE,)),
    }
    right = jax.nn.one_hot(CONTEXT - 1 - delay, CONTEXT)

    def judge(params: dict[str, Array]) -> tuple[Array, Array]:
        """Return the attention to the step that matters, and the mean squared error of actions
        beside the data's policy without noise, over windows of independent observations."""
        seen = jax.nn.softmax(params["attention"])
        weights = seen[:, None] * params["action"][:, 0] - right[:, None] * system["action"][:, 0]
        return seen @ right, jnp.square(weights).sum()

    fits = jax.lax.map(lambda weight: fit(begin, told, weight), jnp.stack([0.0, 1.0 * weight]))
    seen, error = jax.vmap(judge)(fits)
    plain = jax.value_and_grad(plain_loss)(begin, x)
    multi = jax.value_and_grad(multi_loss)(begin, x, 0.0)
    gaps = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), plain, multi)
    return {
        "same": jnp.stack(jax.tree.leaves(gaps)).max(),
        "gain": seen[1] - seen[0],
        "plain": error[0],
        "error": error[1],
    }


@jax.jit
def errors_of(key: Key, weight: Array | float, shuffled: Array | bool) -> dict[str, Array]:
    """Return the errors over random systems.

    "same": of the loss and its slope with weights 0, beside the decision transformer's.
    "attention": what the mean gain in attention to the step that matters lacks of `MORE`.
    "action": by how much the mean error of actions exceeds `SHARE` of that with weights 0.
    weight: of the errors of observations and returns. shuffled: whether what follows is that of
        other windows.
    """
    x = jax.vmap(lambda key: measure(key, weight, shuffled))(jax.random.split(key, SYSTEMS))
    return {
        "same": x["same"].max(),
        "attention": jnp.maximum(MORE - x["gain"].mean(), 0.0),
        "action": jnp.maximum(x["error"].mean() - SHARE * x["plain"].mean(), 0.0),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors with weights of 1."""
    return errors_of(key, 1.0, False)


CLAIM = Exact(
    paper=Paper(
        "Multi-Objective Decision Transformers for Offline Reinforcement Learning",
        "Ghanem, Ciblat and Ghogho",
        2023,
        "2308.16379",
        "A decision transformer that predicts actions, states and returns jointly makes better "
        "use of its attention, and matches or exceeds the state of the art in D4RL's locomotion.",
    ),
    claim="In systems with a delay and few noisy actions, attention that also predicts the next "
    "observation and return is larger by 0.3 at the step that matters, and leaves at most 0.6 of "
    "the error of actions; with weights 0 loss and slope are the decision transformer's.",
    left_out="Transformers, returns that are asked for, control, and regions of actions. One "
    "attention over how long ago steps were, with linear outputs, stands in for the network; the "
    "loss is the algorithm's own. Actions are float32, as the algorithm reads them, which sets the "
    "tolerance.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/offline/modt.py", "jaxrl/losses/offline/cloning.py"),
    errors=errors,
    planted={
        "weights of 0": lambda key: errors_of(key, 0.0, False),
        "what follows in other windows": lambda key: errors_of(key, 1.0, True),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=10,
    minutes=5.0,
    mutations=(
        Mutation(
            "observations and returns weigh nothing",
            "jaxrl.losses:modt",
            lambda modt: lambda *x: modt(*x[:6], 0.0, 0.0),
        ),
        Mutation(
            "what follows is that of other windows",
            "jaxrl.losses:modt",
            lambda modt: (
                lambda a, b, seen, state, left, to_go, *weights: modt(
                    a, b, seen, jnp.roll(state, 1, 1), left, jnp.roll(to_go, 1, 1), *weights
                )
            ),
        ),
    ),
)
