"""OTA: the options' loss by NumPy, true values of options, what options are, and who learns from
which value."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.goals import hiql, ota
from jaxrl.core import random
from jaxrl.core.examples import example_timestep
from jaxrl.core.settings import Static, replace
from jaxrl.sources.hindsight import Shares, hindsight
from jaxrl.sources.played import record
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

STEPS, DISCOUNT = 3, 0.9
CHANGES = {"hidden": (8,), "representation": 3, "option_steps": STEPS}
CONFIG = replace(ota.Config(), CHANGES)
RNG = np.random.default_rng(0)
MAZE = everything.MAZE


def options_of_best_play():
    """Options [places * places] along shortest paths, and the number of steps to their goals."""
    n = everything.PLACES
    here, goal = (x.ravel() for x in np.mgrid[:n, :n])
    finite = np.isfinite(MAZE.steps[here, goal])
    here, goal = here[finite], goal[finite]
    place = here
    for _ in range(STEPS):
        following = MAZE.next[place]  # [N, 4]
        ahead = MAZE.steps[following, goal[:, None]]
        place = np.where(place == goal, place, following[np.arange(len(place)), ahead.argmin(1)])
    x = everything.steps()
    first = jax.tree.map(lambda a: a[: len(here)], x)
    at = lambda t, p: dataclasses.replace(t, observation=MAZE.goal[p])
    distance = MAZE.steps[here, goal]
    extras = {
        "option_goal": MAZE.goal[goal],
        "option_reached": distance <= STEPS,
        "option": at(first.next_timestep, place),
    }
    x = dataclasses.replace(first, timestep=at(first.timestep, here), extras=extras)
    return x, distance


def options(distance):
    """Options that end before the goal is reached within the next one."""
    return np.maximum(np.ceil(distance / STEPS) - 1, 0)


def high_net(value, target):
    def of(function):
        def part(timestep, method=None):
            assert method == "high"
            return function(timestep)

        return part

    hyper = {"discount": DISCOUNT, "expectile": 0.7}
    return stub(value=of(value), target={"value": of(target)}, hyper=hyper)


def test_true_values_of_options_have_no_error():
    x, distance = options_of_best_play()
    assert options(distance).max() >= 2

    def true(timestep):
        d = options(everything.distance(timestep.observation, timestep.goal))
        return jnp.stack([-(1 - DISCOUNT**d) / (1 - DISCOUNT)] * 2)

    output = ota.high_value_loss(high_net(true, true), x)
    np.testing.assert_allclose(output.value, 0.0, atol=1e-9)


def test_the_options_loss_is_an_expectile_on_what_the_option_leads_to():
    x, distance = options_of_best_play()
    n = everything.PLACES
    new, old = RNG.normal(size=(2, 2, n, n)).astype(np.float32)
    look_up = lambda table: (
        lambda t: jnp.asarray(table)[:, everything.place(t.observation), everything.place(t.goal)]
    )
    found = ota.high_value_loss(high_net(look_up(new), look_up(old)), x).value
    here, goal, end = (
        np.asarray(everything.place(p))
        for p in (x.observation, x.extras["option_goal"], x.extras["option"].observation)
    )
    reached = distance <= STEPS
    target = np.where(reached, 0.0, -1 + DISCOUNT * old[:, end, goal])
    side = np.where(reached, 0.0, -1 + DISCOUNT * old[:, end, goal].min(0))
    weight = np.where(side - old[:, here, goal].mean(0) < 0, 0.3, 0.7)
    expected = (weight * (target - new[:, here, goal]) ** 2).sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_high_policy_learns_from_the_value_of_options():
    x = everything.steps("high_goal", "low_goal")
    x = dataclasses.replace(x, extras=x.extras | {"subgoal": x.next_timestep})
    asked = {}

    def value(timestep, method=None):
        asked.setdefault(method, 0)
        asked[method] += 1
        size = len(timestep.observation)
        return jnp.zeros((size, 3)) if method == "represent" else jnp.zeros((2, size))

    log_prob = np.zeros(len(x.reward), np.float32)
    policy = lambda timestep: everything.policy(log_prob)
    hyper = {"high_temperature": 1.0, "low_temperature": 1.0}
    net = stub(value=value, low_actor=policy, high_actor=policy, hyper=hyper)
    losses = losses_of(ota.ota.recipe(everything.ENV, Static(CONFIG)))
    losses["high_loss"](net, x)
    assert asked == {"high": 2, "represent": 1}
    asked.clear()
    losses["low_loss"](net, x)
    assert asked == {None: 2, "represent": 1}


def test_both_values_share_the_representation_and_nothing_else():
    here = jnp.float32([[0.3, -0.7]])
    timestep = dataclasses.replace(example_timestep(everything.ENV), observation=here)
    network = ota.TwoLevelValue(everything.ENV.observation_space, (8,), "gelu", 3)
    plain = hiql.RepresentedValue(everything.ENV.observation_space, (8,), "gelu", 3)
    params = network.init(random.key(0), timestep)["params"]
    assert set(params) - set(plain.init(random.key(0), timestep)["params"]) == {"high_values"}
    low = network.apply({"params": params}, timestep)
    shared = {k: v for k, v in params.items() if k != "high_values"}
    np.testing.assert_array_equal(low, plain.apply({"params": shared}, timestep))
    assert not np.allclose(low, network.apply({"params": params}, timestep, method="high"))


def test_options_end_at_the_goal_the_limit_or_the_episodes_end():
    """Steps of walks through the maze, beside a loop over each walk."""
    n, length = 8, 12
    place = np.zeros((length + 1, n), int)
    place[0] = RNG.integers(0, everything.PLACES, n)
    for t in range(length):
        place[t + 1] = MAZE.next[place[t], RNG.integers(0, 4, n)]
    x = everything.steps()
    pick = lambda a: np.broadcast_to(a[:1, None], (length, n, *a.shape[1:]))
    at = lambda t, p: dataclasses.replace(jax.tree.map(pick, t), observation=MAZE.goal[p])
    done = np.zeros((length, n), bool)
    done[[6, length - 1]] = True  # episodes of 7 and 5 steps
    first = np.zeros((length, n), bool)
    first[[0, 7]] = True
    before = dataclasses.replace(at(x.timestep, place[:-1]), first=first)
    after = dataclasses.replace(at(x.next_timestep, place[1:]), truncated=done, terminated=done & 0)
    before, after = (dataclasses.replace(t, goal=np.zeros((length, n, 2))) for t in (before, after))
    steps = dataclasses.replace(
        x, timestep=before, next_timestep=after, action=np.zeros((length, n), np.int32)
    )
    data = record(jax.tree.map(jnp.asarray, steps))
    others = {"option_goal": Shares(here=0.2, elsewhere=0.4)}
    view = hindsight(everything.ENV, Shares(), others, option_steps=STEPS)
    prepared = view.prepare(data, {})
    drawn = view.draw(data, prepared, random.key(3), 400)
    taken = view.take(data, prepared, drawn)[0]
    walk = place.T  # rows are stream by stream
    shares = {"early": 0, "goal": 0}
    for i in range(400):
        stream, t = divmod(int(drawn["row"][i]), length)
        end = 7 if t < 7 else length
        goal = int(everything.place(taken.extras["option_goal"][i]))
        last, limit = int(drawn["option"][i]) % length + 1, min(t + STEPS, end)
        assert t < last <= limit
        row = int(drawn["option_goal"].row[i])
        if last < limit:  # then the goal is what the option ends with
            assert row == stream * length + last - 1
            shares["early"] += 1
        met = walk[stream, t : last + 1]
        np.testing.assert_array_equal(
            taken.extras["option"].observation[i], MAZE.goal[walk[stream, last]]
        )
        assert bool(taken.extras["option_reached"][i]) == (goal in met)
        shares["goal"] += goal in met
    assert min(shares.values()) > 20
