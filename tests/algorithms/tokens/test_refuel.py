"""REFUEL: its loss of pairs against NumPy, and its minimizer against exact values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.tokens.refuel import Branches, branches_loss, refuel
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import TimeStep
from jaxrl.kit import Minibatch
from jaxrl.networks.heads import Categorical
from jaxrl.sources import episodes
from tests.algorithms.tokens.test_archer import ENV, LETTERS, exact_values, token_probabilities
from tests.kit.stub import stub

T, PAIRS, TOKENS, ETA = 7, 4, 5, 0.6


def test_the_loss_of_a_pair():
    rng = np.random.default_rng(0)
    logits = np.asarray(jax.nn.log_softmax(rng.normal(size=(T, 2 * PAIRS, TOKENS)))).astype(
        np.float32
    )
    action = rng.integers(0, TOKENS, (T, 2 * PAIRS))
    old, reward = rng.normal(size=(2, T, 2 * PAIRS)).astype(np.float32)
    begin = np.repeat(rng.integers(0, 4, PAIRS), 2)
    length = rng.integers(1, 4, 2 * PAIRS)
    step = np.arange(T)[:, None]
    said = (step >= begin) & (step < begin + length)
    part = lambda timestep, memory, method: (Categorical(jnp.asarray(logits)), None, ())
    initial = type("Network", (), {"initial": lambda self, n: ()})
    hyper = {"eta": ETA, "sampling.temperature": 1.0}
    net = stub(actor_critic=part, network=lambda name: initial(), hyper=hyper)
    none = np.zeros((T, 2 * PAIRS))
    x = Branches(TimeStep(*[none] * 5), *map(jnp.asarray, (action, old, reward, said)))
    found = branches_loss(net, Minibatch(x, jnp.ones((T, 2 * PAIRS), bool))).value
    for p in range(PAIRS):
        ratio, to_go = np.zeros((2, 2))
        for i, b in enumerate((2 * p, 2 * p + 1)):
            steps = np.flatnonzero(said[:, b])
            ratio[i] = (logits[steps, b, action[steps, b]] - old[steps, b]).sum()
            to_go[i] = reward[begin[b] :, b].sum()
        error = (ratio[0] - ratio[1]) / ETA - (to_go[0] - to_go[1])
        np.testing.assert_allclose(found[p], error**2, rtol=1e-4)


@pytest.mark.slow
def test_an_update_is_a_step_of_mirror_descent_by_exact_values():
    settings = {"recurrent": 32, "transformer": 0, "num_envs": 4096, "eta": 1.0}
    settings |= {"passes.epochs": 40, "passes.minibatches": 4, "optimizer.learning_rate": 5e-3}
    algorithm = refuel(ENV, settings)
    run = start(algorithm, random.key(0))
    before = algorithm.policy(run.state)
    source = episodes(ENV, 512)
    state = source.init(random.key(1), {}, before)
    texts = jax.jit(source.collect)(state, before, random.key(2))[1].transitions
    network = refuel.recipe(ENV, algorithm.config).parts["actor_critic"].network
    of = lambda run: (network, run.state.agent.parts["actor_critic"].params)
    old = token_probabilities(of(run), texts)
    run, _ = jax.jit(lambda run: train(algorithm, run, 1))(run)
    new = token_probabilities(of(run), texts)
    value, q = exact_values(old, discount=1.0)
    moved = 0.0
    for text in value:
        said = [(*text, sign, a) for sign in (2, 3) for a in range(LETTERS)]
        chance = lambda p, u: p[u[:-2]][u[-2]] * p[u[:-1]][u[-1]]
        expected = np.array([chance(old, u) * np.exp(q[u]) for u in said])
        found = np.array([chance(new, u) for u in said])
        np.testing.assert_allclose(found, expected / expected.sum(), atol=0.03)
        moved = max(moved, abs(found - [chance(old, u) for u in said]).max())
    assert moved > 0.06


def test_an_early_stop_and_an_entropy_bonus_are_refused():
    with pytest.raises(UserError, match="refuel cannot stop early"):
        refuel(ENV, {"passes.early_stop": True})
    with pytest.raises(UserError, match="refuel has no entropy bonus"):
        refuel(ENV, {"entropy_weight": 0.1})
