"""EVOLVE: which tokens of which pairs are learned, and from which reference."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.evolve import PAIRS, evolve
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from tests.kit.stub import stub

ENV = envs.make("second_try")
SIZES = {"recurrent": 16, "transformer": 0}
T, CONVERSATIONS = 6, 5


@pytest.mark.parametrize("learn", PAIRS)
def test_compared_tokens_of_attempts_that_differ_are_learned(learn):
    rng = np.random.default_rng(0)
    anew, mask, decision = rng.random((3, T, 4 * CONVERSATIONS)) < 0.7
    apart = np.repeat([0.0, 1.0, 0.5, 0.0, 2.0], 4)
    config = replace(evolve.Config(), SIZES | {"learn": learn})
    recipe, found = evolve.recipe(ENV, Static(config)), types.SimpleNamespace()
    none = np.zeros((T, 4 * CONVERSATIONS))
    tokens = {"decision": jnp.asarray(decision)}
    step = TimeStep(*[none] * 5, tokens=tokens)
    extras = {"anew": jnp.asarray(anew), "apart": jnp.broadcast_to(apart, none.shape)}
    policy = types.SimpleNamespace(log_prob=lambda action: jnp.asarray(none))

    def epochs(passes, window, step, unit):
        found.window = window
        return types.SimpleNamespace(update_targets=lambda *_: net)

    net = stub(
        target={"actor_critic": lambda timestep, memory, method: (policy, None, ())},
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
        epochs=epochs,
        report=lambda **metrics: vars(found).update(metrics),
    )
    t = Transition(step, jnp.asarray(none), step, (), extras)
    recipe.update(net, Batch(t, jnp.float32(0), mask=jnp.asarray(mask)))
    place = np.arange(4 * CONVERSATIONS) % 4
    wanted = {"both": place >= 0, "direct": place < 2, "refinement": place >= 2}[learn]
    expected = anew & mask & decision & (apart > 0) & wanted
    np.testing.assert_array_equal(found.window.mask, expected)
    np.testing.assert_allclose(found.kept, 0.6)


@pytest.mark.slow
def test_margins_grow_from_the_reference_of_the_round():
    """The reference is the policy at the end of the last round, so that margins begin anew."""
    env = expert_channel(ENV)
    writer = add_noise(env, expert_policy(env), 0.3)
    sizes = SIZES | {"num_envs": 128, "optimizer.learning_rate": 3e-3, "period": 5}
    algorithm = evolve(env, sizes)
    state, source = start(algorithm, random.key(0)).state, algorithm.source
    batch = jax.jit(source.collect)(state.source, writer, random.key(1))[1]
    update, agent, margins = jax.jit(algorithm.agent.update), state.agent, []
    for _ in range(10):
        agent, info = update(agent, batch, random.key(2))
        margins.append(float(info.metrics["margin"]))
    np.testing.assert_allclose([margins[0], margins[5]], 0, atol=1e-5)
    assert (np.diff(margins[:5]) > 0).all() and (np.diff(margins[5:]) > 0).all()
    assert 0.3 < float(info.metrics["kept"]) < 0.9


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="needs the turns of texts"):
        evolve(envs.make("cartpole"), SIZES)
    with pytest.raises(UserError, match=r"aot ranks all pairs .* evolve leaves some out"):
        evolve(ENV, SIZES | {"loss": "aot"})
