"""Proximal policy optimization (Schulman et al., 2017, arXiv:1707.06347).

Act for a window of steps; then, for several epochs over shuffled minibatches of it, descend the
clipped surrogate of the policy, a value loss and an entropy bonus (their equation 9), with
generalized advantages (Schulman et al., 2016). Details follow Andrychowicz et al. (2021).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import Act
from jaxrl.kit.groups import (
    INF,
    ImageTorso,
    Memory,
    Optimizer,
    Passes,
    RolloutNormalization,
    Rollouts,
)
from jaxrl.networks.actor_critic import ActorCritic, check_transformer, context
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of PPO."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=128)
    passes: Passes = Passes(epochs=4, minibatches=4)
    torso: ImageTorso = ImageTorso(hidden=(64, 64), activation="tanh")
    memory: Memory = Memory()
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    """Adam, constant 3e-4: their table 3 (MuJoCo; in table 5, Atari, 2.5e-4 falls linearly to 0).
    The norm of 0.5 and the epsilon are those of their code (OpenAI Baselines, ppo2)."""
    normalization: RolloutNormalization = RolloutNormalization()

    heads: int = static(0, low=0)
    """Linear heads of policy and value, one for each task, chosen by a one-hot in the goal channel;
    0 for one head that all tasks share."""
    record: tuple[str, ...] = static((), choices=("logits", "value"))
    """What the policy says of every step beside its log-probability: logits (of discrete actions),
    value."""
    normalize_advantage: bool = True
    """Standardize the advantages of each minibatch."""

    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""
    value_clip: float = hyper(INF, above=0, high=INF)
    """How far a value may move from its old one before its gradient stops."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""


@struct
class Sample:
    """What a gradient step sees of each transition, [T, B] (or rows of it)."""

    timestep: TimeStep
    action: Tree
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    memory: Tree  # [1, B]: before the window

    @property
    def reward(self) -> Array:
        """Its shape is that of a batch."""
        return self.advantage


def advantages(net: Net, batch: Batch, part: str = "actor_critic") -> Batch:
    """The window with generalized advantages (equation 11), by the values of `part`. The successor
    of each step is the true one, so a window, an episode and a time limit may end anywhere."""
    x, critic = batch.transitions, getattr(net, part)
    _, value, memories = critic(x.timestep, batch.memory, method="unroll")
    # Mapped over time, not reshaped to rows: that would gather what is split over devices.
    after = jax.vmap(lambda timestep, memory: critic(timestep, memory)[1])
    return judged(net, batch, value, after(x.next_timestep, memories))


def judged(net: Net, batch: Batch, value: Array, next_value: Array) -> Batch:
    """The window with generalized advantages, by the values [T, B] of its steps and of their true
    successors."""
    x, h = batch.transitions, net.hyper
    advantage = losses.gae(
        x.reward, value, next_value, x.terminated, x.done, h.discount, h.gae_lambda
    )
    memory = jax.tree.map(lambda m: m[None], batch.memory)
    log_prob, target = x.extras["log_prob"], advantage + value
    sample = Sample(x.timestep, x.action, log_prob, value, advantage, target, memory)
    return dataclasses.replace(batch, transitions=sample)


def standardized(batch: Batch) -> Batch:
    """A minibatch with standardized advantages, or each of a tree of them."""
    x: Any = batch.transitions
    advantage = jax.tree.map(lambda a: (a - a.mean()) / (a.std() + 1e-8), x.advantage)
    return dataclasses.replace(batch, transitions=dataclasses.replace(x, advantage=advantage))


def looked(net: Net, x: Any) -> tuple[Any, Array]:
    """Policy and value of the time steps of a sample, or of windows where there is memory."""
    memory = jax.tree.map(lambda m: m[0], x.memory)
    method = "unroll" if jax.tree.leaves(memory) else "__call__"
    return net.actor_critic(x.timestep, memory, method=method)[:2]


def loss(net: Net, x: Sample) -> tuple[Array, dict[str, Array]]:
    """`objective` of the actor-critic."""
    return objective(net, x, *looked(net, x))


def objective(net: Net, x: Sample, policy: Any, value: Array) -> tuple[Array, dict[str, Array]]:
    """Equation 9, negated: the clipped surrogate (equation 7), a value loss, an entropy bonus."""
    h = net.hyper
    said = surrogate(policy, x.action, x.log_prob, x.advantage, h.clip)
    value_loss = losses.clipped_squared_error(value, x.value, x.target, h.value_clip)
    total = said["policy_loss"] + h.value_weight * value_loss - h.entropy_weight * said["entropy"]
    return total, said | {"value_loss": value_loss}


