"""Randomized ensembled double Q-learning (Chen, Wang, Zhou and Ross, 2021, "Randomized ensembled
double Q-learning: learning fast without a model", arXiv:2101.05982): SAC with many critics, many
updates per environment step, targets from a random subset of the critics, and a policy that
maximizes the mean of all.

The target entropy is SAC's (the authors' differ by environment), as is the temperature's loss (of
its logarithm in their code), and in the warm-up the initial policy acts (in theirs, at random).
"""

from __future__ import annotations

import jax

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, loss, static
from jaxrl.kit.groups import Replay, Target


@group
class Config(soft.Soft):
    """Settings of REDQ: SAC with targets from random subsets of many critics (arXiv:2101.05982).
    The defaults are those of the authors' code, except for the replay's capacity, a million
    there."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=20, batch_size=256, warmup=5000)
    """Replay buffer; the paper's G is `updates` divided by `num_envs` and `num_steps`: 20."""
    target: Target = Target(rate=0.005)
    num_critics: int = static(10, low=1)
    """Number of critics, N."""
    subset: int = static(2, low=1)
    """Number of critics in a target, M."""
    delay: int = static(20, low=1)
    """Number of critic updates per update of policy and temperature: as many as per environment
    step (algorithm 1)."""


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    sample = soft.sample_in_half_widths(space)

    @loss("critic")
    def critic_loss(net, x):
        """Regress on the minimum over M of the N target networks, the same M for the whole batch
        (algorithm 1)."""
        next_action, log_prob = sample(net.actor(x.next_timestep), net.key())
        q = net.critic(x.timestep, x.action)
        next_q = net.target.critic(x.next_timestep, next_action)
        subset = (config.subset,)
        chosen = jax.random.choice(net.key("subset"), config.num_critics, subset, replace=False)
        target = losses.redq_target(
            x.reward, x.terminated, net.hyper.discount, next_q, chosen, log_prob, net.temperature()
        )
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)})

    # The policy maximizes the mean of all critics.
    actor_loss = soft.actor_loss(space, lambda q: q.mean(-1, keepdims=True))
    return soft.soft_actor_critic(
        env,
        soft.actor_network(env, config.torso),
        soft.critic_network(env, config.torso, config.num_critics),
        config.optimizer,
        config.target,
        (critic_loss, actor_loss, soft.temperature_loss(space, actor_loss)),
        config.delay,
        fixed_temperature=config.fixed_temperature,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and the subset fits the ensemble."""
    soft.check(env, config, name)
    if config.subset > config.num_critics:
        raise UserError(
            f"subset is {config.subset}; it must be at most num_critics={config.num_critics}."
        )


redq = AlgorithmBuilder("redq", Config, recipe, check=check)

TINY = soft.TINY | {"hidden": (8,), "updates": 4, "num_critics": 3, "delay": 2}
