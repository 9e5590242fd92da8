"""Principle-following reward model (Sun, Shen, Zhang, Zhou, Chen, Cox, Yang and Gan, 2023, "SALMON:
self-alignment with principle-following reward models", arXiv:2310.05910; later "SALMON:
self-alignment with instructable reward models"): it reads the principles by which it should score
an answer, so that other principles give another reward without another training.

A judge has scored the two answers of each pair by every principle. A training example takes some
principles at random and negates each with the probability 1/2. The principle on which the answers
differ most, in units of how much they differ on it elsewhere, decides which of them is preferred
under this set, and the model learns it by the Bradley-Terry loss.

Here the principles are the components of the environment's reward, and an answer's component is
its score, in the place of the language model that judges in the paper. A set of principles is a
vector: 1 for a principle, -1 for its negation, 0 for one that is not in the set; the paper writes
them out as text. As in the authors' code, the number of principles is geometric (1/5) up to
`most_principles`, differences are divided by their variance (that of a batch, and drawn anew for
each), `flipped` of the labels are wrong, and pairs without a difference teach nothing.

`salmon` learns from the scores.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import (
    all_answers,
    is_small,
    leads,
    log_probs,
    pair_agreement,
)
from jaxrl.algorithms.preferences.shared.pairs import PAIR, keep_part
from jaxrl.algorithms.preferences.shared.ratings import ratings_of, rewards_of
from jaxrl.algorithms.preferences.shared.reward_models import (
    PART,
    Reading,
    RewardModel,
    network_of,
    reading_of,
    score_answers,
    score_tokens,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, PairPolicy, UnlabeledPairs
from jaxrl.algorithms.tokens.shared.answers import token_scores
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, TimeStep, struct
from jaxrl.kit import (
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
from jaxrl.kit.groups import Optimizer

GEOMETRIC = 0.2  # authors' code: probability that a set has no further principle
MOST_SETS = 3**4  # of which `measure` reads all


@group
class Config(PairPolicy):
    """Settings of a reward model that follows principles (arXiv:2310.05910)."""

    pairs: UnlabeledPairs = UnlabeledPairs()
    reward: RewardModel = RewardModel()
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings of each member. (Small networks need larger steps.)"""
    most_principles: int = static(8, low=1, high=100)
    """Largest number of principles in a set. 8: authors' code."""
    flipped: float = hyper(0.1, low=0, high=0.5)
    """Probability that a label is wrong. 0.1: authors' code."""
    centering: float = hyper(0.0, low=0)
    """Weight of the squared sum of a pair's scores."""


@struct
class Sample:
    """Pairs of whole episodes for a gradient step, [T, 2 n].

    reading: with the pair's principles in each time step. label: 1 where the first answer of a
    pair is preferred, -1 where the second is, 0 where neither, [1, 2 n].
    """

    reading: Reading
    label: Array


def state_principles(timestep: TimeStep, principles: Array) -> TimeStep:
    """Return time steps [...] whose goals are sets of principles [K], or [..., K]."""
    shape = (*jnp.shape(timestep.first), principles.shape[-1])
    return dataclasses.replace(timestep, goal=jnp.broadcast_to(principles, shape))


def draw_principles(key: Key, shape: tuple[int, ...], count: int, most: int) -> Array:
    """Draw sets of principles, float32 [*shape, count] of 1, -1 and 0.

    A set has geometrically many principles, at most `most` (and at most `count`), drawn without
    replacement; each is negated with the probability 1/2.
    """
    size_key, place_key, sign_key = jax.random.split(key, 3)
    most = min(most, count)
    # A geometric number under the condition that it is not above the most.
    logits = jnp.log1p(-GEOMETRIC) * jnp.arange(most)
    size = 1 + jax.random.categorical(size_key, logits, shape=shape)
    place = jax.random.uniform(place_key, (*shape, count)).argsort(-1).argsort(-1)
    sign = jax.random.rademacher(sign_key, (*shape, count), jnp.float32)
    return jnp.where(place < size[..., None], sign, 0.0)


def judge_by_principles(difference: Array, variance: Array, principles: Array) -> Array:
    """Return 1 where the first of two answers is preferred, -1 where the second is, 0 in a tie.

    difference: of their scores by each principle, [..., K]. variance: of these, [K].
    principles: [..., K], as of `draw_principles`.
    """
    scaled = principles * difference / jnp.where(variance > 0, variance, 1)
    dominant = jnp.abs(scaled).argmax(-1, keepdims=True)
    return jnp.sign(jnp.take_along_axis(scaled, dominant, -1)[..., 0])


def scores_of(batch: Batch, names: tuple[str, ...]) -> Array:
    """Return the score of whole episodes [T, B] by each principle, [B, K]."""
    components: Any = batch.transitions.next_timestep.reward_components
    mask: Any = batch.mask
    total = lambda x: jnp.where(mask, x, 0).sum(0)
    return jnp.stack([total(components[name]) for name in names], -1)


