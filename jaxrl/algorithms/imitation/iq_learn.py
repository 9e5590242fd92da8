"""IQ-Learn (Garg, Chakraborty, Cundy, Song and Ermon, 2021, "IQ-Learn: inverse soft-Q learning for
imitation", arXiv:2106.12142, and the authors' code): a soft Q-function that explains an expert's
steps, from which both the policy, softmax(Q / temperature), and the reward it is best for,
Q(s, a) - discount V(s'), follow. There is neither a discriminator nor a policy to train.

The objective is that of the chi-squared divergence. As in the authors' code for learning online,
the value of first states in it is that of V(s) - discount V(s') over all steps: the expert's and as
many of the policy's own from a replay buffer. Discrete actions; for continuous ones the authors add
an actor, which is left out here.
"""

from __future__ import annotations

import distrax

from jaxrl import losses
from jaxrl.algorithms.imitation.shared.adversarial import Beside, compare
from jaxrl.algorithms.imitation.shared.demonstrations import SMALL_DEMONSTRATIONS, Demonstrations
from jaxrl.algorithms.imitation.shared.soft_q import inverse_objective
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    check_q_learning,
    q_network,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep
from jaxrl.kit import AlgorithmBuilder, LossOutput, Minibatch, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import ImageTorso, Normalization, Optimizer, Replay


@group
class Config:
    """Settings of IQ-Learn: a soft Q-function learned from an expert's steps and the policy's
    (arXiv:2106.12142)."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """Replay buffer of the policy's own steps."""
    demonstrations: Demonstrations = Demonstrations()
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the Q-function."""
    normalization: Normalization = Normalization()

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    temperature: float = hyper(0.01, above=0, log=True)
    """Temperature of the soft values and of the policy."""
    alpha: float = hyper(0.5, above=0)
    """Scale of the chi-squared regularizer; larger values allow larger rewards."""


def soft_values(net: Net, timestep: TimeStep) -> tuple[Array, Array]:
    """Return Q [..., A] of legal actions, and the soft value V [...] of time steps."""
    q = legal_values(net.q(timestep), timestep)
    return q, losses.soft_value(q, net.hyper.temperature)


@loss("q")
def iq_loss(net: Net, x: Beside) -> LossOutput:
    """Compute IQ-Learn's objective for a step of the expert and one of the policy; the mean is
    `losses.iq_learn` of all steps."""
    values = lambda timestep: soft_values(net, timestep)
    h = net.hyper
    return inverse_objective(values, x, lambda x: x.action, h.discount, h.alpha)


def recipe(env: Environment, config: Config) -> Recipe:
    network = q_network(env, config.torso)

    def act(net, timestep, memory, key, greedy):
        q = legal_values(net.q(timestep), timestep)
        policy = distrax.Categorical(logits=q / net.hyper.temperature)
        return choose(policy, key, greedy).astype(env.action_space.dtype), memory, {}

    def update(net: Net, batch: Batch) -> Net:
        return net.descend(iq_loss, Minibatch(compare(net, env, batch), batch.mask, batch.weight))

    return Recipe(
        parts={"q": Part(network, (example_timestep(env),), config.optimizer)},
        act=act,
        losses=(iq_loss,),
        update=update,
        needs=("transitions.extras.expert",),
    )


def source(env: Environment, config: Config) -> Source:
    x = config.replay
    return config.demonstrations.beside(env, x.source(env), x.batch_size, x.num_shards)


iq_learn = AlgorithmBuilder("iq_learn", Config, recipe, source, check=check_q_learning)

TINY = (
    SMALL_DEMONSTRATIONS
    | {k: v for k, v in TINY_Q_LEARNING.items() if k != "period"}
    | {"normalization.observation": True}
)
