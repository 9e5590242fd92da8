"""The five nouns of the library, and the data that flows between them.

    Environment   one instance of an environment: how an episode starts and how it goes on
    Tasks         the parameters that the next episode is played with; may learn
    Source        a supply of batches: rollouts, a replay buffer, a dataset, a model
    Agent         how to act, and how to learn from a batch
    Algorithm     an initial state and a training step: all that the training loop knows

An agent meets a source: `jaxrl.core.learn.learn(agent, source)` is the Algorithm whose step
collects experience with the agent's policy, then samples batches and updates the agent with them.
`jaxrl.core.train.train` scans that step, and equally the step of any other Algorithm.

Each noun is a frozen dataclass of pure functions. What a function has to remember is a pytree, its
`state`, which it takes and returns. Nouns are compared by identity, so that `jax.jit` may take one
as a static argument. To extend a noun, write a function from that noun to the same noun: a time
limit maps an Environment to an Environment, a replay buffer maps a Source to a Source.

The data come first below, then each noun after the types of its functions. Axes are named in
brackets: `T` time, `B` batch (streams of experience side by side), `N` agents, `[]` a scalar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, dataclass_transform

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
    """Declare a field of a `struct` as part of its structure instead of a child."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def struct(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that is a pytree: every field is a child unless it is `static`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))


# ------------------------------------------------------------------------------- what flows


@struct
class TimeStep:
    """Output of an environment at one moment: unbatched from `Environment`, `[B]` for agents.

    Termination and truncation are never merged. The value after a terminated step is zero; the
    value after a truncated step is the value of its `observation`, so algorithms bootstrap there.

    The fields below `first` are optional channels: `None` means that the environment has no such
    channel.
    """

    observation: Tree
    """The observation that the agent acts on."""
    reward: Array
    """Reward of the step that led here, 0 after a reset: float32 [], or [N] with N agents."""
    terminated: Array
    """True where the task ended here: bool."""
    truncated: Array
    """True where a clock ended the episode here and the task did not: bool."""
    first: Array
    """True on the first step of an episode: bool."""

    legal_actions: Tree = None
    """Actions that are allowed now: bool [num_actions], or [D, num_actions] for D components; a
    tree of these for a tree of action spaces."""
    role: Array | None = None
    """The player to move, or the side of a game that the agent plays: int32."""
    goal: Tree = None
    """The goal of this episode."""
    reward_components: Tree = None
    """Parts of the reward by name, for algorithms that learn from a vector of rewards."""
    cost: Array | None = None
    """The quantity that a constraint limits: float32 [], or [K] for K constraints."""
    alive: Array | None = None
    """Agents that are alive, where there are several: bool [N]. An agent that died has ended its
    part of the episode, and its actions have no effect until the next one."""
    true_reward: Array | None = None
    """The reward that is measured where `reward` is a proxy for it."""
    privileged: Tree = None
    """Inputs by name that a critic or a teacher may see and the policy may not. Reserved names:
    `state` (of the whole environment, where several agents each see a part), `expert_action`,
    `judged` (what a judge compares of an episode, see `Environment.judge`)."""
    tokens: Tree = None
    """Token ids and masks of language tasks by name, see `envs.language.conversing`; `restart` is
    reserved, see `restarts`."""
    metrics: dict[str, Array] | None = None
    """Scalars by name that are reported at the end of an episode, such as its success."""

    @property
    def done(self) -> Array:
        """True where the episode ended here, by termination or truncation: bool."""
        return self.terminated | self.truncated

    @property
    def restarts(self) -> Array:
        """True where a policy's memory begins anew: on the first step of an episode, and where the
        text goes on with a reader who has not seen what stands before (`tokens["restart"]`)."""
        if isinstance(self.tokens, dict) and "restart" in self.tokens:
            return self.first | self.tokens["restart"]
        return self.first


