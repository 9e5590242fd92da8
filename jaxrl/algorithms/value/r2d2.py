"""R2D2 (Kapturowski et al., 2019, "Recurrent experience replay in distributed reinforcement
learning"): a recurrent dueling double DQN that learns from replayed sequences, which begin with the
memory that they were collected with and a part that only warms it up.

Unlike in the paper, the memory is a GRU (an LSTM there); sequences go on across ends of episodes,
where the memory is reset; and new sequences have the largest priority so far (there the actors
compute it at once).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value.shared.q_learning import check_q_learning, q_network
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Transition, Tree, struct
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import mask_illegal, sample_epsilon_greedy
from jaxrl.kit.groups import ImageTorso, Optimizer, Priorities, Replay, Target
from jaxrl.networks.q_network import RecurrentQNetwork


@group
class Config:
    """Settings of R2D2: those of its section 2.3 and table 2, except for the capacity of the replay
    buffer and how it is filled (there by 256 environments, some 13,000 steps for an update)."""

    replay: Replay = Replay(num_envs=64, num_steps=40, updates=1, batch_size=64)
    """Replay buffer of sequences, one of which begins every `num_steps`; `batch_size` counts
    sequences."""
    priorities: Priorities = Priorities(exponent=0.9, importance=0.6)
    torso: ImageTorso = ImageTorso(hidden=(512, 512))
    """Layers before the memory, and the hidden layer of the head."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, eps=1e-3)
    """Adam, 1e-4, epsilon 1e-3: Kapturowski et al., table 2."""
    target: Target = Target(rate=1.0, period=2500)
    recurrent: int = static(512, low=1)
    """Width of the GRU."""
    burn_in: int = static(40, low=0)
    """Number of steps at the start of a sequence that only warm up the memory."""
    unroll: int = static(80, low=1)
    """Number of steps after the burn-in, which are learned."""
    n_step: int = static(5, low=1)
    """Number of rewards in a target before the value that it bootstraps from; fewer at a sequence's
    end."""

    epsilon: float = hyper(0.4, low=0, high=1)
    """Probability of a random action in the first environment."""
    epsilon_spread: float = hyper(7.0, low=0)
    """Spread of exploration: in the last environment the probability of a random action is epsilon
    ** (1 + epsilon_spread). Environments between are spaced evenly in the exponent (Horgan et al.,
    2018, "Distributed prioritized experience replay")."""
    discount: float = hyper(0.997, low=0, high=1)
    """Discount factor (gamma) per step."""
    max_weight: float = hyper(0.9, low=0, high=1)
    """Share (eta) of a sequence's largest error in its priority; the rest is the mean error."""


@struct
class Sequences:
    """Replayed sequences, as a gradient step sees them."""

    window: Transition  # [burn_in + unroll, B]
    memory: Tree  # [B]: before the window
    mask: Array | None = None  # [burn_in + unroll, B]: which steps are learned; None for all


def epsilons(net: Net, n: int) -> Array:
    """Return the probability of a random action in each of n environments, [n] (Ape-X)."""
    place = jnp.arange(n) / max(n - 1, 1)
    return net.hyper.epsilon ** (1 + net.hyper.epsilon_spread * place)


def recipe(env: Environment, config: Config) -> Recipe:
    network = q_network(
        env, config.torso, RecurrentQNetwork, dueling=True, recurrent=config.recurrent
    )

    def memory(n: int):
        """Return the GRU's memory and the last action, none."""
        return jnp.zeros((n, config.recurrent)), jnp.full(n, -1, jnp.int32)

    def act(net, timestep, memory, key, greedy):
        hidden, last_action = memory
        q, hidden = net.q(timestep, last_action, hidden)
        q = mask_illegal(q[..., 0], timestep)
        action = q.argmax(-1) if greedy else sample_epsilon_greedy(q, epsilons(net, len(q)), key)
        return action.astype(env.action_space.dtype), (hidden, action), {}

    early = lambda tree: jax.tree.map(lambda a: a[: config.burn_in], tree)
    late = lambda tree: jax.tree.map(lambda a: a[config.burn_in :], tree)

    def unroll(q, x: Sequences):
        """Return action values by `q` at each learned step and at its successor, [unroll, B, A]
        each. No gradient flows into the burn-in."""
        hidden, last_action = x.memory
        steps, actions = x.window.timestep, x.window.action
        before = jnp.concatenate([last_action[None], actions[:-1]])
        before = jnp.where(x.window.first, -1, before)
        if config.burn_in:
            hidden = q(early(steps), early(before), hidden, unroll=True)[1][-1]
        hidden = jax.lax.stop_gradient(hidden)
        values, memories = q(late(steps), late(before), hidden, unroll=True)
        following, _ = jax.vmap(q)(late(x.window.next_timestep), late(actions), memories)
        return values[..., 0], following[..., 0]

    @loss("q")
    def q_loss(net: Net, x: Sequences) -> LossOutput:
        """Section 2.3: double Q-learning's n-step targets h(sum r + gamma^n h^-1(Q))."""
        h, window = net.hyper, late(x.window)
        values, chooser = unroll(net.q, x)
        _, following = unroll(net.target.q, x)
        chosen = mask_illegal(chooser, window.next_timestep).argmax(-1)
        next_value = losses.signed_parabolic(losses.at_action(following, chosen))
        returns = losses.n_step_returns(
            window.reward, next_value, window.terminated, window.done, h.discount, config.n_step
        )
        goal = losses.signed_hyperbolic(returns)
        predicted = losses.at_action(values, window.action)
        error = jnp.abs(predicted - goal)
        loss, mean = losses.squared_error(predicted, goal), error.mean(0)
        if x.mask is not None:
            learned = late(x.mask)
            loss, error = (jnp.where(learned, y, 0.0) for y in (loss, error))
            mean = error.sum(0) / jnp.maximum(learned.sum(0), 1)
        priority = h.max_weight * error.max(0) + (1 - h.max_weight) * mean
        return LossOutput(loss.sum(0), priority=priority)

    def update(net, batch):
        x = Sequences(batch.transitions, batch.memory, batch.mask)
        net = net.descend(q_loss, x, weight=batch.weight)
        return net.update_targets()

    inputs = (example_timestep(env), jnp.zeros(1, jnp.int32), jnp.zeros((1, config.recurrent)))
    return Recipe(
        parts={"q": Part(network, inputs, config.optimizer, config.target)},
        act=act,
        losses=(q_loss,),
        update=update,
        memory=memory,
        needs=("memory",),
    )


r2d2 = AlgorithmBuilder(
    "r2d2",
    Config,
    recipe,
    source=lambda env, config: config.replay.source(
        env, config.burn_in + config.unroll, config.priorities.sampler("priorities"), True
    ),
    check=check_q_learning,
)

TINY = {
    "env": "t_maze",
    "env_params": {"length": 2},
    "num_envs": 4,
    "num_shards": 4,
    "num_steps": 3,
    "batch_size": 4,
    "capacity": 64,
    "warmup": 0,
    "hidden": (8, 8),
    "recurrent": 8,
    "burn_in": 2,
    "unroll": 4,
    "n_step": 2,
    "target.period": 2,
}
