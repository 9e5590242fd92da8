"""Data of goal-conditioned algorithms: steps that scripted players play for each run."""

from __future__ import annotations

import dataclasses

from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Policy, Source
from jaxrl.envs.goals import set_new_goals, stay_at_goals
from jaxrl.envs.planar.ogbench_pointmaze import BEGIN
from jaxrl.envs.policies import mixed_skill, noisy_expert, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.kit import group, static
from jaxrl.sources.hindsight import Shares
from jaxrl.sources.played import View, played_dataset

PLAYERS = ("random", "expert", "noisy", "play", "navigate", "stitch")


@group
class Played:
    """Dataset that scripted players play in the environment before learning; steps of the run are
    gradient steps."""

    players: str = static("random", choices=PLAYERS)
    """Players: random, expert, noisy (the expert with random actions), or play. Play is the noisy
    expert with a new goal whenever it has reached one, without an end of the episode. OGBench's
    datasets of its mazes: navigate is play with normal noise, from anywhere to goals anywhere;
    stitch goes to a goal nearby and stays there, so that no episode leads far."""
    noise: float = static(0.3, low=0, high=1)
    """Probability that an action of the noisy expert (also in play) is random; in navigate and
    stitch the standard deviation of normal noise on each action."""
    episode_steps: int = static(0, low=0)
    """Steps after which an episode of the dataset is cut off; 0: where the environment does, and
    play never. Short episodes from anywhere are data to stitch."""
    size: int = static(50_000, low=1)
    """Number of steps in the dataset."""
    streams: int = static(16, low=1, high=MANY)
    """Number of streams of episodes that are played side by side."""
    seed: int = static(-1, low=-1)
    """Seed of a dataset that all members of a run share; -1 lets every run play its own."""
    batch_size: int = static(1024, low=1, high=MANY)
    """Number of transitions in a gradient step."""
    updates: int = static(16, low=1)
    """Number of gradient steps per update of the log."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of batches: the most devices that can share a run."""

    def source(self, env: Environment, view: View | None = None) -> Source:
        """Return the source of the data, drawn by `view`.

        Raises `UserError` if the players need an expert that the environment does not have, and
        for play where time steps do not tell the state.
        """
        env, players = self.play(env)
        return played_dataset(
            env,
            players,
            self.size,
            self.batch_size,
            view,
            streams=self.streams,
            updates=self.updates,
            seed=None if self.seed < 0 else self.seed,
            num_shards=self.num_shards,
        )

    def play(self, env: Environment) -> tuple[Environment, Policy]:
        """Return the environment that is played in, and the players."""
        if self.players == "navigate":
            env = set_new_goals(_begin(env, "anywhere"))
        if self.players == "stitch":
            env = stay_at_goals(_begin(env, "nearby"))
        if self.players == "play":
            env = set_new_goals(env)
        if self.episode_steps:
            env = time_limit(env, self.episode_steps)
        if self.players == "random":
            return env, random_policy(env)
        env = expert_channel(env)
        if self.players in ("navigate", "stitch"):
            return env, noisy_expert(env, self.noise)
        skill = 1.0 if self.players == "expert" else 1 - self.noise
        return env, mixed_skill(env, (skill,))


def _begin(env: Environment, where: str) -> Environment:
    """Return `env` with other starts and goals. Raises `UserError` if it does not offer any."""
    if not hasattr(env.params, "begin"):
        raise UserError(
            f"'{env.name}' has no starts and goals '{where}' for data; the players 'navigate' and "
            "'stitch' are for ogbench_pointmaze."
        )
    params = dataclasses.replace(env.params, begin=BEGIN.index(where))
    return dataclasses.replace(env, params=params)


@group
class GoalShares:
    """Shares of the places that goals in hindsight are drawn from; the rest is from later in the
    same episode."""

    here: float = static(0.0, low=0, high=1)
    """Share of goals that the state itself has achieved."""
    elsewhere: float = static(0.0, low=0, high=1)
    """Share of goals that any step of the data has achieved."""
    geometric: bool = False
    """Draw the distance to later goals geometrically, by the discount factor, instead of uniformly
    over the rest of the episode."""

    def shares(self) -> Shares:
        """Return the shares. Raises `UserError` if they are more than 1 together."""
        return Shares(self.here, self.elsewhere, self.geometric)


def check_goals(env: Environment, name: str) -> None:
    """Raise `UserError` unless `env` has goals."""
    if env.goals is None:
        raise UserError(f"{name} learns to reach goals; '{env.name}' has none.")
