"""Dreamer: a policy learned in a world model's imagination (Hafner et al., 2023, "Mastering diverse
domains through world models", Dreamer v3, arXiv:2301.04104).

A recurrent state-space model is learned on windows from a replay buffer. From every latent inferred
there, the policy acts for `horizon` steps in the model alone; the critic learns lambda-returns of
these steps, and the policy follows REINFORCE with returns divided by their range. The latent is the
agent's memory while it acts.

The optimizers and the layer normalization are those of the paper's first version: Adam and a limit
on the gradient's norm, where later versions use LaProp (4e-5), adaptive clipping and RMS
normalization. Differences from the paper: a GRU without normalization; windows begin with a fresh
latent instead of a stored one; the critic learns in imagination only, not from replayed rewards as
well. Binary features have a Bernoulli likelihood: the squared errors of a few cells would fall
below the free nats.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.planning.shared.imagination import Dreams, dream, survival_weights
from jaxrl.algorithms.planning.shared.recurrent_model_loss import recurrent_model_loss
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, Transition, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Optimizer, Replay, Target
from jaxrl.networks import encoders
from jaxrl.networks.heads import check_action_space
from jaxrl.networks.imagination import Actor, Critic, symexp_atoms
from jaxrl.networks.recurrent_world_model import Latent, RecurrentWorldModel


@group
class Config:
    """Settings of Dreamer v3: learn a recurrent world model from replay, and actor and critic in
    its imagination (arXiv:2301.04104)."""

    replay: Replay = Replay(
        num_envs=16, num_steps=8, updates=4, batch_size=16, capacity=100_000, warmup=1024
    )
    """Replay buffer of windows; a gradient step samples `batch_size` of them."""
    model: Optimizer = Optimizer(learning_rate=1e-4, max_grad_norm=1000.0, eps=1e-8, flat=True)
    """Optimizer settings of the world model. Adam, 1e-4, epsilon 1e-8, norms up to 1000: the
    hyperparameters of arXiv:2301.04104v1."""
    behavior: Optimizer = Optimizer(learning_rate=3e-5, max_grad_norm=100.0, eps=1e-5, flat=True)
    """Optimizer settings of the actor and of the critic. Adam, 3e-5, epsilon 1e-5, norms up to 100:
    arXiv:2301.04104v1."""
    slow: Target = Target(rate=0.02)
    """Target network of the critic, toward which the critic is regularized."""

    length: int = static(16, low=1)
    """Steps in a replayed window."""
    horizon: int = static(15, low=1)
    """Number of steps imagined from each latent of a window."""
    deterministic: int = static(64, low=1, high=WIDE)
    """Width of the GRU, the deterministic part of a latent."""
    groups: int = static(8, low=1, high=WIDE)
    """Number of categorical variables in a latent."""
    classes: int = static(8, low=1, high=WIDE)
    """Number of classes of each categorical variable in a latent."""
    hidden: tuple[int, ...] = static((64,), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers of every network."""
    layer_norm: bool = True
    """Apply layer normalization in each hidden layer, as in the code of arXiv:2301.04104v1 (RMS
    normalization in later versions)."""
    bins: int = static(41, low=3, high=WIDE)
    """Number of atoms in the two-hot codes of rewards and values; odd."""
    symlog_range: float = static(4.0, above=0, high=80)
    """Range of the atoms in symlog space: they reach from -symexp to symexp of it (4: about 54)."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    return_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of the lambda-returns in imagination."""
    entropy_weight: float = hyper(3e-4, low=0, log=True)
    """Weight of the policy's entropy bonus, relative to returns divided by their range."""
    range_decay: float = hyper(0.99, low=0, high=1)
    """Decay of the running range of returns, per update."""
    free_nats: float = hyper(1.0, low=0)
    """Free nats: divergences of a latent below this get no gradient. It should be less than the
    uncertainty about a step; tiny observations need a lower value."""


@struct
class Memory:
    """Memory of the policy while it acts, [B]."""

    latent: Latent
    action: Tree  # the last one


def model_loss(net: Net, x: Transition, network: RecurrentWorldModel, atoms: Array) -> LossOutput:
    """Compute the losses of prediction, dynamics and representation (equations 2 and 3) for each
    step of windows [T, B]; `aux` is the unrolled model."""
    unrolled, parts = recurrent_model_loss(
        network, net.model, x, atoms, net.key(), net.hyper.free_nats
    )
    return LossOutput(sum(parts.values()), parts, aux=unrolled)  # type: ignore[arg-type]


