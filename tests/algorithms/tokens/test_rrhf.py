"""RRHF: the loss of a group in NumPy, and what it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.tokens.rrhf import rrhf
from jaxrl.algorithms.tokens.shared.answers import Sample
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import advance, start
from jaxrl.core.types import TimeStep
from jaxrl.exact.answers import answer_log_probs, enumerate_answers
from jaxrl.kit import Minibatch
from jaxrl.networks.heads import Categorical
from tests.kit.stub import losses_of, stub

T, GROUPS, SIZE, TOKENS, WEIGHT = 6, 3, 4, 5, 0.3


def test_the_loss_of_a_group():
    """Lengths differ, the mask has a hole, and one answer of a group is missing."""
    rng = np.random.default_rng(0)
    batch = GROUPS * SIZE
    logits = np.asarray(jax.nn.log_softmax(rng.normal(size=(T, batch, TOKENS))), np.float32)
    action = rng.integers(0, TOKENS, (T, batch))
    reward = rng.integers(0, 3, batch).astype(np.float32)
    mask = np.arange(T)[:, None] < rng.integers(2, T + 1, batch)
    mask[0], mask[1, ::2], mask[:, 5] = False, False, False
    env = envs.make("judged_words")
    recipe = rrhf.recipe(env, Static(replace(rrhf.Config(), {"answers": SIZE})))
    part = lambda timestep, memory, method: (Categorical(jnp.asarray(logits)), None, ())
    network = type("Network", (), {"initial": lambda self, n: ()})()
    hyper = {"best_weight": WEIGHT, "entropy_weight": 0.0}
    net = stub(actor_critic=part, network=lambda name: network, hyper=hyper)
    none = np.zeros((T, batch))
    wide = jnp.asarray(np.broadcast_to(reward, (T, batch)))
    x = Sample(TimeStep(*[none] * 5), jnp.asarray(action), advantage=wide)
    found = losses_of(recipe)["loss"].function(net, Minibatch(x, jnp.asarray(mask))).value
    each = np.take_along_axis(logits, action[..., None], -1)[..., 0]
    for g in range(GROUPS):
        there = [b for b in range(g * SIZE, (g + 1) * SIZE) if mask[:, b].any()]
        total = {b: each[mask[:, b], b].sum() for b in there}
        mean = {b: each[mask[:, b], b].mean() for b in there}
        best = max(there, key=lambda b: reward[b])
        ranked = sum(
            max(0, mean[i] - mean[j]) for i in there for j in there if reward[i] < reward[j]
        )
        np.testing.assert_allclose(found[g], ranked - WEIGHT * total[best], rtol=1e-4)


@pytest.mark.slow
def test_it_learns_the_best_words():
    env = envs.make("judged_words", letters=2, length=2)
    answers = enumerate_answers(env)
    sizes = {"recurrent": 16, "transformer": 0, "prompts": 64, "answers": 4}
    algorithm = rrhf(env, sizes | {"optimizer.learning_rate": 0.01})
    network = policy_network(env, algorithm.config.torso, algorithm.config.memory)

    @jax.jit
    def expected_return(run):
        params = run.state.agent.parts["actor_critic"].params
        chance = jnp.exp(answer_log_probs(network, params, answers))
        return (chance * answers.reward).sum(-1).mean()

    run = start(algorithm, random.key(0))
    before, best = expected_return(run), answers.reward.max(-1).mean()
    learn = lambda run: jax.lax.fori_loop(0, 100, lambda i, run: advance(algorithm, run)[0], run)
    run = jax.jit(learn)(run)
    assert expected_return(run) > best - 0.1 * (best - before)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="at least 2 answers to rank"):
        rrhf(envs.make("judged_words"), {"answers": 1})
    with pytest.raises(UserError, match="rrhf cannot stop early"):
        rrhf(envs.make("judged_words"), {"passes.early_stop": True})
