"""Fixed sets of prompts, asked by how often they were answered right."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Tasks
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import Net, group, hyper, static
from jaxrl.tasks import by_failure, prompts


@group
class PromptSet:
    """Set of prompts that is drawn when a run begins."""

    of_a_source: ClassVar[bool] = True

    count: int = static(1024, low=1, high=MANY)
    """Number of prompts in the set."""
    rate: float = hyper(0.5, above=0, high=1)
    """Share of the newest group of answers in a prompt's rate of success."""
    even: float = hyper(0.1, low=0, high=1)
    """Share of the prompts that are drawn evenly, instead of in proportion to their failures. (With
    0, as in Kimi k1.5's report, prompts are never asked again once they are answered right.)"""

    def tasks(self, env: Environment, path: str) -> Tasks:
        """Return the prompts as starts of episodes of `env`. path: of these settings in the
        Config."""
        draw = by_failure(self.even)
        return prompts(env.params, Start, self.count, draw, self.rate, f"{path}.")


def feed_success(net: Net, batch: Batch, right: Array) -> Net:
    """Tell the prompts which answers, bool [B], were right.

    The steps of an episode share a score by their number, so it is given to the first step alone.
    """
    reward = batch.transitions.reward
    at_start = jnp.arange(len(reward))[:, None] == 0
    score = jnp.where(at_start, right.astype(reward.dtype), jnp.nan)
    return net.feed(score=score)
