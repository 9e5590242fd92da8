"""NLPO: which tokens its masking policy lets it sample, and when that is renewed."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl.algorithms.tokens.nlpo import nlpo
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.core import random
from jaxrl.core.train import advance, start
from tests.algorithms.tokens.test_sampling import ENV, logits_of, net_of, sampled_from

TOP_P = 0.75
SETTINGS = {
    "recurrent": 8, "transformer": 0, "prompts": 8, "answers": 4, "learning_rate": 0.1,
    "masking.top_p": TOP_P, "masking.period": 2,
}  # fmt: skip


def params_of(run, part):
    return run.state.agent.parts[part].params


def same(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def change(run, part, seed):
    """Return the run with a part far from its first parameters."""
    agent = run.state.agent
    noisy = lambda x: x + 0.6 * jax.random.normal(jax.random.key(seed + x.size), x.shape)
    new = dataclasses.replace(agent.parts[part], params=jax.tree.map(noisy, params_of(run, part)))
    agent = dataclasses.replace(agent, parts={**agent.parts, part: new})
    return dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))


@pytest.mark.slow
def test_tokens_are_those_of_the_masking_policys_nucleus():
    algorithm = nlpo(ENV, SETTINGS | {"prompts": 64})
    run = change(change(start(algorithm, random.key(0)), "actor_critic", 0), "masking", 1)
    assert algorithm.source is not None
    policy = algorithm.policy(run.state)
    batch = algorithm.source.collect(run.state.source, policy, random.key(1))[1]
    t, mask = batch.transitions, np.asarray(batch.mask)
    own, masking = (
        np.asarray(logits_of(algorithm, params_of(run, part), t.timestep))
        for part in ("actor_critic", "masking")
    )
    nucleus = sampled_from(masking, 1.0, TOP_P)[1]
    assert not nucleus[mask].all() and (nucleus != sampled_from(own, 1.0, TOP_P)[1])[mask].any()
    np.testing.assert_array_equal(np.asarray(t.extras["allowed"])[mask], nucleus[mask])
    p = np.where(nucleus, np.exp(own), 0)
    p = p / p.sum(-1, keepdims=True)
    expected = np.take_along_axis(p, np.asarray(t.action)[..., None], -1)[..., 0]
    assert (expected[mask] > 0).all()
    acted = np.exp(np.asarray(t.extras["log_prob"]))
    np.testing.assert_allclose(acted[mask], expected[mask], rtol=1e-4)
    # The policy that learns is restricted alike, so that its ratio begins at 1.
    build, params = net_of(algorithm, run)
    now = answers.evaluate(
        build(params), answers.Sample(t.timestep, t.action, allowed=t.extras["allowed"])
    )
    np.testing.assert_allclose(np.exp(now.log_prob)[mask], expected[mask], rtol=1e-4)


@pytest.mark.slow
def test_the_masking_policy_is_renewed_after_every_second_update():
    algorithm = nlpo(ENV, SETTINGS)
    run = start(algorithm, random.key(0))
    first = params_of(run, "actor_critic")
    assert same(params_of(run, "masking"), first)
    run, _ = advance(algorithm, run)
    assert same(params_of(run, "masking"), first) and not same(
        params_of(run, "actor_critic"), first
    )
    run, _ = advance(algorithm, run)
    renewed = params_of(run, "actor_critic")
    assert same(params_of(run, "masking"), renewed)
    run, _ = advance(algorithm, run)
    assert same(params_of(run, "masking"), renewed)
    assert not same(params_of(run, "actor_critic"), renewed)
