import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract, example

B, S, A = 6, 4, 3
HUGE = np.full(B, 1e6)
MASK = np.array([True, False, True, True, False, True])


def values(rng, *names):
    return {**{name: rng.normal(size=B) for name in names}, "terminated": ~MASK, "discount": 0.9}


def mdp(rng):
    return {
        "reward": rng.normal(size=(S, A)),
        "other_reward": rng.normal(size=(S, A)),
        "transition": rng.dirichlet(np.ones(S), (S, A)),
        "discount": 0.9,
    }


CASES = [
    Case(
        losses.inverse_bellman_reward,
        lambda rng: values(rng, "q_value", "next_value"),
        gradient=("q_value", "next_value"),
        extremes=lambda rng: [{"next_value": np.where(MASK, 1.0, np.nan)}],
    ),
    Case(
        losses.iq_learn,
        lambda rng: {
            **values(rng, "q_value", "value", "next_value"),
            "expert": np.array([True, True, False, True, False, False]),
            "alpha": 0.5,
            "mask": np.array([True, True, True, True, True, False]),
        },
        gradient=("q_value", "value", "next_value"),
        extremes=lambda rng: [
            {"q_value": HUGE},
            {"expert": np.zeros(B, bool)},
            {"mask": np.zeros(B, bool)},
            {"mask": MASK, "value": np.where(MASK, 1.0, np.nan)},
            {"mask": None},
        ],
    ),
    Case(
        losses.marginal_q,
        lambda rng: {
            "q_values": rng.normal(size=(B, A, 4)),
            "other_probs": rng.dirichlet(np.ones(4), B),
        },
        gradient=("q_values", "other_probs"),
    ),
    Case(
        losses.optimality_margin,
        lambda rng: {
            "q_values": rng.normal(size=(B, A)),
            "action": rng.integers(0, A, B),
            "margin": 1.0,
        },
        gradient=("q_values",),
        extremes=lambda rng: [
            {"q_values": np.zeros((B, A))},
            {"q_values": 1e6 * rng.normal(size=(B, A))},
            {
                "q_values": np.tile([1.0, -np.inf, 0.5], (B, 1)),
                "action": np.zeros(B, int),
                "mask": np.array([True, False, True]),
            },
        ],
    ),
    Case(
        losses.shaping_distance,
        mdp,
        gradient=("reward", "other_reward", "transition"),
        extremes=lambda rng: [
            {"reward": np.zeros((S, A)), "other_reward": np.zeros((S, A))},
            {"discount": 0.0},
            {"transition": np.tile(np.eye(S)[:, None], (1, A, 1))},
        ],
    ),
]
test_contract = contract(CASES)


def x64(inputs):
    return {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}


def test_iq_learn_by_hand():
    with jax.enable_x64(True):
        x = example(CASES, losses.iq_learn)
        terms = []
        for i in np.flatnonzero(x["mask"]):
            future = 0 if x["terminated"][i] else 0.9 * x["next_value"][i]
            reward = x["q_value"][i] - future
            terms.append((reward, x["value"][i] - future, x["expert"][i]))
        expected = (
            -np.mean([r for r, _, expert in terms if expert])
            + np.mean([v for _, v, _ in terms])
            + np.mean([r**2 for r, _, _ in terms]) / (4 * 0.5)
        )
        x = x64(x)
        np.testing.assert_allclose(losses.iq_learn(**x), expected, rtol=1e-9)
        gone = {k: x[k].at[5].set(jnp.nan) for k in ("q_value", "value", "next_value")}
        np.testing.assert_allclose(losses.iq_learn(**{**x, **gone}), expected, rtol=1e-9)


def solve(reward, transition, discount, value):
    """Q-values of the best policy by value iteration; `value` is Q's hard or soft maximum."""

    def step(_, q):
        return reward + discount * transition @ value(q)

    return jax.lax.fori_loop(0, 300, step, jnp.zeros_like(reward))


def soft(q):
    return jax.nn.logsumexp(q, -1)


