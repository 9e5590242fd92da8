"""A2C written out on its own against PPO with matched settings: the same parameters."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.systems.check import Budget, Check, agreement, figure
from jaxrl.core.learn import learn
from jaxrl.core.train import start, train
from jaxrl.core.types import Agent, Array, Environment, Info, Tree, struct
from jaxrl.envs import make
from jaxrl.kit.groups import Passes
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.systems.policy_gradient.a2c import Config, a2c
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "A2C is a special case of PPO",
    "authors": "Huang, Kanervisto, Raffin, Wang, Ontanon and Dossa",
    "year": 2022,
    "arxiv": "2205.09123",
}
CLAIM = "A2C and PPO give exactly the same trained models when the other settings are matched."
PARTS = ("jaxrl/systems/policy_gradient/a2c.py", "jaxrl/systems/policy_gradient/ppo.py")

METRIC = "largest difference of a parameter, relative to the largest parameter, from plain A2C"
TOLERANCE = 1e-6
EFFECT = 1e-3  # by at least this the models differ with two epochs
NOTES = (
    "Plain A2C: the gradient of -A log pi and of the value loss with n-step returns, written out "
    "by itself, RMSprop by optax; CartPole. Holds if both PPO with matched settings and jaxrl's "
    "A2C agree with it on every seed and PPO with two epochs on none. Baseline: jaxrl's A2C. After "
    "100 updates of 80 steps in float32: trials on other seeds showed that rounding alone adds up "
    "to 1e-6 after about 200."
)


def as_ppo(config: Config, epochs: int = 1) -> Any:
    """The settings under which PPO is A2C, for one epoch."""
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return ppo.Config(passes=Passes(epochs, minibatches=1), normalize_advantage=False, **shared)


@struct
class State:
    params: Tree
    optimizer: Tree


def plain_a2c(env: Environment, config: Config) -> Agent:
    """Synchronous advantage actor-critic (Mnih et al., 2016, algorithm S3), sharing the network
    and its first weights with ours and nothing of its update."""
    ours = a2c.agent(env, config)
    network: Any = ActorCritic(env.observation_space, env.action_space, config.torso.hidden)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.optimizer.max_grad_norm),
        optax.scale_by_rms(decay=0.99, eps=1e-5),
        optax.scale(-config.optimizer.learning_rate),
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
            total = transitions.reward[t] + config.discount * later * ~transitions.terminated[t]
            totals.append(total)
        return jnp.stack(totals[::-1])

    def loss(params, transitions, target, advantage):
        policy, value, _ = network.apply(params, transitions.timestep, (), method="unroll")
        policy_loss = -jnp.mean(advantage * policy.log_prob(transitions.action))
        return policy_loss + config.value_weight * jnp.mean(jnp.square(target - value) / 2)

    def update(state, batch, key):
        transitions = batch.transitions
        target = returns(state.params, transitions)
        advantage = target - value_of(state.params, transitions.timestep)
        gradient = jax.grad(loss)(state.params, transitions, target, advantage)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer)
        return State(optax.apply_updates(state.params, updates), optimizer_state), Info({})

    return Agent("plain A2C", init, act, update)


def distance(params: Tree, reference: Tree) -> Array:
    """The largest absolute difference over the largest absolute parameter of `reference`."""
    flat = lambda tree: jnp.concatenate([x.ravel() for x in jax.tree.leaves(tree)])
    return jnp.abs(flat(params) - flat(reference)).max() / jnp.abs(flat(reference)).max()


@functools.partial(jax.jit, static_argnums=1)
def differences(keys: Array, updates: int) -> dict[str, Array]:
    """How far each variant is from plain A2C after `updates` updates, [seeds] each."""
    env, config = make("cartpole"), Config()
    plain = learn(plain_a2c(env, config), config.rollouts.source(env))
    variants = {
        "PPO with matched settings": ppo(env, as_ppo(config)),
        "A2C of jaxrl": a2c(env, config),
        "PPO with two epochs": ppo(env, as_ppo(config, epochs=2)),
    }

    def one(key):
        def trained(algorithm):
            return params_of(train(algorithm, start(algorithm, key), updates)[0].state.agent)

        plainly = trained(plain)
        return {n: distance(trained(v)["actor_critic"], plainly) for n, v in variants.items()}

    return jax.vmap(one)(keys)


def check(key: jax.Array, budget: Budget) -> Check:
    """Train plain A2C and its three variants from the same keys, and compare parameters."""
    keys = jax.random.split(key, budget.num_seeds(2, 10))
    found = differences(keys, budget.choose(4, 100))
    figures = {name: figure(name, np.asarray(x)) for name, x in found.items()}
    same = figures["PPO with matched settings"], figures["A2C of jaxrl"]
    ablation = figures["PPO with two epochs"]
    errors = np.maximum(same[0].per_seed, same[1].per_seed)
    return Check(
        CLAIM,
        METRIC,
        measured=same[0],
        baseline=same[1],
        verdict=agreement(errors, TOLERANCE, ablation.per_seed, EFFECT),
        budget=budget,
        margin=TOLERANCE,
        ablation=ablation,
        notes=NOTES,
    )
