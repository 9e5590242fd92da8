"""MuZero: search in a learned model (Schrittwieser et al., 2020, arXiv:1911.08265).

`act` searches from the latent state of what is observed. `update` unrolls the model K steps along
sequences from a replay and regresses policy, value and reward of each step to the search's policy,
an n-step return and the reward that was observed. A fraction of the sequences is reanalysed
(appendix H): searched again with recent parameters. One player, or two that alternate (appendix B):
values are then those of whoever is to move, and change their sign with every step.

What differs: values and rewards are categorical in games too, where the paper regresses scalars;
priorities are the error of the value network at its latest parameters (ours); reanalysed are
sequences, policy and value together, where the paper renews the policy in 80 % of the updates; the
temperature of acting is lowered in games too by what has been learned (as in Atari), where the
paper lowers it after the thirtieth move.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxrl import gradients, losses
from jaxrl.algorithms.planning.shared.search import (
    SEARCHES,
    ModelOutput,
    RootOutput,
    Searched,
    search,
)
from jaxrl.algorithms.planning.shared.unrolled import Targets, targets
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.schedules import progress
from jaxrl.core.types import Array, Environment, TimeStep, Transition, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer, Priorities, Replay, Target, Torso
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.world_models import ValueEquivalentModel


@group
class Config:
    """Settings of MuZero."""

    replay: Replay = Replay(
        num_envs=16, num_steps=1, updates=4, batch_size=64, capacity=50_000, warmup=800
    )
    priorities: Priorities = Priorities(exponent=0.6, importance=0.4)
    """Of |value - target|. (With 1 for both exponents the few sequences that are predicted best
    outweigh all others.)"""
    torso: Torso = Torso(hidden=(128,))
    """Of representation, dynamics and prediction, each."""
    optimizer: Optimizer = Optimizer(
        name="sgd",
        momentum=0.9,
        learning_rate=0.05,
        learning_rate_end=7e-5,
        learning_rate_steps=4_000_000.0,
        schedule="exponential",
    )
    """Momentum 0.9, and a step size of 0.05 that falls to a tenth in every 350,000 of a million
    gradient steps (of four environment steps each, here): the paper's pseudocode for Atari. Small
    environments learn with Adam, which MuZero Unplugged (arXiv:2104.06294) has too."""
    target: Target = Target(rate=1.0)
    """Of the parameters that reanalyse."""

    search: str = static("puct", choices=SEARCHES)
    """puct (the paper's), or gumbel (Gumbel MuZero's)."""
    simulations: int = static(16, low=0)
    """Simulations in a search; 0 acts by the policy's head and learns nothing better than it."""
    unroll: int = static(5, low=1)
    """Steps K that the model is unrolled in a gradient step."""
    n_step: int = static(20, low=1)
    """Rewards in a value's target before what it bootstraps from."""
    reanalyse: float = static(0.0, low=0, high=1)
    """Fraction of the sequences of a batch that are searched again, by the copied parameters, which
    then also give the values to bootstrap from; the others have what was stored when acting."""
    width: int = static(64, low=1, high=WIDE)
    """Of a latent state."""
    num_atoms: int = static(41, low=3, high=WIDE)
    """Atoms of values and rewards, an odd number."""
    support: float = static(20.0, above=0)
    """Atoms reach from -support to support, on the scale of `losses.signed_hyperbolic`."""

    weight_decay: float = hyper(1e-4, low=0)
    """c of the loss's c |params|^2 (equation 1), apart from which the optimizer has no decay."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    value_weight: float = hyper(1.0, low=0)
    """Weight of the value's loss (the paper has 1/4 where it reanalyses)."""
    temperature: float = hyper(1.0, above=0)
    """Of acting by visits at first (puct); see `annealed`."""
    temperature_steps: float = hyper(4_000_000.0, above=0, high=INF)
    """Environment steps of which it is halved after a half and after three quarters (the paper's
    million gradient steps, of four environment steps each, here); infinite for a constant one."""
    dirichlet_alpha: float = hyper(0.3, above=0)
    """Concentration of the noise on the root's prior (puct)."""
    dirichlet_fraction: float = hyper(0.25, low=0, high=1)
    """Share of that noise."""


@struct
class Sample:
    """What a gradient step sees of the sequences, [K + 1, B] and [B]."""

    timestep: TimeStep  # [B]: the first
    action: Array  # [K, B]
    goal: Targets
    weight: Array | float  # [B]


