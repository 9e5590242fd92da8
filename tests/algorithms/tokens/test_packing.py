"""Episodes of a minibatch that share rows: the same gradients, in fewer rows."""

import functools

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.train import start

ENV = envs.make("guess_letter")
SETTINGS = {
    "prompts": 16, "answers": 4, "epochs": 2, "minibatches": 2,
    "optimizer.learning_rate": 0.1, "optimizer.name": "sgd",
    "chunk_rows": 2 * ENV.max_steps,
}  # fmt: skip
TERMS = {"kl.weight": 0.1, "entropy_weight": 0.1}


@functools.cache
def update(name, **changes):
    """Return an agent's parameters after an update, and its metrics."""
    builder, kind = registry.builder(name)
    algorithm = builder(ENV, replace(kind(), SETTINGS | changes))
    state = start(algorithm, random.key(0)).state
    after, metrics = jax.jit(algorithm.step)(state, random.key(1))
    logged = {n: getattr(x, "value", lambda x=x: x)() for n, x in metrics.items()}
    return {n: part.params for n, part in after.agent.parts.items()}, logged


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("grpo", TERMS | {"recurrent": 16, "transformer": 1, "average": "sequence"}),
        pytest.param(
            "dr_grpo",
            {"recurrent": 8, "transformer": 0, "average": "constant"},
            marks=pytest.mark.slow,
        ),
        pytest.param("token_ppo", {"recurrent": 16, "transformer": 1}, marks=pytest.mark.slow),
    ],
)
def test_packed_minibatches_have_the_same_gradients(name, changes):
    plain, logged = update(name, **changes)
    packed, also = update(name, packed=True, **changes)
    assert float(also["packed_into"]) < 0.95  # else the test shows nothing
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, packed)
    for metric in ("loss", "entropy", "approximate_kl", "actor_critic_grad_norm"):
        np.testing.assert_allclose(logged[metric], also[metric], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_seeds_are_packed_side_by_side():
    """Seeds skip what is empty in all of them, and count what is not."""
    builder, kind = registry.builder("grpo")
    changes = SETTINGS | {"recurrent": 16, "transformer": 1}
    keys = random.key(0), random.key(7)

    def parameters(packed):
        algorithm = builder(ENV, replace(kind(), changes | {"packed": packed}))
        run = lambda key: algorithm.step(start(algorithm, key).state, random.key(1))[0]
        return jax.jit(jax.vmap(run))(jax.numpy.stack(keys)).agent.parts["actor_critic"].params

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        parameters(False),
        parameters(True),
    )


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("gspo", {}, "The loss 'loss' is of sequences, so episodes cannot share rows"),
        (
            "grpo",
            {"chunk_rows": 0},
            "set passes.chunk_rows to .* such as an eighth of a minibatch's, not 0",
        ),
        ("grpo", {"num_shards": 2}, "set num_shards to 1, not 2"),
    ],
)
def test_what_cannot_share_rows(name, changes, why):
    with pytest.raises(UserError, match=why):
        update(name, packed=True, **changes)
