"""DRAIL's discriminator where errors of denoising are free numbers of each state and action, in
random finite Markov decision processes, in float64."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs, losses
from jaxrl.algorithms.imitation import drail
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.diffusion import VariancePreserving
from jaxrl.exact.occupancy import occupancy
from jaxrl.networks import encoders

STATES, ACTIONS, DISCOUNT, LEVELS = 5, 3, 0.8, 8
PAIRS = STATES * ACTIONS
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
DISCRIMINATOR = drail.DiffusionDiscriminator(levels=LEVELS, label_size=1)
CONFIG = dataclasses.replace(drail.Config(), discriminator=DISCRIMINATOR)
PROCESS = VariancePreserving(LEVELS, "cosine")
START = jnp.full(STATES, 1 / STATES)


def shares(transition: Array, logits: Array) -> Array:
    """Return the discounted shares of states and actions, [S A]."""
    policy = jax.nn.softmax(logits, -1)
    return (1 - DISCOUNT) * occupancy(transition, policy, START, DISCOUNT).ravel()


def errors_of(
    key: Key, form: str = "logit", swapped: bool = False, apart: bool = False
) -> dict[str, Array]:
    """Return the errors at the errors of denoising whose difference is the log of the expert's over
    the policy's shares.

    "rest": the slope of the loss. "policy": the policy gradient of the reward there, beside that of
    minus the KL divergence of the policy's shares from the expert's.
    form: of the reward. swapped: labels are exchanged. apart: errors are those of two denoisers of
    which each knows one law alone, as if it were fitted to its own label: minus its log share.
    """
    keys = jax.random.split(key, 6)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), (STATES, ACTIONS))
    expert = shares(transition, 2 * jax.random.normal(keys[1], (STATES, ACTIONS)))
    logits = jax.random.normal(keys[2], (STATES, ACTIONS))
    policy = shares(transition, logits)
    observation = jax.random.normal(keys[3], (PAIRS, 3))
    action = jax.random.uniform(keys[4], (PAIRS, 1), minval=-2.0, maxval=2.0)
    noise_key = keys[5]

    def take(index: Array) -> Transition:
        """Return the steps of pairs, by number."""
        none = jnp.zeros(index.shape)
        step = TimeStep(observation[index], none, none > 0, none > 0, none > 0)
        return Transition(step, action[index], step, (), {})

    rows = jnp.arange(PAIRS)
    shown, played = (x.ravel() for x in jnp.meshgrid(rows, rows, indexing="ij"))
    beside = Beside(played=take(played), shown=take(shown))

    def pair(index: Array) -> Array:
        x = take(index)
        space = ENV.observation_space
        return encoders.state_action_features(space, ENV.action_space, x.timestep, x.action)

    def denoise(table: Array) -> Any:
        """Return a denoiser whose mean squared errors are `table` [2, S A], by label and pair."""

        def predict(noisy: Array, level: Array, label: Array) -> Array:
            # Which pairs it is given follows from the noise, which is that of the key.
            known = [
                PROCESS.add_noise(noise_key, jnp.broadcast_to(pair(index), noisy.shape))
                for index in (shown, played)
            ]
            first = jnp.abs(known[0].noisy - noisy).max() < 1e-9
            index = jnp.where(first, shown, played)
            target = jnp.where(first, known[0].target, known[1].target)
            row = jnp.where(label == drail.EXPERT, 0, 1)
            row = 1 - row if swapped else row
            return target + jnp.sqrt(table[row, index])[..., None]

        return predict

    discriminator_loss = next(
        x for x in drail.recipe(ENV, CONFIG).losses if x.name == "discriminator_loss"
    )

    def total(table: Array) -> Array:
        net: Any = SimpleNamespace(discriminator=denoise(table), key=lambda name: noise_key)
        output: Any = discriminator_loss(net, beside)
        return (expert[shown] * policy[played]) @ output.value

    ratio = jnp.log(expert / policy)
    table = 1.0 + jnp.stack([jax.nn.relu(-ratio), jax.nn.relu(ratio)])
    if apart:
        table = 1.0 - jnp.log(jnp.stack([expert, jnp.full_like(policy, 1 / PAIRS)]))
    reward = losses.adversarial_reward(losses.drail_logits(table[0], table[1]), form)
    own = jax.grad(lambda logits: shares(transition, logits) @ reward)(logits)

    def divergence(logits: Array) -> Array:
        found = shares(transition, logits)
        return found @ jnp.log(found / expert)

    return {
        "rest": jnp.abs(jax.grad(total)(table)).max(),
        "policy": jnp.abs(own + jax.grad(divergence)(logits)).max(),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the loss and the reward as they are."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Diffusion-Reward Adversarial Imitation Learning",
        "Lai, Wang, Hsieh, Wang, Chen and Sun",
        2024,
        "2405.16194",
        "A discriminator that compares the denoising errors of a diffusion model under the labels "
        "of expert and policy gives smoother rewards than GAIL's, and better imitation.",
    ),
    claim="The discriminator's loss is at rest where the error of denoising under the expert's "
    "label exceeds that under the policy's by the log of the policy's over the expert's share of a "
    "state and action; there the policy gradient of the reward is that of minus the KL divergence "
    "from the expert's shares.",
    left_out="Networks, learning, smoothness and comparisons with GAIL. Errors are free numbers; a "
    "network ties those of like states and actions.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/imitation/drail.py", "jaxrl/losses/imitation/adversarial.py"),
    errors=errors,
    planted={
        "labels are exchanged": jax.jit(lambda key: errors_of(key, swapped=True)),
        "the policy's label tells nothing": jax.jit(lambda key: errors_of(key, apart=True)),
        "the reward -log(1 - D)": jax.jit(lambda key: errors_of(key, form="positive")),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "errors are averaged, not compared",
            "jaxrl.losses:drail_logits",
            lambda logits: lambda expert, agent: logits(expert, agent) / 2,
        ),
        Mutation(
            "the policy's steps count as the expert's",
            "jaxrl.losses:binary_cross_entropy",
            lambda entropy: lambda logit, label: entropy(logit, 0 * label + 1),
        ),
    ),
)