def annealed(temperature: Array, fraction: Array) -> Array:
    """The temperature of acting when this `fraction` of training has passed: 1, 0.5 and 0.25 times
    `temperature`, in the first half, the third and the last quarter (the pseudocode's Atari)."""
    return temperature * jnp.where(fraction < 0.5, 1.0, jnp.where(fraction < 0.75, 0.5, 0.25))


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, space = example_timestep(env, agents=True), env.action_space
    turn = -1.0 if timestep.reward.ndim > 1 else 1.0  # whether it passes on with every step
    torso, num_actions = config.torso, space.n  # type: ignore[union-attr]
    sizes = num_actions, config.num_atoms, config.width, torso.hidden, torso.activation
    network = ValueEquivalentModel(env.observation_space, *sizes)
    atoms = jnp.linspace(-config.support, config.support, config.num_atoms)

    def scalar(logits):
        return losses.signed_parabolic(losses.categorical_mean(logits, atoms))

    def searched(net, apply, timestep: TimeStep, key, greedy: bool) -> Searched:
        """A search from each of `timestep` [B] in the model `apply`."""
        h = net.hyper
        temperature = annealed(h.temperature, progress(net.env_steps, h.temperature_steps))

        def model(params, key, action, latent):
            latent, reward = apply(latent, action, method="dynamics")
            policy, value = apply(latent, method="predict")
            value, reward = scalar(value), scalar(reward)
            discount = jnp.full_like(value, turn * h.discount)
            output = ModelOutput(reward=reward, discount=discount, prior_logits=policy, value=value)
            return output, latent

        latent = apply(timestep, method="represent")
        policy, value = apply(latent, method="predict")
        root = RootOutput(prior_logits=policy, value=scalar(value), embedding=latent)
        return search(
            config.search, model, (), root, timestep.legal_actions, key,
            config.simulations, greedy, temperature, h.dirichlet_alpha, h.dirichlet_fraction,
        )  # fmt: skip

    def act(net, timestep, memory, key, greedy):
        found = searched(net, net.model, timestep, key, greedy)
        action = found.action.astype(space.dtype)
        return action, memory, {"search": found.policy, "value": found.value}

    def reanalysed(net, window: Transition, policy, stored):
        """`policy` [K + 1, B, actions] and `stored` [K + n, B], the search's value after each step,
        renewed in as many sequences as are to be reanalysed."""
        latest = net.target.model
        latent = latest(window.next_timestep, method="represent")
        following = scalar(latest(latent, method="predict")[1])
        batch = stored.shape[1]
        count = round(config.reanalyse * batch)
        chosen = jax.random.permutation(net.key("reanalyse"), batch)[:count]
        renewed = jnp.zeros(batch, bool).at[chosen].set(True)
        if count:
            roots = jax.tree.map(lambda x: x[: config.unroll + 1, chosen], window.timestep)
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), roots)
            found = searched(net, latest, rows, net.key("search"), False)
            fresh = found.policy.reshape(config.unroll + 1, count, -1)
            policy = policy.at[:, chosen].set(fresh)
        # Where the episode was cut off, no search has been.
        return policy, jnp.where(renewed | window.done, following, stored)

    def prepare_sample(net, batch):
        """What the model is to predict along the sequences, and the actions that it is told."""
        window = jax.tree.map(lambda x: x[:-1], batch.transitions)
        extras = batch.transitions.extras
        policy, stored = extras["search"][: config.unroll + 1], extras["value"][1:]
        policy, next_value = reanalysed(net, window, policy, stored)
        discount = turn * net.hyper.discount
        goal = targets(window, policy, next_value, config.unroll, config.n_step, discount)
        action = window.action[: config.unroll]
        after_the_end = jax.random.randint(
            net.key("actions"), action.shape, 0, policy.shape[-1], action.dtype
        )
        action = jnp.where(goal.over[:-1], after_the_end, action)
        weight = 1.0 if batch.weight is None else batch.weight
        first = jax.tree.map(lambda x: x[0], window.timestep)
        return Sample(first, action, goal, weight)

    def predictions(net, x: Sample):
        """Logits of policy, value and reward, [K + 1, B, ...] each, along the actions."""
        root = net.model(x.timestep, method="represent")

        def step(latent, action):
            latent = gradients.scale_gradient(latent, 0.5)
            latent, reward = net.model(latent, action, method="dynamics")
            return latent, (latent, reward)

        _, (latents, reward) = jax.lax.scan(step, root, x.action)
        policy, value = net.model(jnp.concatenate([root[None], latents]), method="predict")
        return policy, value, jnp.concatenate([jnp.zeros_like(reward[:1]), reward])

    @loss("model", name="loss")
    def model_loss(net, x: Sample):
        """Equation 1: the errors of policy, value and reward along K steps, and c |params|^2."""
        policy, value, reward = predictions(net, x)
        goal = x.goal
        errors = losses.muzero(
            policy, value, reward, goal.policy, goal.value, goal.reward, atoms,
            net.hyper.value_weight,
        )  # fmt: skip
        error = x.weight * jnp.where(goal.known, errors, 0.0).sum(0)
        decay = net.hyper.weight_decay * optax.tree.norm(net.parts["model"].params, squared=True)
        priority = jnp.abs(scalar(value[0]) - goal.value[0])
        return LossOutput(error + decay, {"prediction_loss": error}, priority=priority)

    def update(net, batch):
        x = prepare_sample(net, batch)
        net = net.report(target_value=x.goal.value[0].mean())
        # The weights of the replay are in the sample, since they do not weigh the decay.
        return net.descend(model_loss, x, mask=batch.mask).update_targets()

    return Recipe(
        parts={
            "model": Part(
                network, (timestep, jnp.zeros(1, jnp.int32)), config.optimizer, config.target
            )
        },
        act=act,
        losses=(model_loss,),
        update=update,
        needs=("transitions.extras.search", "transitions.extras.value"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` where env and config do not fit: actions that are not Discrete, a game of
    more than two players or without roles, an even number of atoms."""
    check_discrete(env.action_space, name)
    timestep = example_timestep(env, agents=True)
    players = timestep.reward.shape[1:]
    if players not in ((), (2,)) or (players and timestep.role is None):
        raise UserError(
            f"'{env.name}' rewards {players[0]} agents; {name} plays alone, or games of two "
            "players whose time steps say whose turn it is (role)."
        )
    if config.num_atoms % 2 == 0:
        raise UserError(f"num_atoms is {config.num_atoms}; it must be odd.")


muzero = AlgorithmBuilder(
    "muzero",
    Config,
    recipe,
    source=lambda env, config: config.replay.source(
        env, config.unroll + config.n_step + 1, config.priorities.sampler("priorities")
    ),
    check=check,
)

TINY = {"env": "tic_tac_toe", "num_envs": 4, "num_steps": 8, "num_shards": 4, "updates": 1}
TINY |= {"batch_size": 4, "capacity": 128, "warmup": 16, "simulations": 2, "unroll": 2, "n_step": 2}
TINY |= {"reanalyse": 0.5, "width": 4, "hidden": (4,), "num_atoms": 5}
