"""Parallelized Q-network (Gallici et al., 2024, "Simplifying deep temporal difference learning",
arXiv:2407.04811): Q(lambda) on the steps of many environments side by side, without a replay and
without a copy of the network, which layer normalization keeps stable. (Its inputs are not
normalized by batches, as those of the authors are in some environments.)"""

from __future__ import annotations

import dataclasses

import jax

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper
from jaxrl.kit.acting import epsilon, epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Epochs, EpsilonGreedy, ImageTorso, Optimizer, Rollouts


@group
class Config:
    """Settings of PQN: those of the authors' code for MinAtar (`pqn_minatar.yaml`), but for the
    torso: there a convolution of 16 channels and one layer of 128."""

    rollouts: Rollouts = Rollouts(num_envs=128, num_steps=32)
    passes: Epochs = Epochs(epochs=2, minibatches=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer("radam", learning_rate=5e-4, max_grad_norm=10.0)
    """RAdam; theirs falls linearly to 0 at the run's end, wherever that is
    (`learning_rate_steps`)."""
    exploration: EpsilonGreedy = EpsilonGreedy(steps=1_000_000.0)
    """Over a tenth of their 10 million steps."""
    layer_norm: bool = True
    """Normalize what each layer gives before its activation, as in theirs."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    q_lambda: float = hyper(0.65, low=0, high=1)
    """Lambda of the returns: 0 for one step, 1 for the sum of rewards to the window's end."""


def with_targets(net: Net, batch: Batch) -> Batch:
    """The window [T, B] with its Q(lambda) returns, in `extras["target"]`: from the greedy values
    of true successors, so that an episode, a time limit (an end in theirs) and the window may end
    anywhere. No trace is cut where an action was not greedy (Peng's)."""
    x = batch.transitions
    # Mapped over time, not reshaped to rows: that would gather what is split over devices.
    following = mask_illegal(jax.vmap(net.q)(x.next_timestep)[..., 0], x.next_timestep)
    target = losses.q_lambda_returns(
        x.reward, following, x.terminated, x.done, net.hyper.discount, net.hyper.q_lambda
    )
    return dataclasses.replace(
        batch, transitions=dataclasses.replace(x, extras=x.extras | {"target": target})
    )


def q_loss(net, x):
    """Half the squared distance from the returns."""
    q = losses.at_action(net.q(x.timestep)[..., 0], x.action)
    return losses.squared_error(q, x.extras["target"]), {"value": q}


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        turn = lambda net, batch: net.descend("q_loss", batch)
        net = net.epochs(config.passes, with_targets(net, batch), turn)
        return net.report(epsilon=epsilon(net), learning_rate=net.learning_rate("q"))

    values = lambda net, timestep: mask_illegal(net.q(timestep)[..., 0], timestep)
    network = dqn_.q_network(env, config.torso, layer_norm=config.layer_norm)
    return Recipe(
        parts={"q": Part(network, (example_timestep(env),))},
        act=epsilon_greedy(values, env.action_space, config.exploration),
        losses={"q_loss": Loss(q_loss, ("q",))},
        update=update,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` as DQN does, and for a window that does not divide into the
    minibatches."""
    dqn_.check(env, config, name)
    config.passes.check(
        config.rollouts.num_envs, config.rollouts.num_steps, config.rollouts.num_shards
    )


pqn = AlgorithmBuilder("pqn", Config, recipe, check=check)

TINY = {
    "env": "cartpole",
    "num_envs": 8,
    "num_steps": 4,
    "num_shards": 4,
    "epochs": 2,
    "minibatches": 2,
    "hidden": (5, 4),
}
