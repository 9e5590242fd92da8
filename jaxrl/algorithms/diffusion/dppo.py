"""Diffusion policy policy optimization, DPPO (Ren et al., 2024, arXiv:2409.00588): PPO fine-tunes a
cloned diffusion policy.

Each denoising step is a Gaussian action of a decision process within that of the environment: its
state is the noisy plan, its action the next, less noisy one, and only the last step's action, the
clean plan, reaches the environment. So PPO's clipped surrogate applies to every denoising step,
with an advantage of the plan from a critic of observations alone, which is discounted for early,
noisy steps, and a clip that is smaller for these. Only the last `fine_tuned` denoising steps are
trained; the others stay those of the policy that training begins with. The noise of these steps has
a least standard deviation, for exploration, with which their likelihoods are computed too.

An action of the environment is a plan of which `execute` steps are followed, so rewards of these
are summed, and discounts are per plan. The log-likelihood of a denoising step is the mean over the
numbers of the executed steps, as in the authors' code, which also clamps it to [-5, 2], bounds the
noise, and can add the likelihood of the cloned policy's plans; these are left out. A plan that the
end of a window cuts off is not learned from. The networks are those of `diffusion_policy` here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.chunks import (
    Plan,
    check_length,
    flat_past,
    follow_described_plan,
    no_plan,
)
from jaxrl.algorithms.diffusion.shared.fine_tuning import begin_as_cloned
from jaxrl.algorithms.diffusion.shared.policies import (
    WITHIN_BOUNDS,
    action_size,
    from_units,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Batch, Environment, struct
from jaxrl.diffusion import VariancePreserving
from jaxrl.diffusion.sampling import Predict
from jaxrl.kit import (
    STEP,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import (
    INF,
    Optimizer,
    Passes,
    RolloutNormalization,
    Rollouts,
    Torso,
)
from jaxrl.networks import encoders
from jaxrl.networks.denoisers import TrajectoryDenoiser
from jaxrl.networks.scalar import ScalarMLP


@group
class Config:
    """Settings of DPPO: PPO over the denoising steps of a diffusion policy (arXiv:2409.00588)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=4)
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the denoiser."""
    critic: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the value of observations."""
    torso: Torso = Torso(hidden=(256, 256, 256), activation="silu")
    normalization: RolloutNormalization = RolloutNormalization(observation=True)

    horizon: int = static(16, low=1)
    """Number of actions in a plan."""
    execute: int = static(8, low=1)
    """Number of actions of a plan that are followed."""
    observations: int = static(2, low=1)
    """Number of last observations that the denoiser and the value see."""
    levels: int = static(100, low=1)
    """Number of noise levels in the training of the cloned policy."""
    steps: int = static(20, low=1)
    """Number of denoising steps to act; fewer than the levels skip some of them, as DDIM does."""
    fine_tuned: int = static(10, low=1)
    """Number of denoising steps that are trained, the last ones."""
    width: int = static(128, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(3, low=1)
    """Number of residual blocks of the denoiser, whose reach doubles."""
    clip_rate: float = static(3.0, above=0)
    """Rate of the exponential by which the clipping range grows along the chain, from `first_clip`
    to `clip`."""

    eta: float = hyper(1.0, low=0, high=1)
    """Noise of the denoising steps: 1 for DDPM, 0 for `least_scale` alone."""
    least_scale: float = hyper(0.1, above=0)
    """Least standard deviation of a denoising step when exploring, in half-widths of the
    actions."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per plan."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation, per plan."""
    denoising_discount: float = hyper(0.99, low=0, high=1)
    """Discount factor of the advantage per denoising step that follows."""
    clip: float = hyper(0.01, above=0, high=INF)
    """Clipping range of the probability ratio of the last denoising step around 1."""
    first_clip: float = hyper(0.001, above=0, high=INF)
    """Clipping range of the probability ratio of the first denoising step that is trained."""


@struct
class Sample:
    """Plans [n] that a gradient step reads, at the steps where they were made.

    chain: the last J + 1 samples of the denoising chain, [n, J + 1, H, D].
    condition: what the denoiser and the value are told, [n, C].
    log_prob: of each denoising step when the plan was made, [n, J].
    advantage, target: of each plan, [n], as estimated when the window was collected.
    """

    chain: Array
    condition: Array
    log_prob: Array
    advantage: Array
    target: Array


def step_log_probs(
    chain: Array, mean: Array, scale: Array, execute: int, least_scale: Array
) -> Array:
    """Return the log-likelihoods [J, ...] of denoising steps, averaged over the numbers of the
    executed part of a plan.

    chain: samples [J + 1, ..., H, D]. mean: of each next one, [J, ..., H, D]. scale: [J].
    """
    executed = lambda x: x[..., :execute, :].reshape(*x.shape[:-2], -1)
    sample, mean = executed(chain[1:]), executed(mean)
    wide = jnp.broadcast_to(scale.reshape(-1, *(1,) * (mean.ndim - 2)), mean.shape[:-1])
    return losses.denoising_log_prob(sample, mean, wide, least_scale) / mean.shape[-1]


def whole_plans(made: Array, done: Array, execute: int) -> tuple[Array, Array]:
    """Return which steps [T, B] of a window made plans that were followed to their end in it, and
    which are the last ones before a plan that was not.

    made: whether a plan was made at a step. done: whether the episode ended after it.
    """
    length = made.shape[0]
    row = jnp.arange(length)[:, None]
    # Where the next end of an episode lies, at or after each step; beyond the window for none.
    ends = jax.lax.cummin(jnp.where(done, row, length), axis=0, reverse=True)
    whole = made & ((row + execute <= length) | (ends < length))
    cut = made & ~whole
    return whole, jnp.concatenate([cut[1:], jnp.zeros_like(cut[:1])])


def plan_advantages(net: Net, batch: Batch, see: Any, execute: int) -> tuple[Sample, Array]:
    """Return the plans of a window [T, B] with generalized advantages, and the mask of the steps at
    which whole ones were made.

    see: time steps [...] -> features [..., F].
    """
    x, h = batch.transitions, net.hyper
    past, now, after = x.extras["past"], see(x.timestep), see(x.next_timestep)
    condition = _condition(past, now)
    next_condition = _condition(jnp.concatenate([past, now[..., None, :]], -2)[..., 1:, :], after)
    value, next_value = net.critic(condition), net.critic(next_condition)
    whole, before_cut = whole_plans(x.extras["made"], x.done, execute)
    stop = x.done | before_cut
    steps = (x.reward, value, next_value, x.terminated, stop)
    advantage = losses.masked_gae(*steps, whole, h.discount, h.gae_lambda)
    chain, log_prob = x.extras["chain"], x.extras["log_prob"]
    return Sample(chain, condition, log_prob, advantage, advantage + value), whole


def _condition(past: Array, now: Array) -> Array:
    """Return features of earlier observations [..., P, F] and of the present one as a vector."""
    return jnp.concatenate([past.reshape(*past.shape[:-2], -1), now], -1)


@loss("critic")
def critic_loss(net: Net, x: Sample) -> Array:
    """Regress the value of the observations at which plans were made."""
    return 0.5 * losses.squared_error(net.critic(x.condition), x.target)


def recipe(env: Environment, config: Config) -> Recipe:
    space, size = env.action_space, action_size(env.action_space)
    horizon, execute, trained = config.horizon, config.execute, config.fine_tuned
    past = config.observations - 1
    process = VariancePreserving(config.levels, "cosine", axes=2)
    see = lambda timestep: encoders.features(env.observation_space, timestep)
    width = see(example_timestep(env)).shape[-1]

    def options(net: Net, greedy: bool) -> dict[str, Any]:
        noise = {} if greedy else {"least_scale": net.hyper.least_scale, "noisy_end": True}
        hooks = dataclasses.replace(WITHIN_BOUNDS, **noise)
        return {"steps": config.steps, "eta": net.hyper.eta, "hooks": hooks}

    def log_probs(net: Net, predict: Predict, chain: Array) -> Array:
        """Return the log-likelihoods [J, B] of the last steps of a chain [J + 1, B, H, D]."""
        mean, scale = process.rerun(predict, chain, **options(net, False))
        return step_log_probs(chain, mean, scale, execute, net.hyper.least_scale)

    @loss("denoiser")
    def denoiser_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the clipped surrogate of the denoising steps of plans [n], averaged over them."""
        h, chain = net.hyper, jnp.moveaxis(x.chain, 1, 0)
        predict = lambda noisy, level: net.denoiser(noisy, level, x.condition)
        log_prob, old = log_probs(net, predict, chain), x.log_prob.T
        at = jnp.broadcast_to(jnp.arange(trained)[:, None], log_prob.shape)
        of_plan, remaining = jnp.broadcast_to(x.advantage, at.shape), trained - 1 - at
        advantage = losses.denoising_advantage(of_plan, remaining, h.denoising_discount)
        fraction = at / (trained - 1) if trained > 1 else jnp.ones(at.shape)
        clip = losses.denoising_clip(fraction, h.clip, h.first_clip, config.clip_rate)
        each = losses.clipped_surrogate(log_prob, old, advantage, clip)
        drift = losses.kl_k3(old, log_prob).mean(0)
        outside = (jnp.abs(jnp.expm1(log_prob - old)) > clip).mean(0, dtype=jnp.float32)
        metrics = {"approximate_kl": drift, "clip_fraction": outside}
        return LossOutput(each.mean(0), metrics, drift=drift)

    def step(net: Net, minibatch: Minibatch) -> Net:
        x: Sample = minibatch.x
        scaled = dataclasses.replace(x, advantage=losses.standardize(x.advantage, minibatch.mask))
        minibatch = dataclasses.replace(minibatch, x=scaled)
        return net.descend(denoiser_loss, minibatch).descend(critic_loss, minibatch)

    def update(net: Net, batch: Batch) -> Net:
        x, mask = plan_advantages(net, batch, see, execute)
        mask = mask if batch.mask is None else mask & batch.mask
        net = net.report(plans=mask.mean(dtype=jnp.float32))
        window = Minibatch(x, mask, batch.weight)
        limit = net.hyper.passes.target_kl
        return net.epochs(config.passes, window, step, unit=STEP, max_drift=limit)

    def act(net, timestep, memory, key, greedy):
        now = see(timestep)

        def make_plan(timestep, before, key):
            condition = jnp.concatenate([flat_past(before), now], -1)
            tuned = lambda noisy, level: net.denoiser(noisy, level, condition)
            base = lambda noisy, level: net.base(noisy, level, condition)
            # Levels fall from 1; the last steps are below that of the first one trained.
            visited = process.levels_between(config.steps)
            limit = (visited[config.steps - trained] + 0.5) / config.levels

            def predict(noisy, level):
                early = level.reshape(-1)[0] > limit
                return jax.lax.cond(early, base, tuned, noisy, level)

            shape = (now.shape[0], horizon, size)
            chain = process.sample(key, predict, shape, record=True, **options(net, greedy))
            kept = chain.samples[-trained - 1 :]
            mean, scale = chain.mean[-trained:], chain.scale[-trained:]
            log_prob = step_log_probs(kept, mean, scale, execute, net.hyper.least_scale)
            plans = jnp.clip(kept[-1], -1.0, 1.0)
            return plans, (jnp.moveaxis(kept, 0, 1), log_prob.T)

        action, after = follow_described_plan(
            make_plan, timestep, memory, key, features=now, execute=execute
        )
        # What the plan was made with: at its first step the memory holds it before this one's.
        repeated = jnp.broadcast_to(now[:, None], memory.past.shape)
        before = jnp.where(timestep.first[:, None, None], repeated, memory.past)
        chain, log_prob = after.beside
        extras = {"made": after.at == 1, "past": before, "chain": chain, "log_prob": log_prob}
        return from_units(space, action), after, extras

    def memory(n: int) -> Plan:
        beside = jnp.zeros((n, trained + 1, horizon, size)), jnp.zeros((n, trained))
        return dataclasses.replace(no_plan(n, horizon, size, past, width), beside=beside)

    condition = jnp.zeros((1, (past + 1) * width))
    inputs = (jnp.zeros((1, horizon, size)), jnp.ones(1), condition)
    network = TrajectoryDenoiser(size, config.width, config.blocks)
    torso = config.torso
    value = ScalarMLP(torso.hidden, torso.activation, torso.initializer)
    return Recipe(
        parts={
            "denoiser": Part(network, inputs, config.optimizer),
            "base": Part(network, inputs, begins_as="denoiser"),
            "critic": Part(value, (condition,), config.critic),
        },
        act=act,
        losses=(denoiser_loss, critic_loss),
        update=update,
        memory=memory,
        needs=tuple(f"transitions.extras.{n}" for n in ("made", "past", "chain", "log_prob")),
        adopt=begin_as_cloned,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, plans are as long as they are followed
    and fit into a window, the steps that are trained exist, and windows divide into minibatches."""
    policies.check(env, config, name)
    check_length(config)
    if config.steps > config.levels:
        raise UserError(
            f"steps is {config.steps}; there are only {config.levels} levels to visit (levels)."
        )
    if config.fine_tuned > config.steps:
        raise UserError(
            f"fine_tuned is {config.fine_tuned}; a plan has only {config.steps} denoising steps "
            "(steps)."
        )
    x = config.rollouts
    if x.num_steps < config.execute:
        raise UserError(
            f"num_steps is {x.num_steps}; a window must hold the {config.execute} steps (execute) "
            "of a plan."
        )
    config.passes.check(x.num_envs, x.num_steps, x.num_shards, STEP)


dppo = AlgorithmBuilder("dppo", Config, recipe, check=check, goes_on_from="diffusion_policy")

TINY = {
    "env": "pendulum", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 2,
    "minibatches": 2, "early_stop": True, "hidden": (8,), "normalization.reward": True,
    "horizon": 4, "execute": 2, "levels": 3, "steps": 3, "fine_tuned": 2, "width": 8, "blocks": 1,
}  # fmt: skip
