"""Sources of batches: rollouts, episodes, replay buffers, datasets, and mixtures of them."""

from jaxrl.sources.beside import beside
from jaxrl.sources.branches import with_branches
from jaxrl.sources.casting import Player, cast
from jaxrl.sources.dataset import dataset, mixed
from jaxrl.sources.demonstrations import played_by, played_through
from jaxrl.sources.episodes import episodes
from jaxrl.sources.foresight import foresight_pairs
from jaxrl.sources.guides import with_guide
from jaxrl.sources.held_out import held_out
from jaxrl.sources.hints import with_hints
from jaxrl.sources.imagined import imagined_rollouts
from jaxrl.sources.kept_groups import kept_groups
from jaxrl.sources.pairs import judged_pairs, pair_dataset
from jaxrl.sources.promising import with_promising
from jaxrl.sources.recent import recent
from jaxrl.sources.recordings import recordings
from jaxrl.sources.refinements import refined_pairs
from jaxrl.sources.rehearsal import rehearsal
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts
from jaxrl.sources.samplers import proportional
from jaxrl.sources.segments import segment_pairs
from jaxrl.sources.texts import given_texts, text_dataset
from jaxrl.sources.trees import as_trees
from jaxrl.sources.trials import best_of_trials
from jaxrl.sources.utterances import (
    branch_at_turns,
    compare_attempts,
    improve_utterances,
    renew_utterances,
)

__all__ = [
    "Player",
    "as_trees",
    "beside",
    "best_of_trials",
    "branch_at_turns",
    "cast",
    "compare_attempts",
    "dataset",
    "episodes",
    "foresight_pairs",
    "given_texts",
    "held_out",
    "imagined_rollouts",
    "improve_utterances",
    "judged_pairs",
    "kept_groups",
    "mixed",
    "pair_dataset",
    "played_by",
    "played_through",
    "proportional",
    "recent",
    "recordings",
    "refined_pairs",
    "rehearsal",
    "renew_utterances",
    "replay",
    "rollouts",
    "segment_pairs",
    "text_dataset",
    "with_branches",
    "with_guide",
    "with_hints",
    "with_promising",
]
