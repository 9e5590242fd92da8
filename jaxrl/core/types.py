"""The five nouns, and what flows between them.

    Environment   one instance of an environment; never resets itself, never batched
    Tasks         which environment the next episode is played in; may learn
    Source        where batches come from: rollouts, replay, a dataset, a model
    Agent         how to act, and what to learn from a batch
    Algorithm     all that the training loop knows

Each noun is a frozen dataclass of pure functions, compared by identity, so that `jax.jit` may
take it as a static argument. What extends a noun is a function from that noun to the same noun.
Axes are named in brackets: `T` time, `B` batch (streams), `N` agents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Space, check_member

Array = jax.Array
Key = jax.Array  # a typed key, as made by jaxrl.random.key
Tree = Any  # any pytree of arrays
Hyper = Mapping[str, Any]  # name -> scalar; the hyperparameters that are arrays, not structure

REPLICATED: Any = PartitionSpec()  # not split: every device holds all of it

T = TypeVar("T")


def static(default: Any = dataclasses.MISSING) -> Any:
    """A field of a `struct` that is part of its structure, not one of its leaves."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def struct(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree: every field is a child unless it is `static`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))


# ------------------------------------------------------------------------------- what flows


@struct
class TimeStep:
    """What an environment emits. Unbatched from `Environment`, `[B]` where agents see it.

    Termination and truncation are never merged: the value after a terminated step is zero, the
    value after a truncated one is the value of its `observation`. The channels below `first` are
    optional; `None` means that the environment has no such channel.
    """

    observation: Tree
    reward: Array  # of the step that led here; 0 after a reset. float32, or [N] with N agents
    terminated: Array  # bool: the task ended here
    truncated: Array  # bool: a clock ended the episode here, the task did not
    first: Array  # bool: this is the first step of an episode

    # bool [num_actions] (or [D, num_actions]): what may be chosen now; a tree of them for a tree of
    # action spaces
    legal_actions: Tree = None
    role: Array | None = None  # int32: whose turn, or which side of a game the agent plays
    goal: Tree = None  # what is asked for in this episode
    reward_components: Tree = None  # name -> scalar; parts of the reward, for vector rewards
    cost: Array | None = None  # float32, or [K]: what a constraint limits
    # bool [N], with several agents: which of them are alive; one that died ends its part of the
    # episode, and its actions have no effect until the next episode.
    alive: Array | None = None
    true_reward: Array | None = None  # what is measured where `reward` is a proxy for it
    # what a critic or a teacher may see and the policy may not, by name: `state` (of all that is
    # true of the environment, with several agents), `expert_action`
    privileged: Tree = None
    tokens: Tree = None  # token ids and masks of language tasks
    metrics: dict[str, Array] | None = None  # scalars to report at an episode's end, e.g. success

    @property
    def done(self) -> Array:
        """Whether the episode ended here, for either reason."""
        return self.terminated | self.truncated


@struct
class Transition:
    """One step of experience; `[T, B]` from rollouts, `[B]` from replay.

    `next_timestep` is the true successor with its own channels, never what follows a reset.
    Reserved names in `extras`: `log_prob` (of the action when it was chosen), `value`, `logits`,
    `search` (improved policy of a search), `priority`.
    """

    timestep: TimeStep
    action: Tree
    next_timestep: TimeStep
    task: Tree  # id of the task that the episode belongs to
    extras: dict[str, Tree]  # what the policy said when it acted

    @property
    def observation(self) -> Tree:
        return self.timestep.observation

    @property
    def next_observation(self) -> Tree:
        return self.next_timestep.observation

    @property
    def first(self) -> Array:
        """Whether `observation` opens an episode: the memory was reset before acting on it."""
        return self.timestep.first

    @property
    def reward(self) -> Array:
        return self.next_timestep.reward

    @property
    def terminated(self) -> Array:
        return self.next_timestep.terminated

    @property
    def truncated(self) -> Array:
        return self.next_timestep.truncated

    @property
    def done(self) -> Array:
        return self.next_timestep.done


@struct
class Batch:
    """What a source hands to an agent's update."""

    transitions: Transition  # [T, B] from rollouts and sequences, [B] from replay
    env_steps: Array  # float32 scalar: environment steps taken in this run so far; drives schedules
    memory: Tree = None  # [B] the agent's memory before transitions[0]; kept at window starts only
    tail: tuple[TimeStep, Tree] | None = None  # live time step and memory [B] after the last step
    mask: Array | None = None  # bool, as transitions: False where a step is padding
    weight: Array | None = None  # float32, as transitions: importance weights of a sampler
    index: Tree = None  # where the items lie, for `Source.feedback`


