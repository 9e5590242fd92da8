"""Discovering a temporally aware update rule: TA-LPG (Jackson et al., 2024, arXiv:2402.05828), and
LPG (Oh et al., 2020, arXiv:2007.08794) with `clock: 0`.

Each step trains many learners (`lpg`) by the current rule, each in its own environment and for its
own lifetime, and improves the rule by a gradient estimated from them: through the learners' updates
(`outer: gradient`, LPG), or by evolution strategies on whole lifetimes (`outer: evolution`,
TA-LPG).

The policy of a rule is that of a learner trained by it in `env` itself for the longest lifetime; no
other learner sees the parameters of `env`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import optax

from jaxrl.algorithms.meta import lpg
from jaxrl.algorithms.meta.shared import environments
from jaxrl.algorithms.meta.shared.estimators import Baseline, Estimator, evolution, meta_gradient
from jaxrl.algorithms.meta.shared.lifetimes import begin
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.divergence import guard
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hypers, select
from jaxrl.core.train import train
from jaxrl.core.types import REPLICATED, Algorithm, Array, Environment, Key, Tree, struct
from jaxrl.kit import hyper, static
from jaxrl.kit.groups import TRANSFORMATIONS, plain_optimizer
from jaxrl.kit.optimization import descend
from jaxrl.networks.heads import check_discrete
from jaxrl.sources.rollouts import SPLIT
from jaxrl.tasks.basic import draw_once

OUTER = ("gradient", "evolution")


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the search for an update rule."""

    outer: str = static("evolution", choices=OUTER)
    """Estimator of the rule's gradient: evolution (strategies on whole lifetimes) or gradient
    (through updates)."""
    lifetimes: tuple[int, ...] = static((8, 16, 32, 64), low=1, high=MANY, least_length=1)
    """Lifetimes of learners, in updates; each a multiple of `updates` that divides the longest."""
    updates: int = static(8, low=1)
    """Learner updates that the meta-gradient goes through; with evolution, the last updates of a
    lifetime, in which success is measured."""
    pairs: int = static(16, low=1, high=MANY)
    """Number of mirrored pairs of rules (evolution only)."""
    learners: int = static(32, low=1, high=MANY)
    """Number of learners trained in parallel (gradient only)."""
    baseline_updates: int = static(8, low=1)
    """Gradient steps of each learner's baseline on a window (gradient only)."""
    spread: float = static(2.0, low=1)
    """Factor by which float parameters may differ from the environment's own, unless it is a
    table."""

    num_envs: int = static(8, low=1, high=MANY)
    """Number of parallel environments of each learner."""
    num_steps: int = static(16, low=1, high=MANY)
    """Steps of each environment between two updates of its learner."""
    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the learners' hidden layers; none for a table."""
    bootstrap: int = static(8, low=1, high=WIDE)
    """Number of entries of the learners' prediction (m)."""
    rule_width: int = static(16, low=1, high=WIDE)
    """Width of the rule's LSTM."""
    optimizer: str = static("sgd", choices=TRANSFORMATIONS)
    """Optimizer of the learners."""

    learning_rate: float = hyper(1.0, low=0, log=True)
    """Step size of the learners."""
    prediction_weight: float = hyper(0.5, low=0)
    """Weight of the learners' prediction loss (alpha_y)."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step, an input of the rule."""
    clock: float = hyper(1.0, low=0, high=1)
    """Factor of the rule's time inputs: 1 for TA-LPG, 0 for LPG."""

    meta_learning_rate: float = hyper(0.01, low=0, log=True)
    """Step size of Adam on the rule."""
    meta_max_grad_norm: float = hyper(math.inf, above=0, high=math.inf)
    """Maximum global norm of the rule's gradients; longer ones are scaled down. Infinite for no
    limit."""
    sigma: float = hyper(0.1, above=0)
    """Standard deviation of the rule's perturbations (evolution only)."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation in the outer objective (gradient only)."""
    baseline_learning_rate: float = hyper(0.05, low=0, log=True)
    """Step size of Adam on the baselines (gradient only)."""
    entropy_weight: float = hyper(0.05, low=0, log=True)
    """Weight of the policies' entropy in the outer objective (beta_0; gradient only)."""
    prediction_entropy_weight: float = hyper(1e-3, low=0, log=True)
    """Weight of the predictions' entropy in the outer objective (beta_1; gradient only)."""
    signal_weight: float = hyper(1e-3, low=0)
    """Weight of the square of pi_hat in the outer objective (beta_2; gradient only)."""
    target_weight: float = hyper(1e-3, low=0)
    """Weight of the square of y_hat in the outer objective (beta_3; gradient only)."""


