"""CGPO and PPO where a reward model pays for broken constraints, from samples of tables of answers.

The rewards of answers that break a constraint are too high; a judge sees that they are broken. Both
sides take as many steps of Adam on the same number of samples. PPO is its first gradient in each
batch, that of reward less the KL divergence from the reference policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

ANSWERS, PROBLEMS = 24, 8
BATCH, UPDATES, RATE, LIMIT = 128, 400, 0.05, 10.0
BROKEN, EXCESS, COST = 0.4, 2.0, 1.0  # share of answers; by how much they are overpaid, and cost
BETAS = (0.05, 0.2)  # of PPO's penalty
Calibrated = Callable[..., Array]  # like `losses.calibrated_reward`
Loss = Callable[[Array, "Problem", Array, Array], Array]  # of logits and of both sides' answers


class Problem(NamedTuple):
    """Answers to one prompt: log-probabilities of the reference policy, the reward model's scores,
    gold rewards, and whether a constraint is broken, each [A]."""

    reference: Array
    score: Array
    gold: Array
    broken: Array


def draw(key: Key) -> Problem:
    """Draw a problem."""
    keys = jax.random.split(key, 3)
    reference = jax.nn.log_softmax(jax.random.normal(keys[0], (ANSWERS,)))
    quality = jax.random.normal(keys[1], (ANSWERS,))
    # The same number of answers breaks a constraint in each problem.
    broken = jax.random.permutation(keys[2], jnp.arange(ANSWERS) < round(BROKEN * ANSWERS))
    return Problem(reference, quality + EXCESS * broken, quality - COST * broken, broken)


def of_cgpo(calibrated: Calibrated) -> Loss:
    """Return CGPO's loss of a batch."""

    def loss(logits, x, answers, baselines):
        reward = calibrated(x.score[answers], x.score[baselines], ~x.broken[answers])
        log_prob = jax.nn.log_softmax(logits)[answers]
        return losses.crpg(log_prob, x.reference[answers], reward, LIMIT).mean()

    return loss


def of_ppo(beta: float) -> Loss:
    """Return the loss of a batch whose gradient is that of reward less beta KL."""

    def loss(logits, x, answers, _):
        log_prob = jax.nn.log_softmax(logits)[answers]
        reward = x.score[answers] - beta * (log_prob - x.reference[answers])
        advantage = jax.lax.stop_gradient(reward - reward.mean())
        return losses.policy_gradient(log_prob, advantage).mean()

    return loss


def learn(key: Key, x: Problem, loss: Loss) -> Array:
    """Return the probabilities [A] of a policy after training from the reference."""
    optimizer = optax.adam(RATE)

    def step(carry, key):
        logits, state = carry
        own, other = jax.random.split(key)
        answers = jax.random.categorical(own, logits, shape=(BATCH,))
        baselines = jax.random.categorical(other, x.reference, shape=(BATCH,))
        change, state = optimizer.update(jax.grad(loss)(logits, x, answers, baselines), state)
        return (jax.tree.map(jnp.add, logits, change), state), None

    begin = x.reference, optimizer.init(x.reference)
    (logits, _), _ = jax.lax.scan(step, begin, jax.random.split(key, UPDATES))
    return jax.nn.softmax(logits)


def errors_of(calibrated: Calibrated, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed."""
    sides = {"CGPO": of_cgpo(calibrated)} | {f"PPO, {beta:g}": of_ppo(beta) for beta in BETAS}

    def one(key):
        problem_key, learn_key = jax.random.split(key)
        x = draw(problem_key)
        found = {name: learn(learn_key, x, loss) for name, loss in sides.items()}
        found["reference"] = jnp.exp(x.reference)
        return {
            name: {"gold": p @ x.gold, "score": p @ x.score, "broken": p @ x.broken}
            for name, p in found.items()
        }

    mean = jax.tree.map(lambda y: y.mean(), jax.vmap(one)(jax.random.split(key, PROBLEMS)))
    own, begin = mean["CGPO"], mean["reference"]
    missed = {"CGPO: broken above 2 %": jnp.maximum(own["broken"] - 0.02, 0)}
    for beta in BETAS:
        ppo = mean[f"PPO, {beta:g}"]
        missed[f"PPO, {beta:g}: broken below a half"] = shortfall(ppo["broken"], 0.5)
        missed[f"PPO, {beta:g}: score below the reference's"] = shortfall(
            ppo["score"], begin["score"]
        )
        missed[f"CGPO's gold reward below PPO's, {beta:g}"] = shortfall(own["gold"], ppo["gold"])
    missed["CGPO's gold reward below the reference's"] = shortfall(own["gold"], begin["gold"])
    return missed


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of CGPO."""
    return errors_of(losses.calibrated_reward, key)


def wrong(calibrated: Calibrated) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of another reward."""
    return jax.jit(lambda key: errors_of(calibrated, key))


def skip_judge(calibrated: Calibrated) -> Calibrated:
    """Calibrate rewards, and ask no judge."""
    return lambda reward, baseline, satisfied: calibrated(reward, baseline)


def reversed_judge(calibrated: Calibrated) -> Calibrated:
    """Pay only for what breaks a constraint."""
    return lambda reward, baseline, satisfied: calibrated(reward, baseline, ~satisfied)


CLAIM = Exact(
    paper=Paper(
        "The Perfect Blend: Redefining RLHF with Mixture of Judges",
        "Xu, Helenowski, Sankararaman, Jin, Peng, Han, Nie, Zhu, Zhang, Zhou, Zeng, He, Mandyam, "
        "Talabzadeh, Khabsa, Cohen, Tian, Ma, Wang and Fang",
        2024,
        "2409.20370",
        "Judges of constraints, beside calibrated rewards, keep reward hacking out of training on "
        "several tasks: 7.4 % above PPO on AlpacaEval-2 and 12.5 % on Arena-Hard, and no severe "
        "reward hacking in coding, where PPO's ends.",
    ),
    claim="If a reward model pays for broken constraints, over half of PPO's answers end broken, "
    "under 2 % of CGPO's, with more gold reward.",
    left_out="Language models, several tasks, the other two optimizers, judges that err, and PPO "
    "beyond its first gradient of each batch: here policies are tables over 24 answers.",
    parts=(
        "jaxrl/losses/tokens/rewards.py",
        "jaxrl/losses/tokens/policies.py",
        "jaxrl/algorithms/preferences/cgpo.py",
    ),
    errors=errors,
    planted={
        "no judge": wrong(skip_judge(losses.calibrated_reward)),
        "only broken constraints are paid": wrong(reversed_judge(losses.calibrated_reward)),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=4.0,
    notes="PPO's penalty is tried with two strengths, and each finding is of both. Means are of 8 "
    "problems with 10 broken answers; their scores are 2 too high, and a broken constraint costs 1 "
    "of gold reward. A trial of one seed with 32 problems and 256 samples held; a first attempt "
    "with these was stopped for its time before it had a figure.",
    mutations=(
        Mutation("no judge", "jaxrl.losses:calibrated_reward", skip_judge),
        Mutation(
            "only broken constraints are paid", "jaxrl.losses:calibrated_reward", reversed_judge
        ),
    ),
)
