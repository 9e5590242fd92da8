"""GPG against GRPO, and without its two corrections, from the same half-trained policies.

The corrections are for groups whose answers are all right or all wrong.
"""

from __future__ import annotations

from experiments.claims.tokens._arithmetic import SIZES, learn
from experiments.evidence.declare import (
    Arena,
    Claim,
    Metric,
    Mutation,
    Paper,
    Side,
    better,
    not_worse,
)
from jaxrl.algorithms.tokens.gpg import gpg
from jaxrl.algorithms.tokens.grpo import grpo
from jaxrl.algorithms.tokens.rloo import rloo

ADAM = {"optimizer.learning_rate": (1e-4, 3e-4, 1e-3, 3e-3)}
# Adam, and a bound on gradients, undo the factor by which GPG multiplies gradients.
DESCENT = {"optimizer.name": "sgd", "optimizer.max_grad_norm": float("inf")}
STEP = {"optimizer.learning_rate": (0.03, 0.1, 0.3, 1.0)}

CLAIM = Claim(
    paper=Paper(
        "GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning",
        "Chu, Huang, Zhang, Wei and Wang",
        2025,
        "2504.02546",
        "Without critic, reference policy, clip and KL penalty, the policy gradient with a group's "
        "mean as baseline, rescaled for groups without signal, outperforms GRPO on mathematical "
        "and multimodal reasoning of language models.",
    ),
    claim="Without clip and KL penalty GPG is as good as GRPO after the same tokens, and better "
    "than without rescaling and waiting.",
    left_out="Language models; computing time; clips, which have no effect in the single gradient "
    "step that all take on each batch.",
    parts=(
        "jaxrl/algorithms/tokens/gpg.py",
        "jaxrl/algorithms/tokens/grpo.py",
        "jaxrl/algorithms/tokens/rloo.py",
        "jaxrl/algorithms/tokens/shared/answers.py",
        "jaxrl/algorithms/tokens/token_supervised.py",
        "jaxrl/losses/advantages/groups.py",
        "jaxrl/sources/kept_groups.py",
    ),
    metric=Metric(
        "pass@1", 0.0, 1.0, meaning="the share of sampled answers that are right after training"
    ),
    environments=(
        Arena(
            "addition",
            240 * 16 * 8 * 7,  # updates, prompts, answers, tokens
            0.0,
            1.0,
            params={"digits": 1},
            settings=SIZES | {"prompts": 16, "answers": 8},
            episodes=128,
        ),
    ),
    sides={
        "GPG": Side(gpg, grid=ADAM),
        "GRPO": Side(grpo, {"kl.weight": 0.04}, ADAM),  # DeepSeekMath, section 4.2
        "GPG, plain descent": Side(
            gpg, DESCENT, STEP, "Plain gradient descent, since Adam cancels a factor."
        ),
        "neither, plain descent": Side(
            rloo,
            DESCENT | {"average": "token"},
            STEP,
            "RLOO with a mean over tokens, which is GPG without rescaling and waiting, up to a "
            "constant factor.",
        ),
    },
    clauses=(
        not_worse("GPG", "GRPO", 0.05),
        better("GPG, plain descent", "neither, plain descent"),
    ),
    seeds=48,
    tuning_seeds=6,
    minutes=13.0,
    measure=learn,
    notes="Each seed has a warm-up of its own, supervised until a fifth of its answers are right, "
    "which all sides share and whose steps are not counted. A first design also used plain descent "
    "for GRPO, which then unlearns: the gradients of its KL estimate have no bound.",
    diagnosis="Rescaling multiplies a step, which tuning does as well: GPG is best at a rate of "
    "0.1, the side without rescaling at 0.3. Waiting costs updates, since the tokens are the same. "
    "Compared with GRPO, GPG narrows faster: pass@8 falls from 0.77 to 0.73, and rises to 0.83 "
    "with GRPO's KL penalty.",
    mutations=(
        Mutation(
            "wrong answers are reinforced",
            "jaxrl.losses:gpg_advantage",
            lambda f: lambda *given: -f(*given),
        ),
        Mutation(
            "groups without a signal count too",
            "jaxrl.losses:informative_groups",
            lambda f: lambda reward, mask=None: reward.sum(-1) > -1,
        ),
    ),
)
