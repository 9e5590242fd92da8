"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), synchronous.

One gradient step on each window, of the policy gradient with generalized advantages. PPO with one
epoch of one minibatch has the same gradient (Huang et al., 2022, arXiv:2205.09123).
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    actor_critic_recipe,
    check_policy,
    estimate_advantages,
    policy_and_value,
    policy_network,
    report,
)
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss
from jaxrl.kit.exploration import check_noise
from jaxrl.kit.groups import (
    LinearImageTorso,
    Memory,
    Optimizer,
    RolloutNormalization,
    Rollouts,
    StateDependentNoise,
)


@group
class Config:
    """Settings of A2C."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=5)
    torso: LinearImageTorso = LinearImageTorso(hidden=(64, 64), activation="tanh")
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer(
        "rmsprop", learning_rate=7e-4, decay=0.99, max_grad_norm=0.5, eps=1e-5, flat=True
    )
    """RMSProp with decay 0.99, as in their supplement, which draws the step size from [1e-4, 1e-2].
    The step size, the norm and the epsilon are those of OpenAI Baselines' a2c. Both decay the step
    size linearly to 0 at the end of the run (here: `learning_rate_steps`)."""
    normalization: RolloutNormalization = RolloutNormalization()
    gsde: StateDependentNoise = StateDependentNoise()
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation; 1 for n-step returns."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss, half the squared error; 1 for what Baselines' 0.5 amounts to, whose
    squared error is not halved."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


@loss("actor_critic", name="loss")
def a2c_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the loss of algorithm S3: the policy gradient, a value loss and an entropy bonus."""
    policy, value = policy_and_value(net, x)
    entropy = policy.entropy()
    policy_loss = losses.policy_gradient(policy.log_prob(x.action), x.advantage)
    value_loss = losses.squared_error(value, x.target)
    total = policy_loss + net.hyper.value_weight * value_loss - net.hyper.entropy_weight * entropy
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return LossOutput(total, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        x = estimate_advantages(net, batch)
        return report(net, x, mask=batch.mask).descend(
            a2c_loss, x, mask=batch.mask, weight=batch.weight
        )

    network = policy_network(env, config.torso, config.memory, noise=config.gsde)
    return actor_critic_recipe(
        env, network, config.optimizer, (a2c_loss,), update, noise=config.gsde
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, invalid memory settings, and
    state-dependent noise of actions that are no `Box`."""
    check_policy(env, config.torso, config.memory, name)
    check_noise(env, config.gsde, name)


a2c = AlgorithmBuilder("a2c", Config, recipe, check=check)

TINY = {"env": "cartpole", "num_envs": 8, "num_steps": 4, "num_shards": 4, "hidden": ()}
