"""DPO against cloning of what was preferred, and against PPO that is paid the reward itself."""

from __future__ import annotations

from experiments.claims.preferences._answers import NETWORK, Enumerated, in_updates
from experiments.evidence.course import Course, beginning, end
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
from jaxrl.algorithms.preferences.dpo import dpo
from jaxrl.algorithms.tokens.token_ppo import token_ppo

BETA, UPDATES, PAIRS = 0.5, 600, 256  # pairs of an update
DATA = {"count": 32_768, "batch_size": PAIRS, "beta": BETA, "optimizer.name": "adam"}
DATA |= {"optimizer.learning_rate_steps": float(UPDATES)}
PLAYED = {"prompts": 2 * PAIRS, "answers": 1, "kl.weight": BETA}
PLAYED |= {"optimizer.learning_rate_steps": float(UPDATES * 2 * PAIRS * 3)}  # tokens
GRID = {"optimizer.learning_rate": (1e-3, 3e-3, 1e-2)}
COURSE = Course(
    {
        "divergence": end(Enumerated("divergence", BETA)),
        "final": end(Enumerated("divergence", BETA)),
        "return": end(Enumerated("return")),
        "untrained": beginning(Enumerated("divergence", BETA)),
    }
)


def measure(trial, keys, hyper):
    return in_updates(COURSE, trial, keys, hyper, UPDATES)


CLAIM = Claim(
    paper=Paper(
        "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
        "Rafailov, Sharma, Mitchell, Ermon, Manning and Finn",
        2023,
        "2305.18290",
        "A classification loss of pairs solves the problem of RLHF, reward less a KL divergence "
        "from a reference, without a reward model or sampling. Its frontier of reward and KL "
        "exceeds PPO's, even if PPO sees the true reward, and fine-tuning on what was preferred.",
    ),
    claim="DPO ends nearer to the optimal policy than fine-tuning on preferred answers, and as "
    "near as PPO that is paid the true reward.",
    left_out="Language models, human preferences, learned reward models for PPO, and the frontier "
    "over several strengths of the divergence.",
    parts=(
        "jaxrl/algorithms/preferences/dpo.py",
        "jaxrl/algorithms/preferences/shared/pairs.py",
        "jaxrl/algorithms/tokens/token_ppo.py",
        "jaxrl/sources/pairs.py",
        "jaxrl/losses/preferences/pairs.py",
        "jaxrl/exact/answers.py",
    ),
    metric=Metric(
        "divergence",
        0.0,
        5.0,
        more_is_better=False,
        meaning="the KL divergence, at the end, of the policy from the one that is optimal for "
        "reward less 0.5 times the divergence from the reference, summed over all answers",
    ),
    environments=(Arena("judged_words", UPDATES, 0.0, 3.0, settings=NETWORK, points=1),),
    sides={
        "DPO": Side(dpo, DATA, GRID),
        "fine-tuning on preferred answers": Side(dpo, DATA | {"loss": "sft"}, GRID),
        "PPO with the true reward": Side(token_ppo, PLAYED, GRID),
    },
    clauses=(
        better("DPO", "fine-tuning on preferred answers"),
        not_worse("DPO", "PPO with the true reward", 0.1),
    ),
    budgets=("updates",),
    seeds=32,
    minutes=8.0,
    measure=measure,
    notes="Each seed has a reference of its own, its untrained policy, which also writes the "
    "32,768 pairs. Each update of every side sees 512 answers; PPO's are new ones, 307,200 in all.",
    mutations=(
        Mutation(
            "the reference is ignored",
            "jaxrl.algorithms.preferences.dpo:_four",
            lambda f: lambda x, y: (x.log_prob, y.log_prob, 0 * x.reference, 0 * y.reference),
        ),
        Mutation(
            "half of the strength",
            "jaxrl.algorithms.preferences.dpo:_four",
            lambda f: lambda *both: tuple(x / 2 for x in f(*both)),
        ),
    ),
)
