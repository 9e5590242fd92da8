"""V-MPO (Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for discrete
and continuous control", arXiv:1909.12238).

The policy imitates the half of each window with the largest advantages, weighted by
exp(A / temperature) (their equations 3 and 4), within a bound on the divergence from the behavior
policy. That is a target network, updated every `target.period` gradient steps. Temperature and
multipliers descend their dual losses alongside (equations 4 and 5); a Gaussian policy has one bound
for its mean and one for its deviation.

Temperature and multipliers are softpluses of learned parameters; the paper clips them to be
positive. Rewards may be divided by a running deviation (`normalization`); the paper uses PopArt.
Policy and value share convolutions and memory, but no hidden layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared.bounds import lagrangian
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    actor_critic_recipe,
    check_policy,
    estimate_advantages,
    policy_and_value,
    policy_network,
    report,
    sample_and_record,
)
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.groups import (
    LinearImageTorso,
    Memory,
    Optimizer,
    RolloutNormalization,
    Rollouts,
    Target,
)
from jaxrl.networks.heads import gaussian
from jaxrl.networks.scalars import Softplus


@group
class Config:
    """Settings of V-MPO. Bounds, initial values and the target network's period are those that
    public implementations quote from the paper's appendix F, whose tables were not compared."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=20)
    torso: LinearImageTorso = LinearImageTorso(hidden=(256, 256), activation="elu")
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer of policy and value: Adam, 1e-4, as in section 4."""
    dual: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer of temperature and multipliers: Adam, 1e-4, as in section 4."""
    target: Target = Target(rate=1.0, period=100)
    """Target network, which is the policy that acts; updated every 100 gradient steps, as for
    Gym."""
    normalization: RolloutNormalization = RolloutNormalization()
    deviation: str = static("of_state", choices=("of_state", "learned", "fixed"))
    """Standard deviation of a Gaussian policy; see `PolicyHead`."""
    temperature: float = static(1.0, above=0)
    """Initial temperature."""
    multiplier: float = static(5.0, above=0)
    """Initial multiplier of the bound on a categorical policy."""
    box_multiplier: float = static(1.0, above=0)
    """Initial multiplier of both bounds on a Gaussian policy."""

    bound: float = hyper(0.1, above=0)
    """Bound on the divergence of the weights from uniform ones, for the temperature (epsilon). 0.1
    for images, 0.01 for Gym."""
    policy_bound: float = hyper(0.01, above=0)
    """Bound on the KL divergence of a categorical policy. The paper draws it from 0.001 to 0.01."""
    mean_bound: float = hyper(0.01, above=0)
    """Bound on the KL divergence of a Gaussian's mean. The paper draws it from 0.005 to 0.01 for
    Gym."""
    deviation_bound: float = hyper(5e-5, above=0)
    """Bound on the KL divergence of a Gaussian's deviation. The paper draws it from 5e-6 to 5e-5
    for Gym."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation; 1 for the paper's n-step returns."""
    value_weight: float = hyper(1.0, low=0)
    """Weight of the value loss."""


def divergences(old: Any, new: Any) -> dict[str, Array]:
    """Return KL(old || new) [...]; of a Gaussian, that of its mean and that of its deviation."""
    if gaussian(new) is None:
        return {"policy": old.kl_divergence(new)}
    (mean, deviation), (old_mean, old_deviation) = gaussian(new), gaussian(old)  # type: ignore[misc]
    moved, changed = losses.decoupled_gaussian_kl(mean, deviation, old_mean, old_deviation)
    return {"mean": moved, "deviation": changed}


def v_mpo_loss(net: Net, x: Sample, mask: Array | None = None) -> LossOutput:
    """Compute equation 1: the losses of policy, temperature, multipliers and value.

    The first two are defined on the whole window, or on the steps that `mask` marks; each element
    holds its share of the sum.
    """
    h, temperature = net.hyper, net.temperature()
    policy, value = policy_and_value(net, x)
    old, _ = policy_and_value(net.target, x)  # type: ignore[arg-type]
    count = x.advantage.size if mask is None else mask.sum()
    weight = losses.vmpo_weights(x.advantage, temperature, mask) * count
    policy_loss = -weight * policy.log_prob(x.action)
    value_loss = losses.squared_error(value, x.target)
    penalty, metrics = lagrangian(net, divergences(old, policy))
    total = policy_loss + h.value_weight * value_loss + penalty
    total = total + losses.vmpo_temperature(x.advantage, temperature, h.bound, mask)
    metrics |= {"policy_loss": policy_loss, "value_loss": value_loss, "temperature": temperature}
    return LossOutput(total, metrics | {"entropy": policy.entropy()})


def recipe(env: Environment, config: Config) -> Recipe:
    kinds = {"policy": config.multiplier}
    if isinstance(env.action_space, Box):
        kinds = dict.fromkeys(("mean", "deviation"), config.box_multiplier)
    duals = {f"{name}_multiplier": Part(Softplus(x), (), config.dual) for name, x in kinds.items()}
    duals["temperature"] = Part(Softplus(config.temperature), (), config.dual)
    of_window = lambda net, window: v_mpo_loss(net, *window)
    loss = Loss(of_window, ("actor_critic", *duals), "loss")

    def update(net, batch):
        x = estimate_advantages(net, batch)
        window = x, batch.mask
        net = report(net, x).descend(loss, window, mask=batch.mask, weight=batch.weight)
        return net.update_targets()

    network = policy_network(env, config.torso, config.memory, deviation=config.deviation)
    plain = actor_critic_recipe(env, network, config.optimizer, (loss,), update)
    actor_critic = dataclasses.replace(plain.parts["actor_critic"], target=config.target)
    act = sample_and_record()
    return dataclasses.replace(
        plain,
        parts={"actor_critic": actor_critic, **duals},
        act=lambda net, *rest: act(net.target, *rest),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, or invalid memory settings."""
    check_policy(env, config.torso, config.memory, name)


v_mpo = AlgorithmBuilder("v_mpo", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "hidden": (8,),
    "recurrent": 4,
    "period": 2,
    "normalization.observation": True,
    "normalization.reward": True,
}
