"""Off-policy evaluation, on all episodes of a small MDP, beside exact dynamic programming."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.evaluation import off_policy as ope
from jaxrl.exact.dynamic_programming import policy_evaluation

S, A, STEPS, DISCOUNT = 3, 2, 5, 0.8
RNG = np.random.default_rng(0)
# Two equally likely successors of each state and action; state 2 ends the episode.
SUCCESSORS = np.array([[[0, 1], [1, 2]], [[1, 0], [2, 1]], [[2, 2], [2, 2]]])
REWARD = RNG.normal(size=(S, A))
POLICY = np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]])
TRANSITION = np.zeros((S, A, S))
for s, a, i in itertools.product(range(S), range(A), range(2)):
    TRANSITION[s, a, SUCCESSORS[s, a, i]] += 0.5
LIVE = np.where(np.arange(S) == 2, 0.0, TRANSITION)  # arrival in state 2 ends


def all_episodes():
    """Every sequence of choices of the behavior policy, which is uniform, and of successors: all
    equally likely. [T, N] each, and the mask."""
    columns = []
    for choices in itertools.product(range(2 * A), repeat=STEPS):
        state, steps, alive = 0, [], True
        for choice in choices:
            action, following = choice % A, SUCCESSORS[state, choice % A, choice // A]
            steps.append((state, action, REWARD[state, action], following, alive))
            alive &= following != 2
            state = following
        columns.append(steps)
    x = np.array(columns).transpose(2, 1, 0)
    return x[0].astype(int), x[1].astype(int), x[2], x[3].astype(int), x[4].astype(bool)


STATE, ACTION, REWARDS, NEXT, MASK = all_episodes()
LOG_RATIO = np.where(MASK, np.log(POLICY[STATE, ACTION] / 0.5), 7.0)  # nonsense after the end
SEEN = np.where(MASK, REWARDS, -9.0)


def finite_horizon():
    """Q [T, S, A] and V [T, S] of the policy with so many steps left."""
    q, v, rest = [], [], np.zeros(S)
    for _ in range(STEPS):
        q.append(REWARD + DISCOUNT * LIVE @ rest)
        rest = (POLICY * q[-1]).sum(-1)
        v.append(rest)
    return np.array(q[::-1]), np.array(v[::-1])


Q, V = finite_horizon()
TRUTH = V[0, 0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("per_decision", [False, True])
def test_importance_sampling_is_exact_over_all_episodes(per_decision, weighted):
    options = {"per_decision": per_decision, "weighted": weighted}
    found = ope.importance_sampling(LOG_RATIO, SEEN, MASK, DISCOUNT, **options)
    np.testing.assert_allclose(found, TRUTH, rtol=1e-5)
    # The behavior policy is worth something else, and some episodes are no longer than others.
    plain = (DISCOUNT ** np.arange(STEPS)[:, None] * np.where(MASK, REWARDS, 0)).sum(0).mean()
    assert abs(plain - TRUTH) > 0.05


def test_estimates_from_a_few_episodes():
    """The formulas, on episodes that are not all there are."""
    chosen = np.array([3, 77, 500, 901])
    few = [x[:, chosen] for x in (LOG_RATIO, SEEN, MASK)]
    ratio = np.where(few[2], np.exp(few[0]), 1.0)
    weight, gamma = np.cumprod(ratio, 0), DISCOUNT ** np.arange(STEPS)[:, None]
    reward = np.where(few[2], few[1], 0)
    expected = {
        (True, False): (gamma * weight * reward).sum(0).mean(),
        (False, False): (weight[-1] * (gamma * reward).sum(0)).mean(),
        (True, True): (gamma * weight * reward / weight.sum(-1, keepdims=True)).sum(),
        (False, True): (weight[-1] * (gamma * reward).sum(0)).sum() / weight[-1].sum(),
    }
    for (per_decision, weighted), value in expected.items():
        options = {"per_decision": per_decision, "weighted": weighted}
        found = ope.importance_sampling(*few, DISCOUNT, **options)
        np.testing.assert_allclose(found, value, rtol=1e-5)
    size = ope.effective_sample_size(few[0], few[2])
    np.testing.assert_allclose(size, weight[-1].sum() ** 2 / (weight[-1] ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_doubly_robust_estimates_are_exact_with_wrong_values_and_have_no_noise_with_right_ones(
    weighted,
):
    time = np.arange(STEPS)[:, None]
    estimate = lambda q, v, at=slice(None): ope.doubly_robust(
        LOG_RATIO[:, at],
        SEEN[:, at],
        np.where(MASK, q[time, STATE, ACTION], 5.0)[:, at],
        np.where(MASK, v[time, STATE], 5.0)[:, at],
        MASK[:, at],
        DISCOUNT,
        weighted=weighted,
    )
    wrong = Q + RNG.normal(size=Q.shape)
    np.testing.assert_allclose(estimate(wrong, (POLICY * wrong).sum(-1)), TRUTH, rtol=1e-4)
    # With one episode each: the noise of the successors is left, that of actions is not.
    right, none = (
        [float(estimate(q, (POLICY * q).sum(-1), slice(i, i + 1))) for i in range(0, 1024, 31)]
        for q in (Q, np.zeros_like(Q))
    )
    assert np.std(right) < (0.9 if weighted else 0.5) * np.std(none)
    if not weighted:  # the recursion of Jiang and Li
        for i, found in zip(range(0, 1024, 31), right, strict=True):
            value = 0.0
            for t in reversed(range(STEPS)):
                if MASK[t, i]:
                    s, a = STATE[t, i], ACTION[t, i]
                    error = REWARDS[t, i] + DISCOUNT * value - Q[t, s, a]
                    value = V[t, s] + POLICY[s, a] / 0.5 * error
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def test_the_model_and_fitted_q_have_the_value_of_dynamic_programming():
    steps = [x[MASK] for x in (STATE, ACTION, REWARDS, NEXT)]
    ended = steps[3] == 2
    terminal = jnp.arange(S) == 2
    exact = policy_evaluation(TRANSITION, REWARD, POLICY, DISCOUNT, terminal)
    transition, reward = ope.empirical_model(*steps, ended, S, A)
    np.testing.assert_allclose(transition[:2], LIVE[:2], atol=1e-6)
    np.testing.assert_allclose(reward[:2], REWARD[:2], rtol=1e-4)
    assert not transition[2].any() and not reward[2].any()  # never seen
    found = policy_evaluation(transition, reward, POLICY, DISCOUNT)
    np.testing.assert_allclose(found[:2], exact[:2], rtol=1e-5)

    one_hot = lambda s, a: np.eye(S * A)[s * A + a]
    features = one_hot(steps[0], steps[1])
    following = sum(
        POLICY[steps[3], a][:, None] * one_hot(steps[3], np.full(len(ended), a)) for a in range(A)
    )
    following = np.where(ended[:, None], 0.0, following)
    fit = jax.jit(lambda *given: ope.fitted_q_evaluation(*given, DISCOUNT, ridge=1e-7))
    q = fit(*(jnp.asarray(x, jnp.float32) for x in (features, steps[2], following)))
    np.testing.assert_allclose((POLICY * q.reshape(S, A)).sum(-1)[:2], exact[:2], rtol=1e-3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"reward is \[4, 1024\], but the mask \[5, 1024\]"):
        ope.importance_sampling(LOG_RATIO, SEEN[1:], MASK, DISCOUNT)
    with pytest.raises(UserError, match="with a step at least"):
        ope.effective_sample_size(LOG_RATIO[:0], MASK[:0])
    x = jnp.zeros((4, 2))
    with pytest.raises(UserError, match="must both be"):
        ope.fitted_q_evaluation(x, x[:, 0], x[:2], DISCOUNT)
    with pytest.raises(UserError, match=r"reward must be \[4\]"):
        ope.fitted_q_evaluation(x, x, x, DISCOUNT)
    with pytest.raises(UserError, match="iterations must be at least 1"):
        ope.fitted_q_evaluation(x, x[:, 0], x, DISCOUNT, iterations=0)


def test_episodes_without_weight_count_as_nothing():
    """A greedy policy would never have acted as they did."""
    log_ratio = jnp.array([[0.5, -jnp.inf], [-jnp.inf, 0.5], [0.3, 0.2]])
    mask, one = jnp.ones((3, 2), bool), jnp.ones((3, 2))
    for per_decision in (False, True):
        options = {"per_decision": per_decision, "weighted": True}
        found = ope.importance_sampling(log_ratio, one, mask, 0.9, **options)
        assert found == (1.0 if per_decision else 0.0)  # in the first step one episode counts
    assert ope.effective_sample_size(log_ratio, mask) == 0
