"""Skill, luck and hindsight on environments small enough to enumerate."""

import jax.numpy as jnp
import numpy as np

from tests.losses.advantages.windows import STEP, case
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def state_hindsight_inputs(rng):
    return {
        "reward": rng.normal(size=(4, 2)),
        "action_reward": rng.normal(size=(4, 2, 3)),
        "ratio": rng.uniform(size=(4, 4, 2, 3)),
        "done": np.array([[False, False], [True, False], [False, False], [False, True]]),
        "discount": 0.9,
    }


CASES = [
    case(
        losses.return_decomposition_error,
        *STEP,
        "advantage",
        "luck",
        discount=0.9,
        n=3,
        stopped=("next_value",),
    ),
    case(losses.hindsight_advantage, "log_prob", "hindsight_log_prob", "returns"),
    Case(
        losses.state_hindsight_values,
        state_hindsight_inputs,
        gradient=("reward", "action_reward", "ratio"),
        extremes=lambda rng: [{"done": np.ones((4, 2), bool)}],
    ),
]
test_contract = contract(CASES)


def random_mdp(rng, states=3, actions=2):
    """Transitions [S, A, S], rewards [S, A], a policy [S, A]; its exact Q and V, discount 0.8."""
    transition = rng.dirichlet(np.ones(states), (states, actions))
    reward = rng.normal(size=(states, actions))
    policy = rng.dirichlet(np.ones(actions), states)
    chain = np.einsum("sa,sat->st", policy, transition)
    value = np.linalg.solve(np.eye(states) - 0.8 * chain, (policy * reward).sum(1))
    return transition, reward, policy, reward + 0.8 * transition @ value, value


def test_a_return_is_value_skill_and_luck_on_every_trajectory():
    """Exact parts leave no error, whatever policy acted; a wrong one does."""
    rng = np.random.default_rng(1)
    transition, reward, _, q, value = random_mdp(rng)
    state = [0]
    action = rng.integers(2, size=8)  # not the evaluated policy's
    for a in action:
        state.append(rng.choice(3, p=transition[state[-1], a]))
    state, after = np.array(state[:-1]), np.array(state[1:])
    x = {
        "reward": reward[state, action],
        "value": value[state],
        "next_value": value[after],
        "advantage": q[state, action] - value[state],
        "luck": value[after] - (transition @ value)[state, action],
    }
    x = {k: jnp.float32(v) for k, v in x.items()}
    no = jnp.zeros(8, bool)
    for n in (None, 1, 3):
        error = losses.return_decomposition_error(**x, terminated=no, done=no, discount=0.8, n=n)
        np.testing.assert_allclose(error, 0, atol=1e-5)
        x_wrong = {**x, "luck": jnp.zeros(8)}
        wrong = losses.return_decomposition_error(
            **x_wrong, terminated=no, done=no, discount=0.8, n=n
        )
        assert abs(wrong).max() > 1e-2


def test_hindsight_advantages_average_to_the_advantage():
    """Bandit whose actions lead to random returns; pi and h are enumerated."""
    policy = np.array([0.2, 0.5, 0.3])
    chance = np.array(
        [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]
    )  # probability of each return
    returns = np.array([1.0, -2.0, 4.0])
    h = policy[:, None] * chance / (policy @ chance)
    each = losses.hindsight_advantage(
        jnp.log(policy)[:, None], jnp.log(jnp.float32(h)), jnp.float32(returns)
    )
    expected = chance @ returns - policy @ chance @ returns
    np.testing.assert_allclose((chance * np.asarray(each)).sum(1), expected, rtol=1e-4)


def test_state_hindsight_values_are_the_action_values():
    """Enumerated trajectories of pi give all actions of the first state their exact Q."""
    rng = np.random.default_rng(2)
    transition, reward, policy, *_ = random_mdp(rng, states=2)
    chain = np.einsum("sa,sat->st", policy, transition)
    step_reward = (policy * reward).sum(1)  # per state, averaged over its actions
    length, start, discount = 3, 0, 0.8
    exact = reward[start] + sum(
        discount**k * transition[start] @ np.linalg.matrix_power(chain, k - 1) @ step_reward
        for k in range(1, length)
    )
    # ratio[t=0, k, a] = P(s_k = x | s_0, a) / P(s_k = x | s_0)
    total = np.zeros(2)
    for path in np.ndindex(2, 2):
        states = [start, *path]
        chance = chain[start, path[0]] * chain[path[0], path[1]]
        ratio = np.ones((length, length, 2))
        for k in range(1, length):
            given_action = transition[start] @ np.linalg.matrix_power(chain, k - 1)
            overall = np.linalg.matrix_power(chain, k)[start]
            ratio[0, k] = given_action[:, states[k]] / overall[states[k]]
        values = losses.state_hindsight_values(
            jnp.float32(step_reward[states]),
            jnp.float32(reward[states]),
            jnp.float32(ratio),
            jnp.zeros(length, bool),
            discount,
        )
        total += chance * np.asarray(values[0], np.float64)
    np.testing.assert_allclose(total, exact, rtol=1e-5)


def test_state_hindsight_stops_at_the_episodes_end():
    reward, done = jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([False, True, False, False])
    values = losses.state_hindsight_values(
        reward, jnp.zeros((4, 1)), jnp.ones((4, 4, 1)), done, 0.5
    )
    assert values[:, 0].tolist() == [1.0, 0.0, 4.0, 0.0]
