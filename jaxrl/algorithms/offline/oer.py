"""Offline experience replay (Gai, Wang and He, 2023, "OER: Offline experience replay for continual
offline reinforcement learning", arXiv:2305.13804): a sequence of offline datasets, one per task, a
small buffer of earlier tasks' steps, and no environment.

- Dual behavior cloning: one policy learns the current task by Q-learning (here TD3+BC). Another,
  which sees the task as a one-hot goal and is the one that acts, clones the first on the current
  data, and the buffer's actions on earlier tasks. So cloning does not disturb the Q-learning;
  without `dual` one policy does both.
- Model-based experience selection: when a task ends, a learned model of the dynamics rolls out the
  policy that was learned, from first states of the data. The visited states take, in a random
  order, the nearest step of the data that none has taken yet, and these steps go to the buffer.
  The other selectors are a random choice and the largest rewards.

The abstract is all of the paper that could be read, so these are choices made here: that distances
are Euclidean in standard deviations of the data, that rollouts go on from the model's own states,
that each visited state takes one step, how many are visited, the squared error and the weight of
cloning, one-hot tasks (instead of, say, heads), that Q-learning, critics and model begin anew with
each task, equal shares of the buffer, and which actions it holds (`actions`): the learned policy's
by default, since cloning those of mixed data undoes what was learned. The buffer has one size for
all tasks: what each task keeps when the next one comes are the steps taken first.

One step of the run is a period of a life of tasks, as in `lifelong_ppo`: `windows` times
`data.updates` gradient steps, then an evaluation in all tasks. Evaluations of the run play the
environment as it is given, which does not tell the task; there the policy assumes the last one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.lifelong.lifelong_ppo import live, whole_numbers
from jaxrl.algorithms.offline import td3_bc
from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.offline.shared.data import TINY_DATA
from jaxrl.algorithms.offline.shared.dynamics_loss import dynamics_loss
from jaxrl.algorithms.offline.shared.model_rollouts import check_model
from jaxrl.core import settings, spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.shared import Original, Shared
from jaxrl.core.staging import where_due
from jaxrl.core.types import (
    REPLICATED,
    Algorithm,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.envs import registry as envs
from jaxrl.envs.wrappers.skills import Skills, skills
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.composing import around
from jaxrl.kit.groups import Normalization, Optimizer
from jaxrl.networks.critics import DeterministicActor
from jaxrl.networks.dynamics import Dynamics, draw_next
from jaxrl.networks.heads import scale
from jaxrl.sources.rollouts import SPLIT

LEARNED, IMAGINED, REPLAYED = "learned", "imagined", "replayed"  # extras


@group
class Experience:
    """Settings of the buffer of earlier tasks."""

    capacity: int = static(1000, low=1)
    """Number of steps in the buffer, which all earlier tasks share."""
    selector: str = static("model", choices=("model", "random", "reward"))
    """Choice of the steps that are kept: nearest to the policy's rollouts in a model (model), any
    (random), or those with the largest rewards (reward)."""
    horizon: int = static(50, low=1, high=MANY)
    """Number of steps of each rollout in the model."""
    actions: str = static("policy", choices=("policy", "data"))
    """Actions that are cloned on earlier tasks: those of the policy that had learned the task, or
    the data's."""


@group
class Config(td3_bc.Config):
    """Settings of OER: TD3+BC's, those of the buffer, the tasks, and their order
    (arXiv:2305.13804)."""

    experience: Experience = Experience()
    model: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the model of the dynamics."""
    normalization: Normalization = Normalization()

    dual: bool = True
    """Learn a policy of all tasks beside the one that Q-learning improves; without, it is one."""
    model_hidden: tuple[int, ...] = static((200, 200), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of each member of the model."""
    members: int = static(3, low=1, high=MANY)
    """Number of members of the model."""
    vary: str = "gravity"
    """Name of the environment parameter that distinguishes the tasks."""
    values: tuple[float, ...] = static((-10.0, 0.0, 10.0), least_length=1)
    """Values of the varied parameter, one per task, in the order of the tasks."""
    windows: int = static(100, low=1)
    """Rounds of `data.updates` gradient steps in one period; all tasks are evaluated after each
    period."""
    periods: int = static(1, low=1)
    """Periods of each task before the next one begins."""
    episodes: int = static(16, low=1, high=MANY)
    """Episodes per task in one evaluation."""

    replay_weight: float = hyper(1.0, low=0)
    """Weight of cloning the buffer's actions relative to cloning the learned policy."""


