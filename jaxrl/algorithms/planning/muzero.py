"""MuZero: search in a learned model (Schrittwieser et al., 2020, arXiv:1911.08265).

`act` searches from the latent state of the observation. `update` unrolls the model K steps along
replayed sequences and regresses the policy, value and reward of each step on the search's policy,
an n-step return and the observed reward. A fraction of the sequences is reanalysed (appendix H):
searched again with recent parameters. There may be one player, or two that alternate (appendix B);
values are then those of the player to move, and change sign with every step.

Differences from the paper: values and rewards are categorical in games too, where the paper
regresses scalars; priorities are the error of the value network with its latest parameters (ours);
whole sequences are reanalysed, policy and value together, where the paper renews the policy in 80 %
of the updates; in games too the acting temperature falls with training progress (as in Atari),
where the paper lowers it after the thirtieth move.
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
    SearchResult,
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
from jaxrl.networks.compute import again
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.world_models import ValueEquivalentModel


@group
class Config:
    """Settings of MuZero: tree search in a learned model, which is trained to predict policy, value
    and reward (arXiv:1911.08265, equation 1)."""

    replay: Replay = Replay(
        num_envs=16, num_steps=1, updates=4, batch_size=64, capacity=50_000, warmup=800
    )
    priorities: Priorities = Priorities(exponent=0.6, importance=0.4)
    """Prioritized sampling by |value - target|. (With both exponents at 1, the few sequences
    predicted best outweigh all others.)"""
    torso: Torso = Torso(hidden=(128,))
    """Hidden layers of each network: representation, dynamics and prediction."""
    optimizer: Optimizer = Optimizer(
        name="sgd",
        momentum=0.9,
        learning_rate=0.05,
        learning_rate_end=7e-5,
        learning_rate_steps=4_000_000.0,
        schedule="exponential",
    )
    """Optimizer settings: momentum 0.9 and a learning rate from 0.05, as in the paper's pseudocode
    for Atari. The rate falls to a tenth in every 350,000 of a million gradient steps (here, of four
    environment steps each). Small environments learn with Adam, as in MuZero Unplugged
    (arXiv:2104.06294)."""
    target: Target = Target(rate=1.0)
    """Target network: the parameters that reanalyse."""

    search: str = static("puct", choices=SEARCHES)
    """Kind of tree search: puct (the paper's) or gumbel (Gumbel MuZero's)."""
    simulations: int = static(16, low=0)
    """Number of simulations in a search; with 0 the policy head acts and is never improved on."""
    unroll: int = static(5, low=1)
    """Number of steps K that the model is unrolled in a gradient step."""
    n_step: int = static(20, low=1)
    """Number of rewards in a value's target before the bootstrapped value."""
    reanalyse: float = static(0.0, low=0, high=1)
    """Fraction of a batch's sequences that the target network searches again. It then also gives
    the values to bootstrap from; other sequences use what was stored when acting."""
    width: int = static(64, low=1, high=WIDE)
    """Width of a latent state."""
    num_atoms: int = static(41, low=3, high=WIDE)
    """Number of atoms of values and rewards; odd."""
    support: float = static(20.0, above=0)
    """Range of the atoms, from -support to support on the scale of `losses.signed_hyperbolic`."""

    weight_decay: float = hyper(1e-4, low=0, log=True)
    """Weight decay: c of the loss's term c |params|^2 (equation 1). The optimizer adds no other."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    value_weight: float = hyper(1.0, low=0)
    """Weight of the value loss (in the paper 1/4 with reanalysis)."""
    temperature: float = hyper(1.0, above=0, log=True)
    """Initial temperature of acting by visit counts (puct); see `temperature_steps`."""
    temperature_steps: float = hyper(4_000_000.0, above=0, high=INF)
    """Environment steps over which the temperature is halved at 1/2 and again at 3/4; infinite for
    a constant one. (The paper: a million gradient steps, here of four environment steps each.)"""
    dirichlet_alpha: float = hyper(0.3, above=0)
    """Concentration of the Dirichlet noise on the root's prior (puct)."""
    dirichlet_fraction: float = hyper(0.25, low=0, high=1)
    """Fraction of Dirichlet noise in the root's prior (puct)."""


