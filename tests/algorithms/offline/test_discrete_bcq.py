"""Discrete BCQ and discrete CQL: losses and acting against NumPy, with tables for networks."""

import dataclasses

import numpy as np

from jaxrl import envs
from jaxrl.algorithms.offline import discrete_bcq, discrete_cql
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

ENV = envs.make("cartpole")
N, A = 64, 2
RNG = np.random.default_rng(9)
TABLE, COPY, CLONE = RNG.normal(size=(3, 2 * N, A)).astype(np.float32)
HYPER = {"discount": 0.9, "reward_scale": 2.0, "huber": 0.5, "threshold": 0.6}
HYPER |= {"logit_weight": 0.2, "alpha": 0.7}
NET = stub(
    q=lambda s: TABLE[s.observation][..., None],
    clone=lambda s: CLONE[s.observation][..., None],
    target={"q": lambda s: COPY[s.observation][..., None]},
    hyper=HYPER,
)
X = transitions(N)
ROWS = np.arange(N)


def probabilities(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def td_error(x, allowed):
    """The Huber error of double Q-learning whose next actions are `allowed`."""
    best = np.where(allowed, TABLE[N:], -np.inf).argmax(-1)
    target = 2 * x.reward + 0.9 * ~x.terminated * COPY[N + ROWS, best]
    return huber(TABLE[ROWS, x.action] - target, 0.5)


def test_only_likely_actions_are_bootstrapped_from():
    p = probabilities(CLONE[N:])
    allowed = p / p.max(-1, keepdims=True) > 0.6
    assert (allowed.sum(-1) == 1).any() and (allowed.sum(-1) == 2).any()
    output = discrete_bcq.q_loss(NET, X)
    np.testing.assert_allclose(output.value, td_error(X, allowed), rtol=1e-4, atol=1e-6)
    assert np.abs(output.value - td_error(X, True)).max() > 0.1


def test_the_clone_is_likely_and_its_logits_are_small():
    p = probabilities(CLONE[:N])[ROWS, X.action]
    expected = -np.log(p) + 0.2 * (CLONE[:N] ** 2).mean(-1)
    np.testing.assert_allclose(discrete_bcq.clone_loss(NET, X), expected, rtol=1e-4)


def act(x, net=NET):
    policy = discrete_bcq.recipe(ENV, Static(discrete_bcq.Config())).act
    return [np.asarray(policy(net, x.timestep, (), None, greedy)[0]) for greedy in (True, False)]


def test_it_acts_by_the_best_likely_action():
    p = probabilities(CLONE[:N])
    allowed = p / p.max(-1, keepdims=True) > 0.6
    best = np.where(allowed, TABLE[:N], -np.inf).argmax(-1)
    for action in act(X):
        np.testing.assert_array_equal(action, best)
    assert (best != TABLE[:N].argmax(-1)).any()


def test_illegal_actions_are_never_chosen():
    x = mask_actions(X, A)
    legal, after = x.timestep.legal_actions, x.next_timestep.legal_actions
    assert legal[ROWS, act(x)[0]].all()
    p = probabilities(np.where(after, CLONE[N:], -1e9))
    allowed = (p / p.max(-1, keepdims=True) > 0.6) & after
    value = discrete_bcq.q_loss(NET, dataclasses.replace(x, action=legal.argmax(-1))).value
    taken = dataclasses.replace(x, action=legal.argmax(-1))
    np.testing.assert_allclose(value, td_error(taken, allowed), rtol=1e-4, atol=1e-6)


def test_discrete_cql_lowers_the_soft_maximum():
    output = discrete_cql.q_loss(NET, X)
    gap = np.log(np.exp(TABLE[:N]).sum(-1)) - TABLE[ROWS, X.action]
    np.testing.assert_allclose(output.metrics["gap"], gap, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.value, td_error(X, True) + 0.7 * gap, rtol=1e-4, atol=1e-5)


def test_discrete_cql_acts_greedily():
    policy = discrete_cql.recipe(ENV, Static(discrete_cql.Config())).act
    np.testing.assert_array_equal(policy(NET, X.timestep, (), None, True)[0], TABLE[:N].argmax(-1))