def actor_loss(net: Net, x: Dreams, atoms: Array) -> LossOutput:
    """Compute REINFORCE with returns divided by their range (`net.extra`), less an entropy bonus,
    for each imagined step [H, N], weighted by the discounted probability of reaching it."""
    h, before = net.hyper, x.features[:-1]
    policy = net.actor(before)
    entropy, log_prob = policy.entropy(), policy.log_prob(x.action)
    value = losses.categorical_mean(net.critic(before), atoms)
    loss = losses.dreamer_actor(
        log_prob, x.returns, value, entropy, h.entropy_weight, scale=net.extra
    )
    metrics = {"entropy": entropy, "imagined_return": x.returns}
    return LossOutput(survival_weights(h.discount * x.continue_prob) * loss, metrics)


def critic_loss(net: Net, x: Dreams, atoms: Array) -> Array:
    """Compute the cross-entropies to the return and to the target network's value for each imagined
    step [H, N], weighted as in `actor_loss`."""
    logits = net.critic(x.features[:-1])
    slow = losses.categorical_mean(net.target.critic(x.features[:-1]), atoms)
    to_return, to_slow = (
        losses.two_hot_cross_entropy(logits, target, atoms) for target in (x.returns, slow)
    )
    return survival_weights(net.hyper.discount * x.continue_prob) * (to_return + to_slow)


def recipe(env: Environment, config: Config) -> Recipe:
    timestep, space = example_timestep(env), env.action_space
    c, size = config, encoders.features(env.observation_space, timestep).shape[-1]
    sizes = size, c.hidden, c.deterministic, c.groups, c.classes, c.bins
    model = RecurrentWorldModel(env.observation_space, space, *sizes, c.layer_norm)
    actor, critic = Actor(space, c.hidden, c.layer_norm), Critic(c.bins, c.hidden, c.layer_norm)
    atoms = symexp_atoms(c.bins, c.symlog_range)

    def memory(n):
        action = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), spaces.example(space))
        return Memory(model.initial(n), action)

    first = memory(1)
    example = Transition(timestep, first.action, timestep, (), {})
    step = jax.tree.map(lambda x: x[None], example)  # a window of one step
    features = first.latent.features

    def act(net, timestep, memory, key, greedy):
        latent_key, action_key = jax.random.split(key)
        seen = memory.latent, memory.action, timestep, None if greedy else latent_key
        latent = net.model(*seen, method="filter")
        policy = net.actor(latent.features, timestep.legal_actions)
        action = choose(policy, action_key, greedy)
        return action, Memory(latent, action), {}

    def update(net, batch):
        descended = net.descend(of_model, batch)
        # Imagination starts where an action was due, so never after an episode's last step. It
        # uses the model that inferred these latents, before this update. (The rows of a window stay
        # adjacent, since devices split the batch by windows.)
        before = descended.aux[of_model].before
        start = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, x.shape[-1]), before)

        def dynamics(latent, action, key):
            after = net.model(latent, action, key, method="imagine")
            return after.features, after

        begun = start.features, start
        dreams = dream(net, net.actor, net.critic, dynamics, begun, config.horizon, atoms)
        decay, spread = net.hyper.range_decay, losses.percentile_range(dreams.returns)
        average = decay * net.extra + (1 - decay) * spread
        net = descended.replace(extra=average).report(return_range=average)
        mask = batch.mask
        if mask is not None:
            mask = jnp.broadcast_to(mask.T.reshape(-1), dreams.returns.shape)
        for loss in (of_actor, of_critic):
            net = net.descend(loss, dreams, mask=mask)
        return net.update_targets()

    of_model = Loss(
        functools.partial(model_loss, network=model, atoms=atoms), ("model",), "model_loss"
    )
    of_actor = Loss(functools.partial(actor_loss, atoms=atoms), ("actor",), "actor_loss")
    of_critic = Loss(functools.partial(critic_loss, atoms=atoms), ("critic",), "critic_loss")
    return Recipe(
        parts={
            "model": Part(model, (step,), config.model),
            "actor": Part(actor, (features,), config.behavior),
            "critic": Part(critic, (features,), config.behavior, config.slow),
        },
        act=act,
        losses=(of_model, of_actor, of_critic),
        update=update,
        extra=np.float32(0.0),  # the running range of imagined returns
        memory=memory,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head or an even number of bins."""
    check_action_space(env.action_space, name)
    if config.bins % 2 == 0:
        raise UserError(f"bins is {config.bins}; it must be odd.")


dreamer = AlgorithmBuilder(
    "dreamer",
    Config,
    recipe,
    source=lambda env, config: config.replay.source(env, config.length),
    check=check,
)

TINY = {"env": "catch", "num_envs": 4, "num_steps": 8, "num_shards": 4, "updates": 1}
TINY |= {"batch_size": 4, "capacity": 64, "warmup": 16, "length": 3, "horizon": 2, "hidden": (4,)}
TINY |= {"deterministic": 4, "groups": 2, "classes": 2, "bins": 5, "free_nats": 0.1}
