"""Settings that token policies share."""

from __future__ import annotations

from typing import Literal

from jaxrl import losses
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Source
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import group, hyper, static
from jaxrl.kit.groups import INF, LinearTorso, Memory, Optimizer, Passes, Target
from jaxrl.sources import episodes
from jaxrl.sources.rollouts import check_shards
from jaxrl.tasks import repeat, starts

# Estimates of the KL divergence from the reference, of a token.
KL_ESTIMATES = {"k2": losses.kl_k2, "k3": losses.kl_k3}

# How tokens of long answers count: the averages of `losses.token_weights`.
AVERAGES = ("sequence", "token", "constant")


@group
class Tokens:
    """Settings of every token policy."""

    passes: Passes = Passes(epochs=1, minibatches=1, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=2)
    torso: LinearTorso = LinearTorso(hidden=(), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    """Adam, 1e-6: Ahmadian et al., appendix C, and GPG's runs; the bound is that of the libraries
    which these papers used. (Small networks want larger steps.)"""
    reference: Target = Target(rate=0.0)

    average: str = static("token", choices=AVERAGES)
    """What counts alike: every sequence (GRPO), every token (DAPO), or a constant for every token
    (Dr. GRPO), as where a whole answer is one action: sequence, token or constant."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""


@group
class Groups:
    """Groups of answers to the same prompt."""

    prompts: int = static(32, low=1, high=MANY)
    """Prompts (P) in one update, each one group."""
    answers: int = static(8, low=1, high=MANY)
    """Answers (G) to each prompt."""
    num_shards: int = static(1, low=1)
    """Logical shards of the groups: how many devices can share a run at most."""

    @property
    def num_envs(self) -> int:
        """Episodes in one update."""
        return self.prompts * self.answers

    def source(self, env: Environment) -> Source:
        """Whole episodes, those of a group side by side; what begins an episode (the prompt) is
        drawn for a whole group. Raises `UserError` where a group would be in two shards."""
        check_shards(self.num_shards, prompts=self.prompts)
        prompts = repeat(starts(env.params, Start), self.answers)
        return episodes(start_key(env), self.num_envs, prompts, self.num_shards)


@group
class Grouped(Tokens):
    """Settings of token policies that learn from their own answers, in groups."""

    groups: Groups = Groups()


@group
class Clipped(Grouped):
    """Settings of those whose surrogate is clipped."""

    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""


@group
class ClippedHigher(Clipped):
    """Settings of those whose surrogate is clipped as DAPO's (Yu et al., 2025)."""

    clip_high: float = hyper(0.28, above=0, high=INF)
    """How far the ratio may move upwards; `clip` is for downwards."""


@group
class Divergence:
    """The KL divergence from the reference policy."""

    weight: float = hyper(0.0, low=0)
    """What it costs, beta."""


@group
class Penalty(Divergence):
    """The KL divergence from the reference policy, in the loss of a token."""

    estimate: str = static("k3", choices=KL_ESTIMATES)
    """Of the divergence: k3 (GRPO's), or k2, whose gradient is right on average."""


@group
class Direction(Divergence):
    """The KL divergence from the reference policy, in RPG's forms."""

    direction: Literal["forward", "reverse"] = static("reverse", choices=("forward", "reverse"))
    """forward, KL(reference || policy), or reverse."""
    normalized: bool = False
    """False for the divergence of measures that need not sum to 1, whose estimate is k3."""


@group
class WholeAnswers(Grouped):
    """Settings of policy gradients for which a whole answer is one action."""

    kl: Divergence = Divergence()
    average: str = static("constant", choices=AVERAGES)
    """What counts alike: sequence, token, or constant, by which tokens are summed, up to a constant
    that Adam does not see."""


# The smallest settings of every algorithm, and of those that learn in groups.
SMALL = {"env": "addition", "env_params": {"digits": 1}, "recurrent": 8, "transformer": 1}
SMALL |= {"epochs": 2, "minibatches": 2, "optimizer.learning_rate": 0.01}
SMALL |= {"optimizer.eps": 0.01}  # smaller ones make much of rounding
SMALL_GROUPS = SMALL | {"prompts": 4, "answers": 2, "num_shards": 4}
