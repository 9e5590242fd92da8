"""SBD (Deng et al., 2025, "Open-world skill discovery from unsegmented demonstrations",
arXiv:2503.10684): skill boundary detection. Long demonstrations are cut where a predictor of their
actions is suddenly surprised, and a policy learns each piece as a skill.

The predictor is a sequence policy that sees observations and actions of a window, but neither goals
nor returns, so that it has to infer from the past what is being done. It learns in the first
`predictor_steps` updates and is frozen afterward. A skill begins where its loss exceeds the mean
since the last boundary by `gap` (`losses.skill_boundaries`). Then what the last step of a piece
achieves is the goal of all its steps, and a policy clones their actions under it; a piece whose end
is not in the window is left out.

The paper's predictor is VPT's, its policies are GROOT and STEVE-1, and a hierarchical agent calls
them; here the policy reaches goals, and there is no agent above it. Its cues from the environment's
events are not used. The gap of 18 there is in the units of that predictor's loss.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.goals.gcbc import actor_loss
from jaxrl.algorithms.goals.shared.conditioned import check as check_conditioned
from jaxrl.algorithms.goals.shared.conditioned import make_actor, with_goal
from jaxrl.algorithms.goals.shared.data import Played
from jaxrl.algorithms.offline.shared.inverse_dynamics import keep
from jaxrl.algorithms.offline.shared.sequences import Sequence, action_error, features_of
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.metrics import Mean, mean
from jaxrl.core.types import Array, Batch, Environment, Goals, Source, Transition, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss
from jaxrl.kit.acting import sample
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import check_transformer
from jaxrl.networks.sequence_policy import Steps
from jaxrl.sources.played import windows


@group
class Config:
    """Settings of SBD: skills from demonstrations that are cut where a predictor of actions is
    surprised (arXiv:2503.10684)."""

    data: Played = Played(players="play", batch_size=64)
    sequence: Sequence = Sequence(context=32, width=64, layers=2, heads=2)
    """Predictor; its context is the number of steps in a window of play."""
    torso: Torso = Torso(hidden=(256, 256))
    """Hidden layers of the policy."""
    predictor: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the predictor."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the policy."""

    predictor_steps: float = hyper(2_000.0, low=1)
    """Gradient steps of the predictor, before which the policy does not learn and after which the
    predictor is frozen."""
    gap: float = hyper(1.0, above=0, high=INF)
    """Excess of the predictor's loss over its mean since the last boundary at which a skill
    begins."""


@struct
class Segments:
    """Segments of windows [T, B].

    last: row of the last step of each step's segment, int32 [T, B]. known: False where the segment
    does not end within the window.
    """

    last: Array
    known: Array


def segments(begins: Array) -> Segments:
    """Return the segments of windows [T, B] in which segments begin where `begins` (bool)."""
    length = len(begins)
    row = jnp.arange(length, dtype=jnp.int32)[:, None]
    begin = jnp.where(begins, row, length)
    following = jnp.concatenate([begin[1:], jnp.full_like(begin[:1], length)])
    following = jax.lax.cummin(following, reverse=True)
    return Segments(following - 1, following < length)


def recipe(env: Environment, config: Config) -> Recipe:
    space, goals = env.action_space, env.goals
    assert goals is not None

    def surprise(net: Net, x: Transition) -> Array:
        """Return the predictor's loss at each step of windows [T, B]."""
        policy = net.predictor(to_steps(env, x.timestep, x.action), x.timestep.legal_actions).policy
        return action_error(space, policy, x.action)

    @loss("predictor")
    def predictor_loss(net: Net, x: Transition) -> Array:
        """Compute the error of each action, given what came before it and no goal."""
        return surprise(net, x)

    def update(net: Net, batch: Batch) -> Net:
        first, x, begun = net.updates < net.hyper.predictor_steps, batch.transitions, net
        net = keep(net.descend(predictor_loss, batch), begun, ("predictor",), ~first)
        begins = losses.skill_boundaries(surprise(net, x), net.hyper.gap) > 0
        pieces, known = relabel(goals, x, begins)
        mask = known if batch.mask is None else known & batch.mask
        learned = keep(net.descend(actor_loss, pieces, mask=mask), net, ("actor",), first)
        return learned.report(**compare(begins, x.timestep.goal))

    timestep = example_timestep(env)
    window = jax.tree.map(lambda a: a[None], (timestep, spaces.example(space)[None]))
    example = to_steps(env, window[0], window[1])
    settings: Any = config
    network = config.sequence.network(env, longest=config.sequence.context)
    return Recipe(
        parts={
            "predictor": Part(network, (example,), config.predictor),
            "actor": Part(make_actor(env, settings), (timestep,), config.optimizer),
        },
        act=sample("actor", space),
        losses=(predictor_loss, actor_loss),
        update=update,
    )


def to_steps(env: Environment, timestep: Any, action: Tree) -> Steps:
    """Return steps [T, B] of a sequence policy that sees neither goals nor returns. Time begins
    with the window, since play goes on for longer than any episode."""
    features = features_of(env, with_goal(timestep, None))
    row = jnp.arange(len(features), dtype=jnp.int32)[:, None]
    time = jnp.broadcast_to(row, features.shape[:2])
    action = encoders.action_features(env.action_space, action)
    return Steps(jnp.zeros(time.shape), features, action, time, jnp.ones(time.shape, bool))


def relabel(goals: Goals, x: Transition, begins: Array) -> tuple[Transition, Array]:
    """Return windows [T, B] under the goals that the last steps of their segments achieve, and
    which of the steps have such a goal."""
    found = segments(begins)
    last = lambda a: jnp.take_along_axis(
        a, found.last.reshape(*found.last.shape, *[1] * (a.ndim - 2)), 0
    )
    goal = goals.achieved(jax.tree.map(last, x.next_observation))
    return dataclasses.replace(x, timestep=with_goal(x.timestep, goal)), found.known


def compare(begins: Array, goal: Tree) -> dict[str, Mean]:
    """Compare boundaries [T, B] with the steps at which the demonstrator's goal changed, which
    nothing learns from: the share of changes that were found, and of boundaries that are right."""
    differs = [
        (g[1:] != g[:-1]).reshape(len(g) - 1, g.shape[1], -1).any(-1) for g in jax.tree.leaves(goal)
    ]
    changed = functools.reduce(jnp.logical_or, differs)
    begins = begins[1:]
    return {
        "boundaries": mean(begins),
        "changes_found": mean(begins, changed),
        "boundaries_right": mean(changed, begins),
    }


def source(env: Environment, config: Config) -> Source:
    """Return windows of the play of a run, which need not end."""
    return config.data.source(env, windows(config.sequence.context, whole=False))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has goals, and actions that a policy can have, and for sizes
    that no transformer has."""
    check_conditioned(env, config, name)
    check_transformer(config.sequence.width, config.sequence.layers, config.sequence.heads)


sbd = AlgorithmBuilder("sbd", Config, recipe, source, check=check)

TINY = {
    "env": "one_way_doors",
    "env_params": {"rows": 2, "columns": 2, "maze": 1, "observe": "position"},
    "data.size": 256,
    "data.streams": 2,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "torso.hidden": (8,),
    "context": 4,
    "width": 8,
    "layers": 1,
    "predictor_steps": 2.0,
    # The gradient of the keys' biases is rounding alone, which Adam would scale up to a step.
    "predictor.eps": 0.01,
    "gap": 0.01,
}
