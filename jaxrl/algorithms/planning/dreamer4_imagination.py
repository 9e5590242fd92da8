"""Dreamer 4's second phase: the cloned policy improved in imagination (see `dreamer4`). It is to be
warm-started from `dreamer4_world_model`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.planning import dreamer4_world_model
from jaxrl.algorithms.planning.shared import dreamer4
from jaxrl.algorithms.planning.shared.imagination import Dreams, dream, until
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Recipe, group, hyper, static
from jaxrl.networks.imagination import symexp_atoms
from jaxrl.networks.shortcut_world_model import next_frame


@group
class Config(dreamer4.Config):
    """Settings of Dreamer 4's second phase."""

    steps: int = static(4, low=1, high=WIDE)
    """Denoising steps of an imagined frame, a power of two (K)."""

    discount: float = hyper(0.997, low=0, high=1)
    """Gamma, per step."""
    return_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of the returns."""
    alpha: float = hyper(0.5, low=0, high=1)
    """PMPO's weight of actions that did better than expected; the others have the rest."""
    beta: float = hyper(0.3, low=0)
    """PMPO's weight of the divergence to the cloned policy."""


def behavior_loss(net: Net, x: tuple[Dreams, Array], atoms: Array) -> LossOutput:
    """For each imagined step [H, N]: the value's cross-entropy to the return,
    and PMPO (equation 11), which follows signs of advantages, near the cloned policy.

    x: what was imagined, and which of its steps [H, N] are before an imagined end.
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
        """Of every episode what came before a step of it, drawn at random: features [B, width],
        cache [B]."""
        frames, led, _ = dreamer4.told_episodes(net, env, batch, config.scale)
        tokens = model.context_token(frames, led, net.key("noise"))
        both = net.model(tokens, method="unroll")
        steps = batch.mask.sum(0)  # type: ignore[union-attr]
        drawn = jax.random.uniform(net.key("time"), steps.shape)
        at = jnp.floor(drawn * steps).astype(jnp.int32)
        return jax.tree.map(lambda x: x[at, jnp.arange(len(at))], both)

    def update(net, batch):
        def dynamics(cache, action, key):
            action = dreamer4.known(net, action, model.num_actions)
            return next_frame(model, net.model, cache, action, key, config.steps)[1:]

        start = contexts(net, batch)
        dreams = dream(net, net.policy, net.value, dynamics, start, config.horizon, atoms)
        # Signs of advantages have no weights: steps after an imagined end are left out.
        goes_on = jax.random.bernoulli(net.key("end"), dreams.continue_prob)
        there = until(goes_on).astype(bool)
        return net.descend(loss, (dreams, there), mask=there, weight=batch.weight)

    function = functools.partial(behavior_loss, atoms=atoms)
    loss = Loss(function, ("policy", "value"), "behavior_loss")
    return dreamer4.on_recorded(env, config, (loss,), update, "dreamer4_world_model")


def check(env: Environment, config: Config, name: str) -> None:
    """As `dreamer4.check`, and for denoising steps that do not fit the levels of noise."""
    dreamer4.check(env, config, name)
    dreamer4.power_of_two("steps", config.steps)
    if config.steps > config.levels:
        raise UserError(f"steps must be at most levels={config.levels}, got {config.steps}.")


dreamer4_imagination = AlgorithmBuilder("dreamer4_imagination", Config, recipe, check=check)

TINY = dreamer4_world_model.TINY | {"steps": 2}