@pytest.mark.slow
def test_iq_learn_recovers_the_expert_and_its_reward():
    """Tabular case, with exact expectations under the expert's discounted occupancy."""
    with jax.enable_x64(True):
        x = x64(mdp(np.random.default_rng(0)))
        transition, discount = x["transition"], 0.8
        q = solve(x["reward"], transition, discount, soft)
        expert = jax.nn.softmax(q, -1)
        step = jnp.einsum("sa,sat->st", expert, transition)
        start = jnp.ones(S) / S
        states = (1 - discount) * jnp.linalg.solve((jnp.eye(S) - discount * step).T, start)
        weights = (states[:, None] * expert)[..., None] * transition  # of (s, a, s')
        # masked_mean counts all elements equally, so repeat each transition by its weight.
        copies = np.floor(np.array(weights) * 5_000).astype(int)
        s, a, t = (jnp.repeat(i.ravel(), copies.ravel()) for i in jnp.indices(copies.shape))

        @jax.jit
        def loss(q):
            v = soft(q)
            no = jnp.zeros(len(s), bool)
            return losses.iq_learn(q[s, a], v[s], v[t], ~no, no, discount, alpha=1e4)

        gradient = jax.jit(jax.grad(loss))
        # With almost no regularizer the expert's own Q is optimal, up to what is not identifiable.
        assert abs(gradient(q)).max() < 3e-3 < abs(gradient(jnp.zeros_like(q))).max()

        def descend(_, state):
            velocity = 0.9 * state[1] - 2.0 * gradient(state[0])
            return state[0] + velocity, velocity

        ours, _ = jax.lax.fori_loop(0, 400, descend, (jnp.zeros_like(q), jnp.zeros_like(q)))
        np.testing.assert_allclose(jax.nn.softmax(ours, -1), expert, atol=0.02)
        value = transition @ soft(q)
        recovered = losses.inverse_bellman_reward(q, value, jnp.zeros((S, A), bool), discount)
        np.testing.assert_allclose(recovered, x["reward"], atol=1e-6)


def test_iq_learn_regularizer_moves_the_optimum_of_a_bandit():
    """A bandit's optimum has softmax(Q) - expert + expert * Q / (2 alpha) = 0."""
    with jax.enable_x64(True):
        expert = np.array([0.5, 0.3, 0.2])
        action = jnp.repeat(jnp.arange(3), jnp.array([5, 3, 2]))
        yes = jnp.ones(10, bool)

        def loss(q):
            value = jnp.full(10, jax.nn.logsumexp(q))
            return losses.iq_learn(q[action], value, 0 * value, yes, yes, 0.9, alpha=0.5)

        q = jax.lax.fori_loop(0, 300, lambda _, q: q - jax.grad(loss)(q), jnp.zeros(3))
        np.testing.assert_allclose(jax.nn.softmax(q) - expert + expert * q, 0, atol=1e-9)


def test_marginal_q():
    x = example(CASES, losses.marginal_q)
    expected = [
        [sum(x["q_values"][b, a, o] * x["other_probs"][b, o] for o in range(4)) for a in range(A)]
        for b in range(B)
    ]
    ours = losses.marginal_q(*map(jnp.float32, x.values()))
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


@pytest.mark.slow
def test_optimality_margin():
    q_values, action = jnp.float32([[3.0, 2.5, 1.0], [0.0, 2.0, -5.0]]), jnp.array([0, 0])
    np.testing.assert_allclose(losses.optimality_margin(q_values, action), [0.5, 3.0])
    mask = jnp.array([[True, False, True], [True, True, True]])
    np.testing.assert_allclose(losses.optimality_margin(q_values, action, mask=mask), [0, 3.0])
    gradient = jax.grad(lambda q: losses.optimality_margin(q, action).sum())(q_values)
    np.testing.assert_allclose(gradient, [[-1, 1, 0], [-1, 1, 0]])


def test_a_reward_learned_by_margins_makes_the_expert_optimal():
    discount, states = 0.8, jnp.arange(S)

    @jax.jit
    def learn(true_reward, transition):
        def best(reward):
            return solve(reward, transition, discount, lambda q: q.max(-1)).argmax(-1)

        expert = best(true_reward)
        system = jnp.eye(S) - discount * transition[states, expert]

        def loss(reward):
            value = jnp.linalg.solve(system, reward[states, expert])
            q_values = reward + discount * transition @ value
            return losses.optimality_margin(q_values, expert).mean()

        reward = jax.lax.fori_loop(
            0, 200, lambda _, r: r - 0.3 * jax.grad(loss)(r), jnp.zeros((S, A))
        )
        return expert, best(reward)

    for seed in range(10):
        x = mdp(np.random.default_rng(seed))
        expert, ours = learn(jnp.float32(x["reward"]), jnp.float32(x["transition"]))
        assert (expert == ours).all()


def test_distance_is_zero_up_to_shaping_and_that_of_least_squares():
    with jax.enable_x64(True):
        x = x64(mdp(np.random.default_rng(0)))
        potential = jnp.asarray(np.random.default_rng(1).normal(size=S))
        shaping = 0.9 * x["transition"] @ potential - potential[:, None]
        shaped = {**x, "other_reward": x["reward"] + shaping}
        np.testing.assert_allclose(losses.shaping_distance(**shaped), 0, atol=1e-12)
        ours = losses.shaping_distance(**x)
        basis = 0.9 * np.array(x["transition"]) - np.eye(S)[:, None]
        target = np.array(x["reward"] - x["other_reward"]).ravel()
        rest = np.linalg.lstsq(basis.reshape(-1, S), target, rcond=None)[1]
        np.testing.assert_allclose(ours, np.sqrt(rest[0]), rtol=1e-9)
        same = {**x, "other_reward": x["other_reward"] + shaping}
        np.testing.assert_allclose(losses.shaping_distance(**same), ours, rtol=1e-9)