@struct
class Transition:
    """One step of experience: `[T, B]` from rollouts, `[B]` from a replay buffer.

    `next_timestep` is the true successor with its own channels, never the step after a reset. The
    properties are the usual names of the parts: the reward and the end of a transition are those of
    `next_timestep`.
    """

    timestep: TimeStep
    """The time step that was acted on."""
    action: Tree
    """The action that was taken."""
    next_timestep: TimeStep
    """The time step that the action led to."""
    task: Tree
    """Id of the task that the episode belongs to, see `Tasks`."""
    extras: dict[str, Tree]
    """Outputs of the policy when it acted. Reserved names: `log_prob` (of the action, when it was
    chosen), `value`, `logits`, `search` (the improved policy of a tree search), `priority`."""

    @property
    def observation(self) -> Tree:
        return self.timestep.observation

    @property
    def next_observation(self) -> Tree:
        return self.next_timestep.observation

    @property
    def first(self) -> Array:
        """True where `observation` opens an episode: the memory was reset before acting on it."""
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
    """Input of an agent's update, as a source hands it out."""

    transitions: Transition
    """Experience to learn from: [T, B] from rollouts and sequences, [B] from a replay buffer."""
    env_steps: Array
    """Environment steps taken in this run so far, which drive schedules: float32 []."""
    memory: Tree = None
    """Memory of the agent [B] before transitions[0]; it is kept at the start of a window only."""
    tail: tuple[TimeStep, Tree] | None = None
    """Live time step and memory [B] after the last transition."""
    mask: Array | None = None
    """False where a step is padding: bool, shaped as the transitions."""
    weight: Array | None = None
    """Importance weights of a sampler: float32, shaped as the transitions."""
    index: Tree = None
    """Places of the items in their source, for `Source.feedback`."""


@struct
class Info:
    """Report of an agent's update: metrics, and feedback for the source.

    All metrics are finite in a healthy run. An update that made the parameters infinite must report
    that by a metric that is not finite, such as their norm: `learn` then undoes the update and
    freezes the agent.
    """

    metrics: dict[str, Any]
    """Scalars by name; a `jaxrl.core.metrics.Mean` where not every update has a value."""
    feedback: Mapping[str, Tree] = dataclasses.field(default_factory=dict)
    """Input of `Source.feedback` by name. `priority` has the shape of `Batch.index`, `score`, for
    tasks, that of the transitions; `keep` is for episodes that wait in the source."""


class Act(Protocol):
    def __call__(
        self, state: Tree, timestep: TimeStep, memory: Tree, key: Key, greedy: bool, /
    ) -> tuple[Tree, Tree, dict[str, Tree]]:
        """Choose an action in each of B streams.

        state: the agent's state.
        timestep: [B], the time steps to act on, with all channels that the environment has.
        memory: [B], what the agent remembers of these episodes.
        key: source of the randomness of the actions.
        greedy: static; True for the most likely or best action, False to explore as in training.

        Returns the actions [B], the memory [B] for the next call, and the extras [B] that
        `Transition.extras` records.
        """
        ...


class Read(Protocol):
    def __call__(
        self, state: Tree, timestep: TimeStep, memory: Tree, action: Tree, /
    ) -> tuple[Tree, dict[str, Tree]]:
        """Read the beginnings of B episodes, in which nothing is chosen, all at once.

        state: the agent's state.
        timestep: [T, B], from the episodes' first steps on; each has one legal action.
        memory: [B], blank.
        action: [T, B], these legal actions.

        Returns the memory [B] and the extras [T, B] that acting step by step would return.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ReadingAct:
    """An `Act` that can also read the beginnings of episodes at once.

    Whatever wraps its `act` in a plain function acts step by step.
    """

    act: Any
    read: Any

    def __call__(self, *args: Any) -> Any:
        return self.act(*args)


@struct
class Policy:
    """A way to act: two static functions and the state that they read.

    Acting with a later state of the same agent runs the program that is compiled already.
    """

    act: Act = static()
    """The function that acts; it reads `state`."""
    memory: Callable[[int], Tree] = static()
    """Memory at the start of n episodes, leading axis [n], from n."""
    state: Tree = None
    """The agent's state."""


