"""RLGF: what is learned from answers that a guide shares, in NumPy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import rlgf as rlgf_file
from jaxrl.algorithms.tokens.rlgf import rlgf
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import Static, Values, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.networks.heads import Categorical
from tests.kit.stub import losses_of, stub

ENV = envs.make("addition", digits=1)
T, B, TOKENS, KL = 6, 8, 5, 0.3
RNG = np.random.default_rng(0)


def test_only_the_policys_own_tokens_count():
    """Rewards of the guide's completions are credited to what the policy began."""
    decision = np.arange(T)[:, None] >= RNG.integers(1, 3, B)
    guide = np.arange(T)[:, None] >= RNG.integers(2, T + 1, B)
    reward = np.where(np.arange(T)[:, None] == T - 1, RNG.normal(size=B), 0).astype(np.float32)
    value = RNG.normal(size=(T + 1, B)).astype(np.float32)
    logits = np.asarray(jax.nn.log_softmax(RNG.normal(size=(T, B, TOKENS))), np.float32)
    old_logits = np.asarray(jax.nn.log_softmax(RNG.normal(size=(T, B, TOKENS))), np.float32)
    action = RNG.integers(0, TOKENS, (T, B))
    old = RNG.normal(-1, 0.3, (T, B)).astype(np.float32)
    config = replace(rlgf.Config(), {"kl.weight": KL, "transformer": 0})
    recipe = rlgf.recipe(ENV, Static(config))
    none, done = np.zeros((T, B), bool), np.zeros((T, B), bool)
    done[-1] = True
    here = jnp.asarray
    step = TimeStep(none, here(reward), here(done), none, none, tokens={"decision": here(decision)})
    extras = {"log_prob": here(old), "guided": here(guide)}
    t = Transition(step, here(action), step, (), extras)
    found = types.SimpleNamespace()
    after = types.SimpleNamespace(report=lambda **x: x)

    def epochs(passes, window, step, unit, max_drift):
        found.window = window
        return types.SimpleNamespace(update_targets=lambda *_: after)

    def part(own):
        def unroll(timestep, memory, method):
            rows = len(timestep.first)
            return Categorical(here(own)[:rows]), here(value)[:rows], ()

        return unroll

    net = stub(
        target={"actor_critic": part(old_logits)},
        actor_critic=part(logits),
        network=lambda name: types.SimpleNamespace(initial=lambda n: ()),
        epochs=epochs,
    )
    net.hyper = Values({n: jnp.asarray(x) for n, x in hypers(config).items()})
    recipe.update(net, Batch(t, jnp.float32(0), mask=jnp.ones((T, B), bool)))
    window, own = found.window, decision & ~guide
    np.testing.assert_array_equal(window.mask, own)
    plain = reward[-1] - value[:-1]  # with a discount and a lambda of 1
    expected = (plain - plain[own].mean()) / plain[own].std()
    np.testing.assert_allclose(np.asarray(window.x.advantage)[own], expected[own], rtol=1e-3)
    target = np.broadcast_to(reward[-1], (T, B))
    np.testing.assert_allclose(np.asarray(window.x.target)[own], target[own], rtol=1e-4, atol=1e-5)
    loss = np.asarray(losses_of(recipe)["loss"].function(net, window.x).value)
    take = lambda x: np.take_along_axis(x, action[..., None], -1)[..., 0]
    now, reference = take(logits), take(old_logits)
    ratio, gap = np.exp(now - old), reference - now
    surrogate = -np.minimum(ratio * expected, np.clip(ratio, 0.8, 1.2) * expected)
    penalty = KL * (np.exp(gap) - 1 - gap)
    both = surrogate + penalty + 0.5 * 0.5 * (value[:-1] - target) ** 2
    np.testing.assert_allclose(loss[own], both[own], rtol=2e-3, atol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="rlgf needs an expert as its guide"):
        rlgf(envs.make("judged_words"))


def test_who_begins_hands_over_before_a_decision_and_not_in_the_prompt(monkeypatch):
    """A sum has a prompt of 5 steps, and 4 steps at most for its answer."""
    found = []
    monkeypatch.setattr(
        rlgf_file, "with_guide", lambda played, guide, longest, *_: found.append(longest)
    )
    rlgf_file.Guided().source(envs.make("addition"))
    rlgf_file.Guided(longest=2).source(envs.make("addition"))
    assert found == [4, 2]