@struct
class State:
    """State of the search for an update rule."""

    rule: Tree  # eta
    optimizer: Tree
    learners: Tree  # state of the estimator
    key: Key  # of the learner whose policy stands for the rule
    steps: Array  # int32
    diverged: Array  # int32: the step at which the rule was first not finite, or metrics.NEVER
    hyper: Tree  # last, so that a lookup by name finds it before the learners' copies


def inner_config(config: Config) -> lpg.Config:
    """Return the settings of each learner."""
    shared = {f.name for f in dataclasses.fields(lpg.Config)}
    return lpg.Config(
        **{f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name in shared}
    )


def estimator(env: Environment, config: Config) -> Estimator:
    """Return the estimator of the rule's gradient, from lives in environments around `env`."""
    learner = inner_config(config)
    inner = lpg.on_rollouts(env, learner, draw_once(environments.around(env, config.spread)))
    if config.outer == "evolution":
        return evolution(inner, config.lifetimes, config.pairs, config.updates)
    return meta_gradient(
        inner,
        lpg.network(env, learner).apply,
        Baseline(env, config.hidden),
        example_timestep(env),
        config.lifetimes,
        config.learners,
        config.updates,
        config.baseline_updates,
    )


def ta_lpg(env: Environment, config: Config = Config()) -> Algorithm:
    """Build the search for a rule in environments around `env`. The same arguments give the same
    object. Raises `UserError` for lifetimes that do not divide the longest or are no multiples of
    `updates`, and where `lpg` and `environments.around` do."""
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    _check(env, config)
    home = lpg.on_rollouts(env, inner_config(config))
    assert home.agent is not None
    draw_rule = home.agent.init
    estimate = estimator(env, config)
    optimizer = plain_optimizer("adam")
    defaults = hypers(config)
    inner_names = [name for name in home.hyper if name in defaults]

    def init(key, hyper):
        rule_key, learner_key, key = jax.random.split(key, 3)
        values = select(config, hyper)
        inner_hyper = {name: values[name] for name in inner_names}
        rule = draw_rule(rule_key, home.hyper).rule
        learners = estimate.init(rule, learner_key, inner_hyper)
        counters = jnp.int32(0), jnp.int32(m.NEVER)
        return State(rule, optimizer.init(rule), learners, key, *counters, values)

    def step(state, key):
        hyper = state.hyper
        inner_hyper = {name: hyper[name] for name in inner_names}
        gradient, learners, metrics = estimate.estimate(
            state.rule, state.learners, key, hyper, inner_hyper
        )
        rule, optimizer_state, norm = descend(
            optimizer,
            gradient,
            state.optimizer,
            state.rule,
            hyper["meta_learning_rate"],
            hyper["meta_max_grad_norm"],
        )
        metrics |= {"meta_grad_norm": m.mean(norm), "rule_norm": m.mean(optax.tree.norm(rule))}
        new = dataclasses.replace(state, rule=rule, optimizer=optimizer_state, learners=learners)
        return new, metrics

    def finite(state, metrics):
        return trees.all_finite((state.rule, state.optimizer))

    @jax.jit
    def train_learner(state):
        inner_hyper = {name: state.hyper[name] for name in inner_names}
        longest = max(config.lifetimes)
        life = begin(home, state.rule, state.key, inner_hyper, jnp.int32(longest))
        run, _ = train(home, life.run, longest)
        return run.state

    algorithm = Algorithm(
        f"ta_lpg in environments around {env.name}",
        init,
        step,
        policy=lambda state: home.policy(train_learner(state)),
        hyper=defaults,
        env_steps=estimate.env_steps,
        partition=State(REPLICATED, REPLICATED, SPLIT, *[REPLICATED] * 4),
        config=config,
        num_shards=config.learners if config.outer == "gradient" else config.pairs,
    )
    return guard(algorithm, finite)


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_discrete(env.action_space, "ta_lpg")
    longest = max(config.lifetimes)
    for lifetime in config.lifetimes:
        if lifetime % config.updates or longest % lifetime:
            raise UserError(
                f"lifetimes is {config.lifetimes}; each must be a multiple of "
                f"updates={config.updates} and divide the longest."
            )


TINY = lpg.TINY | {"lifetimes": (2, 4), "updates": 2, "pairs": 4}
