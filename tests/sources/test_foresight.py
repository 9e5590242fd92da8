"""Foresight: scores of steps against loops, and beams and pairs of a real policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.rloo import rloo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.envs.wrappers import start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.sources import episodes, foresight_pairs
from jaxrl.sources.foresight import draw_beams, draw_pair, foresight_scores
from jaxrl.tasks import repeat, starts

ENV = envs.make("judged_words", letters=3, length=4)
PROMPTS, BEAMS, ROLLOUTS, STEPS, LENGTH = 3, 2, 3, 3, 2


def test_scores_are_means_of_what_follows_a_step():
    rng = np.random.default_rng(0)
    log_prob = rng.normal(size=(12, 30))
    decision = rng.random((12, 30)) < 0.6
    decision[:, 0], decision[0, 1:] = False, True
    for step in range(4):
        found = foresight_scores(jnp.asarray(log_prob), jnp.asarray(decision), step, LENGTH)
        for b in range(30):
            own = log_prob[decision[:, b], b]
            after, begun = own[(step + 1) * LENGTH :], own[step * LENGTH :]
            counts = after if len(after) else begun if len(begun) else own
            expected = counts.mean() if len(counts) else 0.0
            np.testing.assert_allclose(found[b], expected, rtol=1e-4, atol=1e-6)


def test_beams_and_pairs_are_drawn_by_their_scores():
    score = jnp.broadcast_to(jnp.array([0.1, 0.5, 0.2, 0.3]), (20_000, 4))
    weight = np.exp(np.array([0.1, 0.5, 0.2, 0.3]) / 0.2)
    pair = np.asarray(draw_pair(random.key(0), score, 0.2))
    assert (pair[:, 0] == 1).all()
    others = np.where(np.arange(4) == 1, 0, weight)
    shares = np.bincount(pair[:, 1], minlength=4) / 20_000
    np.testing.assert_allclose(shares, others / others.sum(), atol=0.015)
    beams = np.asarray(draw_beams(random.key(1), score, 0.2, 2))
    assert (beams[:, 0] != beams[:, 1]).all()
    p = weight / weight.sum()
    expected = [p[i] * (1 + sum(p[j] / (1 - p[j]) for j in range(4) if j != i)) for i in range(4)]
    shares = np.bincount(beams.reshape(-1), minlength=4) / 20_000
    np.testing.assert_allclose(shares, expected, atol=0.015)


@pytest.fixture(scope="module")
def batch():
    """Pairs of a policy that samples at random."""
    algorithm = rloo(ENV, {"recurrent": 8, "transformer": 0})
    policy = algorithm.policy(start(algorithm, random.key(0)).state)
    prompts = repeat(starts(ENV.params, Start), BEAMS)
    played = episodes(start_key(ENV), PROMPTS * BEAMS, prompts, keep_states=True)
    sizes = {"beams": BEAMS, "rollouts": ROLLOUTS, "steps": STEPS, "step_length": LENGTH}
    source = foresight_pairs(played, ENV, **sizes, temperature=0.1)
    state = source.init(random.key(1), {}, policy)
    _, batch, metrics = jax.jit(source.collect)(state, policy, random.key(2))
    steps = PROMPTS * BEAMS * (1 + STEPS * ROLLOUTS) * ENV.max_steps
    assert source.env_steps == batch.env_steps == steps
    assert np.isfinite(metrics["foresight"].total)
    return batch, policy


def test_pairs_are_whole_texts_of_one_prompt(batch):
    """Rewards, ends and log-probabilities are those of the texts, played again by hand."""
    batch, policy = batch
    t, mask = batch.transitions, np.asarray(batch.mask)
    assert mask.shape == (ENV.max_steps, 2 * PROMPTS * STEPS)
    prompt = np.asarray(t.timestep.observation[0])
    assert (prompt.reshape(PROMPTS, -1) == prompt.reshape(PROMPTS, -1)[:, :1]).all()
    memory, live = policy.memory(mask.shape[1]), jax.tree.map(lambda x: x[0], t.timestep)
    act = jax.jit(lambda timestep, memory: policy.act(policy.state, timestep, memory, None, True))
    for step in range(len(mask)):
        on = mask[step]
        live = jax.tree.map(lambda x, step=step: x[step], t.timestep)
        assert (np.take_along_axis(live.legal_actions, t.action[step][:, None], 1))[on].all()
        _, memory, _ = act(live, memory)
        after = np.asarray(t.next_timestep.observation[step])
        decided = on & np.asarray(live.tokens["decision"])
        np.testing.assert_array_equal(after[decided], np.asarray(t.action[step])[decided])
        if step + 1 < len(mask):
            ahead = on & mask[step + 1]
            np.testing.assert_array_equal(
                after[ahead], np.asarray(t.timestep.observation[step + 1])[ahead]
            )
    done = np.asarray(t.done) & mask
    assert (done.sum(0) == 1).all()
    assert set(t.extras) == {"log_prob", "advantage"}


def test_later_steps_keep_what_their_beam_has_said(batch):
    """The texts of step k begin with the tokens of k steps of one of at most M beams."""
    batch, _ = batch
    t, mask = batch.transitions, np.asarray(batch.mask)
    decided = mask & np.asarray(t.timestep.tokens["decision"])
    said = [tuple(np.asarray(t.action)[decided[:, b], b]) for b in range(mask.shape[1])]
    advantage = np.asarray(t.extras["advantage"])
    np.testing.assert_array_equal(advantage, np.broadcast_to(advantage[:1], advantage.shape))
    log_prob = np.asarray(t.extras["log_prob"])
    by_step = np.arange(len(said)).reshape(PROMPTS, STEPS, 2)
    assert (advantage[0, by_step[:, 0, 0]] >= advantage[0, by_step[:, 0, 1]]).all()
    for b in by_step[:, 0].reshape(-1):  # at first advantages are scores
        own = log_prob[decided[:, b], b]
        after = own[LENGTH:] if len(own) > LENGTH else own
        np.testing.assert_allclose(advantage[0, b], after.mean(), rtol=1e-4)
    for step in range(1, STEPS):
        for prompt in range(PROMPTS):
            begins = {said[b][: LENGTH * step] for b in by_step[prompt, step]}
            assert len(begins) <= BEAMS


def test_sizes_are_checked():
    played = episodes(ENV, 4, keep_states=True)
    sizes = {"rollouts": 1, "steps": 1, "step_length": 1, "temperature": 1.0}
    with pytest.raises(UserError, match="there must be two candidates"):
        foresight_pairs(played, ENV, beams=1, **sizes)
    with pytest.raises(UserError, match="4 episodes do not divide into groups of 3 beams"):
        foresight_pairs(played, ENV, beams=3, **sizes)
