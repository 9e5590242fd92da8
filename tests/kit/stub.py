"""Test losses of algorithms against a few lines of NumPy: tables in the networks' place."""

import dataclasses
import types

import numpy as np

from jaxrl.core.settings import Values
from jaxrl.core.types import TimeStep, Transition


def stub(target=None, hyper=None, **known):
    """A `net` of functions and numbers: stub(q=lambda s: ..., hyper={"discount": 0.9})."""
    target = types.SimpleNamespace(**(target or {}))
    return types.SimpleNamespace(target=target, hyper=Values(hyper or {}), **known)


def transitions(n, actions=2, seed=0, **extras):
    """Transitions [n] whose observations are their numbers, 0 .. n - 1 and n .. 2 n - 1 next; some
    terminated, some truncated. Actions are indices, or for 0 numbers in [-1, 1]."""
    rng = np.random.default_rng(seed)
    no = np.zeros(n, bool)
    ended = rng.random(n) < 0.3
    cut = ~ended & (rng.random(n) < 0.3)
    action = rng.integers(0, actions, n) if actions else rng.uniform(-1, 1, n).astype(np.float32)
    before = TimeStep(np.arange(n), np.zeros(n, np.float32), no, no, no)
    after = TimeStep(n + np.arange(n), rng.normal(size=n).astype(np.float32), ended, cut, no)
    return Transition(before, action, after, (), extras)


def mask(x, actions=2, seed=1):
    """`x` where some actions are illegal, before and after; one at least is legal."""
    legal = np.random.default_rng(seed).random((2, len(x.reward), actions)) < 0.6
    legal[..., 0] |= ~legal.any(-1)
    before = dataclasses.replace(x.timestep, legal_actions=legal[0])
    after = dataclasses.replace(x.next_timestep, legal_actions=legal[1])
    return dataclasses.replace(x, timestep=before, next_timestep=after)


def huber(error, size):
    """Huber's error, by NumPy."""
    error = np.abs(error)
    return np.where(error < size, error**2 / 2, size * (error - size / 2))


def losses_of(recipe):
    """The losses of a recipe, by name."""
    return {loss.name: loss for loss in recipe.losses}
