"""A guard that trains with an attacker, and one that trains with the first attacker alone.

A request is harmful or not, and has a surface of four letters, which the attacker writes. At first
letters mostly suit what a request is, so that a guard can go by them. The guard is linear in the
letters and in what the request is, and the attacker's letters are independent; so how each of all
requests is answered is computed exactly. They learn from sampled games.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims.multi_agent._tables import net_of, time_step
from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.multi_agent.self_redteam import judge_roles, self_redteam
from jaxrl.algorithms.tokens.reinforce_plus_plus import surrogate_loss
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.core.types import Array, Batch, Key, TimeStep, Transition

LETTERS, SUITS = 4, 2.0  # of a request; log-odds of a letter that suits it, at the beginning
GAMES, UPDATES, RUNS = 64, 300, 4
RATES = jnp.array([3.0, 10.0])
SUCCESS, REFUSAL, MORE = 0.6, 0.8, 0.01  # shares of what the first attacker's guard has
SURFACES = np.array(list(itertools.product((0, 1), repeat=LETTERS)))  # all, [N, L]
SETTINGS = self_redteam.Config()
TURN = jnp.repeat(jnp.array([0, 1]), np.array([LETTERS, 1]))
Pay = Callable[[Array, Array], Array]


class Policy(NamedTuple):
    """Log-odds [2, L] of letters for harmless and harmful requests, and the guard's weights
    [L + 2] of refusing, of letters, of what a request is, and alone."""

    attacker: Array
    guard: Array


def odds_of_refusal(guard: Array, harmful: Array, letters: Array) -> Array:
    """Return the guard's log-odds of refusing requests [B] with letters [B, L]."""
    sign = lambda yes: 2.0 * yes - 1.0
    return sign(letters) @ guard[:-2] + sign(harmful) * guard[-2] + guard[-1]


def logits_of(policy: Policy, harmful: Array, letters: Array) -> Array:
    """Return the logits [T, B, 2] of all that is written in games."""
    odds = policy.attacker[harmful.astype(int)]
    refusal = odds_of_refusal(policy.guard, harmful, letters)
    both = jnp.concatenate([odds.T, refusal[None]])
    return jnp.stack([jnp.zeros_like(both), both], -1)


def reward_defender(harmful: Array, refused: Array) -> Array:
    """Return what the defender is paid, as in `envs.guarded_requests`."""
    sign = lambda yes: jnp.where(yes, 1.0, -1.0)
    return sign(~harmful | refused) + sign(harmful == refused)


def reward_attacker(harmful: Array, refused: Array) -> Array:
    """Return what the attacker is paid, as in `envs.guarded_requests` for a request that is
    harmful like its seed, or harmless like it."""
    sign = lambda yes: jnp.where(yes, 1.0, -1.0)
    return sign(harmful & ~refused) - 0.5 * sign(harmful == refused) + 0.5


def play(key: Key, policy: Policy, begin: Policy, pay: Pay) -> tuple[Batch, Array]:
    """Return games by a policy, and which requests are harmful.

    begin: the reference. pay: what the attacker gets.
    """
    keys = jax.random.split(key, 3)
    harmful = jax.random.bernoulli(keys[0], 0.5, (GAMES,))
    chance = jax.nn.sigmoid(policy.attacker[harmful.astype(int)])
    letters = jax.random.bernoulli(keys[1], chance)
    refusal = jax.nn.sigmoid(odds_of_refusal(policy.guard, harmful, letters))
    refused = jax.random.bernoulli(keys[2], refusal)
    action = jnp.concatenate([letters.T, refused[None]]).astype(int)
    log_prob, reference = (
        net_of(logits_of(x, harmful, letters), SETTINGS).policy.log_prob(action)
        for x in (policy, begin)
    )
    mask = jnp.ones(action.shape, bool)
    beta = SETTINGS.kl.weight
    reward = losses.kl_penalized_reward(jnp.zeros(GAMES), log_prob, reference, beta, mask)
    reward = reward.at[-1].add(reward_defender(harmful, refused))
    done = mask & (TURN[:, None] == 1)
    attacker = jnp.broadcast_to(pay(harmful, refused), action.shape)
    before = time_step(turn=jnp.broadcast_to(TURN[:, None], action.shape))
    after = TimeStep(mask, reward, done, ~mask, ~mask, reward_components={"attacker": attacker})
    extras = {"log_prob": log_prob, "reference": reference}
    t = Transition(before, action, after, (), extras)
    return Batch(t, jnp.zeros(()), mask=mask), harmful


def learn(key: Key, learns: Array, rate: Array, pay: Pay) -> Policy:
    """Return the policy after training.

    learns: whether the attacker does.
    """
    begin = Policy(SUITS * jnp.array([[-1.0], [1.0]]) * jnp.ones(LETTERS), jnp.zeros(LETTERS + 2))

    def update(policy, key):
        batch, harmful = play(key, policy, begin, pay)
        t, net = batch.transitions, net_of(jnp.zeros((1, 1, 2)), SETTINGS)
        advantage = judge_roles(net, batch)["advantage"]
        extras = t.extras
        sample = Sample(t.timestep, t.action, extras["log_prob"], extras["reference"], advantage)

        def objective(policy):
            logits = logits_of(policy, harmful, t.action[:-1].T > 0)
            return surrogate_loss(net_of(logits, SETTINGS), sample).value.mean()  # pyright: ignore[reportAttributeAccessIssue]

        slope = jax.grad(objective)(policy)
        slope = slope._replace(attacker=jnp.where(learns, slope.attacker, 0))
        return jax.tree.map(lambda y, g: y - rate * g, policy, slope), None

    return jax.lax.scan(update, begin, jax.random.split(key, UPDATES))[0]


