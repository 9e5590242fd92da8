"""A population in one network against plain self-play: how exploitable each is in Kuhn poker."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import tune
from jaxrl.core import settings
from jaxrl.core.train import start, train
from jaxrl.envs import make
from jaxrl.envs.games import kuhn_poker
from jaxrl.exact import games
from jaxrl.kit.wrapping import params_of
from jaxrl.systems.games import league, neupl
from jaxrl.systems.policy_gradient import ppo

PAPER = {
    "title": "NeuPL: Neural Population Learning",
    "authors": "Liu, Marris, Hennes, Merel, Heess and Graepel",
    "year": 2022,
    "arxiv": "2202.07415",
}
CLAIM = "The equilibrium of a population in one network is less exploitable than plain self-play."
PARTS = (
    "jaxrl/systems/games/neupl.py",
    "jaxrl/tasks/population.py",
    "jaxrl/envs/games/opponents.py",
    "jaxrl/exact/games.py",
)

METRIC = "minus exploitability in Kuhn poker (0 at an equilibrium)"
MARGIN = 0.0
ENTROPY_WEIGHTS = (0.003, 0.03, 0.1)
LEARNER = settings.replace(
    ppo.Config(discount=1.0),
    {
        "rollouts.num_envs": 64,
        "rollouts.num_steps": 16,
        "passes.epochs": 4,
        "passes.minibatches": 4,
        "torso.hidden": (32,),
        "optimizer.learning_rate": 3e-3,
    },
)
NOTES = (
    "NeuPL: the solver's mixture over 8 rows, exactly. Self-play: PPO against itself as it was one "
    "window before. Off: the same population, each row answering to the one before it, and the "
    "last row playing. In detail: the latest policy of a league of 16 past selves. Equal steps of "
    "the learner; entropy weight: best of 3 on seeds of their own for each. Paper: "
    "running-with-scissors, MuJoCo football; here a game that can be solved exactly (a uniform "
    "policy's exploitability is 0.458)."
)
VARIANTS: dict[str, Any] = {
    "NeuPL": neupl.Config(LEARNER),
    "self-play": league.Config(LEARNER, pool=1, every=1),
    "without solver": neupl.Config(LEARNER, solver="latest"),
    "league": league.Config(LEARNER),
}


def _algorithm(name: str):
    build = league.league if alone(name) else neupl.neupl
    return build(make("kuhn_poker"), VARIANTS[name])


def alone(name: str) -> bool:
    """Whether one policy plays, and no mixture."""
    return isinstance(VARIANTS[name], league.Config)


@functools.partial(jax.jit, static_argnums=(0, 3))
def trained(name: str, keys: Any, entropy_weight: Any, windows: int):
    """The learners' states [K] after so many windows."""
    algorithm = _algorithm(name)

    def one(key, weight):
        run = start(algorithm, key, {"ppo.entropy_weight": weight})
        return train(algorithm, run, windows)[0].state

    return jax.vmap(one)(keys, entropy_weight)


@functools.cache
def _measure(name: str):
    """Learners' states [K] -> minus exploitability [K]."""
    env, config = make("kuhn_poker"), VARIANTS[name]
    game = games.enumerate_game(kuhn_poker.RULES)

    def of(state):
        if alone(name):
            network = ppo.policy_network(env, config.ppo)
            params = params_of(state.agent)["actor_critic"]
            policy, _, _ = network.apply(params, game.timesteps, ())
            reaches = games.reach(game, policy.probs)
        else:
            played = neupl.mixture(state, config)
            tables = neupl.tables(env, config, played, game)
            reaches = games.mixture(game, tables, played.weights)
        return -games.exploitability(game, reaches)

    return jax.jit(jax.vmap(of))


def check(key: jax.Array, budget: Budget) -> Check:
    """The three ways to train, seed by seed."""
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 8))
    windows = budget.choose(2, 300)
    figures = {}
    for name in VARIANTS:

        def score(keys, hyper, name=name):
            weights = jnp.asarray(hyper["entropy_weight"])
            return _measure(name)(trained(name, keys, weights, windows))

        grid = budget.choose(ENTROPY_WEIGHTS[:1], ENTROPY_WEIGHTS)
        weight = tune(score, tuning_key, "entropy_weight", grid, budget.choose(2, 3))
        found = score(keys, {"entropy_weight": jnp.full(len(keys), weight)})
        figures[name] = figure(f"{name}, entropy weight {weight:g}", np.asarray(found))
    return compare(
        CLAIM,
        METRIC,
        figures["NeuPL"],
        figures["self-play"],
        budget,
        MARGIN,
        figures["without solver"],
        (figures["league"],),
        NOTES,
    )