def updates_of_a_task(config: Any) -> int:
    """Return the number of gradient steps for each task."""
    return config.windows * config.periods * config.data.updates


# ---------------------------------------------------------------------------------- selection


def roll_out(policy: Policy, start: TimeStep, horizon: int, key: Key) -> Array:
    """Return the observations [horizon, M, D] that the learned policy visits in the model from
    `start` [M] on; after an end it begins again."""

    def step(timestep: TimeStep, key: Key) -> tuple[TimeStep, Array]:
        memory = policy.memory(len(timestep.reward))
        extras = policy.act(policy.state, timestep, memory, key, False)[2]
        after = dataclasses.replace(timestep, **extras[IMAGINED])
        return trees.where(after.terminated, start, after), _flat(timestep)

    return jax.lax.scan(step, start, jax.random.split(key, horizon))[1]


def take_nearest(stored: Array, visited: Array) -> Array:
    """Return which of the `stored` [N, D] each of the `visited` [C, D] takes, int32 [C]: the
    nearest one that no earlier one has taken."""

    def take(taken: Array, x: Array) -> tuple[Array, Array]:
        distance = jnp.where(taken, jnp.inf, jnp.square(stored - x).sum(-1))
        nearest = distance.argmin()
        return taken.at[nearest].set(True), nearest.astype(jnp.int32)

    return jax.lax.scan(take, jnp.zeros(len(stored), bool), visited)[1]