# ------------------------------------------------------------------------------- environments


class NextGoal(Protocol):
    def __call__(self, key: Key, achieved: Tree, params: Tree, /) -> Tree:
        """Draw a goal for play that has just reached one.

        key: source of the randomness of the goal.
        achieved: the goal that was reached.
        params: the environment's parameters.
        """
        ...


class Outcome(Protocol):
    def __call__(self, achieved: Tree, goal: Tree, params: Tree, /) -> tuple[Array, Array]:
        """Evaluate a step against a goal.

        achieved: the goal that the step reached, as `Goals.achieved` tells it.
        goal: the goal that is asked for.
        params: the environment's parameters.

        Returns the part of the step's reward that depends on the goal, and whether the goal ends
        the episode (`terminated`).
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Goals:
    """Relabeling of an environment's experience with another goal (hindsight).

    The goal of an episode is in `TimeStep.goal` and not in the observation. The function that
    encodes a time step (`networks.encoders.features`) puts the two together, so that relabeling
    changes the channel `goal`, the reward and `terminated`, and nothing else.
    """

    achieved: Callable[[Tree], Tree]
    """The goals [...] that observations [...] have reached, from the observations."""
    outcome: Outcome
    """The reward and end of a step under any goal."""
    next: NextGoal | None = None
    """The goal that play sets after one is reached; None for that of a new episode."""


class Judge(Protocol):
    def __call__(self, judged: Tree, other: Tree, /) -> Array:
        """Compare two episodes that began alike.

        judged, other: what each said of itself at its end, in `TimeStep.privileged["judged"]`, with
            the same leading axes [...].

        Returns the probability that the first is preferred to the other, float32 [...]. It is 1
        less that of the other order, but no reward need express it: preferences may form a cycle.
        """
        ...


class Reset(Protocol):
    def __call__(self, key: Key, params: Tree, /) -> tuple[Tree, TimeStep]:
        """Start an episode.

        key: source of the randomness of the first state.
        params: the environment's parameters.

        Returns the environment's state, and its first time step, with `first` set.
        """
        ...


class Step(Protocol):
    def __call__(
        self, key: Key, state: Tree, action: Tree, params: Tree, /
    ) -> tuple[Tree, TimeStep]:
        """Take one step in a running episode. It never resets: its result after the end of an
        episode is unspecified.

        key: source of the randomness of the step.
        state: the environment's state.
        action: an element of `Environment.action_space`.
        params: the environment's parameters.

        Returns the environment's state, and the time step that the action led to.

        Raises `UserError` for an action whose structure, shape or kind of number is not that of the
        action space, also while it is traced, and for an index out of range where its value is
        known (not under jit).
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """One instance of an environment: two pure functions and a description of them.

    It is never batched and never resets itself; `jaxrl.core.stream` does both.
    """

    name: str
    """Name in messages and results."""
    reset: Reset
    """The function that starts an episode."""
    step: Step
    """The function that goes on with it."""
    params: Tree
    """Default parameters: all numbers of the environment that may vary without changing shapes, as
    a pytree of numbers or NumPy arrays."""
    observation_space: Space
    """Shapes and bounds of observations."""
    action_space: Space
    """Shapes and bounds of actions."""
    max_steps: int | None = None
    """Steps in the longest possible episode; None without a limit."""
    render: Callable[[Tree, Tree], np.ndarray] | None = None
    """A picture, uint8 [H, W, 3], from (state, params); it runs on the host."""
    expert: Callable[[Tree, Tree], Tree] | None = None
    """A good action from (state, params), for one instance; it may use all of the state."""
    goals: Goals | None = None
    """Functions that relabel experience with another goal, where the environment has goals."""
    step_seconds: Callable[[Tree, Tree], Any] | None = None
    """Simulated seconds of one step from (state, params), on the host; None where the steps are the
    only time there is, as in board games and grids."""
    scores: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"success": "success"})
    """Metrics that an episode is judged by besides its return, each with the label that a watched
    run shows. Names that the environment does not report are ignored."""
    rules: Any = None
    """Rules of a game that is small enough for `exact.games` to enumerate it."""
    state_of: Callable[[TimeStep], Tree] | None = None
    """A state that a time step stands for: from it, the same actions lead to the same observations,
    rewards and terminations. Clocks begin anew. None where time steps do not tell the state."""
    judge: Judge | None = None
    """The preference between two episodes that began alike; None where there is none."""
    log_density: Callable[[Tree, Tree], Array] | None = None
    """Log-density of the expert's actions from (action, params), where the environment is a density
    from which samples are drawn; None elsewhere."""
    host: Any = None
    """Maker of copies on the host (`adapters.copies.Host`); None where `reset` and `step` are
    compiled."""
    vocabulary: tuple[str, ...] = ()
    """Texts of the tokens 0 .. V - 1 of a language environment, the last of which ends what the
    agent says; empty where actions are no tokens."""
    forced_steps: int = 0
    """Steps at the beginning of every episode, at least, in which only one action is legal, such as
    those of a prompt. A policy may read them all at once."""
    agents: tuple[str, ...] = ()
    """Names of the agents that act at the same time, in the order of their rewards; both spaces are
    dicts with these names. Empty for one agent, and for several that share one reward."""

    def __post_init__(self):
        for space in (self.action_space, self.observation_space) if self.agents else ():
            if not isinstance(space, dict) or set(space) != set(self.agents):
                raise UserError(
                    f"The agents of '{self.name}' are {', '.join(self.agents)}; both of its spaces "
                    f"must be dicts with these names, not {space!r}."
                )
        # `dataclasses.replace` hands over a step that is checked already: check it once, against
        # the copy's own space. (The mark is a type and not an attribute of the function, since
        # `functools.wraps`, and so `jax.jit`, copies attributes to whatever wraps it.)
        step = self.step.unchecked if isinstance(self.step, _CheckedStep) else self.step
        if self.host is not None and step is not self.host.step:
            raise UserError(
                f"'{self.name}' runs on the host, where a compiled wrapper has no effect; use "
                "envs.adapters.wrapping.wrap."
            )
        checked = _CheckedStep(step, self.action_space, f"The action of '{self.name}'")
        object.__setattr__(self, "step", checked)


