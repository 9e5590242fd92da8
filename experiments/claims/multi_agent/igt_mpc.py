"""Cars that plan with the value of a game at the end, with another value there, or with none."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from experiments.evidence.course import Course, beginning, end
from experiments.evidence.declare import (
    Arena,
    Claim,
    Metric,
    Mutation,
    Paper,
    Side,
    better,
    not_worse,
)
from experiments.evidence.moments import Moment, Reported, returns
from jaxrl.algorithms.multi_agent.igt_mpc import igt_mpc
from jaxrl.core.types import Algorithm, Array, Environment
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import evaluate


class Builder(NamedTuple):
    """A side's algorithm: its Config, and games from which values are learned.

    games: "both" with the other car; "alone" as if cars could not collide; "none": no value is
        learned, and the policy that is measured has none.
    """

    Config: Any
    games: str

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        built = igt_mpc(env, config)
        if self.games == "none":
            return dataclasses.replace(built, step=lambda state, key: (state, {}))
        if self.games == "alone":
            params: Any = env.params
            free = dataclasses.replace(env, params=dataclasses.replace(params, apart=0.0))
            return dataclasses.replace(built, step=igt_mpc(free, config).step)
        return built


def progress(moment: Moment) -> dict[str, Array]:
    """Return what the algorithm measures of the MPC whose plans end with the progress alone."""
    return moment.algorithm.measure(moment.run.state, moment.key)


def random_play(moment: Moment) -> Array:
    """Return the mean return of random play, below which a planner without a network begins."""
    policy = random_policy(moment.env)
    return evaluate(moment.env, policy, moment.key, moment.episodes).returns.mean()


RETURN, COLLIDED = returns(), Reported("collided")
VALUED = {
    "return": end(RETURN),
    "untrained": beginning(RETURN),
    "apart": end(COLLIDED, lambda share: 1 - share),
}
PLAIN = {
    "return": end(progress, lambda found: found["mpc_return"]),
    "untrained": beginning(random_play),
    "apart": end(progress, lambda found: 1 - found["mpc_collided"]),
}
SETTINGS = {
    "games": 32,
    "parts": 3,
    "hold": 5,
    "hidden": (64, 64),
    "compared": 256,
    "learning_rate": 1e-2,
}


def ignore_other(near: Any) -> Any:
    """Let no cars collide."""
    return lambda place, other, params: jnp.zeros_like(near(place, other, params))


CLAIM = Claim(
    paper=Paper(
        "Learning Two-agent Motion Planning Strategies from Generalized Nash Equilibrium for Model "
        "Predictive Control",
        "Kim, Bhagat, Wong, Shin and Borrelli",
        2024,
        "2411.13983",
        "A network that predicts what generalized Nash equilibria bring, as the end of the plans "
        "of a decentralized MPC, lets two vehicles compete in a race and coordinate at an "
        "intersection without signals.",
    ),
    claim="Cars whose plans end with the learned value of a game drive better through a crossing "
    "than with their progress, without more collisions.",
    left_out="Racing, steering, plans that are optimized by an interior-point method, solvers of "
    "games other than enumeration.",
    parts=(
        "jaxrl/algorithms/multi_agent/igt_mpc.py",
        "jaxrl/envs/particles/crossing.py",
    ),
    metric=Metric(
        "return",
        -20.0,
        120.0,
        meaning="the return of a car: meters driven in 12 seconds, less the effort, and 20 less in "
        "a collision",
    ),
    environments=(Arena("crossing", 432_000, -20.0, 120.0, points=1, episodes=256),),
    sides={
        "IGT-MPC": Side(Builder(igt_mpc.Config, "both"), SETTINGS),
        "value alone": Side(Builder(igt_mpc.Config, "alone"), SETTINGS),
        "MPC": Side(Builder(igt_mpc.Config, "none"), SETTINGS),
    },
    clauses=(
        better("IGT-MPC", "MPC", 4.0),
        better("IGT-MPC", "value alone", 0.0, of_mechanism=True),
        not_worse(
            "IGT-MPC",
            "MPC",
            0.03,
            metric="apart",
            margin_reason="3 of 100 episodes; random play collides in 34",
        ),
    ),
    measure=Course(VALUED, sides={"MPC": {"metrics": PLAIN}}),
    seeds=24,
    minutes=10.0,
    mutations=(
        Mutation(
            "cars do not collide in games", "jaxrl.envs.particles.crossing:near", ignore_other
        ),
    ),
    notes="The value alone is learned from the same games as if cars could not collide, so it "
    "looks as far ahead and knows nothing of the other car; both networks are planned with alike. "
    "The learning rate, the same for both, and the number of games are of two pilots on other "
    "seeds, in which 144,000 steps at 3e-3 did not tell the two values apart. A second design: "
    "the first was untestable, since the MPC, which learns nothing, was to gain on itself; now it "
    "is to gain on random play.",
)
