"""Small random MDPs in float64 for the tests of `jaxrl.exact`, with solutions in NumPy."""

import functools
import itertools

import jax
import numpy as np

PROBLEMS, STATES, ACTIONS = 4, 5, 3  # the last state is terminal
DISCOUNT = 0.9
TERMINAL = np.arange(STATES) == STATES - 1
RNG = np.random.default_rng(0)

TRANSITION = RNG.dirichlet(np.full(STATES, 0.5), (PROBLEMS, STATES, ACTIONS))
REWARD = RNG.normal(size=(PROBLEMS, STATES, ACTIONS, STATES))  # ignored in the terminal state
POLICY = RNG.dirichlet(np.ones(ACTIONS), (PROBLEMS, STATES))
LOGITS = RNG.normal(size=(PROBLEMS, STATES, ACTIONS))
INITIAL = RNG.dirichlet(np.ones(STATES), PROBLEMS)


def solve_all(function):
    """Map `function(transition, reward, policy, logits, initial)` over all problems, in float64."""
    arguments = (TRANSITION, REWARD, POLICY, LOGITS, INITIAL)
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(*arguments))


def chain(problem: int, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The live transition matrix [S, S] and the expected reward [S] under `policy` [S, A]."""
    p = np.einsum("sa,sat->st", policy, TRANSITION[problem])
    r = np.einsum("sa,sat,sat->s", policy, TRANSITION[problem], REWARD[problem])
    p[TERMINAL], r[TERMINAL] = 0.0, 0.0
    return p, r


def values(problem: int, policy: np.ndarray, bonus: np.ndarray | float = 0.0) -> np.ndarray:
    """The values [S] of `policy` by summing the discounted rewards of 2,000 steps."""
    p, r = chain(problem, policy)
    r = r + np.where(TERMINAL, 0.0, bonus)
    v = np.zeros(STATES)
    for _ in range(2000):
        v = r + DISCOUNT * p @ v
    return v


@functools.cache
def best(problem: int) -> tuple[np.ndarray, np.ndarray]:
    """The best values [S] and the best deterministic policy, by enumeration."""
    choices = []
    for actions in itertools.product(range(ACTIONS), repeat=STATES - 1):
        p, r = chain(problem, np.eye(ACTIONS)[[*actions, 0]])
        choices.append((np.linalg.solve(np.eye(STATES) - DISCOUNT * p, r), actions))
    every = np.array([v for v, _ in choices])
    top = every.sum(-1).argmax()
    assert np.all(every[top] >= every - 1e-12)  # one policy is best in all states
    return every[top], np.array(choices[top][1])
