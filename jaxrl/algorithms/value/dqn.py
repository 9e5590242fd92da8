"""Deep Q-networks (Mnih et al., 2015, "Human-level control through deep reinforcement learning").

The other agents of this folder are compositions of its parts: what is predicted (a `Head`), who
chooses the next action, which network, how one explores, and over how many steps a target reaches.
"""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.algorithms.value.shared.heads import MEAN, Head, of_action
from jaxrl.algorithms.value.shared.n_step import n_step
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper, in_order
from jaxrl.kit.acting import epsilon, epsilon_greedy
from jaxrl.kit.groups import EpsilonGreedy, ImageTorso, Optimizer, Replay, Target
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.q_network import QNetwork

NATURE = Optimizer("centered_rmsprop", learning_rate=2.5e-4, decay=0.95, eps=0.01 / 32**2)


@group
class Common:
    """Settings that all of DQN's line have."""

    replay: Replay = Replay(batch_size=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = NATURE
    """Centered RMSProp, 2.5e-4, decay 0.95, epsilon 0.01: Mnih et al., extended data table 1. (In
    their code the "gradient momentum" is the decay of the mean that centers. It sums the gradients
    of a minibatch of 32: for their mean, epsilon is 0.01 / 32^2.) Errors are clipped, by `huber`;
    gradients are not."""
    target: Target = Target(rate=1.0, period=500)
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""


@group
class Config(Common):
    """Settings of DQN."""

    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Errors above this count linearly."""


def recipe(
    env: Environment,
    config: Any,
    head: Head = MEAN,
    double: bool = False,
    dueling: bool = False,
    noisy: bool = False,
    steps: int = 1,
) -> Recipe:
    """DQN, and with another head or one of the options what it became.

    double: the network chooses the next action, its copy values it (van Hasselt et al., 2016).
    dueling: two streams, value and advantages (Wang et al., 2016).
    noisy: explore by noisy weights (Fortunato et al., 2018), not by random actions.
    steps: rewards in a target before the value that it bootstraps from; batches are windows, which
        begin with the transitions that are learned.
    """
    more = {"num_outputs": head.num_outputs, "dueling": dueling, "noisy": noisy}
    network = q_network(env, config.torso, **more)

    def outputs(q: Any, timestep, key=None):
        """[B, actions, num_outputs]; by mean weights unless there is a `key`."""
        return q(timestep, rngs={"noise": key()}) if noisy and key else q(timestep)

    def q_loss(net, x):
        """Algorithm 1: what is predicted of the action taken, against r + gamma max Q(s', .)."""
        discount = x.extras["discount"] if steps > 1 else net.hyper.discount
        evaluated = outputs(net.target.q, x.next_timestep, lambda: net.key("evaluate"))
        selector = evaluated
        if double:
            selector = outputs(net.q, x.next_timestep, lambda: net.key("choose"))
        goal = jax.lax.stop_gradient(head.target(net, x, discount, evaluated, selector))
        now = outputs(net.q, x.timestep, lambda: net.key("predict"))
        loss, priority = head.error(net, of_action(now, x.action), goal)
        return loss, {"priority": priority}

    def update(net, batch):
        if steps > 1:
            batch = n_step(batch, net.hyper.discount)
        return in_order(net, batch) if noisy else explorer_in_order(net, batch)

    def values(net, timestep, key=None):
        return head.values(net, outputs(net.q, timestep, key), timestep)

    def by_noise(net, timestep, memory, key, greedy):
        q = values(net, timestep, None if greedy else lambda: key)
        return q.argmax(-1).astype(env.action_space.dtype), memory, {}

    return Recipe(
        parts={"q": Part(network, (example_timestep(env),), config.optimizer, config.target)},
        act=by_noise if noisy else epsilon_greedy(values, env.action_space, config.exploration),
        losses={"q_loss": Loss(q_loss, ("q",))},
        update=update,
    )


def q_network(env: Environment, torso: ImageTorso, kind: Any = QNetwork, **more: Any) -> Any:
    """A network of the values of the actions of `env`, of that `kind`."""
    return kind(
        env.observation_space,
        env.action_space.n,  # type: ignore[union-attr]
        channels=torso.channels,
        widths=torso.hidden,
        activation=torso.activation,
        initializer=torso.initializer,
        **more,
    )


def explorer_in_order(net: Net, batch: Batch) -> Net:
    """The update of who explores by epsilon, which is reported."""
    return in_order(net, batch).report(epsilon=epsilon(net))


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` for actions that are not Discrete, and channels for what is no image."""
    check_discrete(env.action_space, name)
    check_image(env, config.torso.channels)


dqn = AlgorithmBuilder("dqn", Config, recipe, check=check)

TINY = {
    "env": "cartpole",
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (5, 4),
    "period": 3,
}
