"""Classes of equivalent partners: beside sets of best responses by brute force, in kitchens."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make
from jaxrl.envs.grids import kitchen as kitchens
from jaxrl.exact import partner_classes as partners
from jaxrl.exact.partner_classes import SparseGame

STATES, ACTIONS, STEPS = 2, 2, 3


def histories(steps):
    """Return the histories of observed states after the first, shortest first."""
    return [h for n in range(steps) for h in itertools.product(range(STATES), repeat=n)]


def best_trees(game, policy, start):
    """Return the best value against a partner [H, S, B], and all policies on histories that have
    it, as actions [M, histories], by trying all of them."""
    successor, probability, reward = (np.asarray(x, np.float64) for x in game)
    nodes = {h: i for i, h in enumerate(histories(len(policy)))}
    trees = np.array(list(itertools.product(range(ACTIONS), repeat=len(nodes))))

    def value(history, state):
        step = len(history)
        total = np.zeros(len(trees))
        action = trees[:, nodes[history]]
        for a, b in itertools.product(range(ACTIONS), repeat=2):
            worth = np.full(len(trees), reward[state, a, b])
            if step + 1 < len(policy):
                chances = zip(successor[state, a, b], probability[state, a, b], strict=True)
                for after, chance in chances:
                    if chance:
                        worth = worth + chance * value((*history, int(after)), int(after))
            total += (action == a) * policy[step, state, b] * worth
        return total

    returns = value((), start)
    return returns.max(), frozenset(map(tuple, trees[returns >= returns.max() - 1e-9]))


def random_problem(seed):
    """Return a game with many ties, and six partners of whom one is stochastic."""
    rng = np.random.default_rng(seed)
    shape = (STATES, ACTIONS, ACTIONS)
    one = rng.random(shape) < 0.5
    probability = np.where(one[..., None], [1.0, 0.0], [0.5, 0.5])
    game = SparseGame(
        jnp.asarray(rng.integers(0, STATES, (*shape, 2))),
        jnp.asarray(probability),
        jnp.asarray(rng.integers(0, 2, shape), jnp.float32),
    )
    pure = np.eye(ACTIONS)[rng.integers(0, ACTIONS, (5, STEPS, STATES))]
    mixed = np.full((1, STEPS, STATES, ACTIONS), 1 / ACTIONS)
    return game, np.concatenate([pure, mixed]).astype(np.float32)


def test_classes_are_those_of_equal_sets_of_best_responses():
    alike = 0
    for seed in range(6):
        game, policies = random_problem(seed)
        found = np.asarray(partners.equivalent(game, jnp.asarray(policies)))
        value = np.asarray(partners.responses(game, jnp.asarray(policies))[0])
        for step, start in itertools.product(range(STEPS), range(STATES)):
            known = [best_trees(game, p[step:], start) for p in policies]
            np.testing.assert_allclose(value[step, start], [v for v, _ in known], atol=1e-6)
            equal = np.array([[a == b for _, a in known] for _, b in known])
            np.testing.assert_array_equal(found[step, start], equal)
            alike += equal.sum() - len(policies)
    assert alike > 50  # there are equivalent partners


# The dynamic game of the paper's figure 3: equal actions lead to state 2, others to state 1.
FIGURE = SparseGame(
    jnp.array([[[2, 1], [1, 2]], [[1, 1], [1, 1]], [[2, 2], [2, 2]]])[..., None],
    jnp.ones((3, 2, 2, 1)),
    jnp.array([[[0, 0], [0, 0]], [[1, 0], [0, 1]], [[2, 0], [0, 1.0]]]),
)
PURE = jnp.stack([  # of the partner: its action at the start, in state 1 and in state 2
    jnp.broadcast_to(jnp.eye(2)[jnp.array(chosen)], (2, 3, 2))
    for chosen in itertools.product(range(2), repeat=3)
])  # fmt: skip


def test_the_papers_example_has_its_six_classes():
    value, best = partners.responses(FIGURE, PURE)
    equal = partners.equivalent(FIGURE, PURE, valued=True, subgames=True)
    label = np.asarray(partners.classes(equal[0, 0]))
    roots = sorted(
        (tuple(np.flatnonzero(best[0, 0, k])), float(value[0, 0, k])) for k in set(label.tolist())
    )
    expected = [((0,), 2.0), ((0, 1), 1.0), ((1,), 2.0)]
    assert roots == sorted(expected * 2)  # each with either way to play in the other state
    for state, values in ((1, [1, 1]), (2, [2, 1])):
        last = np.asarray(partners.classes(equal[1, state]))
        assert [float(value[1, state, k]) for k in sorted(set(last.tolist()))] == values
    # What happens where no best response leads is of no account.
    reached = partners.classes(partners.equivalent(FIGURE, PURE)[0, 0])
    assert reached[0] == reached[2] and label[0] != label[2]


def test_values_split_classes_that_share_best_responses():
    game = SparseGame(
        jnp.zeros((1, 2, 2, 1), int), jnp.ones((1, 2, 2, 1)), jnp.array([[[1.0, 2], [0, 0]]])
    )
    policies = jnp.eye(2)[:, None, None]  # both are best answered by action 0
    assert partners.equivalent(game, policies).all()
    split = partners.equivalent(game, policies, valued=True)[0, 0]
    np.testing.assert_array_equal(split, np.eye(2, dtype=bool))


@pytest.fixture(scope="module")
def stove():
    """Return the game, the partners and the states of the kitchen "stove" with rewards for onions.

    Partners 0 and 2 differ in which way they turn first, as do 1 and 3, which yield; 4 does
    nothing.
    """
    env = make("kitchen", layout="stove", counters=False, placement=1.0, delivery=0.0)
    plan, steps = kitchens.read_layout("stove"), 8
    game, states = partners.enumerate_play(env, steps)

    def table(act):
        return partners.partner_table(act, states, kitchens.ACTIONS, steps)

    def script(last, yields):
        return lambda state: kitchens.cook(plan, 3, state.inner, 1, last=last, yields=yields)

    tables = [table(script(*x)) for x in itertools.product((False, True), repeat=2)]
    tables.append(table(lambda state: jnp.int32(0)))
    return game, jnp.stack(tables), states


def test_the_class_of_a_cook_is_all_that_must_be_known(stove):
    game, policies, _ = stove
    value = partners.responses(game, policies)[0][0, 0]
    label = partners.classes(partners.equivalent(game, policies)[0, 0])
    assert label.tolist() == [0, 1, 0, 1, 4]
    np.testing.assert_array_equal(value, [2, 2, 2, 2, 1])
    merged = partners.merged_responses(game, policies, label)
    np.testing.assert_array_equal(partners.returns(game, policies, merged)[0], value)
    blind = partners.merged_responses(game, policies, jnp.full(5, 4))
    assert (partners.returns(game, policies, blind)[0] < value).any()


def test_enumerated_play_is_that_of_the_environment(stove):
    game, _, states = stove
    assert (game.successor[0] < len(game.reward)).all() and len(states.steps) == len(game.reward)
    np.testing.assert_array_equal(states.inner.crowd.place[0], [[1, 1], [1, 3]])
    # The first cook takes an onion, steps to the pot and puts it in: north is where it looks.
    state, paid = 0, []
    for action in (5, 4, 1, 5):
        paid.append(float(game.reward[state, action, 0]))
        state = int(game.successor[state, action, 0, 0])
    assert paid == [0, 0, 0, 1] and int(states.inner.onions[state, 0]) == 1
