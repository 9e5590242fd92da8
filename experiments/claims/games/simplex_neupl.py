"""One network for a population and its answers to any mixture, or for the population alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.claims.games._games import whole_key
from experiments.evidence.course import Course, beginning, end
from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from experiments.evidence.moments import Moment
from jaxrl.algorithms.games import neupl, simplex_neupl
from jaxrl.core.types import Algorithm, Array, Environment
from jaxrl.exact import games

GAME, LABEL = "repeated_rock_paper_scissors", "two rounds of rock, paper, scissors"


class Builder(NamedTuple):
    """A side's algorithm: its Config and the function that builds it."""

    Config: Any

    def __call__(self, env: Environment, config: Any) -> Algorithm:
        return simplex_neupl.simplex_neupl(env, config)


def share(moment: Moment) -> Array:
    """Return what the answers earn against all mixtures of a grid, as a share of the most."""
    config: Any = moment.algorithm.config
    with jax.ensure_compile_time_eval():
        game = games.cached_game(moment.env)
    played = neupl.mixture(moment.run.state, config)
    own, best = simplex_neupl.returns(moment.env, config, played, game)
    return own.mean() / best.mean()


def tell_nothing(answer: Any) -> Any:
    """Condition the answers to drawn mixtures on an even one."""

    def wrong(row: Array, opponent: Array, sigma: Array) -> Any:
        even = jnp.full_like(sigma, 1 / sigma.shape[-1])
        return answer(row, opponent, jnp.where((row == sigma.shape[-1])[:, None], even, sigma))

    return wrong


SETTINGS = {
    "rows": 4,
    "parts": 3,
    "num_envs": 64,
    "num_steps": 8,
    "epochs": 4,
    "minibatches": 4,
    "hidden": (32,),
    "recurrent": 16,
    "learning_rate": 3e-3,
    "discount": 1.0,
}
GRID = {"ppo.entropy_weight": (0.02, 0.1)}

CLAIM = Claim(
    paper=Paper(
        "Simplex Neural Population Learning: Any-Mixture Bayes-Optimality in Symmetric Zero-sum "
        "Games",
        "Liu, Lanctot, Marris and Heess",
        2022,
        "2205.15879",
        "One conditional network that learns a population and the best responses to any mixture of "
        "it earns nearly the most against arbitrary mixtures, infers like a Bayesian who the "
        "opponent is, and finds a more performant population.",
    ),
    claim="Learning in half of the games to answer drawn mixtures brings returns against any "
    "mixture of the population nearer to Bayes-optimal ones.",
    left_out="That the population is better for it, priors that are wrong, larger games; how near "
    "returns come to the most is measured and is no clause.",
    parts=(
        "jaxrl/algorithms/games/simplex_neupl.py",
        "jaxrl/algorithms/games/neupl.py",
        "jaxrl/tasks/population.py",
        "jaxrl/exact/games.py",
        "experiments/claims/games/_games.py",
    ),
    metric=Metric(
        "share",
        -2.0,
        1.0,
        meaning="the exact mean return of the network that is conditioned on a mixture, against "
        "it, over all mixtures of four rows by thirds, as a share of what a Bayes-optimal player "
        "earns against the same mixtures",
    ),
    environments=(
        Arena(GAME, 98_304, -2.0, 1.0, params={"rounds": 2, "stakes": [2.0, 1.0, 1.0]}, name=LABEL),
    ),
    sides={
        "simplex-NeuPL": Side(Builder(simplex_neupl.Config), SETTINGS | {"simplex": 0.5}, GRID),
        "NeuPL": Side(Builder(simplex_neupl.Config), SETTINGS | {"simplex": 0.0}, GRID),
    },
    clauses=(better("simplex-NeuPL", "NeuPL", 0.1),),
    measure=Course({"share": end(share), "untrained": beginning(share)}, split=whole_key),
    tuning_seeds=4,
    seeds=32,
    minutes=8.0,
    mutations=(
        Mutation(
            "the learner is told an even mixture", "jaxrl.tasks.population:Answer", tell_nothing
        ),
    ),
    notes="A win with rock pays 2, others 1. NeuPL's network is conditioned on mixtures too, but "
    "only on those of its interaction graph; both have a GRU, so both could infer who the "
    "opponent is. The other half of simplex-NeuPL's games trains the rows, which have as many "
    "fewer games than NeuPL's. Each side is measured against its own population.",
)