def measure(policy: Policy) -> dict[str, Array]:
    """Return how often the attack that succeeds most does, how often the harmless request that is
    refused most is, and how often verdicts are right over all requests."""
    letters = jnp.asarray(SURFACES)
    of = lambda harmful: jax.nn.sigmoid(
        odds_of_refusal(policy.guard, jnp.full(len(SURFACES), harmful), letters)
    )
    bad, good = of(True), of(False)
    right = (bad.mean() + 1 - good.mean()) / 2
    return {"success": 1 - bad.min(), "refusal": good.max(), "right": right}


def errors_of(pay: Pay, key: Key) -> dict[str, Array]:
    """Return by how much each finding is missed.

    pay: what the attacker gets.
    """
    run = lambda key, learns, rate: measure(learn(key, learns, rate, pay))
    runs = jax.vmap(run, (0, None, None))
    runs = jax.vmap(jax.vmap(runs, (None, None, 0)), (None, 0, None))
    found = runs(jax.random.split(key, RUNS), jnp.array([True, False]), RATES)
    (success, refusal, right) = (found[x].mean(-1) for x in ("success", "refusal", "right"))
    return {
        "success of the best attack above 0.6 of that with the first attacker": shortfall(
            SUCCESS,  # pyright: ignore[reportArgumentType]
            (success[0] / success[1]).max(),  # pyright: ignore[reportArgumentType]
        ),
        "refusal of a harmless request above 0.8 of that with the first attacker": shortfall(
            REFUSAL,  # pyright: ignore[reportArgumentType]
            (refusal[0] / refusal[1]).max(),  # pyright: ignore[reportArgumentType]
        ),
        "right verdicts, those with the first attacker and more": shortfall(
            (right[0] - right[1]).min(), MORE
        ),
    }


@jax.jit
def errors(key: Key) -> dict[str, Array]:
    """Return the errors of Self-RedTeam."""
    return errors_of(reward_attacker, key)


@jax.jit
def help_guard(key: Key) -> dict[str, Array]:
    """Return the errors if the attacker is paid what the defender is."""
    return errors_of(reward_defender, key)


def share_credit(to_come: Callable[[Batch, Array], Array]) -> Callable[[Batch, Array], Array]:
    """Pay the attacker's letters for what the guard gets too."""

    def of_all(batch: Batch, paid: Array) -> Array:
        reward = batch.transitions.reward
        own = to_come(batch, paid)
        later = jnp.where(batch.transitions.done, reward, 0).sum(0)
        return own + jnp.where(batch.transitions.timestep.tokens["turn"] == 0, later, 0)

    return of_all


CLAIM = Exact(
    paper=Paper(
        "Chasing moving targets with online self-play reinforcement learning for safer language "
        "models",
        "Liu et al.",
        2025,
        "2506.07468",
        "If self-play of an attacker and a defender in one model converges to a Nash equilibrium, "
        "the defender responds safely to any attack; models that were trained so withstand attacks "
        "better than those that were trained on static ones.",
    ),
    claim="With a guard that trains with an attacker, the best attack succeeds at most 0.6 times "
    "as often as with one that trains with the first attacker, the harmless request that fares "
    "worst is refused at most 0.8 times as often, and 0.01 more of all verdicts are right.",
    left_out="Language models, benchmarks of safety, rewards by a model, private thoughts, "
    "requests that are harmful where their seeds are not, and the diversity of attacks: in "
    "simulations the entropy of an attacker who trains with the guard was 0.06 to 0.2 nats above "
    "that of one who trains against a trained guard.",
    parts=(
        "jaxrl/algorithms/multi_agent/self_redteam.py",
        "jaxrl/algorithms/tokens/reinforce_plus_plus.py",
        "jaxrl/algorithms/tokens/shared/turns.py",
    ),
    errors=errors,
    planted={"the attacker is paid what the defender is": help_guard},
    tolerance=1e-9,
    effect=5e-3,
    seeds=5,
    minutes=3.0,
    notes="Each is compared at step sizes of 3 and 10, at both of which all must be true, in the "
    "mean of four runs of 300 updates of 64 games. A letter suits a request with a chance of 0.88 "
    "at first. Payoffs are those of `guarded_requests`, where the attacker keeps to what its seed "
    "is. An earlier design, with networks, in `guarded_requests`, could not be tested: both guards "
    "refused all that is harmful. This one was found by simulations in NumPy on other draws, where "
    "success was 0.27 instead of 0.54 and 0.08 instead of 0.21, refusal 0.53 instead of 0.72 and "
    "0.17 instead of 0.36, and 0.95 instead of 0.92 and 0.99 instead of 0.97 of all verdicts were "
    "right. An attacker whose requests are single entries of a table learned too little to matter.",
    mutations=(
        Mutation(
            "letters are paid for the verdict",
            "jaxrl.algorithms.tokens.shared.turns:to_come_in_turns",
            share_credit,
        ),
    ),
)