@struct
class Info:
    """What an update reports: `metrics` (name -> scalar, or a `jaxrl.core.metrics.Mean` of what not
    every update has) and feedback for the source, by name: `priority`, shaped as `Batch.index`,
    `score` for tasks, `keep` for what waits in the source.

    All metrics are finite in a healthy run. An update that made the weights infinite must say so by
    one that is not, such as their norm: `learn` undoes it and freezes the agent.
    """

    metrics: dict[str, Any]
    feedback: Mapping[str, Tree] = dataclasses.field(default_factory=dict)  # by name, e.g. priority


@struct
class Policy:
    """How to act: two static functions and the state that they read. A later state of the same
    agent is the same program."""

    act: Callable[..., tuple[Tree, Tree, dict[str, Tree]]] = static()
    memory: Callable[[int], Tree] = static()
    state: Tree = None


# ------------------------------------------------------------------------------- the nouns


@dataclasses.dataclass(frozen=True, eq=False)
class Goals:
    """How an environment with goals can be asked, afterwards, for another goal (hindsight).

    The goal of an episode is in `TimeStep.goal` and not in the observation: what encodes a time
    step (`networks.encoders.features`) puts it beside the observation, so that relabeling an
    experience changes that channel, the reward and `terminated`, and nothing else.

    achieved(observation) -> the goal that this observation has reached
    outcome(achieved, goal, params) -> (reward, terminated) of the step that led there: the part of
        its reward that depends on the goal, and whether the goal ends the episode
    """

    achieved: Callable[[Tree], Tree]
    outcome: Callable[[Tree, Tree, Tree], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """One instance of an environment, as two pure functions and a description of them.

    reset(key, params) -> (state, TimeStep) with `first` set.
    step(key, state, action, params) -> (state, TimeStep); it never resets: what it returns after
        an episode's end is unspecified. An action of another structure, shape or kind of number
        than `action_space` says raises `UserError`, also while it is traced; so does an index out
        of range where its value is known (not under jit).
    params: everything about the environment that may vary without changing shapes: a pytree of
        numbers or NumPy arrays.
    max_steps: the longest possible episode, None where there is no limit.
    render(state, params) -> uint8 [H, W, 3], on the host.
    expert(state, params) -> a good action, one instance like `step`; it may see all of the state.
    goals: how to ask for another goal afterwards, where the environment has goals.
    step_seconds(state, params) -> simulated seconds of one step, on the host; None where the
        environment has no time but its steps, as boards and grids have not.
    scores: which of its metrics an episode is judged by, beside its return, and what they are
        called where a run is watched; names that it does not report count for nothing.
    rules: of a game that is small enough for `exact.games` to enumerate it.
    agents: names of agents that act at the same time, in the order of their rewards; both spaces
        are dicts with these names. Empty for one agent, or where all share one reward.
    """

    name: str
    reset: Callable[[Key, Tree], tuple[Tree, TimeStep]]
    step: Callable[[Key, Tree, Tree, Tree], tuple[Tree, TimeStep]]
    params: Tree
    observation_space: Space
    action_space: Space
    max_steps: int | None = None
    render: Callable[[Tree, Tree], np.ndarray] | None = None
    expert: Callable[[Tree, Tree], Tree] | None = None
    goals: Goals | None = None
    step_seconds: Callable[[Tree, Tree], Any] | None = None
    scores: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"success": "success"})
    rules: Any = None
    agents: tuple[str, ...] = ()

    def __post_init__(self):
        for space in (self.action_space, self.observation_space) if self.agents else ():
            if not isinstance(space, dict) or set(space) != set(self.agents):
                raise UserError(
                    f"The agents of '{self.name}' are {', '.join(self.agents)}; both of its spaces "
                    f"must be dicts with these names, not {space!r}."
                )
        # A copy by `dataclasses.replace` checks its own space, and that one only. (An attribute of
        # the function would not do as a mark: whatever wraps it with `functools.wraps`, as
        # `jax.jit` does, has it too.)
        step = self.step.unchecked if isinstance(self.step, _CheckedStep) else self.step
        checked = _CheckedStep(step, self.action_space, f"The action of '{self.name}'")
        object.__setattr__(self, "step", checked)


@dataclasses.dataclass(frozen=True, eq=False)
class _CheckedStep:
    """The `step` of an `Environment`, which looks at its action first."""

    unchecked: Callable[[Key, Tree, Tree, Tree], tuple[Tree, TimeStep]]
    space: Space
    what: str

    def __call__(self, key: Key, state: Tree, action: Tree, params: Tree) -> tuple[Tree, TimeStep]:
        check_member(self.space, action, self.what)
        return self.unchecked(key, state, action, params)


