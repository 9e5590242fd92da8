"""SkillMimic-V2 (Yu, Wang, Zhao, Tsui, Wang, Tan and Chen, 2025, "SkillMimic-V2: learning robust
and generalizable interaction skills from sparse and noisy demonstrations", arXiv:2505.02094, and
its published code): PPO tracks short clips of several skills, from more starts than the clips have.

- Stitched trajectory graph: an episode of one skill begins, with probability `switched`, at the
  state of another skill's clip that is most similar to the clip's own.
- State transition field: with probability `noisy` it begins near a state of the clip, and follows
  the clip from its most similar state.
- In both, steps between a start and a clip that is far away are masked; each is paid the mean
  reward of the steps that are compared, of the same skill, in the same window.
- Adaptive trajectory sampling: clips, and states of a clip to begin at, are drawn with weights
  exp(-5 r) and exp(-10 r) of the mean rewards r of a step, mixed with even draws by `adaptive`.
- History: the policy remembers what it saw, since it is told the skill but not the moment.

The paper tracks a simulated humanoid that plays with a ball and household objects; here it is a
disc that pushes another over a table (`push_skills`, which has the graph, the field and the
reward). The paper's history encoder is a convolution over 60 states, trained beforehand to predict
the next one; here it is the GRU of PPO, trained with the policy. Rewards of starts and clips are
running means over windows, and weights follow each of them. In the code that of a start is the mean
of its old one and of an episode's, that of a clip is of one step of all environments, and weights
follow now and then. The probabilities 0.1 and the weight 1 of adaptive sampling are those of the
authors' command.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Source, Tasks, Transition, struct
from jaxrl.envs.planar.push_skills import Params
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, static
from jaxrl.kit.composing import around, with_rewards
from jaxrl.kit.groups import Memory, Rollouts

CLIPS, STATES = 5.0, 10.0  # by what rewards are multiplied in the exponents of the weights


@group
class Starts:
    """Starts of episodes: near clips, in other skills, and where rewards are low."""

    noisy: float = static(0.1, low=0, high=1)
    """Probability of a start near a clip: the state transition field."""
    switched: float = static(0.1, low=0, high=1)
    """Probability of a start in another skill's clip: the stitched trajectory graph."""
    adaptive: float = static(1.0, low=0, high=1)
    """Weight of adaptive trajectory sampling; 0 draws clips and their states evenly."""
    rate: float = static(0.2, above=0, high=1)
    """Share of the newest window in the mean reward of a start."""


@group
class Config(ppo.Config):
    """Settings of SkillMimic-V2: PPO that tracks clips from adaptive starts (arXiv:2505.02094)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=32)
    memory: Memory = Memory(recurrent=64)
    starts: Starts = Starts()


@struct
class Rewards:
    """State of `adaptive_starts`: mean rewards of compared steps, 0 where there was none."""

    clips: Array  # [K]
    starts: Array  # [K, L], of episodes that began there


def sampling_weights(rewards: Rewards, lengths: Array, adaptive: float) -> Array:
    """Return the probability [K, L] of each start, 0 from the last state of a clip on."""
    valid = jnp.arange(rewards.starts.shape[1]) < lengths[:, None] - 1
    even = valid / valid.sum(1, keepdims=True)
    states = jax.nn.softmax(jnp.where(valid, -STATES * rewards.starts, -jnp.inf), 1)
    clips = jax.nn.softmax(-CLIPS * rewards.clips)
    of_clip = (1 - adaptive) / len(clips) + adaptive * clips
    return of_clip[:, None] * ((1 - adaptive) * even + adaptive * states)


def adaptive_starts(params: Params, settings: Starts) -> Tasks:
    """Return tasks whose episodes begin where rewards are low. The id of a task is its start,
    clip * L + state."""
    count, length = params.clips.shape[:2]

    def sample(state: Rewards, key, n: int) -> Array:
        weights = sampling_weights(state, jnp.asarray(params.lengths), settings.adaptive)
        logits = jnp.log(weights).reshape(-1)
        return jax.random.categorical(key, logits, shape=(n,)).astype(jnp.int32)

    def update(state: Rewards, policy, transitions: Transition) -> Rewards:
        compared = ~transitions.next_timestep.privileged["masked"]
        paid = jnp.where(compared, transitions.reward, 0.0)

        def move(old: Array, ids: Array) -> Array:
            add = lambda x: jax.ops.segment_sum(
                x.astype(jnp.float32).reshape(-1), ids.reshape(-1), old.size
            )
            number = add(compared)
            mean = (add(paid) / jnp.maximum(number, 1.0)).reshape(old.shape)
            return jnp.where(number.reshape(old.shape) > 0, old + settings.rate * (mean - old), old)

        ids = transitions.task
        return Rewards(move(state.clips, ids // length), move(state.starts, ids))

    def begin(state: Rewards, start: Array) -> Params:
        given = {"start": start, "noisy": settings.noisy, "switched": settings.switched}
        return trees.strong(dataclasses.replace(params, **given))

    return Tasks(
        f"adaptive_starts({count})",
        init=lambda key, policy, hyper: Rewards(jnp.zeros(count), jnp.zeros((count, length))),
        sample=sample,
        params=begin,
        update=update,
    )


def pay_masked_steps(x: Transition) -> Array:
    """Return the rewards [T, B] of a window, in which each masked step has the mean reward of the
    compared steps of its skill; 0 if there are none."""
    compared = ~x.next_timestep.privileged["masked"]
    skill = x.next_timestep.goal
    chosen = skill * compared[..., None]
    mean = (chosen * x.reward[..., None]).sum((0, 1)) / jnp.maximum(chosen.sum((0, 1)), 1.0)
    return jnp.where(compared, x.reward, skill @ mean)


def recipe(env: Environment, config: Config) -> Recipe:
    def before(net: Net, batch: Batch):
        return net, with_rewards(batch, pay_masked_steps(batch.transitions)), None

    return around(ppo.recipe(env, config), before=before)


def source(env: Environment, config: Config) -> Source:
    """Return windows of rollouts whose episodes begin where rewards are low."""
    return config.rollouts.source(env, adaptive_starts(env.params, config.starts))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where PPO cannot learn in `env` with `config`, for environments without
    clips, and for starts that are more than certain."""
    ppo.ppo.check(env, config, name)
    if not isinstance(env.params, Params):
        raise UserError(f"{name} tracks clips, and '{env.name}' has none; try push_skills.")
    x = config.starts
    if x.noisy + x.switched > 1:
        raise UserError(
            f"starts.noisy + starts.switched is {x.noisy + x.switched}; it must be at most 1."
        )


skillmimic_v2 = AlgorithmBuilder("skillmimic_v2", Config, recipe, source, check=check)

TINY = {
    "env": "push_skills", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 2,
    "minibatches": 2, "hidden": (8,), "recurrent": 4, "noisy": 0.5, "switched": 0.5,
}  # fmt: skip
