"""Courses: how runs are trained and measured, in words in place of a measuring function.

    measure=Course(
        {"score": along(returns()), "worst": along(returns(worst=0.1))},
        begin=warm_up,  # once for each key, the same for all sides
        start=from_warm_up,
        sides={"two phases": {"phases": ({"k": 4}, {"k": 1})}},
    )

All runs of a side are one compiled program. It splits the budget evenly over phases and points,
looks at moments of each run, and counts what was spent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Arena, Measured, Trial
from experiments.evidence.moments import Look, Moment, returns
from experiments.evidence.trials import build, schedule
from jaxrl.core import trees
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.learn import take_over
from jaxrl.core.train import Run, advance, train
from jaxrl.core.train import start as start_anew
from jaxrl.core.types import Algorithm, Array, Environment, Key, Tree

# ------------------------------------------------------------------------------- metrics

BEGINNING, POINTS, END = "beginning", "points", "end"
Reduce = Callable[[Any], Array]


@dataclasses.dataclass(frozen=True)
class Reading:
    """A metric: a look, when it is taken, and how the results [points] become one number."""

    look: Look
    when: str
    reduce: Reduce = jnp.mean


def beginning(look: Look, reduce: Reduce = lambda x: x) -> Reading:
    """Take a look before learning begins."""
    return Reading(look, BEGINNING, reduce)


def along(look: Look, reduce: Reduce = jnp.mean) -> Reading:
    """Take a look at each point of the arena, and reduce the results [points]; by their mean."""
    return Reading(look, POINTS, reduce)


def end(look: Look, reduce: Reduce = lambda x: x) -> Reading:
    """Take a look at the end of training, or where the run stops."""
    return Reading(look, END, reduce)


RETURNS = returns()
LEARNING_CURVE = {
    "score": along(RETURNS),
    "final": end(RETURNS),
    "untrained": beginning(RETURNS),
}

# ------------------------------------------------------------------------------- keys


class Split(Protocol):
    """A function that splits a run's key."""

    def __call__(self, key: Key, phases: int, moments: int, /) -> tuple[Sequence[Key], Key]:
        """Return the keys of the phases' runs, and those of the moments that are looked at."""
        ...


def split_twice(key: Key, phases: int, moments: int) -> tuple[Sequence[Key], Key]:
    """Split a key for training and for looks, and each again for its parts."""
    train_key, look_key = jax.random.split(key)
    own = [train_key] if phases == 1 else jax.random.split(train_key, phases)
    return list(own), jax.random.split(look_key, moments)


def split_once(key: Key, phases: int, moments: int) -> tuple[Sequence[Key], Key]:
    """Split a key at once for all phases and moments."""
    keys = jax.random.split(key, phases + moments)
    return list(keys[:phases]), keys[phases:]


def fork(key: Key) -> Key:
    """Return the key from which the beginning of a run is drawn, apart from its other keys."""
    return jax.random.fold_in(key, 2)


# ------------------------------------------------------------------------------- beginnings


class Begin(Protocol):
    """A function that says what precedes learning: a warm-up, a dataset, a level."""

    def __call__(self, arena: Arena, tiny: bool, /) -> Callable[[Key], Tree]:
        """Return the function that draws a beginning from a key.

        It knows the arena and no side, so all sides begin alike.
        """
        ...


class Start(Protocol):
    """A function that starts a run from its beginning."""

    def __call__(self, algorithm: Algorithm, key: Key, hyper: Any, begun: Any, /) -> Run: ...


def afresh(algorithm: Algorithm, key: Key, hyper: Any, begun: Any) -> Run:
    """Start a run that takes nothing from its beginning."""
    return start_anew(algorithm, key, hyper)


@dataclasses.dataclass(frozen=True, eq=False)
class _Said:
    """Values that are equal if they are written alike, so that they can be static arguments."""

    values: tuple

    @functools.cached_property
    def text(self) -> str:
        return repr(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Said) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def once(compute: Callable[..., Any], keys: Key, *more: Hashable) -> Any:
    """Return compute(keys, *more), in which row i depends on key i alone, computing each key once.

    The last result is cached for the next side on the same keys.
    """
    data = np.asarray(jax.random.key_data(keys))
    _, first, which = np.unique(data, axis=0, return_index=True, return_inverse=True)
    known = np.ascontiguousarray(data[first])
    generator = str(jax.random.key_impl(keys))
    found = _compute_once(compute, generator, known.tobytes(), known.shape, more)
    return jax.tree.map(lambda x: x[which.reshape(-1)], found)


@functools.lru_cache(maxsize=2)
def _compute_once(compute, generator: str, data: bytes, shape, more) -> Any:
    known = jnp.asarray(np.frombuffer(data, np.uint32).reshape(shape))
    return compute(jax.random.wrap_key_data(known, impl=generator), *more)


