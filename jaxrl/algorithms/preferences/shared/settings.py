"""Settings shared by policies that learn from preferences between answers."""

from __future__ import annotations

from typing import Any

from jaxrl.algorithms.preferences.shared.players import played_as
from jaxrl.algorithms.tokens.shared.models import LanguageModel
from jaxrl.algorithms.tokens.shared.settings import SMALL, Groups
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Source
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import group, hyper, static
from jaxrl.kit.groups import Epochs, LinearTorso, Memory, Optimizer, Target
from jaxrl.sources import Player, cast, episodes, judged_pairs, pair_dataset
from jaxrl.sources.pairs import RANKS
from jaxrl.tasks import repeat, starts


@group
class Pairs:
    """Dataset of pairs of answers, drawn once from the policy that training begins with."""

    count: int = static(4096, low=1, high=MANY)
    """Number of pairs in the dataset."""
    batch_size: int = static(64, low=1, high=MANY)
    """Number of pairs in an update."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the pairs: the most devices that can share a run."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.batch_size

    def source(self, env: Environment) -> Source:
        """Return a source of batches of these pairs."""
        return self.dataset(env)

    def dataset(self, env: Environment, **options: Any) -> Source:
        """Return the same with `options` of `sources.pair_dataset`."""
        prompts = repeat(starts(env.params, Start), 2)
        played = episodes(start_key(env), 2 * self.count, prompts)
        return pair_dataset(played, env, self.batch_size, num_shards=self.num_shards, **options)


@group
class LabeledPairs(Pairs):
    """Dataset of pairs of answers with some wrong labels."""

    flipped: float = static(0.0, low=0, high=0.5)
    """Probability that a label is the opposite of the judge's."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of these pairs."""
        return self.dataset(env, flipped=self.flipped)


@group
class UnlabeledPairs(Pairs):
    """Dataset of pairs of answers with their rewards, which no judge has compared."""

    def source(self, env: Environment) -> Source:
        """Return a source of batches of these pairs."""
        return self.dataset(env, judged=False)


@group
class JudgedGroups(Groups):
    """Groups of answers to the same prompt, of each of which two are compared."""

    answers: int = static(2, low=2, high=MANY)
    """Number of answers (G) to each prompt."""
    rank: str = static("extremes", choices=RANKS)
    """Answers of a group that become a pair: extremes (those with the most and the fewest wins
    against the others) or first_two."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.prompts

    def source(self, env: Environment) -> Source:
        """Return a source of one pair for each group, played anew for each update."""
        played = Groups.source(self, env)
        return judged_pairs(played, env, self.answers, self.rank, self.num_shards)


@group
class PairPolicy:
    """Settings shared by policies that learn from pairs of answers."""

    passes: Epochs = Epochs(epochs=1, minibatches=1, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=2)
    decoder: LanguageModel = LanguageModel()
    torso: LinearTorso = LinearTorso(hidden=(), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    pairs: Pairs = Pairs()


@group
class ReferencePolicy(PairPolicy):
    """Settings shared by policies that learn from pairs of answers and stay near a reference."""

    reference: Target = Target(rate=0.0)
    beta: float = hyper(0.1, above=0)
    """Strength of the pull toward the reference policy; see each loss."""


@group
class SelfPlay(Groups):
    """Groups of answers to the same prompt, written by the anchor."""

    answers: int = static(2, low=2, high=MANY)
    """Number of answers (G) to each prompt."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that the anchor plays."""
        return cast(Groups.source(self, env), (Player(played_as("anchor")),))


@group
class Rivals(Groups):
    """Groups of answers to the same prompt: two by the policy, then two by its opponent."""

    answers: int = static(4, low=4, high=4)
    """Number of answers (G) to each prompt."""

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that both play."""
        own, rival = Player(), Player(played_as("opponent"))
        return cast(Groups.source(self, env), (own, own, rival, rival))


@group
class Game:
    """Settings shared by policies that learn preference games in iterations."""

    passes: Epochs = Epochs(epochs=1, minibatches=1, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=2)
    decoder: LanguageModel = LanguageModel()
    torso: LinearTorso = LinearTorso(hidden=(), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    reference: Target = Target(rate=0.0)
    groups: SelfPlay = SelfPlay()
    steps: int = static(20, low=1)
    """Number of updates in which the policy is regressed on one step of the game."""
    eta: float = hyper(1.0, above=0)
    """Size of a step of the game."""


@group
class RegularizedGame(Game):
    """Settings shared by policies that learn preference games near a reference policy."""

    beta: float = hyper(0.1, above=0)
    """Cost of the KL divergence from the reference policy, in win rates."""


# Smallest settings of every algorithm whose answers are written for each update, of games, and of
# what learns from the scores of reward models; and of those with a dataset of pairs.
SMALL_PLAYED = SMALL | {"env": "judged_words", "prompts": 8, "num_shards": 4}
SMALL_GAME = SMALL_PLAYED | {"steps": 2}
SMALL_JUDGED = SMALL_PLAYED | {"answers": 2, "members": 2}
SMALL_PAIRS = SMALL | {"env": "judged_words", "count": 16, "batch_size": 8, "num_shards": 4}
