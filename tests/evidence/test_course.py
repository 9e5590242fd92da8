"""Courses: every word against a loop that is written out, on an algorithm of a few lines."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.evidence import course as courses
from experiments.evidence import digests, measure, moments
from experiments.evidence.course import Course, along, beginning, end
from experiments.evidence.declare import Arena, Side, Trial
from experiments.evidence.moments import Moment, returns
from jaxrl import envs
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import Run, advance, start
from jaxrl.core.types import Algorithm, Array, Policy, struct
from jaxrl.envs.games.opponents import against
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import group, hyper, static

ARMS, AT_ONCE = 3, 4
MEANS = (0.0, 10.0, 20.0)
KEYS = jax.random.split(random.key(0), 2)


# ------------------------------------------------------------------------------- an algorithm


@group
class Config:
    rate: float = hyper(1.0, low=0, high=50)
    shift: float = hyper(0.0, low=0, high=50)  # of the arm that the policy pulls
    gain: float = static(0.5)


@struct
class Agent:
    value: Array
    hyper: dict


@struct
class State:
    agent: Agent


@dataclasses.dataclass(frozen=True)
class Drift:
    """A value that drifts with each step, and pulls the arm that it is nearest to."""

    name: str = "drift"
    Config: type = Config
    initial_env_steps: int = 0

    def __call__(self, env, config) -> Algorithm:
        return _drift(env, config, self.initial_env_steps)


@functools.cache
def _drift(env, config, initial_env_steps) -> Algorithm:
    def init(key, hyper):
        return State(Agent(jax.random.uniform(key), dict(hyper)))

    def step(state, key):
        agent = state.agent
        value = config.gain * agent.value + agent.hyper["rate"] * jax.random.uniform(key)
        cost = jax.random.randint(key, (), 1, 2 * AT_ONCE)
        new = State(dataclasses.replace(agent, value=value))
        return new, {"env_steps": m.Sum(jnp.float32(cost))}

    def act(agent, timestep, memory, key, greedy):
        count = timestep.first.shape[0]
        arm = jnp.round(agent.value + agent.hyper["shift"]).astype(jnp.int32) % ARMS
        arms = jax.random.randint(key, (count,), 0, ARMS)
        return jnp.full(count, arm) if greedy else arms, memory, {}

    policy = lambda state: Policy(act, lambda n: (), state.agent)
    known = {"rate": config.rate, "shift": config.shift}
    return Algorithm("drift", init, step, policy, known, AT_ONCE, initial_env_steps, config=config)


def value(moment: Moment) -> Array:
    return moment.run.state.agent.value


def trial(env_steps: int, points: int = 1, name: str = "one", tiny: bool = False, **settings):
    arena = Arena(
        "bandit", env_steps, 0.0, 1.0, points=points, episodes=20,
        params={"num_arms": ARMS, "arms": "gaussian", "means": MEANS, "spread": 0.0},
    )  # fmt: skip
    return Trial(name, Side(Drift(), settings), arena, env_steps, tiny)


def by_hand(told: Trial, key, steps: int, run: Run | None = None, **rates):
    """Return the runs after 0, 1, ... steps."""
    algorithm = measure.build(told)[1]
    runs = [start(algorithm, key, rates) if run is None else run]
    for _ in range(steps):
        runs.append(advance(algorithm, runs[-1])[0])
    return runs


def values(runs) -> list[float]:
    return [float(run.state.agent.value) for run in runs]


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ------------------------------------------------------------------------------- looks


def test_looks_are_taken_at_the_beginning_along_the_way_and_at_the_end():
    told = trial(6 * AT_ONCE, points=3)
    course = Course(
        {
            "first": beginning(value),
            "mean": along(value),
            "last two": along(value, lambda x: x[1:].sum()),
            "last": end(value),
            "halfway": along(moments.share_of_training, lambda x: x[0]),
        },
        counts={"comparisons": lambda phase: 5},
    )
    rates = np.float32([1.0, 2.0])
    found = course(told, KEYS, {"rate": rates})
    for i, key in enumerate(KEYS):
        seen = values(by_hand(told, jax.random.split(key)[0], 6, rate=rates[i]))[::2]
        close(found["first"][i], seen[0])
        close(found["mean"][i], np.mean(seen[1:]))
        close(found["last two"][i], seen[2] + seen[3])
        close(found["last"][i], seen[3])
    close(found["halfway"], [1 / 3, 1 / 3])
    assert found["env_steps"].tolist() == [6 * AT_ONCE] * 2
    assert found["comparisons"].tolist() == [6 * 5] * 2


def test_a_look_at_the_end_alone_is_taken_once_beside_those_along_the_way():
    told, taken = trial(4 * AT_ONCE, points=4), []

    def rare(moment):
        taken.append(moment.share)
        return value(moment) + jax.random.uniform(moment.key)

    found = Course({"mean": along(value), "rare": end(rare), "early": beginning(rare)})(
        told, KEYS, {}
    )
    train_key, look_key = jax.random.split(KEYS[0])
    keys, seen = jax.random.split(look_key, 5), values(by_hand(told, train_key, 4))
    assert len(taken) == 2
    close(found["mean"][0], np.mean(seen[1:]))
    close(found["early"][0], seen[0] + jax.random.uniform(keys[0]))
    close(found["rare"][0], seen[4] + jax.random.uniform(keys[4]))


def test_the_learning_curve_is_a_course():
    told = trial(4 * AT_ONCE, points=2)
    env, algorithm = measure.build(told)
    found = measure.curve(told, KEYS, {})
    assert set(found) == {"score", "final", "untrained", "env_steps", "gradient_steps"}
    train_key, look_key = jax.random.split(KEYS[0])
    runs = by_hand(told, train_key, 4)[::2]
    seen = [
        evaluate(env, algorithm.policy(run.state), key, 20).returns.mean()
        for run, key in zip(runs, jax.random.split(look_key, 3), strict=True)
    ]
    close(found["untrained"][0], seen[0])
    close(found["score"][0], (seen[1] + seen[2]) / 2)
    close(found["final"][0], seen[2])


def test_steps_before_the_first_update_count():
    told = trial(6 + 2 * AT_ONCE)
    told = dataclasses.replace(told, side=Side(Drift(initial_env_steps=6)))
    found = Course({"last": end(value)})(told, KEYS, {})
    assert found["env_steps"].tolist() == [6 + 2 * AT_ONCE] * 2


def test_a_tiny_trial_takes_one_step_and_two_episodes():
    told = trial(10**6 + 1, points=5, tiny=True)
    found = Course({"last": end(value), "episodes": end(lambda moment: moment.episodes)})(
        told, KEYS, {}
    )
    close(found["last"][0], values(by_hand(told, jax.random.split(KEYS[0])[0], 1))[1])
    assert found["episodes"].tolist() == [2, 2]
    assert found["env_steps"].tolist() == [AT_ONCE] * 2


# ------------------------------------------------------------------------------- evaluation


def moment_of(told: Trial, key=KEYS[0], episodes: int = 20) -> Moment:
    env, algorithm = measure.build(told)
    return Moment(told, env, algorithm, start(algorithm, key), key, episodes, jnp.float32(0), None)


def test_returns_of_greedy_sampled_and_the_worst_episodes():
    moment = moment_of(trial(AT_ONCE))
    play = functools.partial(evaluate, moment.env, moment.policy(), moment.key, 20)
    close(returns()(moment), play().returns.mean())
    sampled = np.sort(play(greedy=False).returns)
    close(returns(greedy=False)(moment), sampled.mean())
    close(returns(greedy=False, worst=0.25)(moment), sampled[:5].mean())
    assert returns(greedy=False, worst=0.01)(moment) == sampled[0]  # one episode at least
    assert sampled.mean() != play().returns.mean()


def test_looks_at_the_same_episodes_play_them_once(monkeypatch):
    played = []
    monkeypatch.setattr(
        moments, "evaluate", lambda *given: played.append(given) or evaluate(*given)
    )
    moment = moment_of(trial(AT_ONCE))
    for look in (returns(), returns(worst=0.5), returns(), returns(greedy=False)):
        look(moment)
    assert len(played) == 2


def test_episodes_in_a_held_out_environment():
    told = trial(AT_ONCE)
    moment = moment_of(told)
    held_out = (100.0, 100.0, 100.0)
    other = envs.make("bandit", **{**told.environment.params, "means": held_out})
    found = returns(params={"means": held_out})(moment)
    close(found, evaluate(other, moment.policy(), moment.key, 20).returns.mean())
    assert found > 90 > returns()(moment)
    by_name = returns(env="bandit", params={"num_arms": ARMS})(moment)
    close(
        by_name,
        evaluate(
            envs.make("bandit", num_arms=ARMS), moment.policy(), moment.key, 20
        ).returns.mean(),
    )
    with pytest.raises(UserError, match="cannot act in 'bandit'"):
        returns(env="bandit", params={"num_arms": 5})(moment)


def test_a_held_out_environment_within_a_course():
    told = trial(2 * AT_ONCE, points=2)
    held_out = returns(params={"means": (100.0, 100.0, 100.0)})
    found = Course({"here": end(returns()), "there": end(held_out)})(told, KEYS, {})
    assert min(found["there"]) > 90 > max(found["here"])


def test_games_against_an_opponent():
    env = envs.make("kuhn_poker")
    alone = random_policy(env)
    algorithm = Algorithm("random", lambda *_: (), lambda *_: ((), {}), lambda state: alone)
    told = Trial("one", Side(algorithm), Arena("kuhn_poker", 1, -2.0, 2.0), 1)
    run = Run((), KEYS[0], jnp.int32(0))
    moment = Moment(told, env, algorithm, run, KEYS[0], 50, jnp.float32(0), None)
    one_on_one = against(env, random_policy(env))
    found = returns(env=lambda env: against(env, random_policy(env)))(moment)
    close(found, evaluate(one_on_one, alone, KEYS[0], 50).returns.mean())


def test_settings_at_test_time():
    moment = moment_of(trial(AT_ONCE))
    arm = int(jnp.round(value(moment)))
    # The noise does not depend on the arm.
    more = returns(settings={"shift": 1.0})(moment) - returns()(moment)
    np.testing.assert_allclose(more, MEANS[(arm + 1) % ARMS] - MEANS[arm % ARMS], rtol=1e-5)
    with pytest.raises(UserError, match="shift is -1"):
        returns(settings={"shift": -1.0})(moment)


# ------------------------------------------------------------------------------- phases


@pytest.mark.parametrize("points", [1, 4])
def test_phases_hand_over_the_agent_and_split_the_steps(points):
    told = trial(8 * AT_ONCE, points)
    reading = along(value) if points > 1 else beginning(value)
    course = Course({"seen": reading, "last": end(value)}, phases=({"gain": 0.5}, {"gain": 2.0}))
    found = course(told, KEYS, {"rate": np.float32([1, 3])})
    keys = jax.random.split(jax.random.split(KEYS[1])[0], 2)
    one, other = (trial(0, gain=gain) for gain in (0.5, 2.0))
    first = by_hand(one, keys[0], 4, rate=3.0)
    begun = start(measure.build(other)[1], keys[1], {"rate": 3.0})
    second = by_hand(other, keys[1], 4, dataclasses.replace(begun, state=first[-1].state))
    close(found["last"][1], values(second)[-1])
    seen = np.array([*values(first), *values(second)[1:]])
    close(found["seen"][1], seen[[2, 4, 6, 8]].mean() if points > 1 else seen[0])
    assert found["env_steps"].tolist() == [8 * AT_ONCE] * 2


def test_phases_that_cannot_share_evenly_are_refused():
    course = Course({"mean": along(value)}, phases=({}, {}))
    with pytest.raises(UserError, match=r"2 phases of 'one' cannot share 24 .* and 3 points"):
        course(trial(6 * AT_ONCE, points=3), KEYS, {})
    with pytest.raises(UserError, match="cannot share 25 environment steps"):
        course(trial(25, points=2), KEYS, {})
    course.check(trial(4 * AT_ONCE, points=4, tiny=True))
    with pytest.raises(UserError, match="no multiple of the 4"):  # of tiny trials too
        course.check(trial(5 * AT_ONCE, points=4, tiny=True))


# ------------------------------------------------------------------------------- beginnings


@pytest.fixture
def drawing():
    """Count the draws of beginnings, which are compiled once for each set of keys."""
    drawn = []

    def begin(arena, tiny):
        def draw(key):
            drawn.append(arena.label)
            return 100 + jax.random.uniform(key)

        return draw

    courses._compute_once.cache_clear()
    begin.drawn = drawn
    return begin


def from_it(algorithm, key, hyper, begun):
    run = start(algorithm, key, hyper)
    agent = dataclasses.replace(run.state.agent, value=begun)
    return dataclasses.replace(run, state=State(agent))


def test_beginnings_are_drawn_once_for_all_sides_and_grids(drawing):
    course = Course({"first": beginning(value), "last": end(value)}, begin=drawing, start=from_it)
    twice = KEYS[np.array([0, 1, 0, 1])]
    one = course(trial(AT_ONCE), twice, {"rate": np.float32([1, 1, 2, 2])})
    other = course(trial(AT_ONCE, name="other", gain=0.25), KEYS, {})
    assert drawing.drawn == ["bandit"]
    expected = [100 + jax.random.uniform(courses.fork(key)) for key in KEYS]
    close(one["first"], expected * 2)
    close(other["first"], expected)
    assert one["last"][0] != one["last"][2] and one["last"][0] > other["last"][0]
    course(trial(AT_ONCE), KEYS[:1], {})
    assert len(drawing.drawn) == 2


def test_once_computes_each_key_once():
    seen = []

    def compute(keys, add):
        seen.append(len(keys))
        return jax.vmap(jax.random.uniform)(keys) + add

    order = np.array([1, 0, 1, 1])
    found = courses.once(compute, KEYS[order], 3)
    close(found, [jax.random.uniform(KEYS[i]) + 3 for i in order])
    courses.once(compute, KEYS, 3)
    assert seen == [2]


def test_looks_may_read_the_beginning(drawing):
    course = Course({"apart": beginning(lambda moment: moment.begun)}, begin=drawing,
                    begin_key=lambda key: key)  # fmt: skip
    found = course(trial(AT_ONCE), KEYS, {})
    close(found["apart"], [100 + jax.random.uniform(key) for key in KEYS])


# ------------------------------------------------------------------------------- ends


def test_a_run_stops_where_a_look_is_least():
    told = trial(5 * AT_ONCE, points=5)
    goal = 0.4
    course = Course(
        {"last": end(value), "stopped": end(moments.share_of_training), "first": beginning(value)},
        sides={"stops": {"stop": lambda moment: jnp.abs(value(moment) - goal)}},
    )
    stops = course(dataclasses.replace(told, name="stops"), KEYS, {})
    goes = course(told, KEYS, {})
    for i, key in enumerate(KEYS):
        seen = np.array(values(by_hand(told, jax.random.split(key)[0], 5)))
        at = np.abs(seen[1:] - goal).argmin() + 1
        close([stops["last"][i], stops["stopped"][i]], [seen[at], at / 5])
        close([goes["last"][i], goes["stopped"][i]], [seen[5], 1])
        close(stops["first"][i], seen[0])
    assert min(stops["stopped"]) < 1
    assert stops["env_steps"].tolist() == [5 * AT_ONCE] * 2


@pytest.mark.parametrize("points", [1, 2])
def test_nothing_is_learned_from_a_step_that_exceeds_the_budget(points):
    told = trial(23, points)  # a multiple of nothing
    reading = along(value) if points > 1 else end(value)
    steps = end(lambda moment: moment.run.step)
    course = Course({"value": reading, "steps": steps}, until_spent=True)
    found = course(told, KEYS, {})
    algorithm = measure.build(told)[1]
    for i, key in enumerate(KEYS):
        run, played, seen = start(algorithm, jax.random.split(key)[0]), 0.0, []
        for share in range(1, points + 1):
            while played < 23 * share / points:
                after, row = advance(algorithm, run)
                played += float(row["env_steps"].value())
                run = after if played <= 23 else run
            seen.append(float(run.state.agent.value))
        close(found["value"][i], np.mean(seen))
        assert found["steps"][i] == run.step
        assert played > 23 or i == 0  # one that is played and not learned from
    assert found["env_steps"].tolist() == [23] * 2


# ------------------------------------------------------------------------------- declarations


def test_an_unknown_word_of_a_side_is_refused():
    with pytest.raises(
        UserError, match=r"word of a course 'fases'; it may be one of: begin, .*phases"
    ):
        Course(sides={"one": {"fases": ()}})


def test_a_record_says_what_a_course_says():
    course = Course({"mean": along(returns(worst=0.1))}, sides={"one": {"until_spent": True}})
    said = digests.as_json(course)
    assert said["metrics"]["mean"]["look"]["worst"] == 0.1
    assert said["metrics"]["mean"]["when"] == "points"
    assert said["sides"] == {"one": {"until_spent": True}}
    assert said["split"] == "experiments.evidence.course:split_twice"


def test_run_i_depends_on_key_i_alone():
    told = trial(4 * AT_ONCE, points=2)
    course = Course({"mean": along(returns(greedy=False)), "last": end(value)})
    found = course(told, KEYS, {})
    again = course(told, KEYS[::-1], {})
    assert {k: x.tolist() for k, x in again.items()} == {
        k: x[::-1].tolist() for k, x in found.items()
    }