def _draw(keys: Key, said: _Said) -> Tree:
    return _drawing(said)(keys)


@functools.lru_cache(maxsize=2)
def _drawing(said: _Said) -> Callable[[Key], Tree]:
    begin, begin_key, arena, tiny = said.values
    draw = begin(arena, tiny)
    return jax.jit(jax.vmap(lambda key: draw(begin_key(key))))


# ------------------------------------------------------------------------------- courses


@dataclasses.dataclass(frozen=True)
class Course:
    """A measuring function in words; the default is the learning curve.

    metrics: name -> `beginning`, `along` or `end` of a look. `env_steps` is counted besides.
    begin: what precedes learning, drawn for each key, and once for all sides and grids.
    start: how a run starts from that.
    phases: settings of each phase of training. Phases have equal parts of the environment steps and
        of the points, and each takes over the agent of the one before.
    stop: a look at each point; the end of a run is the point at which it is least.
    until_spent: whether training ends when as many environment steps were played as a run has, for
        algorithms whose steps cost unequally. Nothing is learned from one that exceeds them.
    counts: further units of budget: name -> number of them in one step of a trial's algorithm.
    split: how the key of a run is split. begin_key: the key from which its beginning is drawn.
    sides: side -> words that are different for it.

    If nothing is looked at along the way, training is not interrupted. A tiny trial takes one step
    of each phase, with two episodes. Run i depends on key i alone, and the keys of moments on the
    arena alone, so sides are paired.
    """

    metrics: Mapping[str, Reading] = dataclasses.field(default_factory=LEARNING_CURVE.copy)
    begin: Begin | None = None
    start: Start = afresh
    phases: tuple[Mapping[str, Any], ...] = ({},)
    stop: Look | None = None
    until_spent: bool = False
    counts: Mapping[str, Callable[[Trial], int]] = dataclasses.field(default_factory=dict)
    split: Split = split_twice
    begin_key: Callable[[Key], Key] = fork
    sides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        known = {field.name for field in dataclasses.fields(self)} - {"sides"}
        for name in {name for words in self.sides.values() for name in words} - known:
            raise unknown("word of a course", name, known)

    def __call__(self, trial: Trial, keys: Key, hyper: Mapping[str, Any]) -> Measured:
        """Return the metrics of all runs, each [runs] (`declare.Measure`); it can be traced.

        Raises `UserError` if phases and points cannot spend the budget to the last step.
        """
        course = self.of(trial.name)
        trials = course.phase_trials(trial)
        built = tuple(build(phase) for phase in trials)
        steps = tuple(course.steps(*each) for each in zip(trials, built, strict=True))
        begun = None
        if course.begin:
            said = _Said((course.begin, course.begin_key, trial.environment, trial.tiny))
            begun = once(_draw, keys, said)
        seen = _measure(_Said((course, trial)), built, steps, keys, begun, dict(hyper))
        found = {k: jax.vmap(course.metrics[k].reduce)(x) for k, x in seen.items()}
        taken = [n * phase.environment.points for n, phase in zip(steps, trials, strict=True)]
        played = sum(
            algorithm.initial_env_steps + n * algorithm.env_steps
            for n, (_, algorithm) in zip(taken, built, strict=True)
        )
        counted = {"env_steps": _budget(trials) if course.until_spent else played}
        for name, each in course.counts.items():
            counted[name] = sum(n * each(phase) for n, phase in zip(taken, trials, strict=True))
        return found | {k: jnp.full(len(keys), x, jnp.float32) for k, x in counted.items()}

    def check(self, trial: Trial) -> None:
        """Raise `UserError`, before anything is spent, if a trial cannot spend its budget."""
        course = self.of(trial.name)
        for phase in course.phase_trials(dataclasses.replace(trial, tiny=False)):
            course.steps(phase, build(phase))

    def of(self, side: str) -> Course:
        """Return the course of one side."""
        return dataclasses.replace(self, **self.sides.get(side, {}), sides={})

    def phase_trials(self, trial: Trial) -> tuple[Trial, ...]:
        """Return each phase of one side's course as a trial with its own points and budget."""
        count = len(self.phases)
        points = trial.environment.points if self.looks(POINTS) and not trial.tiny else 1
        parts, rest = divmod(points, count) if points > 1 else (1, 0)
        env_steps, more = divmod(trial.env_steps, count)
        if rest or more:
            raise UserError(
                f"In {trial.environment.label} the {count} phases of '{trial.name}' cannot share "
                f"{trial.env_steps} environment steps and {points} points evenly."
            )
        arena = dataclasses.replace(trial.environment, points=parts)
        sides = (
            dataclasses.replace(trial.side, settings={**trial.side.settings, **changes})
            for changes in self.phases
        )
        return tuple(
            dataclasses.replace(trial, side=side, environment=arena, env_steps=env_steps)
            for side in sides
        )

    def steps(self, phase: Trial, built: tuple[Environment, Algorithm]) -> int:
        """Return the algorithm's steps before each point of a phase."""
        return 1 if phase.tiny or self.until_spent else schedule(phase, built[1])[1]

    def looks(self, *when: str) -> list[Look]:
        """Return what is looked at then, each once; with `stop` the end may be at any point."""
        moments = {END: POINTS} if self.stop else {}
        found = [x.look for x in self.metrics.values() if moments.get(x.when, x.when) in when]
        if self.stop and POINTS in when:
            found.append(self.stop)
        return list(dict.fromkeys(found))


