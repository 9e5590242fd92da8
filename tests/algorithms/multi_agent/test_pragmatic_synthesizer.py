"""PraX: the choice of examples, against the exact pragmatic speaker, and a whole run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent.pragmatic_synthesizer import (
    pragmatic_choice,
    pragmatic_synthesizer,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.language.regex_by_example import NONE, agree, speak
from jaxrl.evaluation.evaluate import evaluate

ENV = envs.make("regex_by_example", parts=1, length=2, examples=2, rationality=50.0)
MEANINGS = jnp.asarray(ENV.params.meanings)
COUNT, SIZE = MEANINGS.shape


def test_with_all_proposals_the_choice_is_the_pragmatic_speakers():
    nothing = jnp.full(2, NONE)
    chances = speak(MEANINGS, jnp.ones(COUNT, bool), nothing, 1.0)
    for program in range(COUNT):
        every = jnp.ones(COUNT, bool), jnp.ones(SIZE, bool)
        chosen = pragmatic_choice(MEANINGS, *every, jnp.int32(program))
        assert chances[program, chosen] == pytest.approx(float(chances[program].max()))


def test_the_choice_counts_proposed_programs_among_proposed_strings():
    rng = np.random.default_rng(0)
    table = np.asarray(MEANINGS)
    for _ in range(20):
        program = rng.integers(COUNT)
        hypotheses, utterances = rng.random(COUNT) < 0.4, rng.random(SIZE) < 0.4
        hypotheses[program] = True
        utterances[rng.integers(SIZE)] = True
        left = {
            u: sum(table[h, u] == table[program, u] for h in np.flatnonzero(hypotheses))
            for u in np.flatnonzero(utterances)
        }
        given = jnp.asarray(hypotheses), jnp.asarray(utterances), jnp.int32(program)
        assert int(pragmatic_choice(MEANINGS, *given)) == min(left, key=lambda u: (left[u], u))


def test_examples_become_informative_and_the_listener_better_than_the_literal_one():
    sizes = {"hidden": (32,), "literal_updates": 100, "updates": 150, "programs": 128}
    found = {}
    for choice in ("pragmatic", "random"):
        algorithm = pragmatic_synthesizer(ENV, sizes | {"choice": choice, "rounds": 2})
        state = algorithm.init(random.key(0), algorithm.hyper)
        step = jax.jit(algorithm.step)
        for i in range(3):
            state, metrics = step(state, random.key(i))
        found[choice] = float(metrics["hypotheses_left"].value())
        own = state.own
        if choice == "pragmatic":
            trained = algorithm.policy(state)
            literal = Policy(trained.act, trained.memory, own.literal.listener)
            score = lambda policy: evaluate(ENV, policy, random.key(9), 512).returns.mean()
            assert score(trained) > score(literal) + 0.1
        # Three rounds, of which the last two are kept.
        assert own.rounds == 3 and own.shown.shape == (2, 128, 2)
        program, shown = own.programs.reshape(-1), own.shown.reshape(-1, 2)
        assert (shown[:, 0] != shown[:, 1]).all()
        labels = MEANINGS[program[:, None], shown]
        possible = jax.vmap(agree, (None, 0, 0))(MEANINGS, shown, labels)
        assert possible[jnp.arange(len(program)), program].all()
    assert found["pragmatic"] < found["random"] - 0.3


def test_environments_without_programs_are_refused():
    with pytest.raises(UserError, match="cannot act in 'cartpole'"):
        pragmatic_synthesizer(envs.make("cartpole"))
