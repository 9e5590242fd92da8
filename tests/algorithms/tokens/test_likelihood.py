"""Weighted likelihood of texts: its gradients are those of policy gradients, and what it learns is
known exactly where all answers can be enumerated."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.dft import dft
from jaxrl.algorithms.tokens.iw_sft import iw_sft
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.algorithms.tokens.token_supervised import token_supervised
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.kit import Minibatch
from tests.kit.stub import losses_of, stub

ENV = envs.make("judged_words", letters=2, length=2)
SIZES = {"recurrent": 0, "transformer": 0}
FOUND = enumerate_answers(ENV)
REWARD = np.maximum(np.asarray(FOUND.reward), 0)  # [P, A]


@functools.cache
def case(builder, **changes):
    """A network, the parameters of a policy and of its reference, and the loss of all answers: a
    function (params, reference) -> values, those of tokens [T, P * A] or of answers [P * A]."""
    config = replace(builder.Config(), SIZES | changes)
    network = policy_network(ENV, config.torso, config.memory)
    example = jax.tree.map(lambda x: x[0], FOUND.transitions.timestep)
    draw = lambda key: network.init(key, example, network.initial(len(example.first)))
    params, reference = draw(random.key(0)), draw(random.key(1))
    loss = losses_of(builder.recipe(ENV, Static(config)))["loss"]
    hyper = {"entropy_weight": 0.0, "low": 0.0, "high": np.inf}
    t = FOUND.transitions

    def values(params, reference):
        apply = lambda p: lambda *x, method: network.apply(p, *x, method=method)
        known = apply(reference)(t.timestep, network.initial(t.action.shape[1]), method="unroll")[0]
        net = stub(actor_critic=apply(params), network=lambda name: network, hyper=hyper)
        x = Sample(t.timestep, t.action, reference=known.log_prob(t.action))
        x = Minibatch(x, FOUND.mask) if loss.unit.sequences else x
        return loss(net, x).value

    return network, params, reference, values


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def probabilities(network, params):
    return jnp.exp(answer_log_probs(network, params, FOUND))


def test_on_filtered_answers_iw_sft_is_the_policy_gradient():
    """The mean is over the reference's answers, weighted by their return; there is no clip."""
    network, params, reference, values = case(iw_sft, per_token=False)
    data = jax.lax.stop_gradient(probabilities(network, reference)) * REWARD

    def objective(params):
        return (data.reshape(-1) * values(params, reference)).sum()

    expected = lambda params: -(probabilities(network, params) * REWARD).sum()
    ours, theirs = (flat(jax.jit(jax.grad(f))(params)) for f in (objective, expected))
    assert np.abs(theirs).max() > 0.01
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_weighted_bound_is_tighter():
    """x >= 1 + log x bounds the return from below; with the weight it is tight at the policy."""
    network, params, reference, _ = case(iw_sft, per_token=False)
    p, ref = (np.asarray(probabilities(network, x), np.float64) for x in (params, reference))
    exact = (p * REWARD).sum()
    unweighted = (ref * REWARD * (1 + np.log(p / ref))).sum()
    _, _, _, values = case(iw_sft, per_token=False)
    log_likelihood = -np.asarray(values(params, reference)).reshape(p.shape)  # w log p
    weighted = (ref * REWARD * (p / ref - (p / ref) * np.log(p))).sum()
    weighted += (ref * REWARD * log_likelihood).sum()
    np.testing.assert_allclose(weighted, exact, rtol=1e-4)
    assert unweighted < exact - 0.01, (unweighted, exact)


def test_dft_is_the_on_policy_gradient_of_repeating_the_text():
    """All tokens that the policy may write in each place are paid 1 if they are the text's."""
    network, params, _, values = case(dft)
    t, mask = FOUND.transitions, FOUND.mask
    legal = jax.nn.one_hot(t.action, 3)  # the reward

    def on_policy(params):
        memory = network.initial(t.action.shape[1])
        logits = network.apply(params, t.timestep, memory, method="unroll")[0].logits
        score = jax.lax.stop_gradient(jnp.exp(logits)) * logits
        return -jnp.where(mask, (score * legal).sum(-1), 0).sum()

    ours = lambda params: jnp.where(mask, values(params, params), 0).sum()
    gradients = [flat(jax.jit(jax.grad(f))(params)) for f in (ours, on_policy)]
    assert np.abs(gradients[1]).max() > 0.1
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)
    plain = lambda params: jnp.where(mask, case(token_supervised)[3](params, params), 0).sum()
    assert not np.allclose(flat(jax.jit(jax.grad(plain))(params)), gradients[1], rtol=0.1)


LEARN = {"writer": "policy", "count": 8192, "keep": "by_return", "num_envs": 256}
LEARN |= {"recurrent": 16, "optimizer.learning_rate": 0.02, "optimizer.weight_decay": 0.0}
LEARN |= {"optimizer.learning_rate_steps": 300.0}


@pytest.mark.slow
def test_iw_sft_leaves_the_distribution_that_sft_stays_at():
    """Texts of the first policy, drawn in proportion to their return r: SFT becomes p r / E[r]."""
    ends = {}
    for builder, changes in ((token_supervised, {}), (iw_sft, {"per_token": False})):
        config = replace(builder.Config(), SIZES | LEARN | changes)
        algorithm = builder(ENV, config)
        network = policy_network(ENV, config.torso, config.memory)
        run = start(algorithm, random.key(0))
        before = run.state.agent.parts["actor_critic"].params
        run, _ = jax.jit(lambda run, a=algorithm: train(a, run, 300))(run)
        after = run.state.agent.parts["actor_critic"].params
        ends[builder.name] = [np.asarray(probabilities(network, x)) for x in (before, after)]
    value = lambda p: (p * REWARD).sum(-1).mean()
    first, fitted = ends["token_supervised"]
    joint = first * REWARD
    data = joint / joint.sum(-1, keepdims=True)  # of one prompt
    np.testing.assert_allclose(fitted, data, atol=0.03)
    np.testing.assert_allclose(value(fitted), value(data), rtol=0.03)
    best = REWARD.max(-1).mean()
    assert value(data) < 0.8 * best
    np.testing.assert_allclose(value(ends["iw_sft"][1]), best, rtol=0.01)


@pytest.mark.parametrize(
    ("builder", "changes", "message"),
    [
        (iw_sft, {"low": 2.0, "high": 1.0}, r"low is 2\.0; it must be at most high=1\.0"),
        (iw_sft, {"count": 0}, r"texts\.keep is right.* set texts\.count above 0"),
        (iw_sft, {"file": "own.jsonl"}, r"as it is; leave out texts\.count"),
        (dft, {"file": "own.jsonl", "noise": 0.1}, r"as it is; leave out texts\.noise"),
        (dft, {"early_stop": True}, "cannot stop early"),
        (dft, {}, "has no expert"),
        (dft, {"file": "absent.jsonl"}, "cannot be read"),
    ],
)
def test_settings_that_cannot_be(builder, changes, message):
    with pytest.raises(UserError, match=message):
        builder(ENV, replace(builder.Config(), SIZES | changes))
