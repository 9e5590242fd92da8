"""Samples, losses and recipes of actor-critics that learn from windows of rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import Loss, Minibatch, Net, Part, Recipe, Update
from jaxrl.kit.acting import Act, choose_action
from jaxrl.kit.exploration import NO_NOISE, remember_noise
from jaxrl.kit.groups import Memory, StateDependentNoise, Torso
from jaxrl.networks.actor_critic import ActorCritic, check_transformer, context_length
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_action_space

NO_MEMORY = Memory()


@struct
class Sample:
    """Fields of each transition that a gradient step reads, [T, B] or rows of it.

    value, advantage, target: of each step, as estimated when the window was collected.
    memory: [1, B], before the window.
    """

    timestep: TimeStep
    action: Tree
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    memory: Tree


def estimate_advantages(net: Net, batch: Batch, part: str = "actor_critic") -> Sample:
    """Estimate generalized advantages of a window from the values of the actor-critic `part`.

    Each step is bootstrapped from its true successor, so windows, episodes and time limits may end
    anywhere. Source: Schulman et al., 2016, equation 16.
    """
    x, critic = batch.transitions, getattr(net, part)
    _, value, memories = critic(x.timestep, batch.memory, method="unroll")
    # Mapped over time, not reshaped to rows, which would gather arrays split over devices.
    after = jax.vmap(lambda timestep, memory: critic(timestep, memory)[1])
    return sample_of(net, batch, value, after(x.next_timestep, memories))


def sample_of(net: Net, batch: Batch, value: Array, next_value: Array) -> Sample:
    """Estimate generalized advantages of a window, or of those of its steps that its mask marks.

    value, next_value: [T, B], of its steps and of their true successors.
    """
    x, h = batch.transitions, net.hyper
    steps = (x.reward, value, next_value, x.terminated, x.done)
    if batch.mask is None:
        advantage = losses.gae(*steps, h.discount, h.gae_lambda)
    else:
        advantage = losses.masked_gae(*steps, batch.mask, h.discount, h.gae_lambda)
    memory = jax.tree.map(lambda m: m[None], batch.memory)
    log_prob, target = x.extras["log_prob"], advantage + value
    return Sample(x.timestep, x.action, log_prob, value, advantage, target, memory)


def standardize(x: Any, mask: Array | None = None) -> Any:
    """Standardize the advantages of a sample or minibatch (each leaf, if they are a tree).

    mask: which advantages of a sample count; None for all. A minibatch has its own.
    """
    if isinstance(x, Minibatch):
        return dataclasses.replace(x, x=standardize(x.x, x.mask))

    def standardize_leaf(a: Array) -> Array:
        if mask is not None:
            return losses.standardize(a, mask)
        return (a - a.mean()) / (a.std() + 1e-8)

    return dataclasses.replace(x, advantage=jax.tree.map(standardize_leaf, x.advantage))


def policy_and_value(net: Net, x: Any, part: str = "actor_critic") -> tuple[Any, Array]:
    """Apply an actor-critic to the time steps of a sample, or to windows if it has memory."""
    memory = jax.tree.map(lambda m: m[0], x.memory)
    method = "unroll" if jax.tree.leaves(memory) else "__call__"
    return getattr(net, part)(x.timestep, memory, method=method)[:2]


def surrogate(
    policy: Any, action: Tree, old_log_prob: Array, advantage: Array, clip: Array
) -> dict[str, Array]:
    """Return PPO's clipped surrogate `policy_loss` and the `entropy`, [...], and measures of the
    distance from the behavior policy: `approximate_kl`, `clip_fraction`."""
    log_prob = policy.log_prob(action)
    return {
        "policy_loss": losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip),
        "entropy": policy.entropy(),
        "approximate_kl": losses.kl_k3(old_log_prob, log_prob),
        "clip_fraction": jnp.abs(jnp.expm1(log_prob - old_log_prob)) > clip,
    }


def report(net: Net, x: Sample, part: str = "actor_critic") -> Net:
    """Log the explained variance of the values and the step size."""
    return net.report(
        explained_variance=losses.explained_variance(x.value, x.target),
        learning_rate=net.learning_rate(part),
    )


def actor_critic_recipe(
    env: Environment,
    network: ActorCritic,
    optimizer: Any,
    losses: Sequence[Loss],
    update: Update,
    record: tuple[str, ...] = (),
    noise: StateDependentNoise = NO_NOISE,
) -> Recipe:
    """Return the recipe of one actor-critic that acts by sampling and learns from windows.

    optimizer: a settings group. record: see `sample_and_record`. noise: of exploration; the network
    must have been made with the same.
    """
    inputs = (example_timestep(env), network.initial(1))
    recipe = Recipe(
        parts={"actor_critic": Part(network, inputs, optimizer)},
        act=sample_and_record(record, noise=noise),
        losses=losses,
        update=update,
        memory=network.initial,
        needs=("transitions.extras.log_prob", "memory"),
    )
    return remember_noise(recipe, "actor_critic") if noise.enabled else recipe


def sample_and_record(
    record: tuple[str, ...] = (),
    part: str = "actor_critic",
    noise: StateDependentNoise = NO_NOISE,
) -> Act:
    """Return an act function that samples from the actor-critic `part` and records `log_prob`.

    record: further outputs to record: "logits" (of discrete actions), "value".
    noise: of exploration. With state-dependent noise the memory is a `NoisyMemory`.
    """

    def act(net, timestep, memory, key, greedy):
        own = memory.network if noise.enabled else memory
        policy, value, own = getattr(net, part)(timestep, own)
        action, memory = choose_action(net, policy, memory, noise, key, greedy)
        memory = dataclasses.replace(memory, network=own) if noise.enabled else own
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(action)
        extras = {"log_prob": policy.log_prob(action), "value": value}
        if "logits" in record:
            extras["logits"] = policy.logits
        return action, memory, {name: extras[name] for name in ("log_prob", *record)}

    return act


def policy_network(
    env: Environment,
    torso: Torso,
    memory: Memory = NO_MEMORY,
    heads: int = 0,
    deviation: str = "learned",
    values: int = 0,
    noise: StateDependentNoise = NO_NOISE,
) -> ActorCritic:
    """Return the network of an actor-critic for `env`.

    heads: number of tasks, each with its own linear head; 0 for one head that all share.
    deviation: of normal policies; see `networks.heads.PolicyHead`.
    values: length of the value, if it is a vector; 0 for a number.
    noise: of exploration; state-dependent noise takes the place of `deviation`.
    """
    return ActorCritic(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        memory.recurrent,
        torso.initializer,
        heads,
        layers=memory.transformer,
        attention_heads=memory.attention_heads,
        context=context_length(env) if memory.transformer else 0,
        channels=torso.channels,
        deviation="of_noise" if noise.enabled else deviation,
        values=values,
        log_std=noise.log_std if noise.enabled else 0.0,
    )


def check_policy(env: Environment, torso: Torso, memory: Memory, name: str) -> None:
    """Raise `UserError` if no policy with these settings can act in `env`."""
    check_action_space(env.action_space, name)
    check_image(env, torso.channels)
    check_transformer(memory.recurrent, memory.transformer, memory.attention_heads)
