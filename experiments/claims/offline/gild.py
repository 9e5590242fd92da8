"""GILD with linear policies and a quadratic value that pulls weakly: the objective that is learned
from biased demonstrations beside cloning and beside the value alone, in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import gild
from jaxrl.core.settings import Values, replace
from jaxrl.core.types import Array, Key, TimeStep, Transition, struct

SIZE, ROWS, STEPS, RATE, META_RATE = 3, 32, 1000, 0.1, 0.005
PULL, BIAS, NOISE = 0.01, 0.5, 0.1  # curvature of the value; length of the bias; noise of actions
CLONING, ALONE = 0.25, 0.25  # share of the others' shortfall that is left
SYSTEMS, TINY = 32, 1e-5  # systems of a seed; half a difference quotient's width
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
LEARNED = gild.recipe(ENV, gild.Config())
CLONED = gild.recipe(ENV, replace(gild.Config(), {"imitation": gild.CLONING}))
META, ACTOR, CLONE = LEARNED.losses[2], LEARNED.losses[1], CLONED.losses[1]


@struct
class Net:
    """A net of linear policies, a quadratic value, and an objective that is the squared distance to
    a linear function of state and demonstrated action, behind a softplus."""

    actor_params: Array
    objective_params: Array
    best: Array  # gain [SIZE] of the best policy
    until: Array | float
    env_steps = 0.0

    @property
    def hyper(self) -> Any:
        return Values({"until": self.until})

    @property
    def parts(self) -> Any:
        return {"actor": SimpleNamespace(params=self.actor_params)}

    def with_params(self, actor: Array) -> Net:
        return dataclasses.replace(self, actor_params=actor)

    def learning_rate(self, name: str) -> float:
        return RATE

    def normalize(self, timestep: TimeStep) -> TimeStep:
        return timestep

    def actor(self, timestep: TimeStep) -> Array:
        return (timestep.observation @ self.actor_params)[..., None]

    def critic(self, timestep: TimeStep, action: Array) -> Array:
        gap = action[..., 0] - timestep.observation @ self.best
        return -PULL * jnp.square(gap)[..., None] / 2

    def objective(self, timestep: TimeStep, actions: tuple[Array, Array]) -> Array:
        own, shown = (x[..., 0] for x in actions)
        params = self.objective_params
        center = params[0] * shown + timestep.observation @ params[1:]
        return (jnp.square(own - center) - 1)[..., None]


def see(observation: Array) -> TimeStep:
    none = jnp.zeros(len(observation))
    return TimeStep(observation, none, none > 0, none > 0, none > 0)


def draw(key: Key, shown_gain: Array, noise: Array | float) -> Transition:
    """Return steps [ROWS] with a demonstrated one beside each."""
    keys = jax.random.split(key, 3)
    seen, shown = jax.random.normal(keys[0], (2, ROWS, SIZE))
    action = (shown @ shown_gain + noise * jax.random.normal(keys[1], (ROWS,)))[:, None]
    blank = jnp.zeros((ROWS, 1))
    step = lambda observation, action, extras: Transition(
        see(observation), action, see(observation), (), extras
    )
    return step(seen, blank, {gild.EXPERT: step(shown, action, {})})


def actor_slope(loss: Any, net: Net, x: Transition) -> Array:
    return jax.grad(lambda params: loss(net.with_params(actor=params), x).value.mean())(
        net.actor_params
    )


def meta_value(params: Array, net: Net, halves: Any) -> Array:
    """Return the loss of the objective."""
    return META(dataclasses.replace(net, objective_params=params), halves).value.total  # pyright: ignore[reportAttributeAccessIssue]


def measure(key: Key, rate: Array | float, random: Array | bool) -> dict[str, Array]:
    """Return what policies come to in one random system.

    rate: size of the objective's steps. random: demonstrations are random.
    """
    keys = jax.random.split(key, 5)
    best, turn, begin = jax.random.normal(keys[0], (3, SIZE))
    shown_gain = jnp.where(random, 0.0, best + BIAS * turn / jnp.linalg.norm(turn))
    noise = jnp.where(random, 1.0, NOISE)
    adam = optax.scale_by_adam()
    params = 0.3 * jax.random.normal(keys[1], (1 + SIZE,))

    def learn(state: Any, key: Key) -> tuple[Any, None]:
        learned, cloned, alone, memory = state
        one, two = jax.random.split(key)
        x, test = (draw(key, shown_gain, noise) for key in (one, two))
        slope = jax.grad(meta_value)(learned.objective_params, learned, (x, test))
        change, memory = adam.update(slope, memory)
        params = learned.objective_params - rate * change  # pyright: ignore[reportOperatorIssue]
        step = lambda net, loss: net.with_params(
            actor=net.actor_params - RATE * actor_slope(loss, net, x)
        )
        learned = dataclasses.replace(step(learned, ACTOR), objective_params=params)
        return (learned, step(cloned, CLONE), step(alone, CLONE), memory), None

    net = Net(begin, params, best, 1.0)
    alone = dataclasses.replace(net, until=0.0)
    first = (net, net, alone, adam.init(params))
    ended = jax.lax.scan(learn, first, jax.random.split(keys[2], STEPS))[0]
    halves = tuple(draw(key, shown_gain, noise) for key in keys[3:])
    slope = jax.grad(meta_value)(params, net, halves)
    shifts = TINY * jnp.stack([jnp.eye(1 + SIZE), -jnp.eye(1 + SIZE)])
    near = jax.vmap(jax.vmap(lambda shift: meta_value(params + shift, net, halves)))(shifts)
    quotients = (near[0] - near[1]) / (2 * TINY)
    short = [jnp.square(net.actor_params - best).sum() for net in ended[:3]]
    return {
        "slope": jnp.abs(slope - quotients).max(),
        "learned": short[0],
        "cloned": short[1],
        "alone": short[2],
    }


@jax.jit
def errors_of(key: Key, rate: Array | float) -> dict[str, Array]:
    """Return the errors over random systems.

    "slope": of the objective's gradient beside difference quotients. "cloning", "alone": by how
    much the mean shortfall of GILD's policies exceeds `CLONING` of that with cloning, and `ALONE`
    of that without demonstrations. "random": the larger of these with random demonstrations.
    rate: size of the objective's steps.
    """
    of_kind = lambda random: jax.vmap(lambda key: measure(key, rate, random))(
        jax.random.split(key, SYSTEMS)
    )
    x = jax.lax.map(of_kind, jnp.array([False, True]))
    learned, cloned, alone = (x[name].mean(-1) for name in ("learned", "cloned", "alone"))
    beside_cloning = jnp.maximum(learned - CLONING * cloned, 0.0)
    beside_none = jnp.maximum(learned - ALONE * alone, 0.0)
    return {
        "slope": x["slope"].max(),
        "cloning": beside_cloning[0],
        "alone": beside_none[0],
        "random": jnp.maximum(beside_cloning[1], beside_none[1]),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the objective as it learns."""
    return errors_of(key, META_RATE)


