"""Settings shared by token policies."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.models import LanguageModel
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Environment, Source, Tasks
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import group, hyper, static
from jaxrl.kit.groups import (
    INF,
    EvaluationSampling,
    LinearTorso,
    Memory,
    Optimizer,
    Passes,
    Sampling,
    Target,
)
from jaxrl.sources import episodes
from jaxrl.sources.rollouts import check_shards
from jaxrl.tasks import repeat, starts

# Estimators of a token's KL divergence from the reference.
KL_ESTIMATES = {"k2": losses.kl_k2, "k3": losses.kl_k3}

# Averages of token losses, by `losses.token_weights`.
AVERAGES = ("sequence", "token", "constant")


@group
class Tokens:
    """Settings shared by all token policies."""

    passes: Passes = Passes(epochs=1, minibatches=1, chunk_rows=0)
    memory: Memory = Memory(recurrent=64, transformer=2)
    decoder: LanguageModel = LanguageModel()
    torso: LinearTorso = LinearTorso(hidden=(), activation="tanh")
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0)
    """Optimizer settings. Adam, 1e-6: Ahmadian et al., appendix C, and GPG's runs; the gradient
    norm is that of the libraries which these papers used. (Small networks need larger steps.)"""
    reference: Target = Target(rate=0.0)
    sampling: Sampling = Sampling()
    evaluation: EvaluationSampling = EvaluationSampling()

    average: str = static("token", choices=AVERAGES)
    """Averaging of token losses: sequence (equal weight per sequence, GRPO), token (per token,
    DAPO) or constant (Dr. GRPO). With constant, a whole answer is one action."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""
    packed: bool = False
    """Let short episodes of a minibatch share a row, and skip the chunks (`passes.chunk_rows`) that
    stay empty: the same gradient, sooner where episodes end early."""


@group
class Groups:
    """Groups of answers to the same prompt."""

    prompts: int = static(32, low=1, high=MANY)
    """Number of prompts (P) in an update; each has one group of answers."""
    answers: int = static(8, low=1, high=MANY)
    """Number of answers (G) to each prompt."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the groups: the most devices that can share a run."""

    @property
    def num_envs(self) -> int:
        """Number of episodes in an update."""
        return self.prompts * self.answers

    def source(self, env: Environment) -> Source:
        """Return a source of batches: `episodes`, or what a subclass makes of them."""
        return self.episodes(env)

    def episodes(
        self, env: Environment, keep_states: bool = False, prompts: Tasks | None = None
    ) -> Source:
        """Return a source of whole episodes, with those of a group adjacent. A group shares one
        start (the prompt).

        keep_states: as in `sources.episodes`.
        prompts: starts of episodes, such as `tasks.prompts`; None for random ones.

        Raises `UserError` if a group would be split between shards.
        """
        check_shards(self.num_shards, prompts=self.prompts)
        groups = repeat(prompts or starts(env.params, Start), self.answers)
        return episodes(start_key(env), self.num_envs, groups, self.num_shards, keep_states)


@group
class Grouped(Tokens):
    """Settings of token policies that learn from their own answers, in groups."""

    groups: Groups = Groups()


@group
class Clipped(Grouped):
    """Settings of token policies with a clipped surrogate."""

    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range of the probability ratio around 1."""


@group
class ClippedHigher(Clipped):
    """Settings of token policies with DAPO's asymmetric clip (Yu et al., 2025)."""

    clip_high: float = hyper(0.28, above=0, high=INF)
    """Upper clip range of the probability ratio; `clip` is the lower one."""


@group
class Divergence:
    """Penalty on the KL divergence from the reference policy."""

    weight: float = hyper(0.0, low=0)
    """Weight of the KL divergence from the reference policy (beta)."""


@group
class Penalty(Divergence):
    """Penalty on the KL divergence from the reference policy, in the loss of a token."""

    estimate: str = static("k3", choices=KL_ESTIMATES)
    """Estimator of the KL divergence: k3 (GRPO's), or k2, whose gradient is unbiased."""


@group
class Direction(Divergence):
    """Penalty on the KL divergence from the reference policy, in RPG's forms."""

    direction: str = static("reverse", choices=("forward", "reverse"))
    """Direction of the KL divergence: forward, KL(reference || policy), or reverse."""
    normalized: bool = False
    """Treat the measures of the divergence as normalized. If not, its estimator is k3."""


@group
class WholeAnswers(Grouped):
    """Settings of policy gradients for which a whole answer is one action."""

    kl: Divergence = Divergence()
    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, which sums tokens up to a factor to
    which Adam is invariant."""


# Smallest settings of every algorithm, of those that need an expert or to know which answers are
# right, and of those that learn in groups. (Every word has a reward; in sums untrained policies get
# none right, so that there would be nothing to learn.)
SMALL = {"recurrent": 8, "transformer": 1, "epochs": 2, "minibatches": 2}
SMALL |= {"optimizer.learning_rate": 0.01}
SMALL |= {"optimizer.eps": 0.01}  # smaller values amplify rounding errors
SMALL_SUMS = SMALL | {"env": "addition", "env_params": {"digits": 1}}
SMALL_GROUPS = SMALL | {"env": "judged_words", "prompts": 4, "answers": 2, "num_shards": 4}
