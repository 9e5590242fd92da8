"""Bootstrapped DQN with randomized prior functions (Osband, Aslanides and Cassirer, 2018,
"Randomized prior functions for deep reinforcement learning", arXiv:1806.03335; Osband, Blundell,
Pritzel and Van Roy, 2016, "Deep exploration via bootstrapped DQN", arXiv:1602.04621).

K networks learn Q(s, a), each with a target network of its own. At the start of an episode one of
them is drawn, and its greedy policy acts until the end (2016, algorithm 1). To each network a fixed
one with random weights is added, before anything is learned and in targets alike, so that they stay
different where there are no data (2018, algorithm 1):

    Q_k(s, a) = f_k(s, a) + prior_scale p_k(s, a)

A transition is learned by network k with a probability, drawn once when it happens. Greedy actions
are those that most networks vote for. Networks share no layers, as in 2018; the bootstrap by noise
in rewards is not here.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_network,
)
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import ImageTorso, Optimizer, Replay, Target


@group
class Config(QLearning):
    """Settings of bootstrapped DQN with randomized priors. Defaults but for the replay are those of
    the authors' agent in bsuite."""

    replay: Replay = Replay(batch_size=128)
    torso: ImageTorso = ImageTorso(hidden=(50, 50))
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    target: Target = Target(rate=1.0, period=4)

    members: int = static(20, low=1)
    """Number of networks, K."""
    prior_scale: float = hyper(5.0, low=0)
    """Weight of the fixed random networks, beta; 0 for bootstrapped DQN without priors."""
    mask_probability: float = hyper(1.0, above=0, high=1)
    """Probability that a network learns from a transition; 1, as in bsuite."""


def values(net: Net, q: Callable[[TimeStep], Array], timestep: TimeStep) -> Array:
    """Return Q_k(s, .) with the priors, [K, ..., A]; those of illegal actions are far below all
    others."""
    return legal_values(q(timestep) + net.hyper.prior_scale * net.prior(timestep), timestep)


@loss("q")
def q_loss(net: Net, x: Transition) -> Array:
    """Regress each network's Q_k(s, a) on r + gamma max Q'_k(s', .) of its own target network,
    where its mask has the transition: [B], the sum over the networks."""
    following = values(net, net.target.q, x.next_timestep).max(-1)
    target = losses.td_target(x.reward, x.terminated, net.hyper.discount, following)
    taken = jnp.take_along_axis(values(net, net.q, x.timestep), x.action[None, :, None], -1)[..., 0]
    error = losses.squared_error(taken, target)
    return (x.extras["mask"].T * error).sum(0)


def recipe(env: Environment, config: Config) -> Recipe:
    network, members = q_network(env, config.torso), config.members
    example = (example_timestep(env),)

    def act(net, timestep, memory, key, greedy):
        member_key, mask_key = jax.random.split(key)
        drawn = jax.random.randint(member_key, memory.shape, 0, members)
        member = jnp.where(timestep.first, drawn, memory)
        best = values(net, net.q, timestep).argmax(-1)  # [K, B]
        if greedy:
            action = jax.nn.one_hot(best, env.action_space.n).sum(0).argmax(-1)
        else:
            action = jnp.take_along_axis(best, member[None], 0)[0]
        shape = (*member.shape, members)
        mask = jax.random.bernoulli(mask_key, net.hyper.mask_probability, shape)
        return action.astype(env.action_space.dtype), member, {"mask": mask}

    def update(net, batch):
        net = net.descend(q_loss, batch.transitions, mask=batch.mask, weight=batch.weight)
        return net.update_targets()

    return Recipe(
        parts={
            "q": Part(network, example, config.optimizer, config.target, members=members),
            "prior": Part(network, example, members=members),
        },
        act=act,
        losses=(q_loss,),
        update=update,
        memory=lambda n: jnp.zeros((n,), jnp.int32),
    )


bootstrapped_dqn = AlgorithmBuilder("bootstrapped_dqn", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING | {"members": 3}
