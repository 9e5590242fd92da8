"""Agents on data sets, in worlds, and on both: the same agent, so that what was learnt offline goes
on online (`--warm-start`), with its optimisers' states."""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.agents.offline import iql as iql_
from jaxrl.agents.offline import td3_bc as td3_bc_
from jaxrl.agents.offline import uni_o4 as uni_o4_
from jaxrl.agents.offline.experience import Experience, check
from jaxrl.core.errors import UserError
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Algorithm, Environment, Source
from jaxrl.datasets import cache
from jaxrl.kit.normalization import normalize_observation
from jaxrl.sources.dataset import dataset, mixed
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts


def iql(env: Environment, config: iql_.Config = iql_.Config()) -> Algorithm:
    """Implicit Q-learning for `env`. The same arguments give the same object. A data set that is
    not in the cache is made now, which takes a training run.

    Raises `UserError` where env, data set and config do not fit.
    """
    return _iql(env, config)  # however the arguments are passed, one entry of the cache


def td3_bc(env: Environment, config: td3_bc_.Config = td3_bc_.Config()) -> Algorithm:
    """TD3+BC for `env`; the rest as `iql`."""
    return _td3_bc(env, config)


def uni_o4(env: Environment, config: uni_o4_.Config = uni_o4_.Config()) -> Algorithm:
    """One of Uni-O4's offline phases for `env`; the rest as `iql`. Online, PPO goes on."""
    return _uni_o4(env, config)


@functools.cache
def _iql(env: Environment, config: iql_.Config) -> Algorithm:
    return _build(env, iql_.agent(env, config), config)


@functools.cache
def _td3_bc(env: Environment, config: td3_bc_.Config) -> Algorithm:
    return _build(env, td3_bc_.agent(env, config), config)


@functools.cache
def _uni_o4(env: Environment, config: uni_o4_.Config) -> Algorithm:
    x = config.experience
    check(x)
    if x.num_envs or not x.dataset:
        raise UserError(
            "uni_o4 learns from a data set alone: name a dataset, and no num_envs. Online, ppo "
            "goes on from it (warm_start)."
        )
    agent = uni_o4_.agent(env, config)
    if config.normalize_observation:
        agent = normalize_observation(agent, env)
    if config.phase == "improvement":
        agent = dataclasses.replace(agent, goes_on_from="uni_o4 with agent.phase=supervised")
    return learn(agent, _dataset(env, x, x.updates * x.batch_size))  # a round at once


def _build(env: Environment, agent: Agent, config: iql_.Config | td3_bc_.Config) -> Algorithm:
    if config.normalize_observation:
        agent = normalize_observation(agent, env)
    return learn(agent, source(env, config.experience), config.experience.updates)


def source(env: Environment, experience: Experience) -> Source:
    """What `experience` describes. Raises `UserError`."""
    check(experience)
    x, batch_size = experience, experience.batch_size
    if not x.num_envs:
        return _dataset(env, x, batch_size)
    offline = round(x.offline_share * batch_size) if x.dataset else 0
    online = replay(
        rollouts(env, x.num_envs, x.num_steps), x.capacity, batch_size - offline, warmup=x.warmup
    )
    return mixed(_dataset(env, x, offline), online) if offline else online


def _dataset(env: Environment, x: Experience, batch_size: int) -> Source:
    data = cache.load(env, x.dataset, x.dataset_size, x.dataset_seed)
    return dataset(data.transitions, batch_size, updates=x.updates, name=data.name)