def select(data: Transition, policy: Policy, experience: Any, key: Key) -> Array:
    """Return the rows [capacity] of `data` [N] that the buffer is offered, the most wanted
    first."""
    count = experience.capacity
    if experience.selector == "random":
        return jax.random.permutation(key, len(data.reward))[:count]
    if experience.selector == "reward":
        return jnp.argsort(-data.reward)[:count]
    start_key, roll_key, order_key = jax.random.split(key, 3)
    number = -(-count // experience.horizon)
    first = jnp.where(data.first, 0.0, -jnp.inf)
    row = jax.random.categorical(start_key, first, shape=(number,))
    start = jax.tree.map(lambda x: x[row], data.timestep)
    visited = roll_out(policy, start, experience.horizon, roll_key)
    visited = jax.random.permutation(order_key, visited.reshape(-1, visited.shape[-1]))[:count]
    stored = _flat(data.timestep)
    unit = stored.std(0) + 1e-6
    return take_nearest(stored / unit, visited / unit)


def _flat(timestep: TimeStep) -> Array:
    return timestep.observation.reshape(len(timestep.reward), -1)


def extend(buffer: Tree, wanted: Tree, tasks: Array) -> Tree:
    """Return a buffer [C] of one more task than the `tasks` (int32) that it has.

    Slot i holds a step of task i mod the number of tasks, so shares differ by at most one step.
    Every task keeps its first steps. wanted: [C], steps of the new task, the most wanted first.
    """
    slot = jnp.arange(len(jax.tree.leaves(wanted)[0]))
    owner, rank = slot % (tasks + 1), slot // (tasks + 1)
    old = jnp.where(owner < tasks, rank * tasks + owner, 0)
    choose = lambda x, new: trees.where(owner < tasks, x[old], new[rank])
    return jax.tree.map(choose, buffer, wanted)


# ------------------------------------------------------------------------------------- source


@struct
class Memories:
    """State of the source: what it stores of tasks."""

    data: Shared
    """Steps of all tasks: [K, N]."""
    buffer: dict[str, Tree]
    """Time steps and actions of earlier tasks: [C]."""
    rounds: Array
    """Rounds of gradient steps so far: int32."""
    order: Array
    """Numbers of the items of a batch, split over devices: int32 [n]."""


def name_task(timestep: TimeStep, task: int, tasks: int) -> TimeStep:
    """Return time steps [N] of a task that say which it is, as `envs.wrappers.skills` does."""
    one_hot = np.eye(tasks, dtype=np.float32)[task]
    goal = np.broadcast_to(one_hot, (*np.shape(timestep.reward), tasks))
    return dataclasses.replace(timestep, goal=goal)


def datasets(env: Environment, config: Any) -> Transition:
    """Return the datasets [K, N] of all tasks: N steps, evenly spaced, of each, as many as the
    shortest one has."""
    found = []
    several = envs.variants(env, config.vary, whole_numbers(config.values))
    for task, variant in enumerate(several):
        x = making.load(variant, config.data.name, config.data.size, config.data.seed).transitions
        both = (name_task(t, task, len(several)) for t in (x.timestep, x.next_timestep))
        found.append(Transition(*(next(both), x.action, next(both)), (), {}))
    size = min(len(x.reward) for x in found)
    spaced = lambda x: np.asarray(x)[np.linspace(0, len(x) - 1, size).astype(int)]
    return jax.tree.map(lambda *x: np.stack([spaced(a) for a in x]), *found)


def source(env: Environment, config: Any) -> Source:
    """Return a source of the datasets of all tasks, one after the other, whose transitions have
    with them as many steps of the buffer (`REPLAYED`)."""
    transitions = datasets(env, config)
    return memories(transitions, config, f"the datasets of '{env.name}'")


def memories(transitions: Transition, config: Any, name: str) -> Source:
    """Return the source of datasets [K, N]. Raises `UserError` for a buffer that is larger than a
    dataset."""
    tasks, size = np.shape(transitions.reward)
    experience, batch_size = config.experience, config.data.batch_size
    rounds, updates = config.windows * config.periods, config.data.updates
    if experience.capacity > size:
        raise UserError(
            f"experience.capacity is {experience.capacity}; the dataset of a task has {size} steps."
        )
    original = Original(transitions, name)
    nothing = jax.tree.map(
        lambda x: np.zeros((experience.capacity, *x.shape[2:]), x.dtype),
        {"timestep": original.value.timestep, "action": original.value.action},
    )

    def init(key, hyper, policy):
        buffer = jax.tree.map(jnp.asarray, nothing)
        return Memories(original.shared(), buffer, jnp.int32(0), jnp.arange(batch_size))

    def collect(state: Memories, policy: Policy, key):
        """Store steps of the task that has just ended, if one has."""
        ended = state.rounds // rounds
        due = (state.rounds % rounds == 0) & (ended > 0) & (ended < tasks)

        def store():
            last = ended - 1
            data = jax.tree.map(lambda x: x[last], state.data.value)
            key_of_rows, act_key = jax.random.split(key)
            row = select(data, policy, experience, key_of_rows)
            wanted = jax.tree.map(
                lambda x: x[row], {"timestep": data.timestep, "action": data.action}
            )
            if experience.actions == "policy":
                seen, memory = wanted["timestep"], policy.memory(experience.capacity)
                extras = policy.act(policy.state, seen, memory, act_key, False)[2]
                wanted["action"] = extras[LEARNED]
            return extend(state.buffer, wanted, last)

        buffer = where_due(due, store, state.buffer)
        task = jnp.minimum(ended, tasks - 1)
        state = dataclasses.replace(state, buffer=buffer, rounds=state.rounds + 1)
        return state, task, {}

    def sample(state: Memories, task: Array, key) -> Batch:
        new_key, old_key = jax.random.split(key)
        row = jax.random.randint(new_key, (batch_size,), 0, size)[state.order]
        slot = jax.random.randint(old_key, (batch_size,), 0, experience.capacity)[state.order]
        x = jax.tree.map(lambda x: x[task, row], state.data.value)
        replayed = jax.tree.map(lambda x: x[slot], state.buffer)
        replayed["held"] = jnp.broadcast_to(task > 0, slot.shape)
        x = dataclasses.replace(x, extras={REPLAYED: replayed})
        return Batch(x, env_steps=state.rounds.astype(jnp.float32) * updates)

    return Source(
        f"memories({name})",
        init,
        collect,
        sample,
        env_steps=updates,
        partition=Memories(REPLICATED, REPLICATED, REPLICATED, SPLIT),
    )


# -------------------------------------------------------------------------------------- agent


def recipe(env: Environment, config: Any) -> Recipe:
    """Return the recipe of TD3+BC with the model and the policy of all tasks around it."""
    tasks, length = len(config.values), updates_of_a_task(config)
    seen = skills(env, tasks)
    space, timestep = env.action_space, example_timestep(seen)
    half_width = scale(space)[1]  # type: ignore[arg-type]
    name = "multi" if config.dual else "actor"
    plain = td3_bc.recipe(seen, config)
    box: Any = env.observation_space
    sizes = env.observation_space, space, config.torso.hidden
    actor = DeterministicActor(*sizes, config.torso.activation, config.torso.initializer)  # type: ignore[arg-type]
    model = Dynamics(box, space, config.model_hidden, config.members)
    parts = {"model": Part(model, (timestep, spaces.example(space)[None]), config.model)}
    if config.dual:
        parts["multi"] = Part(actor, (timestep,), config.optimizer)
    anew = ("critic", "model", *(("actor",) if config.dual else ()))

    @loss("model")
    def model_loss(net: Net, x: Transition) -> Array:
        """Compute the negative log-likelihood of next observation and end, summed over members."""
        prediction = net.model(x.timestep, x.action)
        return dynamics_loss(prediction, box, x.timestep, x.next_timestep).sum(0)

    @loss(name)
    def clone_loss(net: Net, x: Transition) -> LossOutput:
        """Compute the squared distance, in half-widths, to the learned policy's action on the
        current task and to the buffer's on earlier ones."""
        policy = getattr(net, name)

        def distance(timestep, action):
            apart = (policy(timestep) - jax.lax.stop_gradient(action)) / half_width
            return jnp.square(apart).reshape(len(apart), -1).sum(-1)

        old = x.extras[REPLAYED]
        new = distance(x.timestep, net.actor(x.timestep)) if config.dual else 0.0
        kept = jnp.where(old["held"], distance(old["timestep"], old["action"]), 0.0)
        return LossOutput(new + net.hyper.replay_weight * kept, {"replay_loss": kept})

    def begin(net: Net) -> Net:
        """Begin Q-learning and the model anew."""
        own = {**plain.parts, **parts}
        net = net.restart(**{n: own[n].init(net.key(n)) for n in anew})
        moved = {
            n: dataclasses.replace(net.parts[n], target=jax.tree.map(jnp.copy, net.parts[n].params))
            for n in anew
            if own[n].target is not None
        }
        return net.replace(parts=net.parts | moved)

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        due = (net.updates % length == 0) & (net.updates > 0) & (net.updates < tasks * length)
        fresh = where_due(due, lambda: begin(net).parts, net.parts)
        return net.replace(parts=fresh), batch, None

    def after(net: Net, batch: Batch, kept: Any) -> Net:
        return net.descend(model_loss, batch).descend(clone_loss, batch)

    def act(net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
        if timestep.goal is None:
            task = jnp.clip((net.updates - 1) // length, 0, tasks - 1)
            goal = jax.nn.one_hot(jnp.full(timestep.reward.shape, task), tasks)
            timestep = dataclasses.replace(timestep, goal=goal)
        action = getattr(net, name)(timestep)
        if greedy:
            return action, memory, {}
        learned = net.actor(timestep)
        led = draw_next(net.model(timestep, learned), timestep, key)
        imagined = {"observation": led.observation, "terminated": led.terminated}
        return action, memory, {LEARNED: learned, IMAGINED: imagined}

    return around(
        plain,
        parts=parts,
        losses=(model_loss, clone_loss),
        before=before,
        after=after,
        act=lambda inner: act,
        needs=(f"transitions.extras.{REPLAYED}",),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and observations one box of real
    numbers, for goals of the environment's own, for a single task, for an environment beside the
    datasets, and for running statistics of observations."""
    td3_bc.td3_bc.check(env, config, name)
    check_model(env, config, name)
    if len(config.values) < 2:
        raise UserError(f"{name} learns a sequence of tasks: values must have at least 2.")
    why = "a life has no normalization, whose statistics would change with the task"
    settings.refuse(config, ("normalization.observation",), why)
    skills(env, len(config.values))


inner = AlgorithmBuilder("oer", Config, recipe, source, check=check)


def oer(env: Environment, config: Config = Config()) -> Algorithm:
    """Build OER in a life of tasks, each with its dataset. The same arguments give the same object.

    Raises `UserError` as `check` does, and for a parameter that does not exist.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    algorithm = inner(env, config)
    params = envs.vary(env, config.vary, whole_numbers(config.values))
    tasks = len(config.values)
    return live(
        algorithm,
        skills(env, tasks),
        Skills(params, np.arange(tasks)),  # type: ignore[arg-type]
        config.windows,
        config.periods,
        episodes=config.episodes,
        greedy=True,
    )


TINY = TINY_DATA | {
    "env": "pendulum",
    "hidden": (8,),
    "model_hidden": (8,),
    "members": 2,
    "values": (5.0, 10.0),
    "windows": 2,
    "periods": 2,
    "episodes": 2,
    "experience.capacity": 16,
    "horizon": 4,
}
