"""SBD's rule exactly: boundaries by the surprise of the best predictor of actions, in float64.

A demonstrator follows skills, policies of which no two agree in any state; it goes on to another
one with a fixed probability at each step, but not before a few steps. The best predictor of its
actions is the Bayesian filter over its skill and how long it has lasted, which knows all of this
and not the skills themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.core.types import Array, Key

SKILLS, STATES, STEPS, DEMONSTRATIONS = 4, 5, 120, 64
LEAST, SWITCH = 4, 0.1  # steps of a skill, then the probability of another one at each step
NOISE = 0.05  # probability of an action at random, in the second kind of demonstrations
GAP = 1.0
MARGIN = 0.25  # of F1, by which the rule is to be better than cuts at equal lengths
Rule = Callable[[Array, Array], Array]  # surprise, actions [T, B] -> boundaries [T, B]


def draw(key: Key, noise: float) -> tuple[Array, Array, Array]:
    """Draw demonstrations: states and actions, int32 [T, B], and where a skill begins, bool."""
    policy_key, state_key, skill_key, noise_key, action_key = jax.random.split(key, 5)
    shape = STEPS, DEMONSTRATIONS
    state = jax.random.randint(state_key, shape, 0, STATES)

    def step(carry: tuple[Array, Array], key: Key) -> tuple[tuple[Array, Array], tuple]:
        skill, age = carry
        switch_key, other_key = jax.random.split(key)
        switches = jax.random.uniform(switch_key, skill.shape, float) < SWITCH
        switches &= age >= LEAST
        other = skill + jax.random.randint(other_key, skill.shape, 1, SKILLS)
        skill = jnp.where(switches, other % SKILLS, skill)
        age = jnp.where(switches, 1, age + 1)
        return (skill, age), (skill, switches)

    first = jax.random.randint(policy_key, (DEMONSTRATIONS,), 0, SKILLS)
    keys = jax.random.split(skill_key, STEPS)
    _, (skill, begins) = jax.lax.scan(step, (first, jnp.zeros_like(first)), keys)
    at_random = jax.random.uniform(noise_key, shape, float) < noise
    action = jnp.where(
        at_random, jax.random.randint(action_key, shape, 0, SKILLS), (skill + state) % SKILLS
    )
    return state, action, begins


def surprise_of(state: Array, action: Array, noise: float) -> Array:
    """Return minus the log-probability of each action [T, B], given all before it and its state,
    by the filter over skills and the number of their steps so far (the last for `LEAST` and
    more)."""
    number = jnp.arange(SKILLS)

    def move(belief: Array) -> Array:
        old = belief[..., -1].sum(-1, keepdims=True)  # [B, 1], of those that may end
        leaves = SWITCH * belief[..., -1]
        new = (SWITCH * old - leaves) / (SKILLS - 1)  # [B, K], of skills that begin
        stays = jnp.concatenate(
            [belief[..., :-2], (belief[..., -2] + belief[..., -1] - leaves)[..., None]], -1
        )
        return jnp.concatenate([new[..., None], stays], -1)  # [B, K, LEAST]

    def step(belief: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        state, action, first = now
        belief = jnp.where(first, belief, move(belief))
        follows = (number + state[:, None]) % SKILLS == action[:, None]
        chance = (1 - noise) * follows + noise / SKILLS
        seen = (belief.sum(-1) * chance).sum(-1)
        return belief * chance[..., None] / seen[:, None, None], -jnp.log(seen)

    start = jnp.zeros((DEMONSTRATIONS, SKILLS, LEAST)).at[..., 0].set(1 / SKILLS)
    return jax.lax.scan(step, start, (state, action, jnp.arange(STEPS) == 0))[1]


def f1(found: Array, begins: Array) -> Array:
    """Return the F1 score of boundaries [T, B], where one step too late is right."""
    late = jnp.concatenate([jnp.zeros_like(begins[:1]), begins[:-1]])
    soon = jnp.concatenate([found[1:], jnp.zeros_like(found[:1])])
    precision = (found & (begins | late)).sum() / jnp.maximum(found.sum(), 1)
    recall = (begins & (found | soon)).sum() / jnp.maximum(begins.sum(), 1)
    return 2 * precision * recall / jnp.maximum(precision + recall, 1e-12)


def sbd(surprise: Array, action: Array) -> Array:
    """Find boundaries by SBD's rule."""
    return losses.skill_boundaries(surprise, GAP) > 0


def equal_lengths(surprise: Array, action: Array) -> Array:
    """Cut demonstrations into pieces of the mean length of a skill."""
    length = round(LEAST - 1 + 1 / SWITCH)
    row = jnp.arange(STEPS)[:, None]
    return jnp.broadcast_to((row > 0) & (row % length == 0), surprise.shape)


def errors_of(key: Key, rule: Rule) -> dict[str, Array]:
    """Return two errors of a rule.

    "exact": share of steps that are a boundary and should be none, or the reverse, where skills are
    deterministic. "noisy": what its F1 lacks to that of cuts at equal lengths and a margin, where
    some actions are at random.
    """
    plain_key, noisy_key = jax.random.split(key)
    state, action, begins = draw(plain_key, 0.0)
    found = rule(surprise_of(state, action, 0.0), action)
    noisy_state, noisy_action, noisy_begins = draw(noisy_key, NOISE)
    surprise = surprise_of(noisy_state, noisy_action, NOISE)
    score = f1(rule(surprise, noisy_action), noisy_begins)
    least = f1(equal_lengths(surprise, noisy_action), noisy_begins) + MARGIN
    return {"exact": (found != begins).astype(float).mean(), "noisy": jnp.maximum(least - score, 0)}


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of SBD's rule."""
    return errors_of(key, sbd)


def plant(rule: Rule) -> Callable[[Key], dict[str, Array]]:
    """Return the errors of another rule."""
    return jax.jit(lambda key: errors_of(key, rule))


CLAIM = Exact(
    paper=Paper(
        "Open-World Skill Discovery from Unsegmented Demonstrations",
        "Deng, Wang, Cai, Liu and Liang",
        2025,
        "2503.10684",
        "A sudden rise of the error of an unconditional predictor of actions marks where a skill "
        "ends, so that long demonstrations can be cut without labels.",
    ),
    claim="By the surprise of the best predictor SBD's rule finds exactly where deterministic "
    "skills that never agree begin; with 5 % of random actions its F1 is at least 0.25 above that "
    "of cuts at equal lengths.",
    left_out="Learned predictors and policies, skills that agree in some states, skills of fewer "
    "than four steps (the rule cannot see two "
    "boundaries in a row), and Minecraft.",
    parts=("jaxrl/losses/imitation/adversarial.py",),
    errors=errors,
    planted={
        "cuts at equal lengths": plant(equal_lengths),
        "boundaries where the error falls": plant(lambda surprise, action: sbd(-surprise, action)),
        "boundaries one step late": plant(
            lambda surprise, action: jnp.roll(sbd(surprise, action), 1, 0)
        ),
    },
    tolerance=1e-9,
    effect=5e-3,
    seeds=20,
    minutes=1.0,
    mutations=(
        Mutation(
            "a small rise of the error is enough",
            "jaxrl.losses:skill_boundaries",
            lambda rule: lambda loss, gap: rule(loss, gap / 20),
        ),
    ),
)