CLAIM = Exact(
    paper=Paper(
        "Enhancing Online Reinforcement Learning with Meta-Learned Objective from Offline Data",
        "Deng, Zheng, He, Weng and Shao",
        2025,
        "2501.07346",
        "An imitation objective that is meta-learned, so that policies improve by a step of it, "
        "makes three off-policy algorithms better than the state of the art on four tasks with "
        "sparse rewards and suboptimal demonstrations.",
    ),
    claim="With linear policies, values that pull weakly and biased demonstrations, the objective "
    "that GILD learns leaves at most a quarter of the shortfall that cloning leaves after as many "
    "steps, and of that without demonstrations; so it does with random ones. Its gradient is that "
    "of the step it leads to.",
    left_out="Networks, learned values, exploration, and rewards so sparse that values have no "
    "slope, where the objective learns nothing: in the configuration of the maze it brings "
    "nothing. The value is exact, and the objective can be any linear function of the state, so "
    "demonstrations need not tell anything.",
    notes="On other seeds, before the claim was declared, it missed its bounds at meta rates of "
    "0.05 and 0.03 (0.36 where at most 0.21 was asked, after more steps 0.20 where 0.24 was); the "
    "rate of 0.005 is the best of four that were then tried. Cloning was not tuned. It holds with "
    "random demonstrations too, so it does not show that demonstrations tell anything.",
    parts=("jaxrl/algorithms/offline/gild.py",),
    errors=errors,
    planted={
        "an objective that does not learn": lambda key: errors_of(key, 0.0),
        "an objective that learns the other way": lambda key: errors_of(key, -META_RATE),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "values have no slope",
            "jaxrl.algorithms.continuous_control.td3:actor_value",
            lambda value: lambda net, x: 0.0 * value(net, x),
        ),
    ),
)
