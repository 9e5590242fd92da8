"""Optimal policies of RLIF's reward in random finite Markov decision processes, beside a clone of
the expert who steps in, in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.imitation import rlif
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.exact.dynamic_programming import (
    action_values,
    greedy_policy,
    policy_evaluation,
    policy_iteration,
)

STATES, ACTIONS, DISCOUNT, SLACK = 6, 4, 0.8, 0.1
FAR = 1e6  # what the search for the worst policy pays for leaving the optimal actions


def rewards_of(rate: Array, mix: Array, late: bool) -> Array:
    """Return the mean reward of actions, as RLIF labels two steps that follow each other.

    rate: [S, A], how often the expert steps in after an action. mix: [S, A], how often the policy
    is who plays an action, and not the expert. late: label the step at which the expert acts.
    """
    acted = jnp.array([[False, False, True, True], [False, True, False, True]])  # experts, 2 steps
    none = jnp.zeros(acted.shape)
    step = TimeStep((), none, none > 0, none > 0, none > 0)
    shown = {"intervened": acted[::-1] if late else acted}
    reward = rlif.label(Transition(step, (), step, (), shown), jnp.ones(()))[1]
    first = jnp.where(acted[0], 1 - mix[..., None], mix[..., None])
    after = jnp.where(acted[1], rate[..., None], 1 - rate[..., None])
    return (first * after * reward).sum(-1)


def errors_of(
    key: Key, mistakes: float = 0.1, late: bool = False, clone: bool = False
) -> dict[str, Array]:
    """Return by how much the worst policy that is optimal for RLIF's reward misses its bound, of
    an expert who steps in after actions that are worse by more than SLACK in the values of a
    reference policy, and who is a poor player.

    "actions": the share of actions that are optimal for the reward but lose more, or the reverse.
    "faultless": of an expert who never errs, where a part of the steps is his own. "errs": of one
    who errs in a share of the steps, all of which are the policy's. "optimal": the values of the
    best reference, with no slack, beside the optimal ones.
    mistakes: that share. late: see `rewards_of`. clone: take the expert's actions instead.
    """
    keys = jax.random.split(key, 5)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), (STATES, ACTIONS))
    reward = jax.random.normal(keys[1], (STATES, ACTIONS))
    best, optimal = policy_iteration(transition, reward, DISCOUNT)
    _, expert = policy_iteration(transition, -reward, DISCOUNT)
    shaken = reward + 0.5 * jax.random.normal(keys[2], reward.shape)
    _, reference = policy_iteration(transition, shaken, DISCOUNT)
    mix = jax.random.uniform(keys[3], reward.shape, minval=0.2, maxval=0.8)

    def worst(judge: Array, slack: float, mix: Array | float, mistakes: float) -> tuple[Array, ...]:
        """Return the least values [S] of a policy that is optimal for RLIF's reward, the
        reference's own values [S], and the share of actions that are wrongly optimal or not."""
        values = policy_evaluation(transition, reward, judge, DISCOUNT)
        lost = values[:, None] - action_values(transition, reward, values, DISCOUNT)
        rate = jnp.where(lost > slack, 1 - mistakes, mistakes)
        own = rewards_of(rate, jnp.broadcast_to(mix, rate.shape), late)
        found, _ = policy_iteration(transition, own, DISCOUNT)
        q = action_values(transition, own, found, DISCOUNT)
        taken = q >= q.max(-1, keepdims=True) - 1e-9
        _, policy = policy_iteration(transition, jnp.where(taken, -reward, -FAR), DISCOUNT)
        policy = expert if clone else greedy_policy(policy)
        least = policy_evaluation(transition, reward, policy, DISCOUNT)
        return least, values, (taken != (lost <= slack)).mean(dtype=float)

    missed = {}
    for name, shares, wrong in (("faultless", mix, 0.0), ("errs", 1.0, mistakes)):
        least, values, missed[f"actions, {name}"] = worst(reference, SLACK, shares, wrong)
        missed[name] = jnp.maximum(values - SLACK / (1 - DISCOUNT) - least, 0).max()
    least, _, _ = worst(optimal, 1e-6, 1.0, mistakes)
    return {**missed, "optimal": jnp.abs(least - best).max() * (1 - DISCOUNT)}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of RLIF's reward as it is."""
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "RLIF: Interactive Imitation Learning as Reinforcement Learning",
        "Luo, Dong, Zhai, Ma and Levine",
        2024,
        "2311.12996",
        "Where the only reward is a penalty for what makes an expert step in, a policy may become "
        "better than the expert, whom DAgger follows; bounds for both rest on one analysis.",
    ),
    claim="If an expert steps in after actions that lose more than delta in a reference policy's "
    "values, all others are optimal for RLIF's reward, and every policy of these loses at most "
    "delta / (1 - discount) to the reference, however badly the expert plays, also if he errs in a "
    "tenth of the steps; with the optimal reference and no slack it is optimal. A clone of the "
    "expert is not.",
    left_out="Networks, learning, samples, and continuous actions. The paper's own theorems could "
    "not be read: these bounds follow from the performance difference lemma. Mistakes are tested "
    "without steps of the expert's own, which are paid 0 and could hide that an action is bad.",
    parts=("jaxrl/algorithms/imitation/rlif.py", "jaxrl/losses/exploration/shaping.py"),
    errors=errors,
    planted={
        "a clone of the expert": jax.jit(lambda key: errors_of(key, clone=True)),
        "the step after it is penalized": jax.jit(lambda key: errors_of(key, late=True)),
        "mistakes in six of ten steps": jax.jit(lambda key: errors_of(key, mistakes=0.6)),
    },
    tolerance=1e-5,
    effect=1e-2,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "penalties are rewards",
            "jaxrl.losses:intervention_reward",
            lambda reward: lambda now, after, penalty: -reward(now, after, penalty),
        ),
        Mutation(
            "the expert's first step is penalized too",
            "jaxrl.losses:intervention_reward",
            lambda reward: lambda now, after, penalty: reward(now, after, penalty) - penalty * now,
        ),
    ),
)
