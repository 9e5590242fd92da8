"""Best responses to opponents of unknown type, beside belief states computed by hand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.types import Policy
from jaxrl.exact import games

PAYOFF = np.asarray([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]], np.float32)
ROUNDS = 3


@functools.cache
def game():
    env = envs.make("repeated_rock_paper_scissors", rounds=ROUNDS, stakes=[2.0, 1.0, 1.0])
    return games.enumerate_game(env.rules, env.params)


def past_of(place: int) -> tuple[tuple[int, int], ...]:
    """Return the rounds (own choice, other's) before an information set."""
    tree, player = game(), game().player[place]
    row = next(i for i, places in enumerate(tree.places) if place in places)
    before = list(tree.places[row]).index(place) // 2
    pairs = tree.actions[row].reshape(-1, 2)[:before]
    return tuple((int(pair[player]), int(pair[1 - player])) for pair in pairs)


def test_an_information_set_is_all_rounds_and_an_observation_the_last():
    tree = game()
    assert len(tree.chance) == 9**ROUNDS and len(tree.player) == 2 * (1 + 9 + 81)
    assert len({(tree.player[i], past_of(i)) for i in range(len(tree.player))}) == 182
    observations = {np.asarray(x).tobytes() for x in tree.timesteps.observation}
    assert len(observations) == 2 * (1 + 9 + 9)
    for place, before in enumerate(tree.previous):
        past = past_of(place)
        assert (before < 0) == (not past)
        if past:
            assert past_of(before) == past[:-1] and tree.player[before] == tree.player[place]


def believe(tables, prior, past, player) -> float:
    """Return the most that a player can still earn: the value of its belief about the type."""
    if len(past) == ROUNDS:
        return 0.0
    # The opponent sees the same rounds from its own side.
    seen = tuple((theirs, own) for own, theirs in past)
    place = PLACES[1 - player, seen]
    belief = prior / prior.sum()
    chance = belief @ tables[:, place]  # of the opponent's next choice
    values = []
    for own in range(3):
        total = 0.0
        for theirs in range(3):
            if chance[theirs] == 0:
                continue
            posterior = belief * tables[:, place, theirs]
            gain = PAYOFF[own, theirs]
            total += chance[theirs] * (
                gain + believe(tables, posterior, (*past, (own, theirs)), player)
            )
        values.append(total)
    return max(values)


PLACES: dict = {}


def test_the_bayes_value_is_that_of_a_recursion_over_beliefs():
    PLACES.update({(int(game().player[i]), past_of(i)): i for i in range(len(game().player))})
    generator = np.random.default_rng(0)
    tables = generator.dirichlet([0.5] * 3, (3, len(game().player)))
    for prior in ([0.2, 0.5, 0.3], [1.0, 0.0, 0.0]):
        expected = np.mean([believe(tables, np.asarray(prior), (), p) for p in (0, 1)])
        found = games.bayes_value(game(), jnp.asarray(tables), jnp.asarray(prior))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_known_type_is_exploited_from_the_first_round():
    """Paper earns 1 a round from one that always plays rock, and rock 2 from one that always plays
    scissors. The first round tells which it is, and rock earns the most in it, (0 + 2) / 2."""
    rock, scissors = (jnp.zeros((182, 3)).at[:, i].set(1.0) for i in (0, 2))
    tables = jnp.stack([rock, scissors])
    value = lambda *prior: games.bayes_value(game(), tables, jnp.asarray(prior))
    np.testing.assert_allclose(value(1.0, 0.0), ROUNDS, rtol=1e-6)
    np.testing.assert_allclose(value(0.5, 0.5), 1.0 + (ROUNDS - 1) * 1.5, rtol=1e-6)
    always_rock = games.mixture(game(), tables, jnp.asarray([0.5, 0.5]))
    np.testing.assert_allclose(games.mean_value(game(), rock, always_rock), ROUNDS, rtol=1e-6)


def test_the_table_of_a_policy_with_memory_follows_what_it_saw():
    """A player who counts its decisions and the other's choices of paper, in its memory."""
    tree = game()

    def act(state, timestep, memory, key, greedy):
        papers = memory + timestep.observation[:, 6]  # the other's last choice was paper
        logits = jnp.stack([papers, jnp.zeros_like(papers), jnp.zeros_like(papers)], -1)
        return jnp.argmax(logits, -1), papers, {"logits": logits}

    policy = Policy(act, lambda n: jnp.zeros(n))
    table = games.behavior(tree, policy)
    for place in range(len(tree.player)):
        papers = sum(theirs == 1 for _, theirs in past_of(place))
        expected = jax.nn.softmax(jnp.asarray([papers, 0.0, 0.0]))
        np.testing.assert_allclose(table[place], expected, rtol=1e-5)
    with pytest.raises(Exception, match="no logits"):
        bare = Policy(lambda *args: (*act(*args)[:2], {}), lambda n: jnp.zeros(n))
        games.behavior(tree, bare)
