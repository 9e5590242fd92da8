"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347).

Collect a window of steps; then, for several epochs over shuffled minibatches of it, descend the
clipped surrogate of the policy, a value loss and an entropy bonus (their equation 9), with
generalized advantage estimates (Schulman et al., 2016). Details follow Andrychowicz et al. (2021).
"""

from __future__ import annotations

from typing import Any

import jax

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    actor_critic_recipe,
    check_policy,
    estimate_advantages,
    policy_and_value,
    policy_network,
    report,
    standardize,
    surrogate,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment
from jaxrl.kit import (
    SEQUENCE,
    STEP,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.exploration import check_noise
from jaxrl.kit.groups import (
    INF,
    ImageTorso,
    Memory,
    Optimizer,
    Passes,
    RolloutNormalization,
    Rollouts,
    StateDependentNoise,
)


@group
class Config:
    """Settings of PPO."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=128)
    passes: Passes = Passes(epochs=4, minibatches=4)
    torso: ImageTorso = ImageTorso(hidden=(64, 64), activation="tanh")
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    """Adam with a constant 3e-4, as in their table 3 (MuJoCo; table 5, Atari, decays 2.5e-4
    linearly to 0). The norm of 0.5 and the epsilon are those of their code (OpenAI Baselines,
    ppo2)."""
    normalization: RolloutNormalization = RolloutNormalization()
    gsde: StateDependentNoise = StateDependentNoise()

    heads: int = static(0, low=0)
    """Number of linear heads of policy and value, one per task, selected by a one-hot in the goal
    channel; 0 for one head that all tasks share."""
    record: tuple[str, ...] = static((), choices=("logits", "value"))
    """Outputs recorded with every step besides its log-probability: logits (of discrete actions),
    value."""
    normalize_advantage: bool = True
    """Standardize the advantages of each minibatch."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of the probability ratio around 1, beyond which its gradient is zero."""
    value_clip: float = hyper(INF, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


@loss("actor_critic", name="loss")
def ppo_loss(net: Net, x: Sample) -> LossOutput:
    """Compute equation 9, negated: the clipped surrogate, a value loss and an entropy bonus."""
    return objective(net, x, *policy_and_value(net, x))


def objective(net: Net, x: Sample, policy: Any, value: Array) -> LossOutput:
    """Compute equation 9, negated, for a policy and values [...]."""
    h = net.hyper
    terms = surrogate(policy, x.action, x.log_prob, x.advantage, h.clip)
    value_loss = losses.clipped_squared_error(value, x.value, x.target, h.value_clip)
    total = terms["policy_loss"] + h.value_weight * value_loss - h.entropy_weight * terms["entropy"]
    return LossOutput(total, terms | {"value_loss": value_loss}, drift=terms["approximate_kl"])


def recipe(env: Environment, config: Config) -> Recipe:
    network = policy_network(env, config.torso, config.memory, config.heads, noise=config.gsde)

    def step(net, minibatch):
        if config.normalize_advantage:
            minibatch = standardize(minibatch)
        return net.descend(ppo_loss, minibatch)

    def update(net, batch):
        x = estimate_advantages(net, batch)
        window = Minibatch(x, batch.mask, batch.weight)
        unit = SEQUENCE if jax.tree.leaves(x.memory) else STEP  # also with a network of the user's
        limit = net.hyper.passes.target_kl
        return report(net, x, mask=batch.mask).epochs(
            config.passes, window, step, unit=unit, max_drift=limit
        )

    return actor_critic_recipe(
        env, network, config.optimizer, (ppo_loss,), update, config.record, config.gsde
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` if `env` and `config` do not fit.

    That is an action space without a policy head, a window that does not divide into the
    minibatches, heads that no time step selects, or state-dependent noise of actions that are no
    `Box`.
    """
    check_policy(env, config.torso, config.memory, name)
    check_noise(env, config.gsde, name)
    if "logits" in config.record and not isinstance(env.action_space, Discrete):
        raise UserError(
            f"record asks for logits, which only discrete actions have; '{env.name}' has "
            f"{env.action_space!r}."
        )
    goals = jax.tree.leaves(example_timestep(env).goal)
    if config.heads and (not goals or goals[-1].shape != (1, config.heads)):
        raise UserError(
            f"heads is {config.heads}, but no time step of '{env.name}' selects one; its goal "
            f"channel must end in a one-hot of {config.heads} (see infer_task)."
        )
    x, unit = config.rollouts, SEQUENCE if config.memory.recurrent else STEP
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, unit)


ppo = AlgorithmBuilder("ppo", Config, recipe, check=check)

TINY = {
    "env": "cartpole", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 2,
    "minibatches": 2, "early_stop": True, "hidden": (8,), "recurrent": 4,
    "normalization.observation": True, "normalization.reward": True, "record": ("logits", "value"),
}  # fmt: skip
