"""Settings and measures of algorithms that learn from pairs of segments of control.

| file | learner |
|---|---|
| cpl | the policy, whose log-probabilities are advantages |
| dppo_preference | a predictor of preferences, then a policy that is near to preferred actions |
| preference_iql | a reward model, and implicit Q-learning from its rewards |
| rl_vlm_f_offline | the same, with rewards of observations that a noisy judge compared |
| vpl | a reward model and a policy of a latent user, and implicit Q-learning |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.offline.shared import making
from jaxrl.algorithms.preferences.shared.teachers import SCORES, goal_of, score_of
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, Transition, Tree
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import Unit, group, static
from jaxrl.kit.groups import INF
from jaxrl.sources import played_by, rollouts, segment_pairs
from jaxrl.sources.segments import Compare, Teacher, by_scores, set_columns

STREAMS = 64  # environments that play the data of a run, at most
PAIR = Unit(sequences=True, columns=2)


@group
class SimulatedTeacher:
    """Teacher who compares segments, as B-Pref's (arXiv:2111.03026)."""

    score: str = static("reward", choices=SCORES)
    """Worth of a step to the teacher: reward, regret or goal. A regret is the exact advantage of
    the optimal maximum-entropy policy (finite tables alone), goal the reward for the goal of a
    user, who is drawn for each set of pairs among the goals of the data."""
    discount: float = static(1.0, above=0, high=1)
    """Discount factor per step from the beginning of a segment on."""
    rationality: float = static(INF, above=0, high=INF)
    """Factor on the difference of two sums in the sigmoid that is the probability of a label;
    infinite for a teacher who always prefers the larger sum."""
    mistakes: float = static(0.0, low=0, high=0.5)
    """Probability that a label is the opposite of what it should be."""
    equal: float = static(0.0, low=0)
    """Largest difference of the sums for which neither segment is preferred."""
    skip_ties: bool = False
    """Leave out pairs of which neither is preferred; if not, their label is 1/2."""
    soft: bool = False
    """Learn from the probabilities of labels instead of labels that are drawn once."""
    temperature: float = static(0.1, above=0)
    """Weight of the entropy in the optimum that a regret refers to."""
    horizon_discount: float = static(0.99, low=0, below=1)
    """Discount factor per step of the values that a regret refers to."""

    def teacher(self, env: Environment) -> Teacher:
        """Return the teacher that these settings describe."""
        return Teacher(
            self.compare(env, self.rationality),
            self.user_of,
            mistakes=self.mistakes,
            soft=self.soft,
            skip_ties=self.skip_ties,
        )

    def judge(self, env: Environment) -> Teacher:
        """Return the same teacher, who makes no mistakes and leaves out ties."""
        return Teacher(self.compare(env, INF), self.user_of, skip_ties=True)

    def compare(self, env: Environment, rationality: float) -> Compare:
        """Return what the teacher prefers."""
        score = score_of(env, self.score, self.temperature, self.horizon_discount)
        return by_scores(score, self.discount, rationality, self.equal)

    @property
    def user_of(self) -> Callable[[Transition], Tree] | None:
        """Property that tells users apart, see `sources.segments.Teacher`."""
        return goal_of if self.score == "goal" else None


