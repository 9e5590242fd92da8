"""Texts that token policies learn from: who writes them, and which of them are drawn."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import Prepare, keep_sample, on_episodes
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Environment, Source, Tasks
from jaxrl.datasets.texts import Texts as Arrays
from jaxrl.datasets.texts import read_texts
from jaxrl.envs.language.written import written_episodes
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import Loss, Recipe, group, static
from jaxrl.kit.groups import Episodes
from jaxrl.sources import episodes, given_texts, played_by, played_through, text_dataset
from jaxrl.sources.rollouts import check_shards
from jaxrl.sources.texts import Score, Weigh

WRITERS = ("expert", "policy")


def weigh_right(returns: Array) -> Array:
    """Weigh texts [N] with a positive return alike, and others by 0."""
    return (returns > 0).astype(jnp.float32)


def weigh_by_return(returns: Array) -> Array:
    """Weigh texts [N] by their return, 0 if it is negative."""
    return jnp.maximum(returns, 0.0)


# How often a text of a dataset is drawn, by its return.
KEEP: dict[str, Weigh] = {"all": jnp.ones_like, "right": weigh_right, "by_return": weigh_by_return}


@group
class Texts(Episodes):
    """Texts to learn from: written by the environment's expert or by the policy, or those of a
    file."""

    num_envs: int = static(256, low=1, high=MANY)
    """Number of texts in an update."""
    count: int = static(0, low=0, high=MANY)
    """Number of texts in a dataset that is written once; 0 to write new ones for every update."""
    writer: str = static("expert", choices=WRITERS)
    """Writer of the texts: expert (the environment's), or policy (the one that is trained, as it is
    when it writes)."""
    noise: float = static(0.0, low=0, high=1)
    """Probability that a token is replaced by another one while a text is written."""
    keep: str = static("all", choices=KEEP)
    """Texts of a dataset that are drawn: all, right (those with a positive return), or by_return
    (in proportion to it)."""
    file: str = ""
    """File of texts to learn from instead, as `datasets.texts.read_texts` reads it; empty for
    none."""

    def source(
        self, env: Environment, tasks: Tasks | None = None, score: Score | None = None
    ) -> Source:
        """Return a source of batches of texts. Raises `UserError` for a file with lines that are no
        texts of `env`, and without an expert if it is to write.

        score: of the texts of a dataset, in place of their returns.
        """
        if self.file:
            return text_source(env, read_texts(self.file, env), self.num_envs, self.num_shards)
        check_shards(self.num_shards, num_envs=self.num_envs)
        advised = expert_channel(env) if self.writer == "expert" else env
        if self.count:
            written = episodes(advised, self.count, tasks)
        else:
            written = episodes(advised, self.num_envs, tasks, self.num_shards)
        add = lambda policy: add_noise(env, policy, self.noise) if self.noise else policy
        if self.writer == "expert":
            written = played_by(written, add(expert_policy(advised)))
        elif self.noise:
            written = played_through(written, add)
        if not self.count:
            return written
        return text_dataset(written, self.num_envs, self.weigh, self.num_shards, score)

    @property
    def weigh(self) -> Weigh:
        """Function that says how often texts of a dataset are drawn."""
        return KEEP[self.keep]

    def check(self, name: str) -> None:
        """Raise `UserError` for settings that have no effect together."""
        given = {"count": self.count, "noise": self.noise, "keep": self.keep != "all"}
        if self.file and any(given.values()):
            setting = next(key for key, value in given.items() if value)
            raise UserError(
                f"{name} learns from the file '{self.file}' as it is; leave out texts.{setting}."
            )
        if self.keep != "all" and not self.count:
            raise UserError(
                f"texts.keep is {self.keep}, which chooses from a dataset; set texts.count above 0."
            )


def text_source(env: Environment, texts: Arrays, batch_size: int, num_shards: int = 1) -> Source:
    """Return a source of batches of `batch_size` texts of one's own, as `make_texts` returns
    them."""
    transitions, mask = written_episodes(env, texts.tokens, texts.utterance, texts.length)
    return given_texts(transitions, mask, texts.weight, batch_size, env.name, num_shards)


def on_texts(env: Environment, config: Any, loss: Loss, prepare: Prepare = keep_sample) -> Recipe:
    """Return the recipe of a token policy that learns `loss` from texts, `config.texts`.

    prepare: as in `on_episodes`. The policy is judged by its own answers: where only a dataset is
    drawn from, it has none in training.
    """
    recipe = on_episodes(env, config, (loss,), prepare)
    offline = config.texts.count or config.texts.file
    return dataclasses.replace(recipe, scores={}) if offline else recipe


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, for texts that cannot be, and if early stopping is
    on."""
    if config.passes.early_stop:
        raise UserError(
            f"{name} cannot stop early: it learns from given texts, not from those of an earlier "
            "policy that it should stay near."
        )
    config.texts.check(name)
    answers.check(env, config, name)
