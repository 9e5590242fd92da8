"""Parallelized Q-network (Gallici et al., 2024, "Simplifying deep temporal difference learning",
arXiv:2407.04811): Q(lambda) on the steps of many environments side by side, without a replay buffer
and without a target network, which layer normalization keeps stable. Its inputs are not normalized
by batches, as those of the authors are in some environments."""

from __future__ import annotations

import jax

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import check_q_learning, q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Minibatch, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import epsilon, epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Epochs, EpsilonGreedy, ImageTorso, Optimizer, Rollouts


@group
class Config:
    """Settings of PQN: those of the authors' code for MinAtar (`pqn_minatar.yaml`), except for the
    torso, which is a convolution of 16 channels and one layer of 128 there."""

    rollouts: Rollouts = Rollouts(num_envs=128, num_steps=32)
    passes: Epochs = Epochs(epochs=2, minibatches=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer("radam", learning_rate=5e-4, max_grad_norm=10.0)
    """RAdam with a constant step size of 5e-4. The authors' falls linearly to 0 at the run's end,
    wherever that is (`learning_rate_steps`)."""
    exploration: EpsilonGreedy = EpsilonGreedy(steps=1_000_000.0)
    """Epsilon-greedy exploration, which falls over a tenth of the authors' 10 million steps."""
    layer_norm: bool = True
    """Normalize the output of each layer before its activation, as in the authors' code."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor (gamma) per step."""
    q_lambda: float = hyper(0.65, low=0, high=1)
    """Lambda of the returns: 0 for one step, 1 for the sum of rewards to the window's end."""


@struct
class Sample:
    """Part of each transition that a gradient step sees, [T, B] or rows of it.

    target: Q(lambda) return.
    """

    timestep: TimeStep
    action: Array
    target: Array


def estimate_targets(net: Net, x: Transition) -> Sample:
    """Estimate the Q(lambda) returns of a window [T, B].

    They bootstrap from the greedy values of true successors, so that an episode, a time limit (an
    end in the authors' code) and the window may end anywhere. No trace is cut where an action was
    not greedy (Peng's).
    """
    # Mapped over time, not reshaped to rows: that would gather what is split over devices.
    following = mask_illegal(jax.vmap(net.q)(x.next_timestep)[..., 0], x.next_timestep)
    target = losses.q_lambda_returns(
        x.reward, following, x.terminated, x.done, net.hyper.discount, net.hyper.q_lambda
    )
    return Sample(x.timestep, x.action, target)


@loss("q")
def q_loss(net: Net, x: Sample) -> LossOutput:
    """Half the squared distance of Q(s, a) from the returns."""
    q = losses.at_action(net.q(x.timestep)[..., 0], x.action)
    return LossOutput(losses.squared_error(q, x.target), {"value": q})


def recipe(env: Environment, config: Config) -> Recipe:
    def update(net, batch):
        window = Minibatch(estimate_targets(net, batch.transitions), batch.mask, batch.weight)
        net = net.epochs(config.passes, window, lambda net, x: net.descend(q_loss, x))
        probability, step_size = epsilon(net, config.exploration), net.learning_rate("q")
        return net.report(epsilon=probability, learning_rate=step_size)

    values = lambda net, timestep: legal_values(net.q(timestep), timestep)
    network = q_network(env, config.torso, layer_norm=config.layer_norm)
    return Recipe(
        parts={"q": Part(network, (example_timestep(env),), config.optimizer)},
        act=epsilon_greedy(values, env.action_space, config.exploration),
        losses=(q_loss,),
        update=update,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where Q-learning does not fit, and for a window that does not divide into
    the minibatches."""
    check_q_learning(env, config, name)
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)


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