@group
class Segments:
    """Pairs of segments of recorded experience, which a simulated teacher compares. Steps of the
    run are gradient steps."""

    name: str = "medium-replay"
    """Dataset: random, medium, expert, medium-replay or medium-expert (mixed), made at first use.
    Or the path of a file (Minari's, D4RL's or Parquet), or empty for data that each run plays for
    itself."""
    data_size: int = static(50_000, low=1)
    """Number of steps of a dataset that is made, or that a run plays for itself."""
    data_seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of a dataset that is made."""
    skills: tuple[float, ...] = static((0.0, 0.5, 1.0), low=-1, high=1, least_length=1)
    """Skills of who plays a run's own data, one for each episode: the probability that an action is
    the expert's and not random. A negative one is that of any action but the expert's."""
    length: int = static(64, low=1, high=MANY)
    """Number of steps of a segment. 64: Hejna et al."""
    count: int = static(2500, low=1, high=MANY)
    """Number of labeled pairs."""
    batch_size: int = static(96, low=1, high=MANY)
    """Number of pairs in a gradient step. 96: Hejna et al."""
    updates: int = static(8, low=1)
    """Number of gradient steps per update."""
    held_out: int = static(10, low=0)
    """Every so many episodes, one is left out for the measured accuracy; 0 for none, and no
    measure."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the pairs: the most devices that can share a run."""
    teacher: SimulatedTeacher = SimulatedTeacher()

    def source(self, env: Environment) -> Source:
        """Return a source of batches of these pairs. A dataset that is not in the cache is made
        now, which takes a training run."""
        return self.pairs(env)

    def pairs(self, env: Environment, **options: Any) -> Source:
        """Return the same with `options` of `sources.segment_pairs`."""
        known = {
            "length": self.length,
            "count": self.count,
            "batch_size": self.batch_size,
            "updates": self.updates,
            "held_out": self.held_out,
            "name": self.name,
            "num_shards": self.num_shards,
        }
        teacher = options.pop("teacher", None) or self.teacher.teacher(env)
        return segment_pairs(self.data(env), teacher, **(known | options))

    def data(self, env: Environment) -> Transition | Source:
        """Return the transitions of the dataset, or the source that plays a run's own data."""
        if self.name:
            return making.load(env, self.name, self.data_size, self.data_seed).transitions
        if env.host:
            raise UserError(
                f"'{env.name}' runs on the host, where no data are played; name a dataset."
            )
        if env.max_steps is not None and self.length > env.max_steps:
            raise UserError(
                f"segments.length is {self.length}, but episodes of '{env.name}' have at most "
                f"{env.max_steps} steps."
            )
        if self.held_out == 1:
            raise UserError("segments.held_out is 1, which leaves no episode to learn from.")
        advised = expert_channel(env)
        streams = min(STREAMS, max(1, self.data_size // self.length))
        source = rollouts(advised, streams, -(-self.data_size // streams))
        return played_by(source, mixed_skill(advised, self.skills))

    def held_out_pairs(
        self, env: Environment, key: Key, policy: Policy, count: int, size: int = 1
    ) -> Batch:
        """Return `count` sets of `size` pairs of episodes that no batch has, with the labels of a
        teacher who makes no mistakes, in the layout of `source`; pairs without a preference are
        masked."""
        source = self.pairs(
            env,
            teacher=self.teacher.judge(env),
            count=count,
            batch_size=count,
            size=size,
            of_held_out=True,
            num_shards=1,
        )
        state = source.init(key, source.hyper, policy)
        state, fresh, _ = source.collect(state, policy, key)
        return source.sample(state, fresh, key)


@group
class PartlyLabeled(Segments):
    """Pairs of segments of recorded experience, and segments that nobody compared."""

    others: int = static(1, low=0, high=MANY)
    """Number of segments that nobody compared, of all of the data, for each pair of a gradient
    step."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of both."""
        return self.pairs(env, others=self.others)


def set_unit(size: int = 1, others: int = 0, shift: float = 0.0) -> Unit:
    """Return the unit of losses of whole sets of segments; see `sources.segment_pairs`."""
    return Unit(sequences=True, columns=set_columns(size, others, shift))


def split_sets(x: Array, size: int = 1, others: int = 0, shift: float = 0.0) -> Sequence[Array]:
    """Return chosen and rejected segments [..., n, S] and those that nobody compared [..., n, O] of
    an array [..., n * columns]."""
    sets = x.reshape(*x.shape[:-1], -1, set_columns(size, others, shift))
    return sets[..., 0 : 2 * size : 2], sets[..., 1 : 2 * size : 2], sets[..., 2 * size :]


def accuracy(chosen: Array, rejected: Array) -> Array:
    """Return 1 where the chosen one is ahead, 0 where it is behind, 1/2 in a tie."""
    return 0.5 * (1 + jnp.sign(chosen - rejected))


# Smallest settings of every algorithm of segments.
SMALL_SEGMENTS = {
    "env": "pendulum",
    "segments.name": "",
    "data_size": 400,
    "segments.length": 4,
    "count": 16,
    "segments.batch_size": 8,
    "segments.updates": 2,
    "segments.num_shards": 4,
    "held_out": 2,
}
