"""Ways to act: each returns a function that a `Recipe` can act by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import schedules, spaces, trees
from jaxrl.core.settings import Values
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Key, TimeStep, Tree
from jaxrl.kit.groups import EpsilonGreedy, OrnsteinUhlenbeck, Sampling
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Act
from jaxrl.networks.heads import ILLEGAL, Categorical


class ActionValues(Protocol):
    """Values of all actions."""

    def __call__(self, net: Net, timestep: TimeStep, /) -> Array:
        """Return values [B, A], those of illegal actions far below all others.

        net: parts. timestep: of each environment, [B].
        """
        ...


def mask_illegal(q: Array, timestep: TimeStep) -> Array:
    """Put the values [..., A] of illegal actions far below all others."""
    allowed = timestep.legal_actions
    return q if allowed is None else jnp.where(allowed, q, ILLEGAL)


def epsilon(net: Net, exploration: EpsilonGreedy) -> Array:
    """Return the current probability of a random action."""
    h = net.hyper[exploration]
    return schedules.linear(h.start, h.end, schedules.progress(net.env_steps, h.steps))


def sample_epsilon_greedy(q: Array, epsilon: Array, key: Key) -> Array:
    """Sample epsilon-greedy actions from values q [B, A].

    epsilon: probability, a scalar or [B], of a uniformly random legal action; the values of illegal
        actions are `ILLEGAL`.
    """
    explore_key, action_key = jax.random.split(key)
    random = jax.random.categorical(action_key, jnp.where(q > ILLEGAL, 0.0, ILLEGAL))
    explore = jax.random.uniform(explore_key, random.shape) < epsilon
    return jnp.where(explore, random, q.argmax(-1))


def epsilon_greedy(values: ActionValues, space: Space, exploration: EpsilonGreedy) -> Act:
    """Act by the best of the values, or by any legal action with a probability that falls."""

    def act(net, timestep, memory, key, greedy):
        q = values(net, timestep)
        if greedy:
            action = q.argmax(-1)
        else:
            action = sample_epsilon_greedy(q, epsilon(net, exploration), key)
        return action.astype(space.dtype), memory, {}

    return act


def choose(policy: Any, key: Key, greedy: bool) -> Array:
    """Return the mode of a policy if `greedy`, else a sample."""
    return policy.mode() if greedy else policy.sample(seed=key)


def sample(part: str, space: Space) -> Act:
    """Act by samples of the policy `part`, clipped to the bounds of `space`."""

    def act(net, timestep, memory, key, greedy):
        action = choose(getattr(net, part)(timestep), key, greedy)
        return spaces.clip(space, action), memory, {}

    return act


def sample_with_log_prob(part: str) -> Act:
    """Act by samples of the policy `part`, which the environment clips; also return `log_prob`."""

    def act(net, timestep, memory, key, greedy):
        policy = getattr(net, part)(timestep)
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(choose(policy, key, greedy))
        return action, memory, {"log_prob": policy.log_prob(action)}

    return act


def add_gaussian_noise(
    part: str,
    space: Space,
    half_width: Any,
    scale: Callable[[Values], Array] = lambda hyper: hyper.exploration_noise,
) -> Act:
    """Act by the deterministic policy `part` with Gaussian noise, within bounds.

    half_width: of the bounds of the actions.
    scale: hyperparameters -> standard deviation of the noise in half-widths.
    """

    def act(net, timestep, memory, key, greedy):
        action = getattr(net, part)(timestep)
        if not greedy:
            noise = scale(net.hyper) * half_width
            action = spaces.clip(space, action + noise * jax.random.normal(key, action.shape))
        return action, memory, {}

    return act


def add_drifting_noise(part: str, space: Space, half_width: Any, noise: OrnsteinUhlenbeck) -> Act:
    """Act by the deterministic policy `part` with Ornstein-Uhlenbeck noise, within bounds.

    The memory is the noise [B, *shape], in half-widths of the actions, 0 at an episode's start.
    """

    def act(net, timestep, memory, key, greedy):
        action = getattr(net, part)(timestep)
        if not greedy:
            h = net.hyper[noise]
            begun = trees.where(timestep.first, jnp.zeros_like(memory), memory)
            drawn = jax.random.normal(key, action.shape)
            memory = (1 - h.reversion) * begun + h.deviation * drawn
            action = spaces.clip(space, action + half_width * memory)
        return action, memory, {}

    return act


def random_at_first(act: Act, space: Space) -> Act:
    """Act uniformly at random until the first update, by `act` afterwards.

    That is while a replay buffer warms up, and in the one window that is collected after it.
    """

    def random_or_not(net, timestep, memory, key, greedy):
        action, memory, extras = act(net, timestep, memory, key, greedy)
        if not greedy:
            keys = jax.random.split(jax.random.fold_in(key, 1), timestep.reward.shape[0])
            random = jax.vmap(lambda key: spaces.sample(space, key))(keys)
            action = trees.where(net.updates == 0, random, action)
        return action, memory, extras

    return random_or_not


def temper(
    policy: Categorical,
    temperature: Array | float = 1.0,
    top_p: Array | float = 1.0,
    mask: Array | None = None,
) -> Categorical:
    """Return a categorical policy [...] as it is sampled: sharper or flatter, cut, and masked.

    temperature: divides the logits; below 1 sharper.
    top_p: the smallest set of likeliest actions whose probabilities reach it is kept (nucleus
        sampling), after the temperature; 1 keeps all.
    mask: bool [..., A], actions that are allowed; at least one.

    Source: Holtzman et al., 2020, "The curious case of neural text degeneration", section 3.1.
    """
    logits = policy.logits / temperature
    if mask is not None:
        logits = jnp.where(mask, logits, ILLEGAL)
    logits = jax.nn.log_softmax(logits)
    kept = losses.nlpo_mask(logits, top_p)
    return Categorical(jax.nn.log_softmax(jnp.where(kept, logits, ILLEGAL)))


def sample_tempered(
    act_by: Callable[[Net, TimeStep, Tree], tuple[Categorical, Tree]],
    space: Space,
    sampling: Sampling,
    allowed: Callable[[Net, TimeStep], Array] | None = None,
) -> Act:
    """Act by samples of a categorical policy with a temperature, top-p and a mask; also return
    `log_prob`, that of the policy as it was sampled.

    act_by: (net, timestep, memory) -> policy [B] and the new memory.
    sampling: temperature and top-p. Greedy actions are the mode of the tempered policy.
    allowed: (net, timestep) -> bool [B, A].
    """

    def act(net, timestep, memory, key, greedy):
        policy, memory = act_by(net, timestep, memory)
        h = net.hyper[sampling]
        mask = None if allowed is None else allowed(net, timestep)
        policy = temper(policy, h.temperature, h.top_p, mask)
        action = choose(policy, key, greedy)
        return action.astype(space.dtype), memory, {"log_prob": policy.log_prob(action)}

    return act


def mix(first: Act, second: Act, share: Callable[[Net], Array]) -> Act:
    """Act by `second` with probability `share(net)` in each environment and step, else by `first`.

    Both see and update one memory, which must have the same structure: each environment keeps that
    of the act that was chosen. So it is with what they say about their actions. Greedy actions are
    the first's.
    """

    def act(net, timestep, memory, key, greedy):
        if greedy:
            return first(net, timestep, memory, key, True)
        choice_key, first_key, second_key = jax.random.split(key, 3)
        chosen = jax.random.uniform(choice_key, timestep.reward.shape[:1]) < share(net)
        one = first(net, timestep, memory, first_key, False)
        other = second(net, timestep, memory, second_key, False)
        return trees.where(chosen, other, one)

    return act