def surrogate(
    policy: Any, action: Tree, old_log_prob: Array, advantage: Array, clip: Array
) -> dict[str, Array]:
    """What a policy is judged by, [...]: the clipped surrogate `policy_loss` and the `entropy`; and
    how far it is from the one that acted."""
    log_prob = policy.log_prob(action)
    return {
        "policy_loss": losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip),
        "entropy": policy.entropy(),
        "approximate_kl": losses.kl_k3(old_log_prob, log_prob),
        "clip_fraction": jnp.abs(jnp.expm1(log_prob - old_log_prob)) > clip,
    }


def report(net: Net, batch: Batch) -> Net:
    x: Any = batch.transitions
    return net.report(
        explained_variance=losses.explained_variance(x.value, x.target),
        learning_rate=net.learning_rate("actor_critic"),
    )


def too_far(net: Net) -> Array:
    """Whether a minibatch's policy is further than `target_kl` from the one that collected it."""
    return net.metrics["approximate_kl"] > net.hyper.passes.target_kl


def recipe(env: Environment, config: Config) -> Recipe:
    def turn(net, batch):
        return net.descend("loss", standardized(batch) if config.normalize_advantage else batch)

    def update(net, batch):
        batch = advantages(net, batch)
        return report(net, batch).passes(config.passes, batch, turn, too_far)

    return on_rollouts(env, config, Loss(loss, ("actor_critic",)), update)


def on_rollouts(
    env: Environment, config: Any, loss: Loss, update: Callable[[Net, Batch], Net]
) -> Recipe:
    """A recipe of one actor-critic that acts by sampling and learns `loss` from windows."""
    network = policy_network(env, config)
    timestep = example_timestep(env)
    return Recipe(
        parts={"actor_critic": Part(network, (timestep, network.initial(1)))},
        act=sampled(getattr(config, "record", ())),
        losses={"loss": loss},
        update=update,
        memory=network.initial,
        needs=("transitions.extras.log_prob", "memory"),
        sequences=network.recurrent > 0,
    )


def sampled(record: tuple[str, ...] = (), part: str = "actor_critic") -> Act:
    """A sample of the policy of `part`, or its mode; it says the log-probability, and what is in
    `record`: logits, value."""

    def act(net, timestep, memory, key, greedy):
        policy, value, memory = getattr(net, part)(timestep, memory)
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(policy.mode() if greedy else policy.sample(seed=key))
        said = {"log_prob": policy.log_prob(action), "value": value}
        if "logits" in record:
            said["logits"] = policy.logits
        return action, memory, {name: said[name] for name in ("log_prob", *record)}

    return act


def policy_network(env: Environment, config: Any) -> Any:
    """The module whose weights the part `actor_critic` has: for who wants to know more than `act`
    says."""
    torso, memory = config.torso, getattr(config, "memory", Memory())
    return ActorCritic(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        memory.recurrent,
        torso.initializer,
        getattr(config, "heads", 0),
        layers=memory.transformer,
        attention_heads=memory.attention_heads,
        context=context(env) if memory.transformer else 0,
        channels=getattr(torso, "channels", ()),
        deviation=getattr(config, "deviation", "learned"),
    )


def check_policy(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` where no policy of these settings can act in `env`."""
    check_action_space(env.action_space, name)
    check_image(env, getattr(config.torso, "channels", ()))
    memory = config.memory
    check_transformer(memory.recurrent, memory.transformer, memory.attention_heads)


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` where env and config do not fit: an action space without a policy head, a
    window that does not divide into the minibatches, heads that no time step chooses among."""
    check_policy(env, config, name)
    if "logits" in config.record and not isinstance(env.action_space, Discrete):
        raise UserError(
            f"record asks for logits, which only discrete actions have; '{env.name}' has "
            f"{env.action_space!r}."
        )
    goals = jax.tree.leaves(example_timestep(env).goal)
    if config.heads and (not goals or goals[-1].shape != (1, config.heads)):
        raise UserError(
            f"heads is {config.heads}, but no time step of '{env.name}' says which is meant; its "
            f"goal channel must end in a one-hot of {config.heads} (see infer_task)."
        )
    x, sequences = config.rollouts, config.memory.recurrent > 0
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, sequences)


ppo = AlgorithmBuilder("ppo", Config, recipe, check=check)

TINY = {
    "env": "cartpole", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 2,
    "minibatches": 2, "early_stop": True, "hidden": (8,), "recurrent": 4,
    "normalization.observation": True, "normalization.reward": True, "record": ("logits", "value"),
}  # fmt: skip