@struct
class Sample:
    """Inputs and targets of a gradient step on B sequences of K steps."""

    timestep: TimeStep  # [B]: the first of each sequence
    action: Array  # [K, B]
    goal: Targets
    weight: Array | float  # [B]


def anneal_temperature(temperature: Array, fraction: Array) -> Array:
    """Return the acting temperature after a `fraction` of training: 1, 0.5 and 0.25 times
    `temperature` in the first half, the third and the last quarter (pseudocode, Atari)."""
    return temperature * jnp.where(fraction < 0.5, 1.0, jnp.where(fraction < 0.75, 0.5, 0.25))


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, space = example_timestep(env, agents=True), env.action_space
    turn = -1.0 if timestep.reward.ndim > 1 else 1.0  # -1: two players, who alternate
    torso, num_actions = config.torso, space.n  # type: ignore[union-attr]
    sizes = num_actions, config.num_atoms, config.width, torso.hidden, torso.activation
    network = ValueEquivalentModel(env.observation_space, *sizes, torso.initializer)
    atoms = jnp.linspace(-config.support, config.support, config.num_atoms)

    def scalar(logits):
        return losses.signed_parabolic(losses.categorical_mean(logits, atoms))

    def run_search(net, apply, timestep: TimeStep, key, greedy: bool) -> SearchResult:
        """Search from each of `timestep` [B] in the model `apply`."""
        h = net.hyper
        temperature = anneal_temperature(
            h.temperature, progress(net.env_steps, h.temperature_steps)
        )

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
        found = run_search(net, net.model, timestep, key, greedy)
        action = found.action.astype(space.dtype)
        return action, memory, {"search": found.policy, "value": found.value}

    def reanalyse(net, window: Transition, policy, stored):
        """Return `policy` [K + 1, B, actions] and `stored` [K + n, B], the search's value after
        each step, both renewed in the sequences chosen for reanalysis."""
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
            found = run_search(net, latest, rows, net.key("search"), False)
            fresh = found.policy.reshape(config.unroll + 1, count, -1)
            policy = policy.at[:, chosen].set(fresh)
        # An episode's last time step was never searched when acting.
        return policy, jnp.where(renewed | window.done, following, stored)

    def prepare_sample(net, batch):
        """Return the actions along the sequences, and the targets of the model's predictions."""
        window = jax.tree.map(lambda x: x[:-1], batch.transitions)
        extras = batch.transitions.extras
        policy, stored = extras["search"][: config.unroll + 1], extras["value"][1:]
        policy, next_value = reanalyse(net, window, policy, stored)
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
        """Return logits of policy, value and reward along the actions, each [K + 1, B, ...]."""
        root = net.model(x.timestep, method="represent")

        def step(latent, action):
            latent = gradients.scale_gradient(latent, 0.5)
            latent, reward = net.model(latent, action, method="dynamics")
            return latent, (latent, reward)

        _, (latents, reward) = jax.lax.scan(again(step), root, x.action)
        policy, value = net.model(jnp.concatenate([root[None], latents]), method="predict")
        return policy, value, jnp.concatenate([jnp.zeros_like(reward[:1]), reward])

    @loss("model", name="loss")
    def model_loss(net, x: Sample):
        """Compute errors of policy, value and reward along K steps, and weight decay (eq. 1)."""
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
        # The importance weights are in the sample, since they must not scale the weight decay. A
        # sequence that begins with padding is left out; what follows an end is not read.
        mask = None if batch.mask is None else batch.mask[0]
        return net.descend(model_loss, x, mask=mask).update_targets()

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
    """Raise `UserError` for actions that are not Discrete, a game of more than two players or
    without roles, or an even number of atoms."""
    check_discrete(env.action_space, name)
    timestep = example_timestep(env, agents=True)
    players = timestep.reward.shape[1:]
    if players not in ((), (2,)) or (players and timestep.role is None):
        raise UserError(
            f"'{env.name}' rewards {players[0]} agents; {name} plays alone, or in games of two "
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
