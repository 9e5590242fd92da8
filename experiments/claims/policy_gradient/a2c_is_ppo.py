"""A2C written out on its own and PPO with matched settings: do they train the same parameters?"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.policy_gradient.a2c import Config, a2c
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core.learn import learn
from jaxrl.core.train import start, train
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, Key, Tree, struct
from jaxrl.envs import make
from jaxrl.kit.groups import Passes
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.actor_critic import ActorCritic

UPDATES = 100  # of 80 steps


@functools.cache
def cartpole() -> Environment:
    """Return CartPole with states that stay float32 where JAX has float64."""
    env = make("cartpole")
    narrow = lambda tree: jax.tree.map(
        lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )
    return dataclasses.replace(
        env,
        reset=lambda *arguments: narrow(env.reset(*arguments)),
        step=lambda *arguments: narrow(env.step(*arguments)),
    )


def as_ppo(config: Config) -> Any:
    """Return the settings under which PPO is A2C."""
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return ppo.Config(passes=Passes(1, minibatches=1), normalize_advantage=False, **shared)


@struct
class State:
    params: Tree
    optimizer: Tree


def plain_a2c(env: Environment, config: Config) -> Agent:
    """Synchronous advantage actor-critic (Mnih et al., 2016, algorithm S3).

    It shares the network, its first weights and the settings with ours, and nothing of its update.
    """
    ours = a2c.agent(env, config)
    h: Any = ours.hyper  # rounded to float32
    network: Any = ActorCritic(env.observation_space, env.action_space, config.torso.hidden)
    optimizer = optax.chain(
        optax.clip_by_global_norm(h["optimizer.max_grad_norm"]),
        optax.scale_by_rms(decay=0.99, eps=1e-5),
        optax.scale(-h["optimizer.learning_rate"]),
    )

    def init(key, hyper):
        params = params_of(ours.init(key, ours.hyper))["actor_critic"]
        return State(params, optimizer.init(params))

    def act(state, timestep, memory, key, greedy):
        policy, _, _ = network.apply(state.params, timestep, ())
        return policy.sample(seed=key), (), {}

    def value_of(params, timestep):
        return network.apply(params, timestep, (), method="unroll")[1]

    def returns(params, transitions) -> Array:
        following = value_of(params, transitions.next_timestep)
        total, totals = following[-1], []
        for t in reversed(range(config.rollouts.num_steps)):
            later = jnp.where(transitions.truncated[t], following[t], total)
            total = transitions.reward[t] + h["discount"] * later * ~transitions.terminated[t]
            totals.append(total)
        return jnp.stack(totals[::-1])

    def loss(params, transitions, target, advantage):
        policy, value, _ = network.apply(params, transitions.timestep, (), method="unroll")
        policy_loss = -jnp.mean(advantage * policy.log_prob(transitions.action))
        return policy_loss + h["value_weight"] * jnp.mean(jnp.square(target - value) / 2)

    def update(state, batch, key):
        transitions = batch.transitions
        target = returns(state.params, transitions)
        advantage = target - value_of(state.params, transitions.timestep)
        gradient = jax.grad(loss)(state.params, transitions, target, advantage)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer)
        return State(optax.apply_updates(state.params, updates), optimizer_state), Info({})

    return Agent("plain A2C", init, act, update)


def train_params(algorithm: Algorithm, key: Key) -> Tree:
    """Return the parameters after `UPDATES` updates in float64, from weights drawn in float32."""
    wide = lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x
    run = start(algorithm, key)
    state = dataclasses.replace(run.state, agent=jax.tree.map(wide, run.state.agent))
    run, _ = train(algorithm, dataclasses.replace(run, state=state), UPDATES)
    return params_of(run.state.agent)


def distance(params: Tree, reference: Tree) -> Array:
    """Return the largest absolute difference over the largest parameter of `reference`."""
    flat = lambda tree: jnp.concatenate([x.ravel() for x in jax.tree.leaves(tree)])
    return jnp.abs(flat(params) - flat(reference)).max() / jnp.abs(flat(reference)).max()


@functools.cache
def variants() -> dict[str, Algorithm]:
    """Return the algorithms that must equal plain A2C, and PPO with one setting that differs."""
    env, config = cartpole(), Config()
    matched = as_ppo(config)
    wrong = {
        "two epochs": {"passes": Passes(2, minibatches=1)},
        "standardized advantages": {"normalize_advantage": True},
        "lambda of 0.95": {"gae_lambda": 0.95},
    }
    return {
        "A2C of jaxrl": a2c(env, config),
        "PPO with matched settings": ppo(env, matched),
    } | {name: ppo(env, dataclasses.replace(matched, **x)) for name, x in wrong.items()}


@functools.partial(jax.jit, static_argnums=1)
def differences(key: Key, names: tuple[str, ...]) -> dict[str, Array]:
    """Return the distance of each variant's parameters from those of plain A2C."""
    env, config = cartpole(), Config()
    plainly = train_params(learn(plain_a2c(env, config), config.rollouts.source(env)), key)
    return {n: distance(train_params(variants()[n], key)["actor_critic"], plainly) for n in names}


CLAIM = Exact(
    paper=Paper(
        "A2C is a special case of PPO",
        "Huang, Kanervisto, Raffin, Wang, Ontanon and Dossa",
        2022,
        "2205.09123",
        "A2C is a special case of PPO: with one epoch, one minibatch, no standardized advantages, "
        "lambda 1 and the same optimizer, both train exactly the same models (Atari).",
    ),
    claim="A2C and PPO give exactly the same trained models when the other settings are matched.",
    left_out="Atari, and the libraries (Stable-Baselines3) whose A2C and PPO the paper compares.",
    parts=("jaxrl/algorithms/policy_gradient/a2c.py", "jaxrl/algorithms/policy_gradient/ppo.py"),
    errors=lambda key: differences(key, ("A2C of jaxrl", "PPO with matched settings")),
    planted={
        f"PPO with {name}": lambda key, name=name: differences(key, (name,))
        for name in ("two epochs", "standardized advantages", "lambda of 0.95")
    },
    seeds=10,
    minutes=1.0,
    notes="An error is the largest difference of a parameter, relative to the largest parameter, "
    "from A2C written out on its own (n-step returns, losses, and optax's RMSprop), after 100 "
    "updates of 80 steps in CartPole with the same keys.",
    mutations=(
        Mutation(
            "advantages reach past the ends of episodes",
            "jaxrl.losses:gae",
            lambda gae: (
                lambda reward, value, after, terminated, done, *rest: gae(
                    reward, value, after, terminated, jnp.zeros_like(done), *rest
                )
            ),
        ),
        Mutation(
            "PPO's ratio is squared",
            "jaxrl.losses:clipped_surrogate",
            lambda surrogate: lambda new, old, *rest: surrogate(2 * new, 2 * old, *rest),
        ),
    ),
)
