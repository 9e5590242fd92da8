"""A discovered update rule that sees the time, at unseen lifetimes and in other environments."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from experiments.claims.evolution._within import Within
from experiments.evidence import measure
from experiments.evidence.declare import (
    Arena,
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    better,
)
from jaxrl import envs
from jaxrl.algorithms.meta import lpg, ta_lpg
from jaxrl.algorithms.meta.shared import environments, lifetimes
from jaxrl.core import metrics as m
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.tasks.basic import draw_once

SEARCHES = 240  # steps of the search for a rule
SEEN, UNSEEN = (2, 4, 8, 16), (6, 12, 24)  # lifetimes (updates)
BLOCK = 2  # updates at the end of a life in which its return is measured
TEST_MDPS = 8  # environments in which each rule trains a learner for every unseen lifetime


def short(env: Environment) -> Environment:
    return time_limit(env, 16)


def measure_rules(trial: Trial, keys, hyper) -> Measured:
    """Measure final returns under rules that were found on `SEEN` lifetimes, [runs] each.

    In environments of more states: the mean over `UNSEEN` lifetimes, the mean of each, and the mean
    under a random rule.
    """
    algorithm = measure.build(trial)[1]
    steps = 1 if trial.tiny else trial.env_steps // algorithm.env_steps
    inner = ta_lpg.inner_config(measure.configure(trial))
    found = _run_rules(algorithm, inner, keys, dict(hyper), steps, 1 if trial.tiny else TEST_MDPS)
    return found | {"env_steps": jnp.full(len(keys), steps * algorithm.env_steps)}


@functools.partial(jax.jit, static_argnums=(0, 1, 4, 5))
def _run_rules(algorithm, inner, keys, hyper, steps, count):
    env = short(envs.make("random_mdp", num_states=15, num_actions=4))
    learner = lpg.on_rollouts(env, inner, draw_once(environments.around(env, 1.0)))

    def life(rule, key, horizon):
        """Return the mean return in the `BLOCK` updates up to `horizon`."""

        def block(run, _):
            run, row = train(learner, run, BLOCK)
            return run, jnp.where(run.step == horizon, m.values(row)["episode_return"], 0.0)

        run = lifetimes.begin(learner, rule, key, {}, horizon).run
        return jax.lax.scan(block, run, None, max(UNSEEN) // BLOCK)[1].sum()

    def returns(rule, keys):
        lead = lambda key: jax.vmap(lambda n: life(rule, key, n))(jnp.array(UNSEEN))
        return jax.vmap(lead)(keys).mean(0)

    def one(key, hyper):
        search_key, test_key = jax.random.split(key)
        begun = start(algorithm, search_key, hyper)
        run, _ = train(algorithm, begun, steps)
        test_keys = jax.random.split(test_key, count)
        ends = returns(run.state.rule, test_keys)
        named = {f"return of {n} updates": ends[i] for i, n in enumerate(UNSEEN)}
        untrained = returns(begun.state.rule, test_keys).mean()
        return {"return": ends.mean(), "untrained": untrained} | named

    return jax.vmap(one)(keys, hyper)


def no_time(clock):
    """Show the rule the same at all times and for all lifetimes."""
    return lambda env_steps, window, hyper: 0 * clock(env_steps, window, hyper)


SETTINGS = {
    "outer": "evolution", "lifetimes": SEEN, "updates": BLOCK, "pairs": 8, "num_envs": 8,
    "num_steps": 16, "rule_width": 8, "sigma": 0.1,
}  # fmt: skip
GRID = {"meta_learning_rate": (0.03, 0.1, 0.3)}
TA_LPG = Within("ta_lpg", short)

CLAIM = Claim(
    paper=Paper(
        "Discovering Temporally-Aware Reinforcement Learning Algorithms",
        "Jackson, Lu, Kirsch, Lange, Whiteson and Foerster",
        2024,
        "2402.05828",
        "Given the time and the lifetime, discovered rules follow schedules and generalize better "
        "to other lifetimes and environments than rules without them; evolution strategies find "
        "such rules, meta-gradients do not.",
    ),
    claim="A rule discovered by evolution that sees the time leads to higher returns, at unseen "
    "lifetimes and environments, than one that does not.",
    left_out="LPO, meta-gradients' failure to find schedules, grid environments, MinAtar and Brax.",
    parts=(
        "jaxrl/algorithms/meta/ta_lpg.py",
        "jaxrl/algorithms/meta/lpg.py",
        "jaxrl/algorithms/meta/shared/estimators.py",
        "jaxrl/algorithms/meta/shared/lifetimes.py",
        "jaxrl/algorithms/meta/shared/environments.py",
        "jaxrl/networks/learned_rules.py",
    ),
    metric=Metric(
        "return",
        -20.0,
        20.0,
        meaning="the mean return at the end of a learner's lifetime under the rule that was "
        "found, averaged over lifetimes of 6, 12 and 24 updates in MDPs that the search "
        "did not see",
    ),
    environments=(
        Arena(
            "random_mdp",
            SEARCHES * 2 * 8 * max(SEEN) * 8 * 16,
            -20.0,
            20.0,
            {"num_states": 10, "num_actions": 4},
        ),
    ),
    sides={
        "TA-LPG": Side(TA_LPG, SETTINGS | {"clock": 1.0}, GRID),
        "LPG": Side(TA_LPG, SETTINGS | {"clock": 0.0}, GRID),
    },
    clauses=(better("TA-LPG", "LPG", 0.2),),
    measure=measure_rules,
    tuning_seeds=2,
    seeds=64,
    minutes=9.0,
    notes="Returns are of 16 steps, in the last 2 updates of lifetimes of 6, 12 and 24 updates of "
    "128 steps; rules are found on lifetimes of 2, 4, 8 and 16 updates in random MDPs of 10 states "
    "and tested in MDPs of 15. LPG is the mechanism switched off: the same search with the clock "
    "at 0.",
    diagnosis="Both rules teach: a learner under a rule that was not evolved earns 0. With the "
    "time it earns less, at lifetimes of 6, 12 and 24 updates alike: by 0.4, 0.5 and 0.7 of 6, 10 "
    "and 12. A guess, not tested: at lifetimes this short a schedule gains less than two more "
    "inputs cost a search of 240 steps. The first attempt's margin was meant for a scale from 0 to "
    "1.",
    mutations=(Mutation("the rule sees no time", "jaxrl.algorithms.meta.lpg:clock", no_time),),
)
