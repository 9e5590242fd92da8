"""GLIDER (Hu et al., 2025, "Divide and conquer: Grounding LLMs as efficient decision-making agents
via offline hierarchical reinforcement learning", arXiv:2505.19761): one token policy that plans and
acts, learned offline at both levels.

An agent writes a plan, a subgoal in words, and then words that act toward it, for some turns. Both
are written by the same network. Values of tokens are learned from texts of others by implicit
Q-learning, at each level from its own reward and among its own tokens alone:

    plans   Q(s, a) <- R + gamma V(s'),  R the environment's rewards until s', the next token of a
                                         plan
    words   Q(s, a) <- r + gamma V(s'),  r the reward for reaching the subgoal, s' the next word of
                                         the same plan; 0 where the plan is over
    V(s)    <- the expectile of min_i Q'_i(s, a), by the target network

and the policy imitates the tokens of the texts, weighted by their advantages, as in IQL,

    -min(exp((min_i Q'_i(s, a) - V(s)) / temperature), 100) log pi(a | s)

From the paper (its abstract and summaries were read): two levels in one network, each told by the
prompt; behavior cloning and offline actor-critic learning at both, with an intrinsic reward for the
low level. That values are of tokens, their equations and all numbers are choices made here. Reduced
are: the policy is a small network from scratch, not a language model with adapters; both levels
read one text, so words could depend on the goal beside the plan; plans last a fixed number of
turns; cloning is not a phase of its own (it is what `temperature: .inf` does); fine-tuning online
with the low level kept is left out. `levels: one` takes all tokens for those of one level, with the
environment's reward alone.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, decisions, on_episodes, whole_text
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.texts import Texts
from jaxrl.algorithms.tokens.shared.token_values import (
    Valued,
    next_place,
    read_values,
    values_of_tokens,
)
from jaxrl.algorithms.tokens.token_supervised import likelihood_output
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, struct
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.groups import INF, Optimizer, Target


@group
class Config(Tokens):
    """Settings of GLIDER: a token policy that plans and acts, learned from texts at both levels
    (arXiv:2505.19761)."""

    texts: Texts = Texts(num_envs=64, count=8192, noise=0.3)
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0)
    """Optimizer settings of the policy."""
    critic: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0)
    """Optimizer settings of the values."""
    target: Target = Target(rate=0.02)
    """Target network of the values."""
    reference: Target = Target(rate=1.0)
    levels: str = static("two", choices=("two", "one"))
    """Levels: two (plans and words, each with its own reward), or one (a flat policy, for
    comparison)."""

    expectile: float = hyper(0.8, above=0, below=1)
    """Expectile of the values over the texts' tokens: 0.5 is their mean, near 1 their maximum."""
    temperature: float = hyper(0.1, above=0, high=INF, log=True)
    """Temperature of the advantage weights; infinite is plain cloning."""
    high_discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per token of a plan; with one level per token of the agent."""
    low_discount: float = hyper(0.9, low=0, high=1)
    """Discount factor per word of the low level."""


@struct
class Levels:
    """Consequences of each decision at its level, [T, B].

    reward: of its level, until the next decision of that level. discount: of what follows.
    place: int32, the step of the next decision of its level; T where there is none.
    """

    reward: Array
    discount: Array
    place: Array


@struct
class Hierarchical(Valued):
    """Texts with rewards, and what decisions lead to at their levels."""

    levels: Levels


def levels_of(
    decides: Array,
    plan: Array,
    reward: Array,
    subgoal_reward: Array,
    high_discount: Array | float,
    low_discount: Array | float,
) -> Levels:
    """Return what the decisions of texts lead to at their own levels.

    decides, plan: bool [T, B], which steps are decisions of the agent, and which are of a plan.
    reward, subgoal_reward: [T, B], of the steps.
    """
    high, low = decides & plan, decides & ~plan
    # Rewards of all steps before each one, [T + 1, B].
    earned = jnp.concatenate([jnp.zeros_like(reward[:1]), jnp.cumsum(reward, 0)])
    next_high, next_low = next_place(high), next_place(low)
    until = jnp.take_along_axis(earned, next_high, 0) - earned[:-1]
    number = jnp.cumsum(high, 0)
    later = jnp.take_along_axis(number, jnp.minimum(next_low, len(number) - 1), 0)
    next_low = jnp.where(later == number, next_low, len(number))  # of the same plan
    return Levels(
        jnp.where(high, until, subgoal_reward),
        jnp.where(high, high_discount, low_discount),
        jnp.where(high, next_high, next_low),
    )


def flat_levels(decides: Array, reward: Array, discount: Array | float) -> Levels:
    """Return what decisions lead to where there is one level."""
    return Levels(reward, jnp.full(reward.shape, discount), next_place(decides))


@loss("values")
def values_loss(net: Net, x: Hierarchical) -> LossOutput:
    """Compute the errors of both Q and of V of each token, at its level."""
    q, v = read_values(net.values, net, x)
    held, _ = read_values(net.target.values, net, x)
    place = x.levels.place
    later = jnp.take_along_axis(jax.lax.stop_gradient(v), place, 0)
    over = place >= len(place)
    target = losses.td_target(x.levels.reward, over, x.levels.discount, later)
    q_loss = losses.squared_error(q, target[..., None]).sum(-1)
    v_loss = losses.expectile_error(v[:-1], held.min(-1), net.hyper.expectile) / 2
    return LossOutput(q_loss + v_loss, {"q_loss": q_loss, "v_loss": v_loss})


@loss("actor_critic", name="glider_loss")
def policy_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy with the texts' tokens, weighted by their advantages."""
    weigh = lambda log_prob: losses.awr(log_prob, x.advantage, net.hyper.temperature, 100.0)
    return likelihood_output(net, x, weigh)


