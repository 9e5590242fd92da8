"""Dreamer 4's second phase: improve the cloned policy in imagination (see `shared/dreamer4.py`).

Warm-start it from a run of `dreamer4_world_model`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.planning import dreamer4_world_model
from jaxrl.algorithms.planning.shared import dreamer4
from jaxrl.algorithms.planning.shared.imagination import Dreams, dream, survival_weights
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Recipe, group, hyper, static
from jaxrl.networks.imagination import symexp_atoms
from jaxrl.networks.shortcut_world_model import next_frame


@group
class Config(dreamer4.Config):
    """Settings of Dreamer 4's second phase: improve the cloned policy by PMPO (equation 11) in a
    frozen world model (arXiv:2509.24527)."""

    steps: int = static(4, low=1, high=WIDE)
    """Number of denoising steps for an imagined frame (K); a power of two."""

    discount: float = hyper(0.997, low=0, high=1)
    """Discount factor per step."""
    return_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of the lambda-returns in imagination."""
    alpha: float = hyper(0.5, low=0, high=1)
    """PMPO's weight of actions with a positive advantage; the others get 1 - alpha."""
    beta: float = hyper(0.3, low=0)
    """PMPO's weight of the KL divergence from the cloned policy."""


def behavior_loss(net: Net, x: tuple[Dreams, Array], atoms: Array) -> LossOutput:
    """Compute the value's cross-entropy to the return plus PMPO (equation 11) for each imagined
    step [H, N]. PMPO uses only the signs of advantages, and stays near the cloned policy.

    x: dreams, and which of their steps [H, N] precede an imagined end.
    """
    dreams, there = x
    before, returns = dreams.features[:-1], dreams.returns
    policy, logits = net.policy(before), net.value(before)
    advantage = returns - losses.categorical_mean(logits, atoms)
    divergence = losses.categorical_kl(policy.logits, net.prior(before).logits)
    log_prob, h = policy.log_prob(dreams.action), net.hyper
    policy_loss = losses.pmpo(log_prob, advantage, divergence, h.alpha, h.beta, there)
    value_loss = losses.two_hot_cross_entropy(logits, returns, atoms)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "prior_kl": divergence,
        "imagined_return": returns,
    }
    return LossOutput(policy_loss + value_loss, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    model = dreamer4.network(env, config)
    atoms = symexp_atoms(config.bins, config.symlog_range)

    def contexts(net: Net, batch: Batch):
        """Return the context before one random step of each episode: features [B, width] and
        cache [B]."""
        frames, led, _ = dreamer4.visible_episodes(net, env, batch, config.scale)
        tokens = model.context_token(frames, led, net.key("noise"))
        both = net.model(tokens, method="unroll")
        steps = batch.mask.sum(0)  # type: ignore[union-attr]
        drawn = jax.random.uniform(net.key("time"), steps.shape)
        at = jnp.floor(drawn * steps).astype(jnp.int32)
        return jax.tree.map(lambda x: x[at, jnp.arange(len(at))], both)

    def update(net, batch):
        def dynamics(cache, action, key):
            action = dreamer4.visible_action(net, action, model.num_actions)
            return next_frame(model, net.model, cache, action, key, config.steps)[1:]

        start = contexts(net, batch)
        dreams = dream(net, net.policy, net.value, dynamics, start, config.horizon, atoms)
        # Signs of advantages carry no weight, so steps after an imagined end are masked out.
        goes_on = jax.random.bernoulli(net.key("end"), dreams.continue_prob)
        there = survival_weights(goes_on).astype(bool)
        return net.descend(loss, (dreams, there), mask=there, weight=batch.weight)

    function = functools.partial(behavior_loss, atoms=atoms)
    loss = Loss(function, ("policy", "value"), "behavior_loss")
    return dreamer4.make_recipe(env, config, (loss,), update)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `dreamer4.check`, and for steps that do not fit the noise levels."""
    dreamer4.check(env, config, name)
    dreamer4.check_power_of_two("steps", config.steps)
    if config.steps > config.levels:
        raise UserError(f"steps must be at most levels={config.levels}, got {config.steps}.")


dreamer4_imagination = AlgorithmBuilder(
    "dreamer4_imagination", Config, recipe, check=check, goes_on_from="dreamer4_world_model"
)

TINY = dreamer4_world_model.TINY | {"steps": 2}
