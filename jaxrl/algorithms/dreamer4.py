"""Dreamer 4's two phases on one data set of recorded episodes, one a warm start of the other."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.agents.planning import dreamer4
from jaxrl.core.hyper import MANY, check, static
from jaxrl.core.learn import learn
from jaxrl.core.types import Algorithm, Environment, Source
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers import expert_channel
from jaxrl.networks.heads import check_discrete
from jaxrl.sources.recorded import recorded


@dataclasses.dataclass(frozen=True)
class Data:
    """Whose episodes are learnt from."""

    episodes: int = static(512, low=1, high=MANY)
    """How many there are."""
    batch_size: int = static(32, low=1, high=MANY)
    """Of them in a gradient step."""
    skills: tuple[float, ...] = static((-1.0, 0.5), low=-1, high=1, least_length=1)
    """Of the players, see `envs.policies.mixed_skill`: here half of them never do what is best, and
    half ask an expert every second time."""
    labelled: float = static(0.1, low=0, high=1)
    """The share of the episodes that tell their actions."""


@dataclasses.dataclass(frozen=True)
class Config(dreamer4.Config):
    """Settings of both phases. A warm start needs the same sizes in both, and imagines in the
    same data where seeds and `data` are the same."""

    data: Data = Data()
    """The episodes."""


def dreamer4_world_model(env: Environment, config: Config = Config()) -> Algorithm:
    """Learns the world and clones, from episodes that the expert of `env` played with mixed skill.
    Steps are gradient steps. The same arguments give the same object.

    Raises `UserError` for a world without discrete actions, a time limit or an expert, and for
    sizes that do not fit.
    """
    check_discrete(env.action_space, "dreamer4_world_model")
    return _phases(env, config)[0]


def dreamer4_imagination(env: Environment, config: Config = Config()) -> Algorithm:
    """Improves the policy by imagination; to be warm-started from `dreamer4_world_model`. The rest
    as there."""
    check_discrete(env.action_space, "dreamer4_imagination")
    return _phases(env, config)[1]


def source(env: Environment, data: Data = Data()) -> Source:
    """The episodes of `data`. Raises `UserError`."""
    advised = expert_channel(env)
    players = mixed_skill(advised, data.skills)
    return recorded(advised, players, data.episodes, data.batch_size, data.labelled)


@functools.cache
def _phases(env: Environment, config: Config) -> tuple[Algorithm, Algorithm]:
    check(config)
    episodes = source(env, config.data)
    first, second = dreamer4.agents(env, config)
    second = dataclasses.replace(second, goes_on_from="dreamer4_world_model")
    return learn(first, episodes), learn(second, episodes)