def _budget(trials: tuple[Trial, ...]) -> int:
    return 1 if trials[0].tiny else sum(phase.env_steps for phase in trials)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(said: _Said, built, steps, keys, begun, hyper):
    course, trial = said.values
    one = functools.partial(_look_along, course, trial, built, steps)
    return jax.vmap(one)(keys, begun, hyper)


def _look_along(course: Course, trial: Trial, built, steps, key, begun, hyper) -> dict[str, Any]:
    """Train a run and return what each metric is reduced from.

    Looks along the way (or at both ends, if there are none and one phase) are compiled once, in a
    scan over the moments; the others are taken before and after it.
    """
    trials, arena = course.phase_trials(trial), trial.environment
    episodes, points = (2, 1) if trial.tiny else (arena.episodes, arena.points)
    count, parts, budget = len(trials), trials[0].environment.points, _budget(trials)
    along, at_first, at_last = (course.looks(when) for when in (POINTS, BEGINNING, END))
    scanned = along or list(dict.fromkeys([*at_first, *at_last]))
    zero = int((bool(along) or count == 1) and bool({*scanned} & {*at_first}))
    early = [look for look in at_first if not (zero and look in scanned)]
    late = [look for look in at_last if look not in scanned]
    first = int(bool(at_first))
    phase_keys, look_keys = course.split(key, count, first + points)

    def take(looks, i, run, key, share):
        env, algorithm = built[i]
        moment = Moment(trials[i], env, algorithm, run, key, episodes, share, begun)
        return [look(moment) for look in looks]

    def learn(i, run, played, share):
        """Train until a share of all training lies behind."""
        if not course.until_spent:
            return train(built[i][1], run, steps[i])[0], played

        def step(carry):
            run, played = carry
            after, row = advance(built[i][1], run)
            played += row["env_steps"].value()
            return trees.where(played <= budget, after, run), played

        return jax.lax.while_loop(lambda carry: carry[1] < share * budget, step, (run, played))

    rows, firsts, run, played = [], [], None, jnp.float32(0)
    for i, phase_key in enumerate(phase_keys):
        new = course.start(built[i][1], phase_key, hyper, begun)
        run = new if run is None else Run(take_over(new.state, run.state.agent), new.key, new.step)
        if i == 0 and early:
            firsts = take(early, i, run, look_keys[0], jnp.float32(0))
        if not along and i < count - 1:
            run, played = learn(i, run, played, (i + 1) / count)
            continue

        def part(carry, moment, i=i):
            share, key = moment
            more = lambda carry: learn(i, carry[0], carry[1], share)
            if zero and i == 0:
                carry = jax.lax.cond(share > 0, more, lambda carry: carry, carry)
            else:
                carry = more(carry)
            return carry, take(scanned, i, carry[0], key, share)

        opening = [0] * (int(zero and i == 0))
        before = first + (i * parts if along else points - 1)
        shares = opening + [(i + j / parts) / count for j in range(1, parts + 1)]
        places = np.array([*opening, *range(before, before + parts)])
        moments = jnp.float32(shares), look_keys[places]
        (run, played), row = jax.lax.scan(part, (run, played), moments)
        rows.append(row)

    lasts = take(late, count - 1, run, look_keys[-1], jnp.float32(1))
    found = dict(zip(scanned, jax.tree.map(lambda *x: jnp.concatenate(x), *rows), strict=True))
    at = zero + found[course.stop][zero:].argmin() if course.stop else -1
    pick = lambda index: {k: jax.tree.map(lambda x: x[index], row) for k, row in found.items()}
    seen = {
        BEGINNING: pick(0) | dict(zip(early, firsts, strict=True)),
        POINTS: pick(slice(zero, None)),
        END: pick(at) | dict(zip(late, lasts, strict=True)),
    }
    return {name: seen[x.when][x.look] for name, x in course.metrics.items()}
