"""Self-RedTeam (Liu et al., 2025, "Chasing moving targets with online self-play reinforcement
learning for safer language models", arXiv:2506.07468): one policy attacks and defends. Its first
utterance turns a seed into a request; its second, which sees nothing but the request, complies or
refuses. Each role is paid for what came of both, and learns by REINFORCE++: the advantage of a
token is its role's reward, less the divergences from the reference to come in its utterance,
standardized over the tokens of both roles.

As in the authors' code; their second phase, in which texts are imitated beside (`sft_data`), is
left out, as in their runs of reinforcement learning alone.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.reinforce_plus_plus import surrogate_loss
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import on_answers
from jaxrl.algorithms.tokens.shared.outcomes import component_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Clipped, Divergence, Groups
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group
from jaxrl.kit.groups import Optimizer, Passes


@group
class Config(Clipped):
    """Settings of Self-RedTeam: REINFORCE++ of an attacker and a defender in one policy
    (arXiv:2506.07468). The defaults are those of the authors' code."""

    groups: Groups = Groups(prompts=64, answers=1)
    """Games of an update. Their 128 samples are one attack and one defense of 64 seeds."""
    passes: Passes = Passes(epochs=1, minibatches=4, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=5e-7, max_grad_norm=1.0)
    kl: Divergence = Divergence(weight=0.01)


def judge_roles(net: Net, batch: Batch) -> dict[str, Array]:
    """Return the rewards to come at each token in its role's utterance, standardized over the
    tokens of both roles."""
    attacker = component_at_end(batch, "attacker")
    paid = jnp.stack([attacker, jnp.zeros_like(attacker)])  # the defender's is the reward
    to_come = turns.to_come_in_turns(batch, paid)
    return {"advantage": losses.standardize(to_come, batch.mask)}


def recipe(env: Environment, config: Config) -> Recipe:
    return on_answers(env, config, judge_roles, (surrogate_loss,), kl_in_reward=True)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `turns.check`, and if `env` does not say what the attacker is paid; its
    reward is the defender's."""
    turns.check(env, config, name)
    if "attacker" not in (example_timestep(env).reward_components or {}):
        raise UserError(
            f"{name} needs the attacker's reward, TimeStep.reward_components['attacker'], which "
            f"'{env.name}' lacks; see envs.language.guarded_requests."
        )


self_redteam = AlgorithmBuilder("self_redteam", Config, recipe, check=check)

TINY = SMALL_GROUPS | {"env": "guarded_requests", "env_params": {"letters": 3, "length": 2}}
