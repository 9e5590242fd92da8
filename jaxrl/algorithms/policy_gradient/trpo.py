"""Trust region policy optimization (Schulman et al., 2015, arXiv:1502.05477).

Of each window the surrogate (their equation 14) is improved by one step within a bound on the mean
divergence from the policy that acted: along the natural gradient, as far as the bound allows to
second order, then backtracking until the surrogate is better and the divergence itself within the
bound (appendix C). A window in which no step is leaves the policy as it was.

Advantages are generalized (Schulman et al., 2016, arXiv:1506.02438), where the first paper has
returns; their value function regresses on its targets by Adam, as in OpenAI Baselines, where the
second paper has a trust region for it too.
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
from jaxrl.kit.groups import Optimizer, Passes, RolloutNormalization, Rollouts, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of TRPO. Where nothing else is said: OpenAI Baselines, trpo_mpi, for MuJoCo."""

    rollouts: Rollouts = Rollouts(num_envs=16, num_steps=64)
    """1,024 steps an update."""
    passes: Passes = Passes(epochs=5, minibatches=16)
    """Of the value over a window, in minibatches of 64 steps."""
    torso: Torso = Torso(hidden=(32, 32), activation="tanh")
    """Of policy and value, each."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Of the value. Adam, 1e-3."""
    normalization: RolloutNormalization = RolloutNormalization()
    """Off here; Baselines standardizes observations."""
    iterations: int = static(10, low=1)
    """Of conjugate gradients. 10: also the paper's appendix C.1."""
    backtracks: int = static(10, low=1)
    """Steps that are tried, each half as long as the one before."""

    max_kl: float = hyper(0.01, above=0)
    """Delta: the largest mean divergence of the policy from the one that acted. 0.01: also the
    paper's table 2. Baselines accepts 1.5 times as much."""
    damping: float = hyper(0.1, low=0)
    """What is added to the diagonal of the Fisher matrix."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    gae_lambda: float = hyper(0.98, low=0, high=1)
    """Lambda of generalized advantage estimation."""


Judge = Callable[[Tree], tuple[Array, Array]]  # parameters of the policy -> surrogate loss, KL


def judge(net: Net, x: Sample) -> Judge:
    """Surrogate loss (equation 14, negated) and mean KL(acting || new) of new parameters."""
    old = jax.lax.stop_gradient(net.actor(x.timestep))

    def evaluate(params):
        policy = net.with_params(actor=params).actor(x.timestep)
        loss = losses.surrogate(policy.log_prob(x.action), x.log_prob, x.advantage)
        return loss.mean(), old.kl_divergence(policy).mean()

    return evaluate


def fisher(judge: Judge, params: Tree) -> Callable[[Tree], Tree]:
    """v -> F v, F the Hessian of the divergence at the policy that acted, which is the mean Fisher
    matrix: no matrix is made."""
    return jax.linearize(jax.grad(lambda p: judge(p)[1]), params)[1]


def line_search(
    judge: Judge, params: Tree, step: Tree, max_kl: Array, tries: int
) -> tuple[Tree, dict[str, Array]]:
    """The parameters after the first of `step`, step / 2, step / 4... that improves the surrogate
    within `max_kl`; `params` if none of so many `tries` does."""
    before, none = judge(params)

    def attempt(state):
        tried, _, _ = state
        new = jax.tree.map(lambda p, s: p + 0.5**tried * s, params, step)
        loss, kl = judge(new)
        good = (loss < before) & (kl <= max_kl)
        said = {"accepted": good, "improvement": before - loss, "kl": kl}
        return tried + 1, trees.where(good, new, params), trees.where(good, said, nothing)

    nothing = {"accepted": jnp.bool_(False), "improvement": jnp.zeros_like(before), "kl": 0 * none}
    more = lambda state: ~state[2]["accepted"] & (state[0] < tries)
    _, params, said = jax.lax.while_loop(more, attempt, (jnp.int32(0), params, nothing))
    return params, said | {"accepted": said["accepted"].astype(jnp.float32)}


def improve_policy(net: Net, x: Sample, iterations: int, tries: int) -> Net:
    """Take a window's step of the policy (appendix C)."""
    h, params, score = net.hyper, net.parts["actor"].params, judge(net, x)
    gradient = jax.grad(lambda p: score(p)[0])(params)
    product = fisher(score, params)
    step = gradients.natural_gradient_step(product, gradient, h.max_kl, iterations, h.damping)
    params, said = line_search(score, params, step, h.max_kl, tries)
    return net.with_params(actor=params).report(actor_grad_norm=optax.tree.norm(gradient), **said)


@loss("critic")
def value_loss(net: Net, x: Sample) -> Array:
    """Compute the squared error of the value."""
    return losses.squared_error(net.critic(x.timestep), x.target)


def recipe(env: Environment, config: Config) -> Recipe:
    torso, timestep = config.torso, example_timestep(env)
    sizes = torso.hidden, torso.activation, torso.initializer
    actor = Actor(env.observation_space, env.action_space, *sizes, bounded_mean=False)

    def update(net, batch):
        x = batch.transitions
        x = sample_of(net, batch, net.critic(x.timestep), net.critic(x.next_timestep))
        entropy, explained = net.actor(x.timestep).entropy(), losses.explained_variance
        net = net.report(entropy=entropy.mean(), explained_variance=explained(x.value, x.target))
        net = improve_policy(net, standardize(x), config.iterations, config.backtracks)
        window = Minibatch(x, batch.mask, batch.weight)
        return net.epochs(config.passes, window, lambda net, x: net.descend(value_loss, x))

    return Recipe(
        parts={
            "actor": Part(actor, (timestep,)),  # moved by the line search alone
            "critic": Part(Value(env.observation_space, *sizes), (timestep,), config.optimizer),
        },
        act=sample_with_log_prob("actor"),
        losses=(value_loss,),
        update=update,
        needs=("transitions.extras.log_prob",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` for an action space without a policy head, a window that does not divide
    into the minibatches, and passes that end early."""
    check_action_space(env.action_space, name)
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
