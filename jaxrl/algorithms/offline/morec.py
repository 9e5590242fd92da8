"""MOREC (Luo, Xu, Cao and Yu, 2024, "Reward-consistent dynamics models are strongly generalizable
for offline reinforcement learning", arXiv:2310.05422): MOPO whose rollouts go on from those of the
model's transitions that look like the environment's.

Each elite member draws `candidates` next observations. One of them all is chosen, with the chances
softmax(r / temperature) (or the one with the largest r), where

    r(s, a, s') = -log(1 - mean_k D_k(s, a, s'))

is the dynamics reward of the discriminators of `morec_judge`, which is trained first
(`--warm-start`), after `dynamics_model`. Where even the chosen one has a reward below
`least_reward` the rollout ends there, as a task does. Candidates, temperature, least reward and the
discriminators' mean are those of the authors' code; rollouts last 100 steps there. Their other
variant, with MOBILE's penalty, is not here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline import mopo
from jaxrl.algorithms.offline.morec_judge import PART, Judge, judge_part, log_odds
from jaxrl.algorithms.offline.shared import model_rollouts
from jaxrl.algorithms.offline.shared.model_rollouts import Branches, Draw, in_model
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static

SOFTMAX, BEST = "softmax", "best"


@group
class Config(mopo.Config):
    """Settings of MOREC: MOPO on those transitions of a learned model that discriminators take for
    the environment's (arXiv:2310.05422)."""

    branches: Branches = Branches(horizon=100, starts=20)
    """Rollouts of the model, long ones, since those that go wrong are cut."""
    judge: Judge = Judge()
    candidates: int = static(2, low=1)
    """Number of next observations that each elite member draws. 2: authors' code."""
    choice: str = static(SOFTMAX, choices=(SOFTMAX, BEST))
    """Choice of one of them: by chance (softmax), or the one with the largest dynamics reward
    (best)."""

    choice_temperature: float = hyper(0.1, above=0)
    """Temperature of the softmax. 0.1: authors' code."""
    least_reward: float = hyper(0.6, low=0)
    """Dynamics reward below which a rollout ends. 0.6: authors' code."""


def draw_by_judgment(config: Config) -> Draw:
    """Return the choice of one of the elites' candidates by their dynamics reward."""

    def draw(net, timestep, action, prediction, elites, key):
        keys = jax.random.split(key)
        mine: Any = jax.tree.map(lambda x: x[elites], prediction)
        shape = (config.candidates, *mine.mean.shape)
        drawn = mine.mean + mine.scale * jax.random.normal(keys[0], shape)
        ended = jnp.broadcast_to(mine.ended > 0, shape[:-1])
        drawn, ended = (x.reshape(-1, *x.shape[2:]) for x in (drawn, ended))  # [C, B, ...]
        judge = lambda change: log_odds(getattr(net, PART), timestep, action, change)
        reward = losses.dynamics_reward(jax.vmap(judge)(drawn[..., :-1])).T  # [B, C]
        if config.choice == BEST:
            chosen = reward.argmax(-1)
        else:
            weights = losses.boltzmann_weights(reward, net.hyper.choice_temperature)
            chosen = jax.random.categorical(keys[1], jnp.log(weights))
        row = jnp.arange(len(chosen))
        cut = reward[row, chosen] < net.hyper.least_reward
        return drawn[chosen, row], ended[chosen, row] | cut

    return draw


def recipe(env: Environment, config: Config) -> Recipe:
    plain = sac.recipe(env, config, reward=scaled_reward)
    plain = dataclasses.replace(plain, parts={**plain.parts, PART: judge_part(env, config.judge)})
    draw = draw_by_judgment(config)
    return in_model(plain, env, config, penalty=config.penalty, draw=draw, parts=(PART,))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `mopo.check`, and for ends by the environment's rule alone."""
    mopo.check(env, config, name)
    if config.branches.ends == "known":
        raise UserError(
            f"branches.ends is 'known', but {name} also ends rollouts by their dynamics reward; "
            "say 'learned'."
        )


morec = AlgorithmBuilder(
    "morec",
    Config,
    recipe,
    model_rollouts.model_source,
    check=check,
    goes_on_from="morec_judge",
)

TINY = model_rollouts.TINY | {"judge.torso.hidden": (8,), "kept": 2, "candidates": 2}
