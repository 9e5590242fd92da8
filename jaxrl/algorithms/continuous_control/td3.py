"""TD3 (Fujimoto, van Hoof and Meger, 2018, "Addressing function approximation error in actor-critic
methods", arXiv:1802.09477): DDPG that uses the minimum of two critics, smooths target actions by
noise, and updates the policy and all target networks less often than the critics.

By default the replay buffer holds fewer than the authors' million transitions, and layers are 256
wide as in their code (400 and 300 in section 6.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.continuous_control.shared.hooks import (
    ActionPenalty,
    Quantity,
    Term,
    add_terms,
    plain_reward,
)
from jaxrl.algorithms.continuous_control.shared.target_smoothing import Cautious, td3_target
from jaxrl.core.types import Array, Environment
from jaxrl.kit import Act, AlgorithmBuilder, LossOutput, Recipe, group, loss
from jaxrl.kit.acting import add_gaussian_noise, adopt_as_updated, random_at_first
from jaxrl.kit.groups import Optimizer, Replay
from jaxrl.networks.heads import scale


@group
class Config(Cautious, deterministic.Deterministic):
    """Settings of TD3: DDPG with twin critics, target smoothing and delayed policy updates
    (arXiv:1802.09477, algorithm 1)."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256, warmup=25_000)
    """Replay buffer. The warm-up of 25,000 random actions and minibatches of 256 are those of the
    authors' code (1,000 or 10,000, and 100, in section 6.1)."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of policy and critics, separately. Adam, 3e-4: authors' code (1e-3 in
    section 6.1)."""


def actor_value(net: Any, x: Any) -> Array:
    """Return -Q_1(s, mu(s)), [B], of the first critic (algorithm 1)."""
    return -net.critic(x.timestep, net.actor(x.timestep))[..., 0]


def recipe(
    env: Environment,
    config: Any,
    *,
    reward: Quantity = plain_reward,
    weight: Quantity | None = None,
    next_penalty: ActionPenalty | None = None,
    critic_terms: Sequence[Term] = (),
    actor_terms: Sequence[Term] = (),
    improvement: Term = actor_value,
    act: Act | None = None,
    optimizers: tuple[Optimizer, Optimizer] | None = None,
    layer_norm: bool = False,
) -> Recipe:
    """Return TD3's recipe, or that of a variant.

    config: settings of `Cautious`, with a `torso`, an `optimizer` and a `target`.
    reward: what takes the reward's place.
    weight: of each transition's squared error in the critics' loss; None for 1.
    next_penalty: what is subtracted from the value of the next action in the critics' target.
    critic_terms, actor_terms: what is added to the two losses.
    improvement: what the policy descends.
    act: how the agent acts; at random in the warm-up, then with noise, unless said.
    optimizers: settings of policy and critics; `config.optimizer` for both, unless said.
    layer_norm: whether the critics' layers are normalized.
    """
    space = env.action_space

    @loss("critic")
    def critic_loss(net, x):
        """Regress on r + gamma min_i Q'_i(s', a') (algorithm 1)."""
        q = net.critic(x.timestep, x.action)
        target = td3_target(net, x, space, reward(net, x), next_penalty)
        error = losses.squared_error(q, target[..., None]).sum(-1)
        error = error if weight is None else weight(net, x) * error
        return add_terms(LossOutput(error, {"value": q.mean(-1)}), net, x, critic_terms)

    @loss("actor")
    def actor_loss(net, x):
        """Maximize the first critic's Q_1(s, mu(s)) (algorithm 1)."""
        return add_terms(improvement(net, x), net, x, actor_terms)

    noisy = add_gaussian_noise("actor", space, scale(space)[1])  # type: ignore[arg-type]
    plain = deterministic.deterministic_actor_critic(
        env,
        config.torso,
        act or random_at_first(noisy, space),
        (critic_loss, actor_loss),
        *(optimizers or (config.optimizer, config.optimizer)),
        config.target,
        config.num_critics,
        config.delay,
        layer_norm,
    )
    return plain if act else dataclasses.replace(plain, adopt=adopt_as_updated(config.delay))


td3 = AlgorithmBuilder("td3", Config, recipe, check=deterministic.check)

TINY = deterministic.TINY | {"updates": 3}
