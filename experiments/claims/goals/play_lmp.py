"""Play-LMP's loss where plans and actions are linear and Gaussian, so that plan recognition has a
closed form, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import multivariate_normal, norm

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.goals import play_lmp
from jaxrl.core.types import Array, Key, TimeStep, Transition, struct

STEPS, WINDOWS = 5, 4
ENV = envs.make("point_maze")
assert ENV.goals is not None
Achieved = Callable[[Array], Array]


@struct
class Plans:
    """Normal plans [B, 1], of which every second one that is drawn lies a scale above the mean and
    the others as far below: the mean of a quadratic function of these is the exact one."""

    mean: Array
    scale: Array

    def sample(self, key: Any) -> Array:
        sign = jnp.where(jnp.arange(len(self.mean)) % 2 == 0, 1.0, -1.0)
        return self.mean + sign[:, None] * self.scale


@struct
class Model:
    """A policy of state, goal and plan, and a proposal of plans from state and goal.

    of_state, of_goal: [2], weights of actions' means, which are one number. of_plan: [T], of the
    plan, by the step. noise: scale of actions. first, last: [2], weights of the plan's mean.
    spread: its scale.
    """

    of_state: Array
    of_goal: Array
    of_plan: Array
    noise: Array
    first: Array
    last: Array
    spread: Array

    def propose(self, state: Array, goal: Array) -> Array:
        """Return the means of plans [B, 1]."""
        return (state @ self.first + goal @ self.last)[:, None]

    def without_plan(self, state: Array, goal: Array) -> Array:
        """Return the means of actions [T, B] where the plan is 0."""
        return state @ self.of_state + goal @ self.of_goal

    def recognize(self, state: Array, action: Array, goal: Array) -> Plans:
        """Return the exact plans of windows [T, B]."""
        left = action - self.without_plan(state, goal)
        precision = self.spread**-2 + (self.of_plan**2).sum() / self.noise**2
        pulled = self.propose(state[0], goal) / self.spread**2
        pulled += (self.of_plan @ left / self.noise**2)[:, None]
        return Plans(pulled / precision, jnp.full_like(pulled, precision**-0.5))


def draw(key: Key) -> tuple[Model, Transition, Array, Array]:
    """Return a model, windows of play [T, B], and the mean [T, B] and covariance [T, T] of their
    actions where plans are not known.

    For each of four windows of states there are 2 T of actions, which have the mean and covariance
    of the model's, each twice for the plans that are drawn.
    """
    keys = jax.random.split(key, 9)
    of_state, of_goal = jax.random.normal(keys[0], (2, 2))
    first, last = jax.random.normal(keys[3], (2, 2))
    model = Model(
        of_state,
        of_goal,
        jax.random.uniform(keys[1], (STEPS,), minval=0.5, maxval=1.5),
        jax.random.uniform(keys[2], (), minval=0.5, maxval=1.0),
        first,
        last,
        jax.random.uniform(keys[4], (), minval=0.5, maxval=1.5),
    )
    covariance = model.noise**2 * jnp.eye(STEPS)
    covariance += model.spread**2 * jnp.outer(model.of_plan, model.of_plan)
    root = jnp.sqrt(STEPS) * jnp.linalg.cholesky(covariance).T
    apart = jnp.concatenate([root, -root])  # [2 T, T]
    state = jax.random.normal(keys[5], (STEPS + 1, WINDOWS, 1, 1, 2))
    state = jnp.broadcast_to(state, (STEPS + 1, WINDOWS, 2 * STEPS, 2, 2))
    state = state.reshape(STEPS + 1, -1, 2)
    goal = state[-1]
    mean = model.without_plan(state[:-1], goal)
    mean = mean + model.of_plan[:, None] * model.propose(state[0], goal)[:, 0]
    tiled = jnp.tile(jnp.repeat(apart, 2, 0), (WINDOWS, 1))
    none = jnp.zeros(mean.shape)
    see = lambda state: TimeStep(state, none, none > 0, none > 0, none > 0, goal=0 * state)
    action = mean + tiled.T
    return model, Transition(see(state[:-1]), action, see(state[1:]), (), {}), mean, covariance


def errors_of(
    key: Key,
    beta: float = 1 / STEPS,
    proposed: bool = False,
    achieved: Achieved = lambda observation: observation,
) -> dict[str, Array]:
    """Return the errors of the loss.

    "likelihood": of a window, beside -log p(actions | states, goal) / T. "slope": with respect to
    plan recognition. "gain": of what plans gain over the best policy without them, beside the total
    correlation of actions / T.
    beta: weight of the divergence. proposed: recognition tells what is proposed. achieved: the goal
    that an observation achieves.
    """
    model, x, mean, covariance = draw(key)
    env = dataclasses.replace(ENV, goals=dataclasses.replace(ENV.goals, achieved=achieved))  # type: ignore[type-var]
    plan_loss = play_lmp.recipe(env, play_lmp.Config()).losses[0]
    goal = x.next_observation[-1]

    def propose(timestep: TimeStep) -> Plans:
        center = model.propose(timestep.observation, timestep.goal)
        return Plans(center, jnp.broadcast_to(model.spread, center.shape))

    def acting(timestep: TimeStep, plan: Array, planned: float = 1.0) -> Any:
        """Return the policy of a plan, or where plans are not known."""
        center = model.without_plan(timestep.observation, timestep.goal)
        pull = planned * plan[..., 0]
        scale = jnp.broadcast_to(model.noise, (STEPS,))
        if not planned:
            pull = model.propose(timestep.observation[0], timestep.goal[0])[:, 0]
            scale = jnp.sqrt(jnp.diagonal(covariance))
        center = center + model.of_plan[:, None] * pull
        return SimpleNamespace(log_prob=lambda a: norm.logpdf(a, center, scale[:, None]))

    def value(mean: Array, log_scale: Array, planned: float = 1.0) -> Array:
        """Return the loss of each window, [B / 2]."""
        told = Plans(mean, jnp.exp(log_scale))
        net: Any = SimpleNamespace(
            recognition=lambda timestep, action: told,
            proposal=propose if planned else lambda timestep: told,
            actor=lambda timestep, plan: acting(timestep, plan, planned),
            key=lambda: None,
            hyper=SimpleNamespace(beta=beta),
        )
        output: Any = plan_loss(net, x)
        return output.value.mean(0).reshape(-1, 2).mean(1)

    exact = model.recognize(x.observation, x.action, goal)
    if proposed:
        exact = propose(dataclasses.replace(x.timestep, goal=goal, observation=x.observation[0]))
    at = exact.mean, jnp.log(exact.scale)
    log_prob = jnp.asarray(multivariate_normal.logpdf(x.action.T, mean.T, covariance))
    found, lone = value(*at), value(*at, planned=0.0)
    slope = jax.grad(lambda at: value(*at).sum())(at)
    slope = jax.tree.map(lambda g: g.reshape(-1, 2).sum(1), slope)  # both plans have one mean
    variance = jnp.diagonal(covariance)
    correlation = 0.5 * (jnp.log(variance).sum() - jnp.linalg.slogdet(covariance)[1])
    return {
        "likelihood": jnp.abs(found + log_prob[::2] / STEPS).max(),
        "slope": jnp.maximum(jnp.abs(slope[0]).max(), jnp.abs(slope[1]).max()),
        "gain": jnp.abs(lone.mean() - found.mean() - correlation / STEPS),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss with exact plans."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Learning Latent Plans from Play",
        "Lynch, Khansari, Xiao, Kumar, Tompson, Levine and Sermanet",
        2019,
        "1903.01973",
        "Latent plans tell apart the many ways to a goal in unlabeled play; one policy of goals "
        "and plans is better at 18 tasks than policies cloned from experts of each.",
    ),
    claim="Where plans are linear and Gaussian, exact plan recognition is at rest, and the loss "
    "with beta = 1 / T is the negative log-likelihood of a window's actions given states and goal, "
    "for each of T steps; it is below that of the best policy without plans by the total "
    "correlation of the actions / T.",
    left_out="Networks, learning, tasks and success. Exact recognition reads the goal, which the "
    "algorithm's network is not shown. The default beta, 0.01, is below 1 / T of its 32 steps.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/goals/play_lmp.py", "jaxrl/losses/models/world_models.py"),
    errors=errors,
    planted={
        "the divergence counts at each step": jax.jit(lambda key: errors_of(key, beta=1.0)),
        "recognition tells what is proposed": jax.jit(lambda key: errors_of(key, proposed=True)),
        "no goal": jax.jit(lambda key: errors_of(key, achieved=jnp.zeros_like)),
    },
    tolerance=1e-6,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "the divergence is the reverse one",
            "jaxrl.losses:gaussian_kl",
            lambda kl: lambda mean, scale, other, size: kl(other, size, mean, scale),
        ),
        Mutation(
            "the divergence has no gradient",
            "jaxrl.losses:gaussian_kl",
            lambda kl: lambda *given: jax.lax.stop_gradient(kl(*given)),
        ),
    ),
)
