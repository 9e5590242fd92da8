"""SPaR (Cheng et al., 2024, "SPaR: Self-Play with Tree-Search Refinement to Improve
Instruction-Following in Large Language Models", arXiv:2412.11605): an actor answers, and a refiner
judges its answers by votes and refines those that it judges to be wrong in a tree search by
breadth (`sources.refined_pairs`). The pair of a refinement and the answer that it came from differs
in little but what matters. The actor learns by DPO to prefer the refinement, and the refiner learns
the likelihood of the refinement that was found and of judgments that agree with the majority.

Nothing tells either what is right: the refiner's judgments are the only labels, and rewards of the
environment are only measured. Both begin as one policy, which must be able to judge and to refine:
a run of `token_supervised` on the environment's expert, in the place of a language model that was
fine-tuned with a stronger one's judgments and refinements.

In an iteration of the paper, the actor writes answers to all prompts and then learns from them,
with itself as the reference; here an iteration is `reference.period` updates, each with new
answers. The published code has separate runs for actor and refiner, which here learn in the same
updates, and five times as many epochs for the refiner.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences import dpo as of_dpo
from jaxrl.algorithms.preferences.dpo import Objectives
from jaxrl.algorithms.preferences.shared.pairs import Sample
from jaxrl.algorithms.tokens.shared.answers import decisions, unroll
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Source, TimeStep, Tree
from jaxrl.envs.language.instructed_words import ANSWER
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Epochs, Optimizer, Target
from jaxrl.networks.heads import Categorical
from jaxrl.sources import episodes, refined_pairs

REFINER = "refiner"
SAID = ("!", "?")  # judgments


@group
class Searched:
    """Answers that the refiner judges, and a tree search from those that it judges to be wrong."""

    prompts: int = static(64, low=1, high=MANY)
    """Number of answers in an update, each to a prompt of its own."""
    branch: int = static(3, low=1, high=MANY)
    """Number of refinements of each node of the search. 3: the published code."""
    beams: int = static(2, low=1, high=MANY)
    """Number of nodes of a level that are refined. 2: the published code."""
    depth: int = static(3, low=1, high=MANY)
    """Number of levels of the search. 3: the published code."""
    votes: int = static(5, low=1, high=MANY)
    """Number of judgments of an answer, whose majority counts. 5: the published code."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the answers: the most devices that can share a run."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs in an update."""
        return self.prompts

    def source(self, env: Environment) -> Source:
        """Return a source of pairs, refinements and judgments."""
        played = episodes(env, self.prompts, None, self.num_shards, keep_states=True)
        yes, no = (env.vocabulary.index(x) for x in SAID)
        sizes = {"branch": self.branch, "beams": self.beams, "depth": self.depth}
        return refined_pairs(played, env, **sizes, votes=self.votes, yes=yes, no=no)


@group
class Config(Objectives):
    """Settings of SPaR: DPO from answers and their refinements by tree search
    (arXiv:2412.11605)."""

    pairs: Searched = Searched()
    optimizer: Optimizer = Optimizer(learning_rate=2e-7, max_grad_norm=1.0)
    """Optimizer settings of the actor. 2e-7: the published code. (Small networks need larger
    steps.)"""
    refiner_optimizer: Optimizer = Optimizer(learning_rate=2e-6, max_grad_norm=1.0)
    """Optimizer settings of the refiner. 2e-6: the published code."""
    refiner_passes: Epochs = Epochs(epochs=5, minibatches=1, chunk_rows=0)
    """Epochs of the refiner over an update's texts. 5: the published code."""
    reference: Target = Target(rate=1.0, period=20)
    """Reference policy; `period` is the number of updates of an iteration, after which it becomes
    the actor."""
    beta: float = hyper(0.1, above=0)
    """Strength of the pull toward the reference policy. 0.1: the published code."""
    cloning_weight: float = hyper(0.1, low=0)
    """Weight of cloning the refinement, beside the loss of the pair. 0.1: the published code."""


@loss(REFINER)
def refiner_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the refiner's cross-entropy with each token of a refinement or a judgment."""
    policy, _ = unroll(net.refiner, net, x.timestep)
    log_prob = policy.log_prob(x.action)
    return LossOutput(losses.behavior_cloning(log_prob), {"refiner_log_prob": log_prob})


def speak_by_turn(
    net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool
) -> tuple[Array, Tree, dict[str, Tree]]:
    """Act by the actor in the first turn and by the refiner in all others; each has a memory of its
    own, of all that was said."""
    own, other = memory
    actor, _, own = net.actor_critic(timestep, own)
    refiner, _, other = net.refiner(timestep, other)
    answering = (timestep.tokens["turn"] == ANSWER)[..., None]  # type: ignore[index]
    policy = Categorical(jnp.where(answering, actor.logits, refiner.logits))
    action = jax.lax.stop_gradient(choose(policy, key, greedy))
    return action, (own, other), {"log_prob": policy.log_prob(action)}


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_dpo.recipe(env, config, scores=())
    actor = plain.parts["actor_critic"]
    refiner = Part(actor.network, actor.inputs, config.refiner_optimizer, begins_as="actor_critic")

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        assert batch.mask is not None
        mask = batch.mask & t.extras["learned"]

        def part(first: int) -> Batch:
            """Return the texts of one half, two of each answer, side by side."""
            pick = lambda x: x.reshape(x.shape[0], -1, 4, *x.shape[2:])[:, :, first : first + 2]
            own = lambda x: pick(x).reshape(x.shape[0], -1, *x.shape[2:])
            transitions, kept = jax.tree.map(own, (t, mask))
            return Batch(transitions, batch.env_steps, mask=kept)

        net = plain.update(net, part(0))
        texts = part(2)
        x = Sample(texts.transitions.timestep, texts.transitions.action)
        assert texts.mask is not None
        window = Minibatch(x, decisions(x.timestep, texts.mask))
        step = lambda net, some: net.descend(refiner_loss, some)
        return net.epochs(config.refiner_passes, window, step, unit=SEQUENCE)

    return dataclasses.replace(
        plain,
        parts={**plain.parts, REFINER: refiner},
        act=speak_by_turn,
        losses=(*plain.losses, refiner_loss),
        update=update,
        memory=lambda n: (actor.network.initial(n), actor.network.initial(n)),
        needs=("mask", "transitions.extras.learned"),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `dpo.check_some`, and unless `env` asks for an answer, a judgment (`!`
    or `?`) and a refinement."""
    of_dpo.check_some(env, config, name)
    if not set(SAID) <= set(env.vocabulary):
        raise UserError(
            f"{name} judges its answers by '!' and '?' and refines them, for which '{env.name}' "
            "has no turns; use instructed_words."
        )
    rows = 2 * config.pairs.prompts
    config.refiner_passes.check(rows, env.max_steps or 1, config.pairs.num_shards, SEQUENCE)


spar = AlgorithmBuilder("spar", Config, recipe, check=check)

TINY = {"recurrent": 8, "transformer": 1, "optimizer.learning_rate": 0.01, "optimizer.eps": 0.01}
TINY |= {"env": "instructed_words", "env_params": {"letters": 3, "length": 2}}
TINY |= {"prompts": 8, "num_shards": 4, "branch": 2, "beams": 1, "depth": 2, "votes": 3}
TINY |= {"passes.epochs": 2, "passes.minibatches": 2, "refiner_passes.epochs": 2}
TINY |= {"refiner_passes.minibatches": 2, "refiner_optimizer.eps": 0.01}