@dataclasses.dataclass(frozen=True, eq=False)
class _CheckedStep:
    """The `step` of an `Environment`, which checks its action first."""

    unchecked: Step
    space: Space
    what: str

    def __call__(
        self, key: Key, state: Tree, action: Tree, params: Tree, /
    ) -> tuple[Tree, TimeStep]:
        check_member(self.space, action, self.what)
        return self.unchecked(key, state, action, params)


# ------------------------------------------------------------------------------- tasks


class InitTasks(Protocol):
    def __call__(self, key: Key, policy: Policy, hyper: Hyper, /) -> Tree:
        """Return the first state.

        key: source of randomness.
        policy: the policy before training.
        hyper: values of all hyperparameters of the algorithm; those in `Tasks.hyper` are read.
        """
        ...


class SampleTasks(Protocol):
    def __call__(self, state: Tree, key: Key, n: int, /) -> Tree:
        """Draw the tasks of the next episodes.

        state: the state of the tasks.
        key: source of randomness.
        n: number of episodes, static.

        Returns the ids, leading axis [n].
        """
        ...


class UpdateTasks(Protocol):
    def __call__(self, state: Tree, policy: Policy, transitions: Transition, /) -> Tree:
        """Return the state after a window of experience.

        state: the state of the tasks.
        policy: the policy that played the window.
        transitions: the window [T, B]; `transitions.task` has the ids.
        """
        ...


