"""Q-learning from a replay buffer with a target network: settings, network and recipe."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.algorithms.value.shared.heads import Head, action_outputs
from jaxrl.algorithms.value.shared.n_step import n_step_transitions
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Environment
from jaxrl.kit import LossOutput, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import epsilon, epsilon_greedy
from jaxrl.kit.groups import ImageTorso, Optimizer, Replay, Target
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.q_network import QNetwork


@group
class QLearning:
    """Settings shared by Q-learning agents with a replay buffer and a target network."""

    replay: Replay = Replay(batch_size=32)
    torso: ImageTorso = ImageTorso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer()
    target: Target = Target(rate=1.0, period=500)
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor (gamma) per step."""


def q_learning_recipe(
    env: Environment,
    torso: Any,
    head: Head,
    *,
    optimizer: Any,
    target: Any,
    exploration: Any,
    double: bool = False,
    dueling: bool = False,
    steps: int = 1,
) -> Recipe:
    """Return a recipe of Q-learning from replayed transitions, with one network `q`.

    torso: group of the settings, an `ImageTorso`.
    head: what the network predicts of each action, and how it is learned.
    optimizer, target: groups of the settings, an `Optimizer` and a `Target`.
    exploration: group of the settings, an `EpsilonGreedy`; None to explore by noisy weights instead
        (Fortunato et al., 2018).
    double: whether the online network selects the next action and the target network evaluates it
        (van Hasselt et al., 2016).
    dueling: whether the network has two streams, value and advantages (Wang et al., 2016).
    steps: number of rewards in a target before the value that it bootstraps from. Above 1, batches
        are windows [steps, B], of which the transitions from their first steps are learned.
    """
    noisy = exploration is None
    network = q_network(env, torso, num_outputs=head.num_outputs, dueling=dueling, noisy=noisy)

    def predict(q, timestep, key):
        """Apply `q` to time steps [B], with noise from `key()` where weights are noisy."""
        return q(timestep, rngs={"noise": key()}) if noisy else q(timestep)

    @loss("q")
    def q_loss(net, x):
        """Regress the outputs of the taken action on the head's target."""
        evaluated = predict(net.target.q, x.next_timestep, lambda: net.key("evaluate"))
        selector = evaluated
        if double:
            selector = predict(net.q, x.next_timestep, lambda: net.key("choose"))
        discount = x.extras["discount"] if steps > 1 else net.hyper.discount
        goal = head.target(net, x, discount=discount, evaluated=evaluated, selector=selector)
        outputs = predict(net.q, x.timestep, lambda: net.key("predict"))
        taken = action_outputs(outputs, x.action)
        error, priority = head.error(net, taken, jax.lax.stop_gradient(goal))
        return LossOutput(error, priority=priority)

    def values(net, timestep):
        return head.values(net, net.q(timestep), timestep)

    def act_by_noise(net, timestep, memory, key, greedy):
        outputs = net.q(timestep) if greedy else predict(net.q, timestep, lambda: key)
        q = head.values(net, outputs, timestep)
        return q.argmax(-1).astype(env.action_space.dtype), memory, {}

    def update(net, batch):
        x, mask = batch.transitions, batch.mask
        if steps > 1:  # padding after an episode's end is not read, so the first step decides
            x = n_step_transitions(x, net.hyper.discount)
            mask = mask if mask is None else mask[0]
        net = net.descend(q_loss, x, mask=mask, weight=batch.weight).update_targets()
        return net if noisy else net.report(epsilon=epsilon(net, exploration))

    act = act_by_noise if noisy else epsilon_greedy(values, env.action_space, exploration)
    part = Part(network, (example_timestep(env),), optimizer, target)
    return Recipe(parts={"q": part}, act=act, losses=(q_loss,), update=update)


def q_network(env: Environment, torso: Any, kind: Any = QNetwork, **options: Any) -> Any:
    """Return a network of values of the actions of `env`.

    torso: group of the settings, an `ImageTorso`.
    kind: class of the network. options: its other fields.
    """
    return kind(
        env.observation_space,
        env.action_space.n,  # type: ignore[union-attr]
        channels=torso.channels,
        widths=torso.hidden,
        activation=torso.activation,
        initializer=torso.initializer,
        **options,
    )


def check_q_learning(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for actions that are not Discrete, and for convolutions without images.

    config: settings with a `torso`, an `ImageTorso`.
    """
    check_discrete(env.action_space, name)
    check_image(env, config.torso.channels)


# The smallest settings of these agents that take every branch.
TINY_Q_LEARNING: dict[str, Any] = {
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
