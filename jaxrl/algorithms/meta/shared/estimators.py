"""Estimators of the gradient of a rule's success with respect to its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl import losses
from jaxrl.algorithms.meta.shared.lifetimes import Life, begin, is_over, live, renew
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.devices import spread
from jaxrl.core.types import Algorithm, Array, Environment, Hyper, Key, Tree, struct
from jaxrl.kit.groups import plain_optimizer
from jaxrl.kit.optimization import descend
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP


@dataclasses.dataclass(frozen=True, eq=False)
class Estimator:
    """Estimator of a rule's gradient, as functions.

    init(rule, key, inner_hyper) -> state
    estimate(rule, state, key, hyper, inner_hyper) -> (gradient to descend, state, metrics)
    env_steps: environment steps in one `estimate`.
    """

    init: Callable[[Tree, Key, Hyper], Tree]
    estimate: Callable[[Tree, Tree, Key, Any, Hyper], tuple[Tree, Tree, dict[str, Any]]]
    env_steps: int


class Baseline(nn.Module):
    """Value network of a learner's policy, the baseline of the outer policy gradient."""

    env: Environment
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, timestep):
        x = MLP(self.widths)(encoders.features(self.env.observation_space, timestep))
        return dense(1, initializer("lecun", 1.0))(x)[..., 0]


@struct
class Learner:
    """A life, and the baseline of its policy."""

    life: Life
    baseline: Tree
    optimizer: Tree


def objective(
    inner: Algorithm,
    outputs: Callable[[Tree, Any], tuple[Any, Any]],
    baseline: Any,
    updates: int,
) -> Callable[..., tuple[Array, Any]]:
    """Return the objective that a rule minimizes in `updates` (K) updates of one learner (Oh et
    al., 2020, section 3.3): the policy gradient loss on a fresh window of the learner's new policy,
    whose parameters depend on the rule, with the paper's regularizers:

        -E[log pi(a | s) A] - entropy_weight H(pi) - prediction_entropy_weight H(y)
            + signal_weight E[pi_hat^2] + target_weight E[|y_hat|^2]

    A is generalized advantage estimation with the learner's baseline.

    outputs(params, timestep) -> the learner's policy, and the logits of its prediction.

    Returns a function (rule, learner, key, hyper, discount) -> the loss, and (life, its metrics,
    its final return, the fresh window, the baseline's targets).
    """
    source = inner.source
    assert source is not None

    def outer(rule, learner, key, hyper, discount):
        life, row, final = live(inner, rule, learner.life, updates)
        state, policy = life.run.state, inner.policy(life.run.state)
        collected, fresh, _ = source.collect(state.source, policy, key)
        transitions = source.sample(collected, fresh, key).transitions
        policy, y = outputs(state.agent.params, transitions.timestep)
        value = baseline.apply(learner.baseline, transitions.timestep)
        next_value = baseline.apply(learner.baseline, transitions.next_timestep)
        advantage = losses.gae(
            transitions.reward,
            value,
            next_value,
            transitions.terminated,
            transitions.done,
            discount,
            hyper["gae_lambda"],
        )
        log_prob = policy.log_prob(transitions.action)
        prediction_entropy = -(jax.nn.softmax(y) * jax.nn.log_softmax(y)).sum(-1).mean()
        loss = (
            losses.policy_gradient(log_prob, advantage).mean()
            - hyper["entropy_weight"] * policy.entropy().mean()
            - hyper["prediction_entropy_weight"] * prediction_entropy
            + hyper["signal_weight"] * row["signal_square"].value()
            + hyper["target_weight"] * row["target_square"].value()
        )
        return loss, (life, row, final, transitions, advantage + value)

    return outer