class TasksFeedback(Protocol):
    def __call__(self, state: Tree, ids: Tree, score: Array, mask: Array | None, /) -> Tree:
        """Return the state after an update has scored the steps of a batch.

        state: the state of the tasks.
        ids: the task of each step, [T, B] or [B].
        score: what the update said of each step by `net.feed(score=...)`: float32, shaped as the
            steps.
        mask: False where a step is padding, shaped as the steps; None for no padding.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Tasks:
    """A distribution over the environment parameters of the next episode.

    A task is known by its id, any small pytree, so that scores can be kept for each.
    """

    name: str
    """Name in messages."""
    init: InitTasks
    """The function that makes the first state."""
    sample: SampleTasks
    """The function that draws ids."""
    params: Callable[[Tree, Tree], Tree]
    """The environment parameters of one task from (state, id). They must not change while an
    episode with that id runs."""
    update: UpdateTasks = lambda state, policy, transitions: state
    """The function that learns from each window; by default nothing is learned."""
    feedback: TasksFeedback = lambda state, ids, score, mask: state
    """The function that hears the scores of an update; by default they are ignored."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of the hyperparameters of the tasks."""
    by_place: bool = False
    """True where an episode's task depends on its place among the episodes that begin together.
    New episodes cannot then be drawn ahead for whichever stream ends first."""


# ------------------------------------------------------------------------------- sources


class InitSource(Protocol):
    def __call__(self, key: Key, hyper: Hyper, policy: Policy, /) -> Tree:
        """Return the first state, after a warm-up where the source has one.

        key: source of randomness.
        hyper: values of all hyperparameters of the algorithm; those in `Source.hyper` are read.
        policy: the policy before training.
        """
        ...


