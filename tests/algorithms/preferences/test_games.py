"""Preference games: what a step ends at, whose weights are where, and the exact equilibrium."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses, solvers
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences import egpo as of_egpo
from jaxrl.algorithms.preferences.egpo import egpo
from jaxrl.algorithms.preferences.inpo import inpo
from jaxrl.algorithms.preferences.nash_md import nash_md, play_mixture, step_size
from jaxrl.algorithms.preferences.nash_mirror_prox import nash_mirror_prox
from jaxrl.algorithms.preferences.rebel import rebel
from jaxrl.algorithms.preferences.shared.games import Group, regression, win_rates
from jaxrl.algorithms.preferences.spo import spo
from jaxrl.algorithms.preferences.sppo import group_loss as sppo_loss
from jaxrl.algorithms.preferences.sppo import sppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from jaxrl.core.train import advance, start, train
from jaxrl.core.types import Policy
from jaxrl.exact.answers import (
    answer_log_probs,
    enumerate_answers,
    nash_answers,
    optimal_answers,
)
from tests.contracts.structure import check_structure
from tests.kit.stub import stub

ENV = envs.make("judged_words", letters=2, length=2, cycle=4.0)
SMALL = {"recurrent": 16, "transformer": 0, "learning_rate": 3e-3, "prompts": 4, "steps": 2}
BUILDERS = (nash_mirror_prox, egpo, nash_md, inpo, sppo, rebel)
ETA, BETA = 2.0, 0.1


@functools.cache
def small(builder):
    return builder(ENV, SMALL)


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.name)
def test_structure(builder):
    check_structure(small(builder))


@pytest.mark.parametrize("proximal", [True, False])
def test_a_step_of_a_table_is_what_the_regression_ends_at(proximal):
    rng = np.random.default_rng(0)
    worth = rng.normal(size=(5, 5))
    preference = jnp.asarray(1 / (1 + np.exp(worth.T - worth)))
    anchor, reference, opponent = (jnp.asarray(x) for x in rng.normal(size=(3, 5)))
    size = ETA / (1 + ETA * BETA) if proximal else ETA
    step = solvers.preference_mirror_step(preference, anchor, opponent, reference, size, BETA)
    score = preference @ jax.nn.softmax(opponent)
    i, j = (x.ravel() for x in np.meshgrid(np.arange(5), np.arange(5)))
    rows = lambda table: jnp.stack([table[i], table[j]], -1)
    error = lambda now: regression(
        Group(*map(rows, (now, anchor, reference, score))), size, size * BETA
    )
    np.testing.assert_allclose(error(step), 0, atol=1e-5)
    assert error(anchor).max() > 0.01
    if proximal:  # the step maximizes eta (win rate - beta KL to the reference) - KL to the anchor
        objective = lambda x: (
            jax.nn.softmax(x) * (ETA * score + ETA * BETA * jax.nn.log_softmax(reference)
                                 + jax.nn.log_softmax(anchor)
                                 - (1 + ETA * BETA) * jax.nn.log_softmax(x))
        ).sum()  # fmt: skip
        np.testing.assert_allclose(jax.grad(objective)(step), 0, atol=1e-5)


def test_the_loss_of_each_answer_is_least_at_multiplicative_weights():
    log_prob, anchor, score = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    net = stub(hyper={"eta": ETA})
    found = sppo_loss(net, Group(*map(jnp.asarray, (log_prob, anchor, log_prob, score))))
    expected = ((log_prob - anchor - ETA * (score - 0.5)) ** 2).mean(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_win_rates_are_those_against_the_opponents_of_the_group():
    algorithm = small(nash_mirror_prox)
    state = start(algorithm, random.key(0)).state
    policy = algorithm.policy(state)
    _, batch, _ = algorithm.source.collect(state.source, policy, random.key(1))
    found = win_rates(ENV, 4, (2, 3))(batch).reshape(-1, 4)
    t = batch.transitions
    judged = np.where((batch.mask & t.done)[..., None], t.next_timestep.privileged["judged"], 0)
    judged = judged.sum(0).reshape(-1, 4, 3)
    for group, scores in zip(judged, found, strict=True):
        for own, score in zip(group, scores, strict=True):
            against = [float(ENV.judge(own[None], other[None])[0]) for other in group[2:]]
            np.testing.assert_allclose(score, np.mean(against), rtol=1e-4)


def same(a, b):
    leaves = zip(*map(jax.tree.leaves, (a, b)), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


def weights(algorithm, updates):
    """Parameters of each part after 0, 1, ... updates."""
    run = start(algorithm, random.key(0))
    found = []
    for _ in range(updates + 1):
        found.append({n: part.params for n, part in run.state.agent.parts.items()})
        run, _ = advance(algorithm, run)
    return found


def test_both_steps_begin_from_the_anchor_and_the_second_is_against_the_half_step():
    at = weights(small(nash_mirror_prox), 4)
    policy, anchor, opponent = ([x[n] for x in at] for n in ("actor_critic", "anchor", "opponent"))
    assert same(policy[0], anchor[0]) and same(policy[0], opponent[0])
    assert not same(policy[1], policy[0]) and same(opponent[1], opponent[0])
    # The first step has ended: its result is the opponent, and the policy begins anew.
    assert same(policy[2], policy[0]) and same(anchor[2], policy[0])
    assert not same(opponent[2], policy[0])
    assert same(opponent[3], opponent[2]) and same(anchor[3], policy[0])
    # The iteration has ended: all three are its result.
    assert same(anchor[4], policy[4]) and same(opponent[4], policy[4])
    assert not same(policy[4], policy[0])


@pytest.mark.parametrize("builder", [inpo, sppo, rebel], ids=lambda b: b.name)
def test_in_self_play_the_anchor_is_the_last_iterations_policy_and_writes(builder):
    at = weights(small(builder), 2)
    policy, anchor = ([x[n] for x in at] for n in ("actor_critic", "anchor"))
    assert same(anchor[1], policy[0]) and not same(policy[1], policy[0])
    assert same(anchor[2], policy[2])
    algorithm = small(builder)
    run, _ = advance(algorithm, start(algorithm, random.key(0)))
    _, batch, _ = algorithm.source.collect(
        run.state.source, algorithm.policy(run.state), random.key(1)
    )
    t = batch.transitions
    config = algorithm.config
    network = policy_network(ENV, config.torso, config.memory)
    said = {}
    for name, params in at[1].items():
        memory = network.initial(t.action.shape[1])
        said[name] = network.apply(params, t.timestep, memory, method="unroll")[0]
    mask = np.asarray(batch.mask)
    found = {n: np.asarray(x.log_prob(t.action))[mask] for n, x in said.items()}
    if "log_prob" in t.extras:
        acted = np.asarray(t.extras["log_prob"])[mask]
        np.testing.assert_allclose(acted, found["anchor"], rtol=1e-4, atol=1e-5)
        assert np.abs(acted - found["actor_critic"]).max() > 1e-3


def test_the_opponent_of_nash_md_is_a_mixture_for_each_token():
    """The mixture by NumPy, from both of its policies; the agent itself does not mix."""
    algorithm = nash_md(ENV, SMALL | {"beta": 0.1, "eta": 7.0, "learning_rate": 0.1})
    run = start(algorithm, random.key(0))
    for _ in range(3):  # the second iteration has begun
        run, _ = advance(algorithm, run)
    policy, agent = algorithm.policy(run.state), run.state.agent
    _, batch, _ = algorithm.source.collect(run.state.source, policy, random.key(1))
    t, mask, config = batch.transitions, np.asarray(batch.mask), algorithm.config
    network = policy_network(ENV, config.torso, config.memory)
    part = agent.parts["actor_critic"]
    params = {"own": part.params, "anchor": agent.parts["anchor"].params, "mu": part.target}
    said = {
        name: np.asarray(
            network.apply(x, t.timestep, network.initial(t.action.shape[1]), method="unroll")[
                0
            ].logits
        )
        for name, x in params.items()
    }
    weight = 0.1 * min(7.0, 2 / (0.1 * 3))  # t = 1
    mixed = (1 - weight) * said["anchor"] + weight * said["mu"]
    mixed = mixed - np.log(np.exp(mixed).sum(-1, keepdims=True))
    take = lambda x: np.take_along_axis(x, np.asarray(t.action)[..., None], -1)[..., 0]
    by_policy = np.arange(t.action.shape[1]) % 4 < 2
    expected = np.where(by_policy, take(said["own"]), take(mixed))
    acted = np.asarray(t.extras["log_prob"])
    np.testing.assert_allclose(acted[mask], expected[mask], rtol=1e-4, atol=1e-5)
    assert np.abs(take(mixed) - take(said["anchor"]))[mask].max() > 0.05
    assert float(play_mixture(agent).extra.mixes) == 1 and float(agent.extra.mixes) == 0


@pytest.mark.parametrize("constant", [False, True])
def test_nash_md_reaches_the_equilibrium_as_its_steps_decrease(constant):
    """Steps of a table: with a constant step the last iterate stays away by a part of it."""
    found = enumerate_answers(ENV)
    reference = jax.nn.log_softmax(jnp.zeros(found.reward.shape))
    net = lambda t: stub(hyper={"eta": ETA, "beta": BETA}, updates=jnp.int32(5 * t + 4))
    now = reference
    for t in range(60):
        size = ETA if constant else step_size(net(t), 5)
        now = solvers.nash_md(found.preference, now, reference, size, BETA)
    gap = np.asarray(solvers.preference_gap(found.preference, now, reference, BETA)).max()
    assert (gap > 1e-3) if constant else (gap < 2e-4), gap


@pytest.mark.parametrize("builder", [nash_mirror_prox, spo], ids=lambda b: b.name)
def test_games_are_measured_by_their_gap(builder):
    """The gap is that of the regularized game if there is a penalty, else of the plain game."""
    config = builder.complete_config({n: x for n, x in SMALL.items() if n != "steps"})
    agent = builder.agent(ENV, config)
    state = agent.init(random.key(0), agent.hyper)
    policy = Policy(agent.act, agent.memory, state)
    measured = builder.measure(ENV, Static(config), policy, random.key(0))
    assert set(measured) == set(agent.scores) == {"exact_return", "preference_gap"}
    found, network = enumerate_answers(ENV), policy_network(ENV, config.torso, config.memory)
    now = answer_log_probs(network, state.parts["actor_critic"].params, found)
    rates = np.einsum("pij,pj->pi", found.preference, np.exp(now))
    expected = 2 * (rates.max(-1) - 0.5)
    if builder is nash_mirror_prox:  # the reference is the policy
        expected = np.asarray(solvers.preference_gap(found.preference, now, now, config.beta))
    np.testing.assert_allclose(measured["preference_gap"], expected.mean(), rtol=1e-4)


def test_steps_beyond_the_reference_are_refused():
    with pytest.raises(UserError, match=r"eta \* beta is 2; a step of egpo must not go beyond"):
        egpo(ENV, SMALL | {"eta": 2.0, "beta": 1.0})
    with pytest.raises(UserError, match=r"eta is 0\.05 and beta 0\.1; eta must be at least beta"):
        inpo(ENV, SMALL | {"eta": 0.05})
    assert of_egpo.Config().eta == 1.0


# --------------------------------------------------------------------- the exact equilibrium

LEARNED = {"recurrent": 32, "transformer": 0, "learning_rate": 5e-3, "prompts": 128, "steps": 25}


def learn(builder, changes, updates):
    """Return all answers and the exact log-probabilities [P, A] of the policy before and after."""
    algorithm = builder(ENV, LEARNED | changes)
    found, config = enumerate_answers(ENV), algorithm.config
    network = policy_network(ENV, config.torso, config.memory)
    run = start(algorithm, random.key(0))
    probabilities = lambda run: answer_log_probs(
        network, run.state.agent.parts["actor_critic"].params, found
    )
    after, _ = train(algorithm, run, updates)
    return found, probabilities(run), probabilities(after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "changes"),
    [
        (nash_mirror_prox, {"eta": ETA}),
        (egpo, {"eta": ETA}),
        (nash_md, {"eta": ETA}),
        (inpo, {"eta": 0.5, "prompts": 512}),  # the inverse of the step
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_last_iterate_is_the_equilibrium_of_a_game_with_cycles(builder, changes):
    """The policy that is best for the reward, and the reference, have a gap there."""
    found, reference, after = learn(builder, changes, 600)
    gap = lambda x: np.asarray(solvers.preference_gap(found.preference, x, reference, BETA))
    np.testing.assert_allclose(gap(nash_answers(found.preference, reference, BETA)), 0, atol=1e-3)
    assert gap(reference).max() > 0.3
    assert gap(optimal_answers(found.reward, reference, BETA)).max() > 1
    assert (gap(after) < 0.01).all(), gap(after)


@pytest.mark.slow
def test_regressions_on_returns_add_up():
    """Four steps of 1/4 are the optimum with a reference of strength 1."""
    found, reference, after = learn(rebel, {"eta": 0.25, "steps": 100}, 400)
    best = optimal_answers(found.reward, reference, 1.0)
    assert losses.categorical_kl(reference, best).max() > 0.2
    assert (losses.categorical_kl(after, best) < 0.01).all()


@pytest.mark.slow
def test_win_rates_of_groups_give_multiplicative_weights():
    found, reference, after = learn(sppo, {"eta": 0.5, "steps": 50, "optimizer.name": "adam"}, 200)
    expected = reference
    for _ in range(4):
        expected = solvers.preference_mirror_step(
            found.preference, expected, expected, reference, 0.5, 0.0
        )
    before, now = (losses.categorical_kl(x, expected) for x in (reference, after))
    assert (now < 0.005).all() and now.max() < before.max() / 10, (before, now)
