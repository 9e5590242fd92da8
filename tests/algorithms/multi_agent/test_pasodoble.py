"""PasoDoble: rewards, novelty and roles against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.multi_agent.pasodoble import Config, pasodoble, proposer_reward
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.proposing import Proposals
from jaxrl.algorithms.tokens.shared.settings import Groups
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Policy
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.speakers import Speakers


def test_rewards_of_problems():
    h = Config()
    cases = {(0.2, 1.0): 0, (0.0, 1.0): 0, (0.5, 0.3): 0, (0.5, 1.0): 0.8, (1.0, 0.5): 0.2}
    for (rate, novelty), expected in cases.items():
        found = proposer_reward(h, jnp.float32(rate), jnp.float32(novelty))
        assert float(found) == pytest.approx(expected, abs=1e-6)


def test_novelty_by_sets():
    rng, size, length = np.random.default_rng(0), 7, 5
    history, before = proposing.no_history(length, size), []
    for _ in range(4):
        tokens = rng.random((3, size)) < 0.6
        tokens[0] = False  # nothing was posed
        found = np.asarray(proposing.novelty(history, jnp.asarray(tokens), 0.6))
        for i, row in enumerate(tokens):
            mine, alike = set(np.flatnonzero(row)), 0
            for old in before[:length]:
                theirs = set(np.flatnonzero(old))
                union = len(mine | theirs)
                alike += (len(mine & theirs) / union if union else 1) > 0.6
            expected = 1 - alike / len(before[:length]) if before else 1
            assert found[i] == pytest.approx(expected, abs=1e-6)
        history = proposing.add(history, jnp.asarray(tokens))
        before = [*tokens, *before]


ENV = envs.make("posed_sums", terms=2)
PLUS, _, EQUALS, _, _, END = range(5, 11)
LINE = jnp.array([PLUS, 4, EQUALS, 2])


def play(groups, odd_pose=True):
    """Play texts in which LINE is posed, by those with odd numbers only if asked for, and answered
    by random digits."""

    def act(state, timestep, written, key, greedy):
        number = jnp.arange(len(written))
        line = jnp.where((number % 2 == 1) & (not odd_pose), END, LINE[jnp.minimum(written, 3)])
        answer = jax.random.randint(key, written.shape, 0, 5)
        action = jnp.where(timestep.tokens["turn"] == 0, line, answer)
        return action, written + timestep.tokens["decision"], {}

    policy = Policy(act, lambda n: jnp.zeros(n, jnp.int32), ())
    source = groups.source(ENV)
    return jax.jit(lambda key: source.collect(source.init(key, {}, policy), policy, key)[1])(
        random.key(0)
    )


def test_problems_are_what_the_solver_reads():
    t = play(Groups(prompts=64, answers=1), odd_pose=False).transitions
    found = np.asarray(proposing.posed_tokens(t, len(ENV.vocabulary)))
    digit = np.asarray(t.observation)[1]  # the first term
    for b in range(64):
        problem = {"@", ENV.vocabulary[digit[b]], "+", "4", "="} if b % 2 == 0 else set()
        assert {ENV.vocabulary[i] for i in np.flatnonzero(found[b])} == problem


def test_each_role_has_the_advantage_of_its_group():
    groups = Proposals(prompts=6, proposals=2, answers=4)
    batch = play(groups)
    t = batch.transitions
    paid = np.asarray(proposing.returns(batch, groups))
    np.testing.assert_array_equal(paid.reshape(-1), np.asarray(t.reward).sum(0))
    assert 0 < paid.sum() < paid.size
    posed, solved = np.arange(12.0).reshape(6, 2), np.arange(48.0).reshape(6, 2, 4) + 100
    found = np.asarray(proposing.by_roles(jnp.asarray(posed), jnp.asarray(solved), batch))
    turn = np.asarray(t.timestep.tokens["turn"])
    expected = np.where(turn == 0, np.repeat(np.arange(12.0), 4), 100 + np.arange(48.0))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_answers_to_problems_that_nobody_solves_teach_nothing(floor):
    _, config = registry.tiny("pasodoble")
    changes = {"lowest_pass_rate": floor, "prompts": 16, "answers": 4}
    # Sums are given, since a beginner would pose none.
    algorithm = pasodoble(envs.make("posed_sums", terms=2, given=2), replace(config, changes))
    begun = start(algorithm, random.key(0))
    after, _ = train(algorithm, begun, 1)
    solver = lambda run: run.state.agent.parts["actor_critic"].params["params"]["speakers_1"]
    leaves = zip(*map(jax.tree.leaves, (solver(begun), solver(after))), strict=True)
    assert all(np.array_equal(x, y) for x, y in leaves) == (floor == 1)


def test_speakers_learn_from_their_own_utterances_alone():
    one = ActorCritic(ENV.observation_space, ENV.action_space, (8,), recurrent=8)
    both = Speakers((one, one.clone()))
    t = play(Groups(prompts=16, answers=1)).transitions
    params = both.init(random.key(1), jax.tree.map(lambda x: x[0], t.timestep), both.initial(16))

    @jax.jit
    def gradient(params, turn):
        def objective(params):
            policy = both.apply(params, t.timestep, both.initial(16), method="unroll")[0]
            return (policy.log_prob(t.action) * (t.timestep.tokens["turn"] == turn)).sum()

        return jax.grad(objective)(params)["params"]

    for turn in (0, 1):
        found = gradient(params, turn)
        each = [jax.tree.leaves(found[f"speakers_{i}"]) for i in (0, 1)]
        size = [max(float(jnp.abs(x).max()) for x in leaves) for leaves in each]
        assert size[turn] > 1e-3 and size[1 - turn] == 0
        mine = {"params": params["params"][f"speakers_{turn}"]}
        alone = one.apply(mine, t.timestep, one.initial(16), method="unroll")[0]
        together = both.apply(params, t.timestep, both.initial(16), method="unroll")[0]
        here = np.asarray(t.timestep.tokens["turn"]) == turn
        np.testing.assert_allclose(together.logits[here], alone.logits[here], atol=1e-6)


def test_what_has_no_solver_and_language_models_are_refused():
    with pytest.raises(UserError, match="restart"):
        pasodoble(envs.make("lookup"), Config())
    with pytest.raises(UserError):
        pasodoble(ENV, replace(Config(), {"decoder.model": "nowhere"}))
