"""Pairs of segments of a team's play, of which each agent has a preference of its own."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared.segments import STREAMS, PartlyLabeled
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, Transition, Tree
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import group, static
from jaxrl.kit.agents import agent_names
from jaxrl.sources import played_by, rollouts
from jaxrl.sources.segments import Teacher, set_columns

PREFERRED = "preferred"  # the extra of a batch that holds the labels


@functools.cache
def mixed_team(
    env: Environment, skills: tuple[float, ...], deviations: tuple[float, ...]
) -> Policy:
    """Build a policy that plays each episode in one of several ways, drawn uniformly: all agents
    with one of `skills`, or one agent with one of `deviations` while the others play the expert.
    Who deviates is drawn. A skill is the probability that an agent's action is the expert's and not
    a random one. `env` must come from `wrappers.expert_channel`.

    Raises `UserError` as `expert_policy` does, and without any skill or deviation.
    """
    if not skills and not deviations:
        raise UserError("A team needs a way to play: skills, deviations or both.")
    agents = agent_names(env)
    expert, novice = expert_policy(env), random_policy(env)
    all_but_one = jnp.float32((*skills, *(1.0 for _ in deviations)))
    one = jnp.float32((*skills, *deviations))

    def act(state, timestep, memory, key, greedy):
        way_key, agent_key, novice_key, key = jax.random.split(key, 4)
        count = len(timestep.first)
        way = jax.random.randint(way_key, (count,), 0, len(one))
        deviates = jax.random.randint(agent_key, (count, 1), 0, len(agents))
        alone = jnp.arange(len(agents)) == deviates
        drawn = jnp.where(alone, one[way][:, None], all_but_one[way][:, None])
        skill = jnp.where(timestep.first[:, None], drawn, memory)
        advised: Any = expert.act((), timestep, (), key, greedy)[0]
        by_chance: Any = novice.act((), timestep, (), novice_key, greedy)[0]
        on_purpose = jax.random.bernoulli(key, skill)
        action = {
            agent: trees.where(on_purpose[:, i], advised[agent], by_chance[agent])
            for i, agent in enumerate(agents)
        }
        return action, skill, {}

    return Policy(act, lambda n: jnp.zeros((n, len(agents))))


@group
class TeamSegments(PartlyLabeled):
    """Pairs of segments of a team's play, which a simulated teacher compares for each agent."""

    name: str = ""
    """Dataset; must be empty: each run plays its own data."""
    skills: tuple[float, ...] = static((1.0, 0.0), low=0, high=1)
    """Skills of whole teams, one for each episode: the probability that an action is the expert's
    and not random."""
    deviations: tuple[float, ...] = static((0.0,), low=0, high=1)
    """Skills of a single agent whose team plays the expert, one for each episode: the data of
    unilateral deviations. Empty for none."""
    length: int = static(25, low=1, high=MANY)
    """Number of steps of a segment. 25: an episode of the particles."""
    others: int = static(0, low=0, high=MANY)
    """Number of segments that nobody compared, of all of the data, for each pair of a gradient
    step."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of pairs, in a random order, and of other segments. The extra
        `preferred` float32 [T, B, N] says for each agent whether the first segment of a pair is
        preferred: 1 or 0, 1/2 in a tie."""
        return self.label_pairs(env, self.teacher.teacher(env), others=self.others)

    def label_pairs(self, env: Environment, teacher: Teacher, **options: Any) -> Source:
        """Return the same with the labels of `teacher`, and `options` of `sources.segment_pairs`.

        Labels are drawn in each batch anew, as in the authors' code.
        """
        source = self.pairs(env, teacher=Teacher(_prefer_neither), **options)
        columns, agents = set_columns(others=options.get("others", 0)), len(agent_names(env))

        def sample(state: Any, fresh: Any, key: Key) -> Batch:
            key, label_key = jax.random.split(key)
            batch = source.sample(state, fresh, key)
            t = batch.transitions
            first, second = (_every(t, i, columns) for i in range(2))
            label = teacher.label(label_key, first, second, ()).preferred
            label = label.reshape(len(label), -1)  # one reward may be that of all agents
            label = jnp.repeat(jnp.broadcast_to(label, (len(label), agents)), columns, 0)
            label = jnp.broadcast_to(label, (*t.first.shape, agents))
            transitions = dataclasses.replace(t, extras={PREFERRED: label})
            return dataclasses.replace(batch, transitions=transitions)

        return dataclasses.replace(source, sample=sample)

    def data(self, env: Environment) -> Source:
        """Return the source that plays a run's own data."""
        if self.name:
            raise UserError(
                f"segments.name is '{self.name}'; it must be empty, since no dataset of a team is "
                "made here: each run plays its own."
            )
        advised = expert_channel(env)
        streams = min(STREAMS, max(1, self.data_size // self.length))
        source = rollouts(advised, streams, -(-self.data_size // streams))
        return played_by(source, mixed_team(advised, self.skills, self.deviations))

    def held_out_batch(self, env: Environment, key: Key, policy: Policy, count: int) -> Batch:
        """Return `count` pairs of episodes that no batch has, as `source` does, with the labels of
        a teacher who makes no mistakes."""
        source = self.label_pairs(
            env,
            self.teacher.judge(env),
            count=count,
            batch_size=count,
            of_held_out=True,
            num_shards=1,
        )
        state = source.init(key, source.hyper, policy)
        state, fresh, _ = source.collect(state, policy, key)
        return source.sample(state, fresh, key)


def _every(t: Transition, start: int, step: int) -> Transition:
    """Return every so many columns of transitions [T, B]."""
    return jax.tree.map(lambda x: x[:, start::step], t)


def _prefer_neither(first: Transition, second: Transition, user: Tree) -> Array:
    return jnp.full(first.first.shape[1:], 0.5)
