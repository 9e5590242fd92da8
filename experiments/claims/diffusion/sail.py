"""SAIL's loop where every model is a table of mean plans and one covariance, so that its exact
denoisers are known, and each update of the algorithm is the exact minimum of its loss, in float64;
plans are drawn by the algorithm's own acting."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import sail
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Array, Batch, Key, TimeStep, Transition, struct
from jaxrl.diffusion import VariancePreserving

HORIZON, LEVELS, EACH, ROUNDS = 8, 50, 256, 4
SHOWN, NOVEL = 3, 3  # tasks of the domain that are demonstrated, and that are not
TASKS = SHOWN + NOVEL
STRENGTH, GUIDANCE = 0.5, 1.5
STEP, RADIUS, NOISE = 0.2, 0.45, 0.25  # seconds, meters, and the deviation of shown actions
ENV = envs.make("point_maze_open")  # for its spaces and size alone
UNITS = np.array([3.5, 3.5, sail.FASTEST, sail.FASTEST])
SIZE = HORIZON * sail.STATE
PROCESS = VariancePreserving(LEVELS, "cosine", axes=2)

Parts = dict[str, Array]  # of each model, mean plans [K + 1, H, S], the last without a task


@struct
class Ball:
    """A ball in a plane without walls, and tasks: goals [K, 2] that demonstrations reach."""

    force: Array
    drag: Array
    slow: Array  # factor on the force of the ball that the general model has seen
    goal: Array

    def move(self, state: Array, action: Array) -> Array:
        speed = (1 - self.drag) * state[..., 2:] + self.force * action
        return jnp.concatenate([state[..., :2] + STEP * speed, speed], -1)

    def between(self, before: Array, after: Array) -> Array:
        """Return the actions between states in units, [..., 2]."""
        return sail.FASTEST * (after - (1 - self.drag) * before)[..., 2:] / self.force

    def plan(self, actions: Array) -> Array:
        """Return the states [H, S] of actions [H - 1, 2], in units."""

        def step(state: Array, action: Array) -> tuple[Array, Array]:
            return self.move(state, action), state

        last, states = jax.lax.scan(step, jnp.zeros(sail.STATE), actions)
        return jnp.concatenate([states, last[None]]) / UNITS

    def covariance(self) -> Array:
        """Return the covariance [D, D] of demonstrations about their mean."""
        quiet = jnp.zeros((HORIZON - 1, 2))
        root = NOISE * jax.jacfwd(lambda a: self.plan(a).ravel())(quiet).reshape(SIZE, -1)
        return root @ root.T

    def means(self) -> Array:
        """Return the mean plans [K, H, S] of steady actions that end at the goals."""
        steady = jnp.ones((HORIZON - 1, 2))
        shape = self.plan(steady)  # alike along both axes
        reach = shape[-1, 0] * UNITS[0]
        return self.goal[:, [0, 1, 0, 1]][:, None] / reach * shape


def draw(key: Key) -> Ball:
    keys = jax.random.split(key, 5)
    uniform = lambda key, low, high, shape=(): jax.random.uniform(
        key, shape, minval=low, maxval=high
    )
    spread = jnp.linspace(-0.9, 0.9, 3) + uniform(keys[0], -0.2, 0.2, (2, 3))
    angle = (spread + jnp.array([[jnp.pi], [0.0]])).ravel()
    far = uniform(keys[1], 1.1, 1.3, (TASKS,))
    return Ball(
        uniform(keys[2], 0.5, 0.6),
        uniform(keys[3], 0.0, 0.05),
        uniform(keys[4], 0.35, 0.45),
        far[:, None] * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1),
    )


@dataclasses.dataclass(frozen=True)
class Tables:
    """A stand-in for the learner, whose models are tables, and whose step is the exact minimum of a
    loss."""

    parts: Parts
    ball: Ball
    noise_key: Key
    hyper: Any
    updates: Array

    @property
    def target(self) -> Any:
        return self

    def replace(self, **changes: Any) -> Tables:
        return dataclasses.replace(self, **changes)

    def key(self, name: str) -> Key:
        return jax.random.fold_in(self.noise_key, len(name))

    def inverse(self, both: Array) -> Any:
        return SimpleNamespace(mode=lambda: self.ball.between(*jnp.split(both, 2, -1)))

    def denoiser(self, noisy: Array, level: Array, task: Array) -> Array:
        return self.predict("denoiser", noisy, level, task)

    def general(self, noisy: Array, level: Array, task: Array) -> Array:
        return self.predict("general", noisy, level, task)

    def predict(self, part: str, noisy: Array, level: Array, task: Array) -> Array:
        """Return the expected noise of plans [B, H, S] with the mean of their task."""
        apart = jnp.square(task[:, None, :2] * UNITS[0] - self.ball.goal).sum(-1)
        row = jnp.where(task[:, 2] > 0, apart.argmin(-1), TASKS)
        mean = self.parts[part][row].reshape(-1, SIZE)
        spread, basis = jnp.linalg.eigh(self.ball.covariance())
        spread = jnp.where(spread > 1e-9, spread, 0.0)
        bar = PROCESS.alpha_bars()[jnp.round(level * LEVELS).astype(int)].reshape(-1, 1)
        apart = (noisy.reshape(-1, SIZE) - jnp.sqrt(bar) * mean) @ basis
        return (apart * (jnp.sqrt(1 - bar) / (bar * spread + 1 - bar)) @ basis.T).reshape(
            noisy.shape
        )

    def descend(self, loss: Any, x: Transition, mask: Array) -> Tables:
        """Return the tables at the minimum of a loss, which is quadratic in each row."""
        (part,) = loss.parts
        if part == "inverse":
            return self
        if part == "general":  # frozen by now, so this must not be kept
            return self.replace(parts=self.parts | {part: jnp.zeros_like(self.parts[part])})

        def total(table: Array) -> Array:
            net = self.replace(parts=self.parts | {part: table})
            return jnp.where(mask, loss(net, x), 0.0).sum()

        table = self.parts[part]
        slope = jax.grad(total)
        along = lambda d: jax.jvp(slope, (table,), (jnp.broadcast_to(d, table.shape),))[1]
        curve = jax.vmap(along)(jnp.eye(SIZE).reshape(SIZE, HORIZON, sail.STATE))
        curve = jnp.moveaxis(curve, 0, -1).reshape(-1, SIZE, SIZE)
        curve += jnp.eye(SIZE) * (jnp.abs(curve).sum(-1) < 1e-9)[..., None, :]
        change = jnp.linalg.solve(curve, slope(table).reshape(-1, SIZE, 1))
        return self.replace(parts=self.parts | {part: table - change.reshape(table.shape)})

    def update_targets(self) -> Tables:
        return self

    def report(self, kept: Array) -> Tables:
        return self


def window(
    ball: Ball, states: Array, row: Array, moved: Array | int = 0, blind: Array | bool = False
) -> Transition:
    """Return the window [H, B] of states [H, B, S] of tasks [B], and a last step without force."""
    states = jnp.concatenate([states, ball.move(states[-1:], jnp.zeros(2))])
    none = jnp.zeros(states.shape[:2])
    late = jnp.arange(HORIZON + 1)[:, None] + none
    near = jnp.linalg.norm(states[..., :2] - ball.goal[row], axis=-1) < RADIUS
    told = jnp.broadcast_to(ball.goal[SHOWN + (row - SHOWN + moved) % NOVEL], (*none.shape, 2))
    told = jnp.where(row[:, None] < SHOWN, ball.goal[row], told)
    steps = TimeStep(
        states, none, near & ~jnp.asarray(blind), late == HORIZON, late == 0,
        goal=told, privileged=near,
    )  # fmt: skip
    rows = lambda i: jax.tree.map(lambda x: x[i : i + HORIZON], steps)
    return Transition(rows(0), none[1:], rows(1), (), {})


def success(x: Transition) -> Array:
    """Return how often windows reach their goals."""
    return x.next_timestep.privileged.any(0).mean(dtype=float)


def show(ball: Ball, key: Key) -> Transition:
    """Return demonstrations of the tasks that are shown."""
    row = jnp.arange(SHOWN * EACH) % SHOWN
    noise = NOISE * jax.random.normal(key, (len(row), HORIZON - 1, 2))
    states = UNITS * (ball.means()[row] + jax.vmap(ball.plan)(noise))
    return window(ball, jnp.moveaxis(states, 1, 0), row)


def play(
    net: Tables, recipe: Any, key: Key, moved: Array | int = 0, blind: Array | bool = False
) -> tuple[Transition, Array]:
    """Return what is played for the tasks that are not shown, and the actions of the plans,
    [B, H - 1, 2]."""
    row = SHOWN + jnp.arange(NOVEL * EACH) % NOVEL
    none = jnp.zeros(len(row))

    def step(carry: tuple[Array, Any], item: tuple[Key, Array]) -> tuple[Any, Array]:
        state, memory = carry
        see = TimeStep(
            state, none, none > 0, none > 0, (none == 0) & item[1], goal=net.ball.goal[row]
        )
        action, after, _ = recipe.act(net, see, memory, item[0], True)
        after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, memory)
        return (net.ball.move(state, action), after), state

    items = jax.random.split(key, HORIZON - 1), jnp.arange(HORIZON - 1) == 0
    begin = jnp.zeros((len(row), sail.STATE)), recipe.memory(len(row))
    (last, memory), states = jax.lax.scan(step, begin, items)
    states = jnp.concatenate([states, last[None]])
    return window(net.ball, states, row, moved, blind), memory.steps.astype(float)


def loop(
    key: Key,
    composed: bool = True,
    filtered: bool = True,
    strength: Array | float = STRENGTH,
    guidance: Array | float = GUIDANCE,
    moved: Array | int = 0,
    blind: Array | bool = False,
) -> tuple[Array, Array, Array]:
    """Return the rate of success at tasks that are not shown, before each round and after the last,
    [ROUNDS + 1]; the largest error of the mean actions of plans, relative to demonstrated ones,
    [ROUNDS + 1]; and the rate of the general model alone.

    strength, guidance: of plans. moved: by how much the tasks are others that played windows are
    said to be of. blind: whether no success is seen.
    """
    keys = jax.random.split(key, 5)
    ball = draw(keys[0])
    config = {"horizon": HORIZON, "execute": HORIZON - 1, "levels": LEVELS}
    config = replace(sail.Config(), {**config, "composed": composed, "filtered": filtered})
    recipe = sail.recipe(ENV, Static(config))  # pyright: ignore[reportArgumentType]
    slow = ball.slow * ball.means()
    general = jnp.concatenate([slow, slow.mean(0)[None]])

    def tables(parts: Parts, key: Key, strength: Array | float) -> Any:
        hyper = {"pretraining": 0, "drop": 0.25, "guidance": guidance, "strength": strength}
        return Tables(parts, ball, key, SimpleNamespace(**hyper), jnp.ones(()))

    def learn(parts: Parts, key: Key, x: Transition, origin: Array) -> Parts:
        x = dataclasses.replace(x, extras={"origin": jnp.broadcast_to(origin, x.reward.shape)})
        after: Any = recipe.update(tables(parts, key, strength), Batch(x, jnp.zeros(())))
        return after.parts

    def attempt(parts: Parts, key: Key) -> tuple[Transition, Array, Array]:
        played, actions = play(tables(parts, key, strength), recipe, key, moved, blind)
        mix = (general + STRENGTH * parts["denoiser"]) / (1 + STRENGTH)
        mean = (general[-1] + GUIDANCE * (mix - general[-1]))[SHOWN:TASKS]
        wanted, full = (ball.between(x[:, :-1], x[:, 1:]) for x in (mean, ball.means()))
        found = actions.reshape(EACH, NOVEL, HORIZON - 1, 2).mean(0)
        error = jnp.linalg.norm(found - wanted) / jnp.linalg.norm(full[SHOWN:])
        return played, success(played), error

    shown = show(ball, keys[1])
    blank = {"general": general, "denoiser": jnp.zeros_like(general)}
    parts = learn(blank, keys[2], shown, jnp.array(sail.SHOWN))
    own = parts["denoiser"]
    own = own.at[SHOWN:TASKS].set(own[-1])  # a new task is planned for as none
    parts = parts | {"denoiser": own}
    alone = success(play(tables(parts, key, 0.0), recipe, keys[3])[0])

    def turn(carry: tuple[Parts, Transition], i: Array) -> tuple[Any, Any]:
        parts, x = carry
        key = jax.random.fold_in(keys[4], i)
        played, rate, error = attempt(parts, key)
        add = lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, (i + 1) * b.shape[1], 1)
        x = jax.tree.map(add, x, played)
        batch = jnp.repeat(jnp.arange(ROUNDS + 1), NOVEL * EACH)
        origin = jnp.where(batch == 0, sail.SHOWN, jnp.where(batch <= i + 1, sail.PLAYED, -1))
        return (learn(parts, key, x, origin), x), (rate, error)

    x = jax.tree.map(lambda x: jnp.concatenate([x] * (ROUNDS + 1), 1), shown)
    (parts, _), (rates, errors) = jax.lax.scan(turn, (parts, x), jnp.arange(ROUNDS))
    _, rate, error = attempt(parts, jax.random.fold_in(keys[4], ROUNDS))
    return jnp.append(rates, rate), jnp.append(errors, error), alone


def errors_of_loop(key: Key, **wrong: Any) -> dict[str, Array]:
    """Return the errors of the loop that learns from successes, see `errors`."""
    rates, plans, general = loop(key, **wrong)
    return {
        "plans": plans.max(),
        "rises": jnp.maximum(0.6 - (rates[-1] - rates[0]), 0),
        "falls": jnp.maximum(rates[:-1] - rates[1:], 0).max(),
        "general": jnp.maximum(0.2 - (rates[-1] - general), 0),
    }


compiled = jax.jit(errors_of_loop)


@jax.jit
def errors_of_others(key: Key) -> dict[str, Array]:
    """Return the errors of loops without a filter, and without the general model."""
    unfiltered, alone = loop(key, filtered=False)[0], loop(key, composed=False)[0]
    return {
        "unfiltered": jnp.maximum(0.3 - (unfiltered[-1] - unfiltered[0]), 0),
        "alone": alone[-1],
    }


RIGHT = {"strength": STRENGTH, "guidance": GUIDANCE, "moved": 0, "blind": False}


def errors(key: Key) -> dict[str, Array]:
    """Return by how much each of these fails.

    "plans": distance of the mean actions of plans from those of the composed mean plan, as a share
    of demonstrated actions. The others are rates of success at tasks without demonstrations.
    "rises": four rounds add at least 0.6. "falls": no round loses any. "general": the last rate is
    0.2 above that of the general model alone. "unfiltered": where failures are learned from too,
    four rounds add at least 0.3. "alone": without the general model the last rate is 0.
    """
    return {**compiled(key, **RIGHT), **errors_of_others(key)}


CLAIM = Exact(
    paper=Paper(
        "Self-Adapting Improvement Loops for Robotic Learning",
        "Luo, Zeng, Jia, Du and Sun",
        2025,
        "2506.06658",
        "A video model of few tasks, composed with a general one, plans for new tasks, learns from "
        "what it plays, and improves over several iterations, even if that is not filtered.",
    ),
    claim="Four rounds of the loop raise the success at tasks without demonstrations by at least "
    "0.5, to 0.1 or more above the general model alone, and no round loses more than 0.1; by 0.2 "
    "if failures are learned from too. Without the general model it stays below 0.1. Plans have "
    "the composed mean.",
    left_out="Networks and videos. Models are Gaussians of plans, with one covariance and a mean "
    "for each task; the domain's model plans for a new task as for none, and the general one knows "
    "all tasks, but of a ball with about 0.4 of the force. The algorithm's update is the exact "
    "minimum of its loss, and inverse dynamics are exact. Most of the gain is of the first two "
    "rounds. Shares are of 768 plays, which set the tolerance.",
    notes="Before the claim was declared, actions of demonstrations were noisier, and without the "
    "general model a few of 512 plays succeeded by chance; that loop then improved too, and ended "
    "higher. So the general model is needed where nothing succeeds without it. Three thresholds "
    "were then raised by 0.05 to 0.1, so that they include the tolerance. The weight of the "
    "domain's model is 0.5, as in its authors' code for such plans; with 1, the default here, the "
    "loop improved later on two seeds. Without a filter it ends about where the general model "
    "alone is; its mean plan would grow without end where guidance * strength / (1 + strength) is "
    "above 1, if actions had no bounds and episodes did not end at goals.",
    parts=(
        "jaxrl/algorithms/diffusion/sail.py",
        "jaxrl/algorithms/diffusion/shared/chunks.py",
        "jaxrl/diffusion/guidance.py",
    ),
    errors=errors,
    planted={
        "the domain's model leads": lambda key: compiled(key, **RIGHT | {"strength": 2.0}),
        "no guidance": lambda key: compiled(key, **RIGHT | {"guidance": 1.0}),
        "plays of another task": lambda key: compiled(key, **RIGHT | {"moved": 1}),
        "no success is seen": lambda key: compiled(key, **RIGHT | {"blind": True}),
    },
    tolerance=0.1,
    effect=0.15,
    seeds=8,
    minutes=6.0,
    mutations=(
        Mutation(
            "guidance is from the domain's model",
            "jaxrl.algorithms.diffusion.sail:compose",
            lambda compose: (
                lambda general, blank, own, strength, guidance: compose(
                    general, own, own, strength, guidance
                )
            ),
        ),
        Mutation(
            "the general model goes on learning",
            "jaxrl.algorithms.offline.shared.inverse_dynamics:keep",
            lambda keep: lambda net, old, parts, unchanged: net,
        ),
    ),
)
