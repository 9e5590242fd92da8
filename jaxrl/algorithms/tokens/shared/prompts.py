"""Fixed sets of prompts, asked by how often they were answered right."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Tasks
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import Net, group, hyper, static
from jaxrl.tasks import BY_FAILURE, Draw, prompts


@group
class PromptSet:
    """Set of prompts that is drawn when a run begins."""

    of_a_source: ClassVar[bool] = True

    count: int = static(1024, low=1, high=MANY)
    """Number of prompts in the set."""
    rate: float = hyper(0.5, above=0, high=1)
    """Share of the newest group of answers in a prompt's rate of success."""

    def tasks(self, env: Environment, path: str, draw: Draw = BY_FAILURE) -> Tasks:
        """Return the prompts as starts of episodes of `env`. path: of these settings in the
        Config."""
        return prompts(env.params, Start, self.count, draw, self.rate, f"{path}.")


def feed_success(net: Net, batch: Batch, right: Array) -> Net:
    """Tell the prompts which answers, bool [B], were right.

    The steps of an episode share a score by their number, so it is given to the first step alone.
    """
    reward = batch.transitions.reward
    at_start = jnp.arange(len(reward))[:, None] == 0
    score = jnp.where(at_start, right.astype(reward.dtype), jnp.nan)
    return net.feed(score=score)
