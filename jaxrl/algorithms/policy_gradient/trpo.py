"""Trust region policy optimization (Schulman et al., 2015, arXiv:1502.05477).

Each window improves the surrogate (their equation 14) by one step within a bound on the mean
divergence from the behavior policy: along the natural gradient, as far as the bound allows to
second order, then backtracking until the surrogate is better and the divergence itself is within
the bound (appendix C). If no such step is found, the policy stays as it was.

Advantages are generalized advantage estimates (Schulman et al., 2016, arXiv:1506.02438); the first
paper uses returns. The value function regresses on its targets with Adam, as in OpenAI Baselines;
the second paper has a trust region for it too.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from jaxrl import gradients, losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    Sample,
    sample_of,
    standardize,
)
from jaxrl.core import settings, trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Tree
from jaxrl.kit import AlgorithmBuilder, Minibatch, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import sample_with_log_prob
from jaxrl.kit.exploration import check_noise, remember_noise
from jaxrl.kit.groups import (
    Optimizer,
    Passes,
    RolloutNormalization,
    Rollouts,
    StateDependentNoise,
    Torso,
)
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of TRPO. Defaults are those of OpenAI Baselines (trpo_mpi) for MuJoCo unless noted
    otherwise."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=64)
    """Rollouts of 1,024 steps per update."""
    passes: Passes = Passes(epochs=5, minibatches=16)
    """Epochs of the value function over a window, in minibatches of 64 steps."""
    torso: Torso = Torso(hidden=(32, 32), activation="tanh")
    """Torsos of policy and value; they share no layers."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer of the value function: Adam, 1e-3."""
    normalization: RolloutNormalization = RolloutNormalization()
    """Normalization of observations and rewards: off here; Baselines standardizes observations."""
    gsde: StateDependentNoise = StateDependentNoise()
    iterations: int = static(10, low=1)
    """Number of conjugate gradient iterations; 10 as also in the paper's appendix C.1."""
    backtracks: int = static(10, low=1)
    """Maximum number of steps tried in the line search."""
    shrinkage: float = static(0.5, above=0, below=1)
    """Length of each step tried in the line search, relative to the previous one."""

    max_kl: float = hyper(0.01, above=0)
    """Largest mean KL divergence from the behavior policy (delta). 0.01 is also in the paper's
    table 2; Baselines accepts 1.5 times as much."""
    damping: float = hyper(0.1, low=0)
    """Damping added to the diagonal of the Fisher matrix."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.98, low=0, high=1)
    """Lambda of generalized advantage estimation."""


Objective = Callable[[Tree], tuple[Array, Array]]  # parameters of the policy -> surrogate loss, KL


def make_objective(net: Net, x: Sample, mask: Array | None = None) -> Objective:
    """Return the function from new parameters to their surrogate loss (equation 14, negated) and
    their mean KL(behavior || new), over the steps that `mask` marks; None for all."""
    old = jax.lax.stop_gradient(net.actor(x.timestep))

    def mean(values: Array) -> Array:
        if mask is None:
            return values.mean()
        return jnp.where(mask, values, 0.0).sum() / jnp.maximum(mask.sum(), 1)

    def evaluate(params):
        policy = net.with_params(actor=params).actor(x.timestep)
        loss = losses.surrogate(policy.log_prob(x.action), x.log_prob, x.advantage)
        return mean(loss), mean(old.kl_divergence(policy))

    return evaluate


def fisher(objective: Objective, params: Tree) -> Callable[[Tree], Tree]:
    """Return v -> F v without forming F, the Hessian of the divergence at the behavior policy,
    which is the mean Fisher matrix."""
    return jax.linearize(jax.grad(lambda p: objective(p)[1]), params)[1]


def line_search(
    objective: Objective,
    params: Tree,
    step: Tree,
    max_kl: Array,
    tries: int,
    shrinkage: float = 0.5,
) -> tuple[Tree, dict[str, Array]]:
    """Return the parameters after the first of `step`, `shrinkage` * step, `shrinkage`^2 * step...
    that improves the surrogate within `max_kl`, or `params` if none of `tries` steps does; and
    metrics."""
    before, none = objective(params)

    def attempt(state):
        tried, _, _ = state
        new = jax.tree.map(lambda p, s: p + shrinkage**tried * s, params, step)
        loss, kl = objective(new)
        good = (loss < before) & (kl <= max_kl)
        metrics = {"accepted": good, "improvement": before - loss, "kl": kl}
        return tried + 1, trees.where(good, new, params), trees.where(good, metrics, nothing)

    nothing = {"accepted": jnp.bool_(False), "improvement": jnp.zeros_like(before), "kl": 0 * none}
    more = lambda state: ~state[2]["accepted"] & (state[0] < tries)
    _, params, metrics = jax.lax.while_loop(more, attempt, (jnp.int32(0), params, nothing))
    return params, metrics | {"accepted": metrics["accepted"].astype(jnp.float32)}


def improve_policy(
    net: Net,
    x: Sample,
    iterations: int,
    tries: int,
    shrinkage: float = 0.5,
    *,
    mask: Array | None = None,
) -> Net:
    """Take the policy step for a window, or for those of its steps that `mask` marks (appendix
    C)."""
    h, params, objective = net.hyper, net.parts["actor"].params, make_objective(net, x, mask)
    gradient = jax.grad(lambda p: objective(p)[0])(params)
    product = fisher(objective, params)
    step = gradients.natural_gradient_step(product, gradient, h.max_kl, iterations, h.damping)
    params, metrics = line_search(objective, params, step, h.max_kl, tries, shrinkage)
    norm = optax.tree.norm(gradient)
    return net.with_params(actor=params).report(actor_grad_norm=norm, **metrics)


@loss("critic")
def value_loss(net: Net, x: Sample) -> Array:
    """Compute the squared error of the value."""
    return losses.squared_error(net.critic(x.timestep), x.target)


def recipe(env: Environment, config: Config) -> Recipe:
    torso, timestep = config.torso, example_timestep(env)
    sizes = torso.hidden, torso.activation, torso.initializer
    noise = config.gsde
    kind = {"deviation": "of_noise", "log_std": noise.log_std} if noise.enabled else {}
    actor = Actor(env.observation_space, env.action_space, *sizes, bounded_mean=False, **kind)

    def update(net, batch):
        x = batch.transitions
        x = sample_of(net, batch, net.critic(x.timestep), net.critic(x.next_timestep))
        entropy, explained = net.actor(x.timestep).entropy(), losses.explained_variance
        net = net.report(entropy=entropy.mean(), explained_variance=explained(x.value, x.target))
        net = improve_policy(
            net,
            standardize(x, batch.mask),
            config.iterations,
            config.backtracks,
            config.shrinkage,
            mask=batch.mask,
        )
        window = Minibatch(x, batch.mask, batch.weight)
        return net.epochs(config.passes, window, lambda net, x: net.descend(value_loss, x))

    plain = Recipe(
        parts={
            "actor": Part(actor, (timestep,)),  # changed only by the line search
            "critic": Part(Value(env.observation_space, *sizes), (timestep,), config.optimizer),
        },
        act=sample_with_log_prob("actor", noise),
        losses=(value_loss,),
        update=update,
        needs=("transitions.extras.log_prob",),
    )
    return remember_noise(plain, "actor") if noise.enabled else plain


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, state-dependent noise of actions
    that are no `Box`, a window that does not divide into the minibatches, and early stopping."""
    check_action_space(env.action_space, name)
    check_noise(env, config.gsde, name)
    settings.refuse(config, ("passes.early_stop",), "the line search keeps the policy near, not it")
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)


trpo = AlgorithmBuilder("trpo", Config, recipe, check=check)

TINY = {"env": "pendulum", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 2} | {
    "minibatches": 2,
    "hidden": (8,),
    "normalization.observation": True,
    "normalization.reward": True,
}
