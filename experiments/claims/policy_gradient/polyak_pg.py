"""Polyak's step size against Adam and constant steps along the same policy gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import (
    Arena,
    Claim,
    Metric,
    Mutation,
    Paper,
    Side,
    better,
)
from jaxrl.algorithms.policy_gradient import polyak_pg as polyak_pg_
from jaxrl.core.settings import group
from jaxrl.kit import AlgorithmBuilder
from jaxrl.kit.groups import Optimizer

STEPS = 16 * 500 * 100  # 100 updates of 16 episodes
SETTINGS: dict[str, Any] = {"num_envs": 16, "hidden": (32,)}


@group
class Config(polyak_pg_.Config):
    """Settings of the same gradient, with an optimizer."""

    optimizer: Optimizer = Optimizer()


def by_optimizer(env, config):
    """Build the recipe in which an optimizer takes the steps."""
    ours = polyak_pg_.recipe(env, config)
    part = dataclasses.replace(ours.parts["actor"], optimizer=config.optimizer)

    def update(net, batch):
        value, gradient = polyak_pg_.estimates(net, batch, config.baseline)
        downhill, descent = jax.tree.map(jnp.negative, gradient), net._blueprint.descents["actor"]
        new = descent.step(net.parts["actor"], downhill, net.hyper, net.env_steps)
        net = net.replace(parts=net.parts | {"actor": new})
        return net.report(value=value, actor_grad_norm=optax.tree.norm(gradient))

    return dataclasses.replace(ours, parts={"actor": part}, update=update)


with_optimizer = AlgorithmBuilder("optimized_pg", Config, by_optimizer, check=polyak_pg_.check)

CLAIM = Claim(
    paper=Paper(
        "Enhancing Policy Gradient with the Polyak Step-Size Adaption",
        "Li, Yuan, Fan, Schmidt, Horvath, Gower and Takac",
        2024,
        "2404.07525",
        "Polyak's step size sets the step of policy gradients without tuning, and gives faster "
        "convergence and more stable policies than Adam.",
    ),
    claim="Given V*, with one setting in both environments, Polyak's step learns better than "
    "Adam's with its best rate, and than constant steps.",
    left_out="How twin models estimate an unknown V*, which no source that could be read says: V* "
    "is given, that of Acrobot as a bound. How stable the last policies are; LunarLander.",
    parts=(
        "jaxrl/algorithms/policy_gradient/polyak_pg.py",
        "jaxrl/gradients/steps.py",
        "jaxrl/algorithms/policy_gradient/reinforce.py",
    ),
    metric=Metric("score", 0.0, 1.0),
    environments=(
        Arena("cartpole", STEPS, 20.0, 500.0, settings={"best_return": 99.4}),
        # A good policy swings up in about 60 steps.
        Arena("acrobot", STEPS, -500.0, -70.0, settings={"best_return": -45.0}),
    ),
    sides={
        "Polyak": Side(polyak_pg_.polyak_pg, SETTINGS),
        "Adam": Side(with_optimizer, SETTINGS, {"optimizer.learning_rate": (3e-3, 1e-2, 3e-2)}),
        "constant": Side(
            with_optimizer,
            SETTINGS | {"optimizer.name": "sgd"},
            {"optimizer.learning_rate": (1e-3, 1e-2, 1e-1)},
        ),
    },
    clauses=(
        better("Polyak", "Adam"),
        better("Polyak", "constant"),
    ),
    seeds=48,
    tuning_seeds=4,
    minutes=10.0,
    notes="All sides estimate the same gradient from the same number of episodes. Discounted by "
    "0.99, a return of 500 steps in CartPole is 99.34. The rates of Adam and of constant steps are "
    "tuned in each environment, over three values, and a fourth if the best was at an edge. "
    "Polyak's c is 1; its longest step, 0.1, and the weight of the entropy, 0.1, which all sides "
    "have, were chosen from nine pairs on six other seeds in CartPole: with 1 and 0.01, one seed "
    "in six ended certain of a bad policy. The first attempt had 24 seeds and asked for 0.05 above "
    "constant steps: untestable; the second had 96 and asked to be no more than 0.05 below Adam: "
    "inconclusive, at -0.046 (-0.061 to -0.032).",
    diagnosis="With one setting it is 0.06 of the range behind Adam with the best of its rates, "
    "and no better than the best constant step. In Acrobot the given V* is a bound, -45, while "
    "trained policies get about -57, so its steps stay long. Among values of c from 0.5 to 4, "
    "tried on four seeds in CartPole, 1 was best. Estimates by twin models were not tried.",
    mutations=(
        Mutation(
            "the step ignores the possible gain",
            "jaxrl.gradients:polyak_step_size",
            lambda step: lambda value, best, *rest: step(0 * value, 0 * best + 1, *rest),
        ),
        Mutation(
            "the gradient's norm is not squared",
            "jaxrl.gradients:polyak_step_size",
            lambda step: lambda value, best, square, *rest: step(value, best, square**0.5, *rest),
        ),
    ),
)
