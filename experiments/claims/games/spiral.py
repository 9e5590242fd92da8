"""Self-play of one policy where roles differ: a baseline for each role against none."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments.claims.games._games import HIGH, LOW, closeness, kuhn, whole_key
from experiments.evidence.course import Course, along, beginning, end
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
from experiments.evidence.moments import Moment
from jaxrl.algorithms.games.spiral import spiral
from jaxrl.core.types import Array
from jaxrl.exact import games


def variance(game: games.Game, table: Array, baseline: Array) -> Array:
    """Return the exact variance of one game's REINFORCE gradient, summed over all logits.

    Both roles play by `table` [I, A]; `baseline` is [2].
    """
    mover = game.player[game.places]  # [Z, D]
    advantage = jnp.take_along_axis(jnp.asarray(game.payoff), mover, 1) - baseline[mover]
    score = jax.nn.one_hot(game.actions, table.shape[1]) - table[game.places]
    moves = jnp.where(game.places >= 0, advantage, 0.0)[..., None] * score  # [Z, D, A]
    gradient = jax.vmap(lambda move, place: jnp.zeros_like(table).at[place].add(move))(
        moves, game.places
    )
    chance = game.chance * games.reach(game, table).prod(0)
    mean = jnp.einsum("z,zia->ia", chance, gradient)
    return jnp.einsum("z,zia->", chance, jnp.square(gradient)) - jnp.square(mean).sum()


def table(moment: Moment) -> Array:
    return games.behavior(kuhn(moment.env), moment.policy())


def close(moment: Moment) -> Array:
    """Return closeness to an equilibrium."""
    game = kuhn(moment.env)
    return closeness(game, games.reach(game, moment.once(table)))


def variances(moment: Moment) -> list[Array]:
    """Return the variance with and without the baselines."""
    baseline = moment.run.state.agent.extra
    each = baseline, jnp.zeros_like(baseline)
    return [variance(kuhn(moment.env), moment.once(table), baseline) for baseline in each]


def environment(name: str, fee: float) -> Arena:
    env = "experiments.claims.games._games:kuhn_with_fee"
    return Arena(env, 96_000, LOW, HIGH, params={"fee": fee}, name=name)


SETTINGS = {"num_envs": 16, "hidden": (32,), "learning_rate": 3e-3}
GRID = {"entropy_weight": (0.2, 0.4, 0.8)}
FEE, NO_FEE = "Kuhn poker with a fee of 3", "Kuhn poker"

CLAIM = Claim(
    paper=Paper(
        "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn "
        "Reinforcement Learning",
        "Liu et al.",
        2025,
        "2506.24119",
        "Where roles expect different returns, a baseline for each reduces the variance of "
        "self-play's gradients; without it a language model's gradients are erratic, it learns to "
        "play more slowly, and it stops reasoning.",
    ),
    claim="Where roles differ, a baseline for each makes self-play's gradients less noisy and its "
    "play less exploitable; otherwise it costs nothing.",
    left_out="Language models, and that they stop reasoning; benchmarks of reasoning; tic-tac-toe "
    "and negotiation; several games at once.",
    parts=(
        "jaxrl/algorithms/games/spiral.py",
        "jaxrl/envs/games/kuhn_poker.py",
        "jaxrl/exact/games.py",
        "jaxrl/losses/advantages/groups.py",
        "experiments/claims/games/_games.py",
    ),
    metric=Metric(
        "closeness",
        LOW,
        HIGH,
        meaning="1 minus exploitability in units of that of choosing evenly, so that it is 1 at "
        "an equilibrium, averaged over five points of training",
    ),
    environments=(environment(FEE, 3.0), environment(NO_FEE, 0.0)),
    sides={
        "RAE": Side(spiral, SETTINGS, GRID),
        "no baseline": Side(spiral, SETTINGS | {"baseline": "none"}, GRID),
    },
    clauses=(
        better("RAE", "no baseline", 0.02, FEE),
        better("RAE", "no baseline", 0.5, FEE, metric="variance removed"),
        not_worse("RAE", "no baseline", 0.05, NO_FEE),
    ),
    measure=Course(
        {
            "closeness": along(close),
            "untrained": beginning(close),
            "final": end(close),
            "variance removed": along(variances, lambda x: 1 - x[0].mean() / x[1].mean()),
        },
        split=whole_key,
    ),
    tuning_seeds=8,
    seeds=24,
    minutes=1.0,
    mutations=(
        Mutation(
            "baselines are never updated",
            "jaxrl.losses:role_baseline_update",
            lambda update: lambda baseline, *rest: baseline,
        ),
        Mutation(
            "each role has the other's baseline",
            "jaxrl.losses:role_conditioned_advantage",
            lambda advantage: lambda reward, role, baseline: advantage(reward, 1 - role, baseline),
        ),
    ),
    notes="The second player pays the first 3 for each game, so that outcomes of 1 to 5 and -1 to "
    "-5 differ by role as in a game that the first wins 95 times of 100; how to play stays the "
    "same. Closeness is 1 minus exploitability in units of that of choosing evenly (11/24), mean "
    "over five points of training. Variance is the exact variance of one game's gradient with "
    "respect to the logits; the share that a side removes is relative to the same policies without "
    "a baseline, so by definition it is 0 on the side without one. Updates have 16 games (the "
    "authors': 128 moves) and a tuned entropy bonus, which the paper does not have, since play at "
    "an equilibrium is mixed.",
)