def recipe(env: Environment, config: Config) -> Recipe:
    names, network = rewards_of(env), network_of(env, config)
    dense = config.reward.dense

    @loss(PART, name="loss", unit=PAIR)
    def reward_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the sum over members of the Bradley-Terry loss under a pair's principles."""
        sample: Sample = x.x
        scores = score_tokens(net, sample.reading, x.mask, dense).sum(1)  # type: ignore[arg-type]
        label = sample.label[0, ::2]
        lead = label * (scores[:, ::2] - scores[:, 1::2])
        own = losses.bradley_terry(lead, jnp.zeros_like(lead))
        own = jnp.where(label == 0, 0, own)
        penalty = net.hyper.centering * jnp.square(scores[:, ::2] + scores[:, 1::2])
        metrics = {
            "bradley_terry": own.mean(0),
            "accuracy": 0.5 * (1 + jnp.sign(lead)).mean(0),
            "disagreement": lead.std(0),
        }
        return LossOutput((own + penalty).sum(0), metrics)

    def update(net: Net, batch: Batch) -> Net:
        scores = scores_of(batch, names)
        difference = scores[::2] - scores[1::2]
        shape = difference.shape[:1]
        principles = draw_principles(
            net.key("principles"), shape, len(names), config.most_principles
        )
        label = judge_by_principles(difference, difference.var(0), principles)
        wrong = jax.random.bernoulli(net.key("flipped"), net.hyper.flipped, shape)
        label = jnp.where(wrong, -label, label)
        both = functools.partial(jnp.repeat, repeats=2, axis=0)
        instruct = functools.partial(state_principles, principles=both(principles))
        sample = Sample(reading_of(batch).with_instruction(instruct), both(label)[None])
        step = lambda net, some: net.descend(reward_loss, some)
        return net.epochs(config.passes, Minibatch(sample, batch.mask), step, unit=PAIR)

    example, memory = example_timestep(env), network.initial(1)
    inputs = state_principles(example, jnp.zeros(len(names))), memory
    own = {} if sets_of(env) is None else {"exact_accuracy": "accuracy of pairs"}
    return Recipe(
        parts={
            "actor_critic": Part(network, (example, memory)),
            PART: Part(network, inputs, config.optimizer, members=config.reward.members),
        },
        act=sample_and_record(),
        losses=(reward_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=keep_part(PART),
        scores={**token_scores(env), **own},
    )


def sets_of(env: Environment) -> np.ndarray | None:
    """Return all sets of principles, float32 [S, K], where they and the answers are few."""
    count = len(rewards_of(env))
    if not is_small(env) or 3**count > MOST_SETS:
        return None
    every = itertools.product((0.0, 1.0, -1.0), repeat=count)
    return np.array([x for x in every if any(x)], np.float32)


def accuracy_by_set(env: Environment, config: Any, policy: Policy) -> Array:
    """Return how probably the model prefers of two answers of the policy what the judge prefers,
    for each set of principles of `sets_of`, [S]: a mean over prompts and members, 1/2 for ties."""
    found, parts = all_answers(env), policy.state.parts
    share = jnp.exp(log_probs(env, config, parts["actor_critic"].params))  # [P, A]
    ratings = ratings_of(env)
    scores = jnp.stack([ratings[name] for name in rewards_of(env)], -1)  # [P, A, K]
    mean = lambda x: (share[..., None] * x).sum(1).mean(0)
    # The variance of a difference of two answers to one prompt.
    variance = 2 * mean(jnp.square(scores - (share[..., None] * scores).sum(1, keepdims=True)))
    difference = scores[:, :, None] - scores[:, None]

    def accuracy(principles: Array) -> Array:
        instruct = functools.partial(state_principles, principles=principles)
        own = score_answers(env, config, parts, found, instruct)
        gold = judge_by_principles(difference, variance, principles)
        return pair_agreement(leads(own), gold, share).mean()

    sets = sets_of(env)
    assert sets is not None
    return jax.lax.map(accuracy, jnp.asarray(sets))


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the mean of `accuracy_by_set`, `exact_accuracy`, in a small environment."""
    if sets_of(env) is None:
        return {}
    return {"exact_accuracy": accuracy_by_set(env, config, policy).mean()}


def check_principles(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for an environment without components or with goals, and for a reward
    model that does not read text."""
    if not rewards_of(env):
        raise UserError(
            f"The principles of {name} are the components of the environment's reward; "
            f"'{env.name}' has none (see ruled_words)."
        )
    if example_timestep(env).goal is not None:
        raise UserError(f"{name} tells principles in the place of goals; '{env.name}' has goals.")
    if config.reward.reads != "text":
        raise UserError(f"{name} reads text and principles; reward.reads must be 'text'.")


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `pairs.check` and `check_principles`."""
    pairs.check(env, config, name)
    check_principles(env, config, name)


salmon_reward_model = AlgorithmBuilder(
    "salmon_reward_model", Config, recipe, check=check, measure=measure
)

TINY = SMALL_PAIRS | {"env": "ruled_words", "members": 2, "most_principles": 2}