class Collect(Protocol):
    def __call__(
        self, state: Tree, policy: Policy, key: Key, /
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        """Gather experience once.

        state: the source's state.
        policy: the policy that plays.
        key: source of randomness.

        Returns the source's state, the fresh experience, which `sample` also gets, and metrics.
        """
        ...


class Sample(Protocol):
    def __call__(self, state: Tree, fresh: Tree, key: Key, /) -> Batch:
        """Return one batch to learn from.

        state: the source's state.
        fresh: what the last `collect` returned.
        key: source of randomness.
        """
        ...


class Feedback(Protocol):
    def __call__(self, state: Tree, batch: Batch, feedback: Mapping[str, Tree], /) -> Tree:
        """Return the state after an update has learned from a batch.

        state: the source's state.
        batch: the batch, as `sample` returned it.
        feedback: `Info.feedback` of the update. A source that wraps another one hands on all names
            but its own, with the part of the batch that the other one handed out.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A supply of batches, which plays environments, remembers experience, or reads a dataset."""

    name: str
    """Name in messages."""
    init: InitSource
    """The function that makes the first state."""
    collect: Collect
    """The function that gathers experience, once for each step of the algorithm."""
    sample: Sample
    """The function that hands out a batch, once for each update."""
    feedback: Feedback = lambda state, batch, feedback: state
    """The function that hears of the update; by default it is ignored."""
    env_steps: int = 0
    """Environment steps in one `collect`."""
    warmup: int = 0
    """Calls of `collect` before the first update, by the policy that has not learned yet
    (`learn.start_source`)."""
    num_envs: int = 0
    """Environments that `collect` steps side by side; 0 for none."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of the source's hyperparameters."""
    partition: Tree = REPLICATED
    """PartitionSpecs that split the state over devices, as a prefix of the state's tree."""
    plays_in_init: bool = False
    """True if `init` plays episodes that are learned from, such as a dataset that is drawn once; a
    warm start repeats it with the policy that was taken over."""
    host_play: Any = None
    """Kind of the windows that the host plays for it (`sources.handed.Play`); None where `collect`
    plays."""

    @property
    def initial_env_steps(self) -> int:
        """Environment steps before the first update."""
        return self.warmup * self.env_steps


# ------------------------------------------------------------------------------- agents


class Init(Protocol):
    def __call__(self, key: Key, hyper: Hyper, /) -> Tree:
        """Return the first state.

        key: source of randomness, such as of the first weights.
        hyper: values of the hyperparameters by name. The state keeps what later steps read of them,
            under `.hyper`.
        """
        ...


class Update(Protocol):
    def __call__(self, state: Tree, batch: Batch, key: Key, /) -> tuple[Tree, Info]:
        """Learn from a batch.

        state: the agent's state.
        batch: the batch; `Agent.needs` names the parts that it must have.
        key: source of randomness.

        Returns the agent's state, metrics and feedback.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Agent:
    """A learner: how to act, and how to learn from a batch. Always batched."""

    name: str
    """Name in messages."""
    init: Init
    """The function that makes the first state."""
    act: Act
    """The function that acts."""
    update: Update
    """The function that learns."""
    memory: Callable[[int], Tree] = lambda n: ()
    """Memory at the start of n episodes, leading axis [n], from n; by default there is none."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of the agent's hyperparameters."""
    needs: tuple[str, ...] = ()
    """Parts of a batch that `update` reads besides its transitions, as dotted names: `memory`,
    `tail`, `transitions.extras.log_prob`."""
    config: Any = None
    """Settings that the agent was built from."""
    hand_over: Callable[[Tree], Tree] = lambda state: state
    """The state to hand to the agent that goes on in a warm start, from this agent's own state; by
    default that state."""
    adopt: Callable[[Tree, Tree], Tree] = lambda state, other: other
    """The state to go on from in a warm start, from (first state of this agent, state that another
    one handed over); by default the other's."""
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """See `Algorithm.scores`."""
    in_evaluation: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Hyperparameters that have another's value in evaluations, such as a temperature, each with
    the name of that other; see `core.learn.evaluation_policy`."""


# ------------------------------------------------------------------------------- algorithms


class AlgorithmStep(Protocol):
    def __call__(self, state: Tree, key: Key, /) -> tuple[Tree, dict[str, Any]]:
        """Take one training step.

        state: the algorithm's state.
        key: source of randomness of this step alone.

        Returns the algorithm's state, and metrics of `jaxrl.core.metrics` by name. The metric
        `diverged` is the first step whose numbers were not finite, see `jaxrl.core.divergence`.
        """
        ...


class Measure(Protocol):
    def __call__(self, state: Tree, key: Key, /) -> dict[str, Array]:
        """Return scalars by name that an evaluation reports besides its episodes.

        state: the algorithm's state.
        key: source of randomness, such as of the episodes that are played to measure.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    """An initial state and a training step: all that the training loop knows."""

    name: str
    """Name in messages."""
    init: Init
    """The function that makes the first state."""
    step: AlgorithmStep
    """The function that is scanned."""
    policy: Callable[[Tree], Policy]
    """The policy that a state has learned, from the state."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of all hyperparameters: whatever `init` takes as an array."""
    env_steps: int = 0
    """Environment steps in one `step`."""
    initial_env_steps: int = 0
    """Environment steps in `init`."""
    partition: Tree = REPLICATED
    """PartitionSpecs that split the state over devices, as a prefix of the state's tree."""
    config: Any = None
    """Settings that the algorithm was built from."""
    agent: Agent | None = None
    """The agent, where an agent meets a source."""
    source: Source | None = None
    """The source, where an agent meets a source."""
    num_shards: int | None = None
    """Parts that devices may share: logical shards of the environments, or the policies of a
    population that play side by side. None where there are none."""
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Metrics that the algorithm is judged by besides the return, each with the label that a
    watched run shows."""
    measure: Measure = lambda state, key: {}
    """The function that an evaluation calls besides its episodes, such as for how exploitable the
    policy is; by default nothing is measured."""