def meta_gradient(
    inner: Algorithm,
    outputs: Callable[[Tree, Any], tuple[Any, Any]],
    baseline: Any,
    example: Any,
    horizons: tuple[int, ...],
    learners: int,
    updates: int,
    baseline_updates: int,
) -> Estimator:
    """Return the estimator by the gradient of `objective` through `updates` (K) updates of each of
    `learners` lives. Each learner's baseline is fitted to the fresh window after its use. A new
    learner replaces one whose life is over.
    """
    optimizer = plain_optimizer("adam")
    own = [horizons[i % len(horizons)] for i in range(learners)]

    def newborn(rule, key, hyper, horizon):
        life_key, key = jax.random.split(key)
        params = baseline.init(key, example)
        return Learner(begin(inner, rule, life_key, hyper, horizon), params, optimizer.init(params))

    def init(rule, key, hyper):
        keys = jax.random.split(key, learners)
        begin_all = jax.vmap(newborn, in_axes=(None, 0, None, 0))
        return begin_all(rule, keys, hyper, jnp.asarray(own, jnp.int32))

    outer = objective(inner, outputs, baseline, updates)

    def fit(learner, transitions, target, rate):
        def loss(params):
            return jnp.mean((baseline.apply(params, transitions.timestep) - target) ** 2)

        def step(_, carry):
            params, state = carry
            gradient = jax.grad(loss)(params)
            params, state, _ = descend(optimizer, gradient, state, params, rate)
            return params, state

        return jax.lax.fori_loop(0, baseline_updates, step, (learner.baseline, learner.optimizer))

    def one(rule, learner, keys, hyper, inner_hyper):
        gradient, (life, row, final, transitions, target) = jax.grad(outer, has_aux=True)(
            rule, learner, keys[0], hyper, inner_hyper["discount"]
        )
        params, state = fit(learner, transitions, target, hyper["baseline_learning_rate"])
        sound = trees.all_finite((gradient, params))
        fresh = newborn(rule, keys[1], inner_hyper, life.horizon)
        learner = trees.where(is_over(life) | ~sound, fresh, Learner(life, params, state))
        # A learner that its rule drove to infinity carries no information on the direction.
        gradient = trees.where(sound, gradient, jax.tree.map(jnp.zeros_like, gradient))
        return gradient, learner, row, final

    def estimate(rule, learner, key, hyper, inner_hyper):
        keys = jax.random.split(key, (learners, 2))
        gradient, learner, rows, finals = jax.vmap(one, in_axes=(None, 0, 0, None, None))(
            rule, learner, keys, hyper, inner_hyper
        )
        gradient = jax.tree.map(lambda g: g.mean(0), gradient)
        return gradient, learner, m.reduce({**rows, "final_return": finals})

    return Estimator(init, estimate, learners * (updates + 1) * inner.env_steps)


def evolution(inner: Algorithm, horizons: tuple[int, ...], pairs: int, updates: int) -> Estimator:
    """Return the estimator by antithetic evolution strategies over whole lives (Jackson et al.,
    2024, section 4.2): two mirrored rules train in the same environments with the same keys, and
    only the sign of the difference of their final returns counts, since different environments have
    returns of different scales.

    Lives of half the longest horizon run twice, and so on, so that all pairs take equally many
    steps. The success of a life is the mean return of the episodes that ended in its last
    `updates`.
    """
    own = jnp.asarray([horizons[i % len(horizons)] for i in range(pairs)], jnp.int32)

    def lives(rule, key, horizon, hyper):
        """Run all lives of one rule within the longest horizon, one after the other."""

        def block(life, key):
            life, row, final = live(inner, rule, life, updates)
            return renew(inner, rule, life, key, hyper), {**row, "final_return": final}

        first, key = jax.random.split(key)
        keys = jax.random.split(key, max(horizons) // updates)
        life = begin(inner, rule, first, hyper, horizon)
        return m.reduce(jax.lax.scan(block, life, keys)[1])

    def estimate(rule, state, key, hyper, inner_hyper):
        noise_key, key = jax.random.split(key)
        center, unravel = ravel_pytree(rule)
        noise = jax.random.normal(noise_key, (pairs, center.size))
        keys = jax.random.split(key, pairs)

        def of_pair(noise, key, horizon):
            def one(sign):
                rule = unravel(center + sign * hyper["sigma"] * noise)
                return lives(rule, key, horizon, inner_hyper)

            return jax.vmap(one)(jnp.array([1.0, -1.0]))

        rows = jax.vmap(of_pair)(*spread((noise, keys, own)))
        # NaN, the mean of no episodes, is neither higher nor lower.
        value = rows["final_return"].value()
        better = (value[:, 0] > value[:, 1]).astype(jnp.float32)
        worse = (value[:, 0] < value[:, 1]).astype(jnp.float32)
        gradient = losses.antithetic_es_gradient(better, worse, noise, hyper["sigma"])
        rows["pair_difference"] = m.mean(jnp.nan_to_num(jnp.abs(value[:, 0] - value[:, 1])))
        metrics = {k: v if k == "pair_difference" else m.reduce(m.reduce({k: v}))[k]
                   for k, v in rows.items()}  # fmt: skip
        return unravel(-gradient), state, metrics

    env_steps = 2 * pairs * max(horizons) * inner.env_steps
    return Estimator(lambda rule, key, hyper: (), estimate, env_steps)
