"""MuZero: search in a learned model (Schrittwieser et al., 2020, arXiv:1911.08265).

`act` searches from the latent state of what is observed. `update` unrolls the model K steps along
sequences from a replay and regresses policy, value and reward of each step to the search's policy,
an n-step return and the reward that was observed. A fraction of the sequences is reanalysed
(appendix H): searched again with recent parameters. One player, or two that alternate (appendix B):
values are then those of whoever is to move, and change their sign with every step.

What differs: values and rewards are categorical in games too, where the paper regresses scalars;
priorities are the error of the value network at its latest parameters (ours); reanalysed are
sequences, policy and value together, where the paper renews the policy in 80 % of the updates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import gradients, losses
from jaxrl.agents.planning.search import SEARCHES, ModelOutput, RootOutput, Searched, search
from jaxrl.agents.planning.unrolled import targets
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, static
from jaxrl.core.learn import learn
from jaxrl.core.types import (
    Agent,
    Algorithm,
    Environment,
    Info,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.kit.optimisation import TRANSFORMS, descend, transform
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.networks.world_models import ValueEquivalentModel
from jaxrl.sources import proportional, replay, rollouts


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MuZero."""

    num_envs: int = static(16, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(1, low=1, high=MANY)
    """Steps of each environment between two groups of updates."""
    updates: int = static(4, low=1)
    """Gradient steps after each window of num_envs * num_steps steps."""
    batch_size: int = static(64, low=1, high=MANY)
    """Sequences in a gradient step."""
    capacity: int = static(50_000, low=1)
    """Transitions that the replay holds."""
    warmup: int = static(800, low=0)
    """Environment steps before the first gradient step."""

    search: str = static("puct", choices=SEARCHES)
    """puct (the paper's), or gumbel (Gumbel MuZero's)."""
    simulations: int = static(16, low=0)
    """Simulations in a search; 0 acts by the policy's head and learns nothing better than it."""
    unroll: int = static(5, low=1)
    """Steps K that the model is unrolled in a gradient step."""
    n_step: int = static(20, low=1)
    """Rewards in a value's target before what it bootstraps from."""
    reanalyse: float = static(0.0, low=0, high=1)
    """Fraction of the sequences of a batch that are searched again, by the target parameters, which
    then also give the values to bootstrap from; the others have what was stored when acting."""

    width: int = static(64, low=1, high=WIDE)
    """Of a latent state."""
    hidden: tuple[int, ...] = static((128,), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of representation, dynamics and prediction, each."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    num_atoms: int = static(41, low=3, high=WIDE)
    """Atoms of values and rewards, an odd number."""
    support: float = static(20.0, above=0)
    """Atoms reach from -support to support, on the scale of `losses.signed_hyperbolic`."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(3e-3, low=0)
    """Step size."""
    weight_decay: float = hyper(1e-4, low=0)
    """c of the loss's c |params|^2."""
    max_grad_norm: float = hyper(5.0, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    target_step: float = hyper(1.0, low=0, high=1)
    """How far the target parameters move towards the latest in each gradient step; 1 for all."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    value_weight: float = hyper(1.0, low=0)
    """Weight of the value's loss (the paper has 1/4 where it reanalyses)."""
    temperature: float = hyper(1.0, low=0)
    """Of acting by visits (puct)."""
    dirichlet_alpha: float = hyper(0.3, above=0)
    """Concentration of the noise on the root's prior (puct)."""
    dirichlet_fraction: float = hyper(0.25, low=0, high=1)
    """Share of that noise."""
    priority_exponent: float = hyper(0.6, low=0)
    """Of the replay's priorities |value - target|; 0 draws all sequences alike."""
    importance_exponent: float = hyper(0.4, low=0, high=1)
    """Of the importance weights, relative to a batch's largest. (With 1 for both exponents the few
    sequences that are predicted best outweigh all others.)"""


SAMPLING = ("priority_exponent", "importance_exponent")  # those live in the replay


@struct
class State:
    params: Tree
    target: Tree
    optimiser: Tree
    hyper: Tree


def agent(env: Environment, config: Config) -> Agent:
    """The MuZero agent for `env`, which learns from windows [unroll + n_step + 1, B] and feeds
    priorities [B] back."""
    timestep = _check(env, config)
    network: Any = ValueEquivalentModel(
        env.observation_space,
        env.action_space.n,  # type: ignore[union-attr]
        config.num_atoms,
        config.width,
        config.hidden,
        config.activation,
    )
    optimiser = transform(config.optimiser)
    atoms = jnp.linspace(-config.support, config.support, config.num_atoms)
    turn = -1.0 if timestep.reward.ndim > 1 else 1.0  # whether it passes on with every step
    unroll = config.unroll
    own = {name: value for name, value in hypers(config).items() if name not in SAMPLING}
    represent = functools.partial(network.apply, method="represent")
    dynamics = functools.partial(network.apply, method="dynamics")
    predict = functools.partial(network.apply, method="predict")

    def init(key, hyper):
        params = network.init(key, timestep, jnp.zeros(1, jnp.int32))
        own_hyper = {name: jnp.asarray(hyper[name]) for name in own}
        return State(params, jax.tree.map(jnp.copy, params), optimiser.init(params), own_hyper)

    def scalar(logits):
        return losses.signed_parabolic(losses.categorical_mean(logits, atoms))

    def searched(params, timestep: TimeStep, key, greedy, hyper) -> Searched:
        """A search from each of `timestep` [B]."""

        def model(params, key, action, latent):
            latent, reward = dynamics(params, latent, action)
            policy, value = predict(params, latent)
            value = scalar(value)
            discount = jnp.full_like(value, turn * hyper["discount"])
            reward = scalar(reward)
            output = ModelOutput(reward=reward, discount=discount, prior_logits=policy, value=value)
            return output, latent

        latent = represent(params, timestep)
        policy, value = predict(params, latent)
        root = RootOutput(prior_logits=policy, value=scalar(value), embedding=latent)
        return search(
            config.search, model, params, root, timestep.legal_actions, key,
            config.simulations, greedy,
            hyper["temperature"], hyper["dirichlet_alpha"], hyper["dirichlet_fraction"],
        )  # fmt: skip

    def act(state, timestep, memory, key, greedy):
        found = searched(state.params, timestep, key, greedy, state.hyper)
        action = found.action.astype(env.action_space.dtype)  # type: ignore[union-attr]
        return action, memory, {"search": found.policy, "value": found.value}

    def reanalysed(state, window: Transition, policy, stored, key):
        """`policy` [K + 1, B, actions] and `stored` [K + n, B], the search's value after each step,
        renewed in as many sequences as are to be reanalysed."""
        following = predict(state.target, represent(state.target, window.next_timestep))[1]
        following = scalar(following)  # where the episode was cut off, no search has been
        batch = stored.shape[1]
        count = round(config.reanalyse * batch)
        choice_key, search_key = jax.random.split(key)
        chosen = jax.random.permutation(choice_key, batch)[:count]
        renewed = jnp.zeros(batch, bool).at[chosen].set(True)
        if count:
            roots = jax.tree.map(lambda x: x[: unroll + 1, chosen], window.timestep)
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), roots)
            found = searched(state.target, rows, search_key, False, state.hyper)
            fresh = found.policy.reshape(unroll + 1, count, -1)
            policy = policy.at[:, chosen].set(fresh)
        return policy, jnp.where(renewed | window.done, following, stored)

    def predictions(params, timestep: TimeStep, actions):
        """Logits of policy, value and reward, [K + 1, B, ...] each, along `actions` [K, B]."""
        root = represent(params, timestep)

        def step(latent, action):
            latent, reward = dynamics(params, gradients.scale_gradient(latent, 0.5), action)
            return latent, (latent, reward)

        _, (latents, reward) = jax.lax.scan(step, root, actions)
        policy, value = predict(params, jnp.concatenate([root[None], latents]))
        return policy, value, jnp.concatenate([jnp.zeros_like(reward[:1]), reward])

    def update(state, batch, key):
        analysis_key, action_key = jax.random.split(key)
        hyper = state.hyper
        window = jax.tree.map(lambda x: x[:-1], batch.transitions)
        extras = batch.transitions.extras
        policy, next_value = reanalysed(
            state, window, extras["search"][: unroll + 1], extras["value"][1:], analysis_key
        )
        goal = targets(window, policy, next_value, unroll, config.n_step, turn * hyper["discount"])
        action = window.action[:unroll]
        anything = jax.random.randint(action_key, action.shape, 0, policy.shape[-1], action.dtype)
        action = jnp.where(goal.over[:-1], anything, action)
        weight = 1.0 if batch.weight is None else batch.weight
        first = jax.tree.map(lambda x: x[0], window.timestep)

        def loss(params):
            policy, value, reward = predictions(params, first, action)
            errors = losses.muzero(
                policy, value, reward, goal.policy, goal.value, goal.reward, atoms,
                hyper["value_weight"],
            )  # fmt: skip
            error = (weight * jnp.where(goal.known, errors, 0.0).sum(0)).mean()
            decay = hyper["weight_decay"] * optax.tree.norm(params, squared=True)
            return error + decay, (error, jnp.abs(scalar(value[0]) - goal.value[0]))

        gradient, (error, priority) = jax.grad(loss, has_aux=True)(state.params)
        params, optimiser_state, norm = descend(
            optimiser, gradient, state.optimiser, state.params,
            hyper["learning_rate"], hyper["max_grad_norm"],
        )  # fmt: skip
        target = optax.incremental_update(params, state.target, hyper["target_step"])
        metrics = {
            "loss": error,
            "priority": priority.mean(),
            "target_value": goal.value[0].mean(),
            "grad_norm": norm,
            "weight_norm": optax.tree.norm(params),
        }
        return State(params, target, optimiser_state, hyper), Info(metrics, feedback=priority)

    return Agent(
        "muzero",
        init,
        act,
        update,
        hyper=own,
        needs=("transitions.extras.search", "transitions.extras.value"),
        config=config,
    )


def muzero(env: Environment, config: Config = Config()) -> Algorithm:
    """MuZero on `env`, learning from replayed sequences. The same arguments give the same object.

    Raises `UserError` where env and config do not fit: actions that are not Discrete, a game of
    more than two players or without roles, a replay that is too small, a setting that is out of
    its range.
    """
    return _build(env, config)  # however the arguments are passed, one entry of the cache


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    learner = agent(env, config)
    source = replay(
        rollouts(env, config.num_envs, config.num_steps),
        config.capacity,
        config.batch_size,
        config.unroll + config.n_step + 1,
        proportional(config.priority_exponent, config.importance_exponent),
        config.warmup,
    )
    return learn(learner, source, config.updates)


def _check(env: Environment, config: Config) -> TimeStep:
    """A time step [1] of zeros as `env` has it, if it and `config` fit."""
    check(config)
    check_discrete(env.action_space, "muzero")
    timestep = example_timestep(env, agents=True)
    players = timestep.reward.shape[1:]
    if players not in ((), (2,)) or (players and timestep.role is None):
        raise UserError(
            f"'{env.name}' rewards {players[0]} agents; muzero plays alone, or games of two "
            "players whose time steps say whose turn it is (role)."
        )
    if config.num_atoms % 2 == 0:
        raise UserError(f"num_atoms is {config.num_atoms}; it must be odd.")
    return timestep
