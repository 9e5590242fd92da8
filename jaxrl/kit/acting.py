"""Ways to act: each returns a function that a `Recipe` can act by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.core import schedules, spaces, trees
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.spaces import Discrete, Space
from jaxrl.core.types import Array, Key, ReadingAct, TimeStep, Tree
from jaxrl.kit.exploration import NO_NOISE, choose_with_noise
from jaxrl.kit.groups import EpsilonGreedy, OrnsteinUhlenbeck, Sampling, StateDependentNoise
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Act
from jaxrl.kit.state import State
from jaxrl.networks.heads import ILLEGAL, Categorical, ReadOut


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


def choose_action(
    net: Net, policy: Any, memory: Tree, noise: StateDependentNoise, key: Key, greedy: bool
) -> tuple[Array, Tree]:
    """Return the mode of a policy if `greedy`, else a sample, or an action with state-dependent
    noise; and the memory, a `NoisyMemory` if there is such noise."""
    if noise.enabled:
        return choose_with_noise(net, policy, memory, noise.interval, key, greedy)
    return choose(policy, key, greedy), memory


def sample(part: str, space: Space, noise: StateDependentNoise = NO_NOISE) -> Act:
    """Act by samples of the policy `part`, clipped to the bounds of `space`.

    noise: of exploration. With state-dependent noise the memory is a `NoisyMemory`.
    """

    def act(net, timestep, memory, key, greedy):
        policy = getattr(net, part)(timestep)
        action, memory = choose_action(net, policy, memory, noise, key, greedy)
        return spaces.clip(space, action), memory, {}

    return act


def sample_with_log_prob(part: str, noise: StateDependentNoise = NO_NOISE) -> Act:
    """Act by samples of the policy `part`, which the environment clips; also return `log_prob`.

    noise: of exploration. With state-dependent noise the memory is a `NoisyMemory`.
    """

    def act(net, timestep, memory, key, greedy):
        policy = getattr(net, part)(timestep)
        action, memory = choose_action(net, policy, memory, noise, key, greedy)
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(action)
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


def adopt_as_updated(delay: int = 1) -> Callable[[State, Tree], Tree]:
    """Return an `adopt` for what acts by `random_at_first`: the other agent's state counts as
    updated, `delay` times, so that in a warm start the adopted policy plays the warm-up."""

    def adopt(state: State, other: Tree) -> Tree:
        if not isinstance(other, State):
            return other  # which will not fit
        return dataclasses.replace(other, updates=jnp.full_like(other.updates, delay))

    return adopt


def temper(
    policy: Categorical,
    temperature: Array | float = 1.0,
    top_p: Array | float | None = None,
    mask: Array | None = None,
) -> Categorical:
    """Return a categorical policy [...] as it is sampled: sharper or flatter, cut, and masked.

    temperature: divides the logits; below 1 sharper. Illegal actions stay illegal at any.
    top_p: the smallest set of likeliest actions whose probabilities reach it is kept (nucleus
        sampling), after the temperature and the mask; None keeps all and sorts nothing.
    mask: bool [..., A], actions that are allowed; at least one of the legal ones.

    Source: Holtzman et al., 2020, "The curious case of neural text degeneration", section 3.1.
    """
    if isinstance(policy, ReadOut) and top_p is None and mask is None:
        return policy.at_temperature(temperature)
    legal = policy.logits > ILLEGAL / 2
    legal = legal if mask is None else legal & mask
    logits = jnp.where(legal, policy.logits, ILLEGAL)
    best = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    # Not below ILLEGAL: -inf would make an entropy NaN.
    logits = jnp.maximum((logits - best) / temperature, ILLEGAL)
    logits = jnp.where(legal, logits, ILLEGAL)
    if top_p is not None:
        logits = jnp.where(losses.nlpo_mask(logits, top_p), logits, ILLEGAL)
    return Categorical(logits)


class Restricted(Protocol):
    """A policy, and which of its actions may be sampled."""

    def __call__(
        self, net: Net, timestep: TimeStep, memory: Tree, /
    ) -> tuple[Any, Array | None, Tree]:
        """Return a policy [B], the actions that are allowed (bool [B, A]; None for all that are
        legal), and the new memory.

        net: parts. timestep, memory: of each environment, [B].
        """
        ...


def sample_tempered(
    policy_of: Restricted, sampling: Sampling, read_of: Restricted | None = None
) -> Act:
    """Act by samples of a policy at a temperature, from its nucleus or a given set of actions.

    Greedy actions are the mode of what is sampled from. The act also returns `log_prob`, that of
    the policy as it was sampled, and `allowed`, bool [B, A], where not all legal actions are: so
    that a loss can restrict the policy that learns to the same actions. Policies that are not
    categorical have no temperature; `check_sampling` refuses one for them.

    sampling: temperature and nucleus, which is that of the allowed actions.
    read_of: the same as `policy_of` for the beginnings of episodes [T, B], with the memory [B]
        before and after them; with it the act is a `ReadingAct`.
    """
    nucleus = sampling.nucleus

    def restrict(net, policy, allowed):
        if isinstance(policy, Categorical):
            h = net.hyper[sampling]
            policy = temper(policy, h.temperature, h.top_p if nucleus else None, allowed)
            allowed = policy.logits > ILLEGAL / 2 if nucleus else allowed
        return policy, allowed

    def report(policy, allowed, action):
        extras = {"log_prob": policy.log_prob(action)}
        return extras | ({} if allowed is None else {"allowed": allowed})

    def act(net, timestep, memory, key, greedy):
        policy, allowed, memory = policy_of(net, timestep, memory)
        policy, allowed = restrict(net, policy, allowed)
        action = jax.lax.stop_gradient(choose(policy, key, greedy))
        return action, memory, report(policy, allowed, action)

    if read_of is None:
        return act

    def read(net, timestep, memory, action):
        policy, allowed, memory = read_of(net, timestep, memory)
        return memory, report(*restrict(net, policy, allowed), action)

    return ReadingAct(act, read)


def check_sampling(space: Space, config: Any, name: str) -> None:
    """Raise `UserError` if the settings `config.sampling` and `config.evaluation` have no effect:
    top_p without a nucleus, and anything but their defaults where actions are not `Discrete`."""
    for group in ("sampling", "evaluation"):
        chosen = getattr(config, group)
        if not config.sampling.nucleus and chosen.top_p != 1:
            raise UserError(
                f"{group}.top_p is {chosen.top_p:g}, but sampling.nucleus is off; turn it on."
            )
        if not isinstance(space, Discrete) and chosen != type(chosen)():
            raise UserError(f"{name} has no {group} to set for actions in {space!r}: no logits.")


def sample_geometric_mixture(part: str, weight: Callable[[Net], Array]) -> Act:
    """Act by samples of the geometric mixture of the categorical policy `part`, an actor-critic
    with memory, and its target network; also return `log_prob`.

    Each step's distribution is proportional to pi^(1 - w) target^w. The memory is a pair, that of
    the policy and that of the target network.

    weight: net -> w in [0, 1], a scalar.
    """

    def act(net, timestep, memory, key, greedy):
        own, frozen = memory
        policy, _, own = getattr(net, part)(timestep, own)
        target, _, frozen = getattr(net.target, part)(timestep, frozen)
        mixed = Categorical(solvers.geometric_mixture(policy.logits, target.logits, weight(net)))
        action = jax.lax.stop_gradient(choose(mixed, key, greedy))
        return action, (own, frozen), {"log_prob": mixed.log_prob(action)}

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
