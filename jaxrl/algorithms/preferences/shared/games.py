"""Policies that learn preference games: the equilibrium of "which of our answers is preferred".

An iteration is a step of mirror descent from the `anchor`, the policy of its beginning: toward the
answers that win against an `opponent`, and toward the reference. In a table its result is known,

    anchor^(1 - share) reference^share exp(size * score) / Z

and a policy is regressed on it for `steps` updates, by the difference between two answers to the
same prompt, where Z cancels (or, in SPPO, by each answer, where Z is replaced by a constant). The
algorithms differ in who the opponent is and where the second step begins:

| file | answers by | score of an answer | size, share | opponent |
|---|---|---|---|---|
| nash_mirror_prox | the policy | win rate | s = eta / (1 + eta beta), s beta | half step |
| egpo | the policy | the same | eta, eta beta | half step |
| nash_md | the policy | win rate | eta_t, eta_t beta | mixture of anchor and reference |
| inpo | the anchor | a drawn comparison of two | 1 / eta, beta / eta | anchor |
| sppo | the anchor | win rate in its group | eta, 0 | anchor |
| rebel | the anchor | return | eta, 0 | none |

Anchor and opponent begin as the policy: as new weights, or as what a warm start took over.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared.measures import exact_scores
from jaxrl.algorithms.preferences.shared.pairs import begin_as
from jaxrl.algorithms.tokens.shared.answers import decisions, token_scores, unroll
from jaxrl.algorithms.tokens.shared.models import check_network, token_network
from jaxrl.core import trees
from jaxrl.core.examples import example_timestep
from jaxrl.core.judges import judge_of, win_probabilities
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import Loss, LossOutput, Minibatch, Net, Part, Recipe, Unit, loss
from jaxrl.kit.builder import source_group
from jaxrl.sources.pairs import judged_of


@struct
class Sample:
    """Groups of whole episodes for a gradient step, [T, P * G].

    anchor, reference: log-probability of each action by these policies.
    score: of each answer, [1, P * G].
    """

    timestep: TimeStep
    action: Tree
    anchor: Array
    reference: Array
    score: Array


class Group(NamedTuple):
    """Answers of groups, [P, G]: log-probabilities of whole answers by the policy, the anchor and
    the reference, and scores."""

    log_prob: Array
    anchor: Array
    reference: Array
    score: Array


class GroupLoss(Protocol):
    """Function that computes the loss of groups of answers."""

    def __call__(self, net: Net, group: Group, /) -> Array:
        """Return the loss of each group, [P]. net: for hyperparameters. group: its answers."""
        ...


class Score(Protocol):
    """Function that scores answers before any gradient step."""

    def __call__(self, batch: Batch, /) -> Array:
        """Return the score of each answer, [P * G]. batch: whole episodes [T, P * G]."""
        ...


def win_rates(env: Environment, size: int, opponents: tuple[int, ...]) -> Score:
    """Return a function that scores answers by how probably they are preferred to the `opponents`,
    places in a group of `size`, on average. Raises `UserError` for an environment without a judge.
    """
    judge = judge_of(env)

    def score(batch: Batch) -> Array:
        preference = win_probabilities(judge, judged_of(batch), size)
        return preference[:, :, jnp.array(opponents)].mean(-1).reshape(-1)

    return score


def loss_of_groups(size: int, group_loss: GroupLoss) -> Loss:
    """Return the loss of the policy whose value of each group of `size` is `group_loss`."""

    @loss("actor_critic", name="loss", unit=Unit(sequences=True, columns=size))
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        sample, mask = x.x, x.mask
        policy, _ = unroll(net.actor_critic, net, sample.timestep)
        total = lambda y: losses.sequence_log_prob(y, mask).reshape(-1, size)
        now = policy.log_prob(sample.action)
        score = sample.score.reshape(-1, size)
        group = Group(total(now), total(sample.anchor), total(sample.reference), score)
        metrics = {
            "score": score.mean(-1),
            "log_ratio_to_anchor": (group.log_prob - group.anchor).mean(-1),
            "log_ratio_to_reference": (group.log_prob - group.reference).mean(-1),
        }
        return LossOutput(group_loss(net, group), metrics)

    return policy_loss


def regression(group: Group, size: Array, share: Array | float) -> Array:
    """Return the squared error of the first two answers of each group, [P], in units of the score.

    size, share: of the mirror step, as above. With share 0 this is REBEL's loss.
    """
    solution = (1 - share) * group.anchor + share * group.reference
    first, second = ((x[:, 0], x[:, 1]) for x in (group.log_prob, solution))
    return losses.rebel(*first, *second, group.score[:, 0], group.score[:, 1], size)


def on_games(
    env: Environment,
    config: Any,
    policy_loss: Loss,
    score: Score,
    *,
    extragradient: bool = False,
    regularized: bool = True,
) -> Recipe:
    """Return the recipe of a token policy that learns a preference game in iterations.

    extragradient: whether an iteration has two steps of `config.steps` updates, both from the
        anchor: one against the anchor, whose result becomes the `opponent`, and one against that.
    regularized: whether leaving the reference costs something, `config.beta`.
    """
    network = token_network(env, config)
    inputs = example_timestep(env), network.initial(1)

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        assert batch.mask is not None  # `Recipe.needs`
        mask = decisions(t.timestep, batch.mask)
        said = lambda part: unroll(part, net, t.timestep)[0].log_prob(t.action)
        known = said(net.anchor), said(net.target.actor_critic)
        window = Minibatch(Sample(t.timestep, t.action, *known, score(batch)[None]), mask)
        step = lambda net, some: net.descend(policy_loss, some)
        net = net.epochs(config.passes, window, step, unit=policy_loss.unit)
        return end_step(net.update_targets(), config.steps, "opponent" if extragradient else "")

    policy = Part(network, inputs, config.optimizer, config.reference)
    copy = Part(network, inputs, begins_as="actor_critic")
    copies = {"anchor": copy, "opponent": copy} if extragradient else {"anchor": copy}
    gap = ("preference_gap",) if regularized else ()
    return Recipe(
        parts={"actor_critic": policy, **copies},
        act=sample_and_record(),
        losses=(policy_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=begin_as("actor_critic"),
        scores={**token_scores(env), **exact_scores(env, *gap)},
    )


def end_step(net: Net, steps: int, other: str = "") -> Net:
    """Return the net with a new anchor where a step of `steps` updates has ended with this update.

    other: a part that becomes the policy whenever a step has ended, for iterations of two steps
        that both begin at the anchor; empty for iterations of one step.
    """
    done = net.updates + 1
    ended = done % steps == 0
    policy, anchor = (net.parts[name].params for name in ("actor_critic", "anchor"))
    if not other:
        return net.with_params(anchor=trees.where(ended, policy, anchor))
    second = done // steps % 2 == 0
    new = {
        other: trees.where(ended, policy, net.parts[other].params),
        "actor_critic": trees.where(ended & ~second, anchor, policy),  # again from the anchor
        "anchor": trees.where(ended & second, policy, anchor),
    }
    return net.with_params(**new)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if no policy of these settings can act in `env`, or the groups of an update
    do not divide into the minibatches."""
    check_network(env, config, name)
    group = source_group(config)
    unit = Unit(sequences=True, columns=group.answers)
    config.passes.check(group.num_envs, env.max_steps or 1, group.num_shards, unit)