def recipe(env: Environment, config: Config) -> Recipe:
    two = config.levels == "two"

    def view(net: Net, batch: Batch) -> Hierarchical:
        t, mask, h = batch.transitions, batch.mask, net.hyper
        assert mask is not None  # `Recipe.needs`
        decides, reward = decisions(t.timestep, mask), jnp.where(mask, t.reward, 0.0)
        if two:
            reached = jnp.where(mask, t.next_timestep.privileged["subgoal_reward"], 0.0)
            plan = t.timestep.tokens["plan"]
            levels = levels_of(decides, plan, reward, reached, h.high_discount, h.low_discount)
        else:
            levels = flat_levels(decides, reward, h.high_discount)
        return Hierarchical(whole_text(t), t.action, reward, t.terminated, t.done, decides, levels)

    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        seen = view(net, batch)
        held, _ = read_values(net.target.values, net, seen)
        _, v = read_values(net.values, net, seen)
        return dataclasses.replace(x, advantage=held.min(-1) - v[:-1])

    whole = on_episodes(env, config, (policy_loss,), prepare)

    def learn_values(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(values_loss, minibatch).update_targets("values")

    def update(net: Net, batch: Batch) -> Net:
        x = view(net, batch)
        net = net.epochs(config.passes, Minibatch(x, x.decides), learn_values, unit=SEQUENCE)
        return whole.update(net, batch)

    return dataclasses.replace(
        whole,
        parts={**whole.parts, "values": values_of_tokens(env, config, critics=2)},
        losses=(*whole.losses, values_loss),
        update=update,
        scores={},  # nothing is played in training
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `texts.check`, for a file of texts, and where two levels are asked for
    and the environment does not tell plans."""
    if config.texts.file or not config.texts.count:
        raise UserError(
            f"{name} learns from a dataset of texts with rewards, which files do not have; set "
            "texts.count above 0 and leave out texts.file."
        )
    texts.check(env, config, name)
    example = example_timestep(env)
    told = "plan" in (example.tokens or {}) and "subgoal_reward" in (example.privileged or {})
    if config.levels == "two" and not told:
        raise UserError(
            f"{name} learns plans and words apart, which '{env.name}' does not tell "
            "(tokens['plan'], privileged['subgoal_reward']); planned_maze does. Or set levels to "
            "one."
        )


glider = AlgorithmBuilder("glider", Config, recipe, check=check)

TINY = SMALL | {"env": "planned_maze", "env_params": {"size": 2, "plans": 2}}
TINY |= {"num_envs": 8, "count": 16, "noise": 0.3, "num_shards": 4, "critic.eps": 0.01}
