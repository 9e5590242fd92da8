"""GILD (Deng, Zheng, He, Weng and Shao, 2025, "Enhancing online reinforcement learning with
meta-learned objective from offline data", arXiv:2501.07346): TD3 whose policy also descends a
learned objective of demonstrations, a network G >= 0 of the demonstrated state, the demonstrated
action and the policy's action there:

    policy     phi'   = phi - rate grad (-Q(s, phi(s)) + G(phi(s_d), s_d, a_d))
    objective  maximize tanh(Q(s', phi'(s')) - Q(s', phi_c(s')))

phi_c is the policy after the same step with a squared error in the place of G, as in TD3 with
cloning, and s' are other states of the replay buffer. The gradient of the objective goes through
the policy's step. That step is a plain gradient step; what the policy then takes is its optimizer's
step along the same gradient, as in the authors' code, from which the formulas are.

`objective: cloning` is the authors' comparison, TD3 with the squared error. Their optimizer of the
objective adds its weight decay to the gradient; here it is decoupled.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.continuous_control import td3
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.algorithms.imitation.shared.demonstrations import SMALL_DEMONSTRATIONS, Demonstrations
from jaxrl.core import metrics as m
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Source, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks.critics import ActionValues
from jaxrl.networks.heads import scale
from jaxrl.sources.dataset import split

EXPERT = "expert"  # extra with the demonstrated step beside each row
LEARNED, CLONING = "learned", "cloning"


@group
class Objective:
    """Learned objective of demonstrations."""

    torso: Torso = Torso(hidden=(256, 256))
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, weight_decay=1e-4)
    """Optimizer settings of the objective. Adam, 1e-4, weight decay 1e-4: authors' code."""


@group
class Config(td3.Config):
    """Settings of GILD: TD3 whose policy also descends a meta-learned objective of demonstrations
    (arXiv:2501.07346)."""

    demonstrations: Demonstrations = Demonstrations(name="scripted")
    objective: Objective = Objective()
    imitation: str = static(LEARNED, choices=(LEARNED, CLONING))
    """Objective of the demonstrations that the policy descends: the learned one, or the squared
    error of its actions."""
    until: float = hyper(INF, low=0, high=INF)
    """Environment steps after which the policy learns from rewards alone. The authors recommend
    1 % of all steps, to save time."""


def split_batch(x: Tree, num_shards: int) -> tuple[Tree, Tree]:
    """Split transitions [2 n] into those to learn from and those that test the objective, [n] each,
    shard by shard."""
    size = x.reward.shape[-1] // 2
    halves = lambda leaf: split(leaf.swapaxes(0, -1), (size, size), num_shards)
    parts = [jax.tree.map(lambda leaf, i=i: halves(leaf)[i].swapaxes(0, -1), x) for i in (0, 1)]
    return parts[0], parts[1]


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    center, half_width = scale(space)  # type: ignore[arg-type]

    def compare(net: Any, x: Any) -> tuple[Any, Array, Array]:
        """Return demonstrated time steps, and in half-widths the actions shown and the policy's."""
        shown = x.extras[EXPERT]
        timestep = net.normalize(shown.timestep)
        unit = lambda action: (action - center) / half_width
        return timestep, unit(shown.action), unit(net.actor(timestep))

    def learned_objective(net: Any, x: Any) -> Array:
        """Compute the learned objective of each demonstrated step, [B]."""
        timestep, action, own = compare(net, x)
        return jax.nn.softplus(net.objective(timestep, (own, action))[..., 0])

    def cloning(net: Any, x: Any) -> Array:
        """Compute the mean squared error of the policy's action, in half-widths, [B]."""
        _, action, own = compare(net, x)
        return jnp.square(own - action).reshape(len(x.reward), -1).mean(-1)

    def step(net: Any, x: Any, term: Any) -> Tree:
        """Return the policy's parameters after a gradient step."""
        params = net.parts["actor"].params

        def total(params):
            changed = net.with_params(actor=params)
            return (td3.actor_value(changed, x) + term(changed, x)).mean()

        rate = net.learning_rate("actor")
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(total)(params))

    @loss("objective")
    def meta_loss(net, halves):
        """Maximize tanh(Q(phi') - Q(phi_c)) on states that neither step was computed from."""
        x, test = halves

        def value(term):
            return -td3.actor_value(net.with_params(actor=step(net, x, term)), test).mean()

        advantage = value(learned_objective) - jax.lax.stop_gradient(value(cloning))
        one = jnp.float32(1)
        return LossOutput(m.Mean(-jnp.tanh(advantage), one))

    def imitation(net, x):
        term = (learned_objective if config.imitation == LEARNED else cloning)(net, x)
        value = jnp.where(net.env_steps < net.hyper.until, term, 0.0)
        return LossOutput(value, {"imitation": term})

    plain = td3.recipe(env, config, actor_terms=(imitation,))
    critic_loss, actor_loss = plain.losses

    def update(net: Net, batch: Batch) -> Net:
        x, test = split_batch(batch.transitions, config.replay.num_shards)
        net = net.descend(critic_loss, x)
        moved = net.descend(actor_loss, x, every=config.delay)
        if config.imitation == LEARNED:
            # Both steps begin from the same policy and the same objective.
            taught = net.descend(meta_loss, (x, test), every=config.delay)
            objective = taught.parts["objective"]
            moved = moved.replace(parts=moved.parts | {"objective": objective})
            moved = moved.report(**taught.metrics | moved.metrics)
        return moved.update_targets(every=config.delay if config.delay > 1 else None)

    parts, losses = plain.parts, plain.losses
    if config.imitation == LEARNED:
        torso, action = config.objective.torso, spaces.example(space)[None]
        network = ActionValues(
            env.observation_space,
            (space, space),  # type: ignore[arg-type]
            torso.hidden,
            1,
            torso.activation,
            torso.initializer,
        )
        inputs = (example_timestep(env), (action, action))
        parts = {**parts, "objective": Part(network, inputs, config.objective.optimizer)}
        losses = (*losses, meta_loss)
    return dataclasses.replace(
        plain,
        parts=parts,
        losses=losses,
        update=update,
        needs=(f"transitions.extras.{EXPERT}",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return batches of replayed steps, twice as many as a minibatch has, each beside a
    demonstrated one."""
    replay = dataclasses.replace(config.replay, batch_size=2 * config.replay.batch_size)
    played = replay.source(env)
    return config.demonstrations.beside(env, played, replay.batch_size, replay.num_shards)


gild = AlgorithmBuilder("gild", Config, recipe, source, check=deterministic.check)

TINY = deterministic.TINY | SMALL_DEMONSTRATIONS | {"updates": 3}