@dataclasses.dataclass(frozen=True, eq=False)
class Tasks:
    """Which parameters the next episode is played with; a task is known by its id, any small
    pytree, so that scores can hang on it.

    init(key, policy) -> state
    sample(state, key, n) -> ids, leading axis [n]
    params(state, id) -> the environment parameters of one id; must not change while an episode
        with that id runs
    update(state, policy, transitions) -> state, after each window [T, B] of experience
    """

    name: str
    init: Callable[[Key, Policy], Tree]
    sample: Callable[[Tree, Key, int], Tree]
    params: Callable[[Tree, Tree], Tree]
    update: Callable[[Tree, Policy, Transition], Tree] = lambda state, policy, transitions: state


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Where batches come from.

    init(key, hyper, policy) -> state
    collect(state, policy, key) -> (state, fresh, metrics): gather experience once
    sample(state, fresh, key) -> Batch: one batch to learn from
    feedback(state, batch, feedback) -> state: what the update said of the batch
    env_steps: environment steps in one `collect`; initial_env_steps: those spent in `init`.
    num_envs: environments that `collect` steps side by side; 0 where there are none.
    partition: PartitionSpecs as a prefix of the state's tree: what is split over devices.
    """

    name: str
    init: Callable[[Key, Hyper, Policy], Tree]
    collect: Callable[[Tree, Policy, Key], tuple[Tree, Tree, dict[str, Any]]]
    sample: Callable[[Tree, Tree, Key], Batch]
    feedback: Callable[[Tree, Batch, Tree], Tree] = lambda state, batch, feedback: state
    env_steps: int = 0
    initial_env_steps: int = 0
    num_envs: int = 0
    hyper: Hyper = dataclasses.field(default_factory=dict)
    partition: Tree = REPLICATED


@dataclasses.dataclass(frozen=True, eq=False)
class Agent:
    """How to act, and what to learn from a batch. Always batched.

    init(key, hyper) -> state; the hyperparameters it reads live on in the state, under `.hyper`
    act(state, timestep [B], memory [B], key, greedy) -> (action [B], memory [B], extras)
    update(state, batch, key) -> (state, Info)
    memory(n) -> what is remembered at an episode's start, leading axis [n]
    needs: what `update` reads of a batch beyond its transitions, as dotted names
        (`memory`, `tail`, `transitions.extras.log_prob`).
    hand_over(state) -> the state of the agent that goes on from this one in a warm start; the
        state as it is unless said.
    adopt(state, other) -> what the agent takes over of another that has handed over `other`, with
        what that one lacks from its own first state; `other` as it is unless said.
    goes_on_from: what has to be trained before, for an agent that can learn nothing from new
        weights, such as the name of the algorithm that learns its world model; empty otherwise.
    scores: see `Algorithm`.
    """

    name: str
    init: Callable[[Key, Hyper], Tree]
    act: Callable[[Tree, TimeStep, Tree, Key, bool], tuple[Tree, Tree, dict[str, Tree]]]
    update: Callable[[Tree, Batch, Key], tuple[Tree, Info]]
    memory: Callable[[int], Tree] = lambda n: ()
    hyper: Hyper = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    config: Any = None
    hand_over: Callable[[Tree], Tree] = lambda state: state
    adopt: Callable[[Tree, Tree], Tree] = lambda state, other: other
    goes_on_from: str = ""
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    """What the loop scans.

    init(key, hyper) -> state
    step(state, key) -> (state, metrics): metrics are values of jaxrl.core.metrics; `diverged`
        says since which step its numbers are not finite, see jaxrl.core.divergence
    policy(state) -> Policy
    hyper: the defaults of everything that `init` takes as an array
    env_steps: environment steps in one `step`; initial_env_steps: those spent in `init`.
    agent, source: what it was made from, where that is an agent that meets a source.
    num_shards: logical shards of its environments, which devices may share; None where it has none.
    scores: which of its metrics it is judged by, beside the return, and what they are called where
        a run is watched.
    measure(state) -> name -> scalar: what each evaluation says of a state besides its episodes,
        such as how far a policy can be exploited.
    """

    name: str
    init: Callable[[Key, Hyper], Tree]
    step: Callable[[Tree, Key], tuple[Tree, dict[str, Any]]]
    policy: Callable[[Tree], Policy]
    hyper: Hyper = dataclasses.field(default_factory=dict)
    env_steps: int = 0
    initial_env_steps: int = 0
    partition: Tree = REPLICATED
    config: Any = None
    agent: Agent | None = None
    source: Source | None = None
    num_shards: int | None = None
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measure: Callable[[Tree], dict[str, Array]] = lambda state: {}
