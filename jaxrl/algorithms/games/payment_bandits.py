"""Contextual bandits for payments (Vangara and Egg, 2024, "Contextual bandits in payment
processing: non-uniform exploration and supervised learning at Adyen", arXiv:2412.00569): a
regression oracle is trained on logged choices, and explored around by inverse gap weighting
(SquareCB) or uniformly.

Feedback is logged in batches and comes late, the policy of a generation plays unchanged until the
next one is trained, actions differ from payment to payment, and only the last generations are
remembered (`replay.capacity` rounds). The oracle predicts the probability that an action succeeds;
an action whose prediction is lower by a gap d than that of the best is taken with probability
1 / (A + gamma d).

The paper's oracle is boosted trees, trained anew for each generation; here it is a network that
goes on learning. Its off-policy evaluation of candidates for the next generation is left out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.games.shared.selection import check_selection, read_labels
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Batch, Environment, Key
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import epsilon
from jaxrl.kit.groups import EpsilonGreedy, Optimizer, Replay, Torso
from jaxrl.networks.scalar import ScalarMLP


@group
class Config:
    """Settings of contextual bandits for payments. Defaults are ours."""

    replay: Replay = Replay(
        num_envs=16, num_steps=32, updates=64, batch_size=64, capacity=2048, warmup=512
    )
    torso: Torso = Torso(hidden=(32,))
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    exploration: EpsilonGreedy = EpsilonGreedy(start=0.1, end=0.1)
    """Probability of a uniformly random action, with `rule` epsilon."""
    rule: str = static("igw", choices=("igw", "epsilon"))
    """Exploration: by inverse gap weighting (igw), or uniform (epsilon)."""
    gamma: float = hyper(100.0, low=0, log=True)
    """Greediness of inverse gap weighting."""


@loss("oracle")
def oracle_loss(net: Net, x: Any) -> LossOutput:
    """Compute the cross-entropy of the label that a round revealed."""
    features, labels, _ = read_labels(x)
    each = losses.binary_cross_entropy(net.oracle(features), labels)
    return LossOutput(each[..., 0], {"success_rate": labels[..., 0]})


def choose(net: Net, config: Any, q: Array, available: Array) -> Array:
    """Return the probability of each candidate, [B, n], from predicted probabilities q [B, n].

    available: bool [B, n].
    """
    if config.rule == "igw":
        return losses.inverse_gap_weighting(q, net.hyper.gamma, available)
    count = available.sum(-1, keepdims=True)
    best = jax.nn.one_hot(jnp.where(available, q, -1.0).argmax(-1), q.shape[-1])
    share = epsilon(net, config.exploration)
    return (1 - share) * best + share * available / count


def recipe(env: Environment, config: Any) -> Recipe:
    space: Any = env.observation_space
    torso = config.torso
    network = ScalarMLP(torso.hidden, torso.activation, torso.initializer)  # log-odds of a label

    def act(net: Net, timestep: Any, memory: Any, key: Key, greedy: bool) -> Any:
        seen = timestep.observation
        available = seen["available"] > 0
        q = jax.nn.sigmoid(net.oracle(seen["candidates"]))
        if greedy:
            return q, memory, {}
        probability = choose(net, config, q, available)
        action = jax.random.categorical(key, jnp.log(jnp.where(available, probability, 0.0)))
        return jax.nn.one_hot(action, q.shape[-1]), memory, {}

    def update(net: Net, batch: Batch) -> Net:
        known = read_labels(batch.transitions)[2][..., 0] > 0
        mask = known if batch.mask is None else known & batch.mask
        return net.descend(oracle_loss, batch, mask=mask)

    example = jnp.zeros((1, space["candidates"].shape[-1]))
    part = Part(network, (example,), config.optimizer)
    return Recipe(parts={"oracle": part}, act=act, losses=(oracle_loss,), update=update)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment without candidates, and for a quota above 1."""
    check_selection(env, config, name)
    quota = env.observation_space["labels"].shape[0]  # type: ignore[index]
    if quota != 1:
        raise UserError(
            f"{name} takes one action for each payment; the quota of '{env.name}' is {quota}."
        )


payment_bandits = AlgorithmBuilder("payment_bandits", Config, recipe, check=check)

TINY = {
    "env": "selective_labels",
    "env_params": {"delay": 1, "rounds": 4, "presence": 0.5},
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (4,),
}
