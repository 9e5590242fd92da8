"""The smallest algorithm that learns from data: a number that follows the mean reward."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.core.hyper import hyper, hypers
from jaxrl.core.learn import learn
from jaxrl.core.settings import group
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, Source, struct


@group
class Config:
    data: Data = Data()
    rate: float = hyper(0.5, low=0)


@struct
class State:
    mean: Array
    hyper: dict[str, Any]


def agent(settings: Config = Config()) -> Agent:
    """Average rewards, with their distances from the mean as priorities."""

    def init(key, hyper):
        return State(jnp.float32(0), {"rate": hyper["rate"]})

    def act(state, timestep, memory, key, greedy):
        return jnp.zeros((*timestep.reward.shape, 1)), memory, {}

    def update(state, batch, key):
        error = batch.transitions.reward - state.mean
        mean = state.mean + state.hyper["rate"] * error.mean()
        info = Info({"mean": mean}, {"priority": jnp.abs(error)})
        return dataclasses.replace(state, mean=mean), info

    names = {"rate": hypers(settings)["rate"]}
    return Agent("averaging", init, act, update, hyper=names, config=settings)


def on(source: Source) -> Algorithm:
    return learn(agent(), source, updates=2)


def averaging(env: Environment, config: Config = Config()) -> Algorithm:
    return learn(agent(config), config.data.source(env), config.data.updates)
