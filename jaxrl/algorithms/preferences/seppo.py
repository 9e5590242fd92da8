"""SePPO, semi-policy preference optimization (Zhang et al., 2024, "SePPO: semi-policy preference
optimization for diffusion alignment", arXiv:2410.05255), for tokens: a policy learns from good
answers alone, without a reward model and without rejected ones. An earlier checkpoint of the policy
writes the other answer of each pair, and is the reference of the loss. It is not always the worse
one: where the checkpoint is nearer to the good answer than the policy, its sample counts as good
too (the anchor-based criterion, see `losses.seppo`). Checkpoints are drawn at random from the last
ones.

The paper has diffusion models, whose log-probabilities are denoising errors, and a dataset of good
images. Here the best of n answers by the policy of the beginning stand for the dataset: those with
the highest mean probability of being preferred to the others, by the environment's judge.
`criterion` off counts every sample as bad, as in DPO.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.measures import measure_return
from jaxrl.algorithms.preferences.shared.pairs import Answers, begin_as, loss_of_pairs, on_pairs
from jaxrl.algorithms.preferences.shared.pairs import check as check_pairs
from jaxrl.algorithms.preferences.shared.players import played_as, played_as_target
from jaxrl.algorithms.preferences.shared.settings import SMALL_PLAYED, ReferencePolicy
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.judges import judge_of, win_probabilities
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, static
from jaxrl.kit.state import State
from jaxrl.sources import Player, cast
from jaxrl.sources.pairs import judged_of, take_answers


@group
class Winners(Groups):
    """Groups of answers to the same prompt: the first ones by the policy of the beginning, of which
    the best is good, and the last by a checkpoint."""

    prompts: int = static(64, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one pair."""
    answers: int = static(5, low=2, high=MANY)
    """Number of answers to each prompt: n, of which the best is good, and the checkpoint's."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.prompts

    def source(self, env: Environment) -> Source:
        """Return a source of whole episodes that both play."""
        first = [Player(played_as_target)] * (self.answers - 1)
        return cast(self.episodes(env), (*first, Player(played_as("anchor"))))


@group
class Config(ReferencePolicy):
    """Settings of SePPO: good answers against samples of earlier checkpoints (arXiv:2410.05255)."""

    pairs: Winners = Winners()
    steps: int = static(25, low=1)
    """Number of updates between two checkpoints; with each, another one becomes the reference."""
    checkpoints: int = static(4, low=1, high=100)
    """Number of last checkpoints from which the reference is drawn."""
    criterion: bool = True
    """Count a sample as good where the reference is nearer to the good answer than the policy."""


def choose_pair(preference: Array) -> Array:
    """Return the best of a group's first answers and its last one, as places int32 [P, 2].

    preference: [P, G, G], probabilities, as of `win_probabilities`.
    """
    best = losses.win_rate(preference[:, :-1, :-1]).argmax(-1)
    return jnp.stack([best, jnp.full_like(best, preference.shape[1] - 1)], -1)


def keep_checkpoint(net: Net, steps: int, count: int) -> Net:
    """Return the net with the policy among the last `count` checkpoints, and one of them as the
    anchor, after every `steps` updates."""
    done = net.updates + 1
    due, number = done % steps == 0, done // steps - 1  # of this checkpoint, from 0
    policy, kept = (net.parts[name].params for name in ("actor_critic", "checkpoints"))
    new = jax.tree.map(lambda x, y: x.at[number % count].set(y), kept, policy)
    drawn = jax.random.randint(net.key("checkpoint"), (), 0, jnp.minimum(number + 1, count))
    anchor = jax.tree.map(lambda x: x[drawn], new)
    return net.with_params(
        checkpoints=trees.where(due, new, kept),
        anchor=trees.where(due, anchor, net.parts["anchor"].params),
    )


def recipe(env: Environment, config: Config) -> Recipe:
    judge, size = judge_of(env), config.pairs.answers

    def pair_loss(net: Net, chosen: Answers, sample: Answers) -> Array:
        both = chosen.log_prob, sample.log_prob, chosen.reference, sample.reference
        function = losses.seppo if config.criterion else losses.dpo
        return function(*both, net.hyper.beta)

    plain = on_pairs(env, config, loss_of_pairs(pair_loss), reference_part="anchor")

    def update(net: Net, batch: Batch) -> Net:
        places = choose_pair(win_probabilities(judge, judged_of(batch), size))
        net = plain.update(net, take_answers(batch, places, size))
        return keep_checkpoint(net, config.steps, config.checkpoints)

    def adopt(state: State, other: Any) -> Any:
        rest = {name: part for name, part in state.parts.items() if name != "checkpoints"}
        begun = begin_as("actor_critic")(dataclasses.replace(state, parts=rest), other)
        if not isinstance(begun, State) or begun is other:
            return other
        kept = {"checkpoints": state.parts["checkpoints"]}  # none of which is read before it is set
        return dataclasses.replace(begun, parts=begun.parts | kept)

    network = plain.parts["actor_critic"].network
    inputs = example_timestep(env), network.initial(1)
    anchor = Part(network, inputs, begins_as="actor_critic")
    ring = Part(network, inputs, members=config.checkpoints)
    parts = {**plain.parts, "anchor": anchor, "checkpoints": ring}
    return dataclasses.replace(plain, parts=parts, update=update, adopt=adopt)


seppo = AlgorithmBuilder("seppo", Config, recipe, check=check_pairs, measure=measure_return)

TINY = SMALL_PLAYED | {"answers": 3, "steps": 1, "checkpoints": 2}
