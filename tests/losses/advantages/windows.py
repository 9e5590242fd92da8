"""Windows of rollouts, and definitions of returns on them as float64 loops."""

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from tests.losses.contract import Case

UNIT = st.floats(0, 1)


def brute_force_gae(reward, value, next_value, terminated, done, discount, lambda_):
    """Definition of GAE: a sum of TD errors up to the episode's end, computed for each step."""
    steps = len(reward)
    delta = reward + discount * np.where(terminated, 0, next_value) - value
    result = np.zeros(steps)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            result[t] += weight * delta[k]
            if done[k]:
                break
            weight *= discount * lambda_
    return result


def brute_force_returns(reward, done, final_value, discount):
    steps = len(reward)
    result = np.zeros(steps)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            result[t] += weight * reward[k]
            weight *= discount
            if done[k]:
                break
        else:
            result[t] += weight * final_value
    return result


def window(seed, steps=20, shape=()):
    rng = np.random.default_rng(seed)
    size = (steps, *shape)
    terminated, truncated = rng.random(size) < 0.15, rng.random(size) < 0.15
    return {
        "reward": rng.normal(size=size),
        "value": rng.normal(size=size),
        "next_value": rng.normal(size=size),
        "terminated": terminated,
        "done": terminated | truncated,
    }


STEP = ("reward", "value", "next_value", "terminated", "done")


def case(function, *names, **more):
    """Window of 6 steps of 2 streams, with one termination and one truncation."""
    settings = {k: more.pop(k) for k in ("discount", "lambda_", "n", "reward_rate") if k in more}

    def inputs(rng):
        x = {k: v for k, v in window(rng.integers(100), 6, (2,)).items() if k in names}
        ends = np.zeros((2, 6, 2), bool)
        ends[0, 2, 0] = ends[1, 3, 1] = True
        if "terminated" in names:
            x["terminated"] = ends[0]
        if "done" in names:
            x["done"] = ends[0] | ends[1]
        for name in ("ratio", "coefficient"):
            if name in names:
                x[name] = np.exp(rng.normal(size=(6, 2)))
        for name in ("advantage", "luck", "log_prob", "hindsight_log_prob", "returns"):
            if name in names:
                x[name] = rng.normal(size=(6, 2))
        if "mask" in names:
            x["mask"] = np.array([[1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1]], bool).T
        if "next_q_values" in names:
            x["next_q_values"] = rng.normal(size=(6, 2, 3))
            x["next_action"] = x["next_q_values"].argmax(-1)
            x["next_action"][4] = 0
        return {**x, **settings}

    def extremes(rng):
        big = [{"reward": 1e6 * rng.normal(size=(6, 2))}] if "reward" in names else []
        over = [{"done": np.ones((6, 2), bool)}, {"done": np.zeros((6, 2), bool)}]
        ratios = [{k: np.exp(np.full((6, 2), e))} for k in ("ratio",) for e in (-60.0, 30.0)]
        return big + (over if "done" in names else []) + (ratios if "ratio" in names else [])

    floats = [n for n in names if n not in ("terminated", "done", "mask")]
    stopped = more.pop("stopped", ())
    return Case(
        function,
        inputs,
        gradient=[n for n in floats if n not in stopped],
        stopped=stopped,
        time=[*names, *(["next_action"] if "next_q_values" in names else [])],
        extremes=more.pop("extremes", extremes),
        **more,
    )


SOME = {"discount": 0.9, "lambda_": 0.8}


def float32(data):
    return {k: jnp.asarray(v, jnp.float32 if v.dtype != bool else bool) for k, v in data.items()}


def episodes(data):
    """Steps from each step to the end of its episode or of the window."""
    steps = len(data["reward"])
    for t in range(steps):
        yield t, range(t, next((k for k in range(t, steps) if data["done"][k]), steps - 1) + 1)


def consistent(seed, truncated=True):
    """Window whose next values are those of the next steps, except after a done step."""
    data = window(seed)
    if not truncated:
        data["done"] = data["terminated"]
    data["next_value"][:-1] = np.where(
        data["done"][:-1], data["next_value"][:-1], data["value"][1:]
    )
    return data


def brute_force_n_step(data, discount, n):
    result = np.zeros(len(data["reward"]))
    for t, steps in episodes(data):
        steps = steps[:n]
        result[t] = sum(discount ** (k - t) * data["reward"][k] for k in steps)
        if not data["terminated"][steps[-1]]:
            result[t] += discount ** len(steps) * data["next_value"][steps[-1]]
    return result


def without_value(data):
    return {k: v for k, v in data.items() if k != "value"}
