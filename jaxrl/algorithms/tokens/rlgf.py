"""RLGF (Chang et al., 2023, "Learning to generate better than your LLM", arXiv:2306.11816): PPO
with the feedback of a guide, a policy that can only be sampled. It writes the beginning of an
answer (roll-in), which the policy completes, or the end of one that the policy began (roll-out):

| variant | beginning | end | learned |
|---|---|---|---|
| PPO++: `completes` 0 | guide, of a `share` of the answers | policy | what the policy wrote |
| AggreVaTeD: `completes` 1, `share` 1 | policy | guide | the same: an advantage over the guide |
| LOLS: `completes` between | one of the two, drawn | the other | the same |
| D2LOLS | AggreVaTeD, then PPO++ | | the same |

D2LOLS is a run of AggreVaTeD from which one of PPO++ is warm-started. With a `share` of 0 this is
PPO. The guide is the environment's expert, each of whose tokens is another one with a probability
of `noise`: a scripted stand-in for the larger language model of the paper. Who begins an answer
hands over before a decision that is drawn uniformly.

As in the authors' code, only the policy's own tokens are learned, and the reward of the whole
answer is theirs. There LOLS draws once for an update, here for each answer. The divergence penalty
is in the loss of a token instead of its reward, so that none is paid for what the guide wrote.
Advantages are standardized over the policy's tokens. What training reports of returns is that of
mixed answers; evaluation plays the policy alone. The authors' code draws 1 to L - 1 tokens, with L
the length of the answer that its beginner would have written; here an answer that ends before the
drawn decision has one writer."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    divergence,
    estimate_advantages,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL, Penalty, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Episodes, Optimizer
from jaxrl.sources import episodes, with_guide


@group
class Guided(Episodes):
    """Answers of which a guide writes the beginning or the end."""

    num_envs: int = static(256, low=1, high=MANY)
    """Number of answers in an update."""
    share: float = static(0.5, low=0, high=1)
    """Probability that an answer has a guide."""
    completes: float = static(0.0, low=0, high=1)
    """Probability that the guide completes what the policy began (AggreVaTeD) instead of beginning
    what the policy completes (PPO++)."""
    longest: int = static(0, low=0, high=MANY)
    """Number of decisions before one of which guide or policy hand over, drawn uniformly; 0 for the
    most that an episode can have after its prompt."""
    noise: float = static(0.0, low=0, high=1)
    """Probability that a token of the guide is replaced by another one."""

    def source(self, env: Environment) -> Source:  # type: ignore[override]
        """Return a source of whole episodes with a guide. Raises `UserError` without an expert."""
        advised = expert_channel(env)
        guide = expert_policy(advised)
        guide = add_noise(env, guide, self.noise) if self.noise else guide
        played = episodes(advised, self.num_envs, None, self.num_shards)
        # Steps of the prompt are no decisions.
        longest = self.longest or max((env.max_steps or 1) - env.forced_steps, 1)
        return with_guide(played, guide, longest, self.share, self.completes)


@group
class Config(Tokens):
    """Settings of RLGF: PPO with a guide that begins or completes answers (arXiv:2306.11816)."""

    guide: Guided = Guided()
    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings. (Small networks need larger steps.)"""
    kl: Penalty = Penalty()
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""
    discount: float = hyper(1.0, low=0, high=1)
    """Discount factor per token."""
    gae_lambda: float = hyper(1.0, low=0, high=1)
    """Lambda of generalized advantage estimation. Below 1 the critic is asked about what the guide
    wrote, from which it does not learn."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""


def judge(net: Net, batch: Batch) -> dict[str, Array]:
    """Estimate generalized advantages, standardized over the policy's tokens, and value targets.

    `certainty` is 0 for the guide's tokens, which no loss sees, and else 1.
    """
    x, mask = estimate_advantages(net, batch), batch.mask
    assert mask is not None
    own = mask & ~batch.transitions.extras["guided"]
    advantage = losses.standardize(x.advantage, own)
    return {"advantage": advantage, "target": x.target, "certainty": own.astype(advantage.dtype)}


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss")
    def rlgf_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the clipped surrogate, the value loss and the divergence penalty of a token."""
        now, h = evaluate(net, x), net.hyper
        surrogate = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip)
        penalty = h.kl.weight * divergence(config.kl.estimate, now, x)
        output = token_output(net, x, now, surrogate + penalty)
        error = losses.squared_error(now.value, x.target)
        value = output.value + h.value_weight * error
        return LossOutput(value, {**output.metrics, "value_loss": error}, drift=output.drift)

    whole = on_answers(env, config, judge, (rlgf_loss,), learned=lambda x: x.certainty > 0)

    def update(net: Net, batch: Batch) -> Net:
        share = batch.transitions.extras["guided"].any(0).astype(jnp.float32)
        return whole.update(net, batch).report(guided=share.mean())

    return dataclasses.replace(
        whole, update=update, needs=(*whole.needs, "transitions.extras.guided")
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for an environment without an expert."""
    if env.expert is None:
        raise UserError(f"{name} needs an expert as its guide, which '{env.name}' lacks.")
    answers.check(env, config, name)


rlgf = AlgorithmBuilder("rlgf", Config, recipe, check=check)

TINY = SMALL | {"env": "addition", "env_params": {"digits": 1}, "num_envs": 8, "num_shards": 4}
TINY |= {"completes": 0.5, "noise": 0.2}
