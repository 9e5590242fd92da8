"""FLAG-Trader: frozen layers, and the loss against its terms."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games import flag_trader as module
from jaxrl.algorithms.games.flag_trader import Config, flag_trader, trading_loss
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.networks.actor_critic import ActorCritic

ENV = envs.make("price_text", window=3, steps=2)
SIZES = {"prompts": 4, "recurrent": 8, "transformer": 3, "minibatches": 1, "frozen": 2}


def gradients(frozen):
    """Return the gradients of policy and value of whole texts, by module."""
    network = ActorCritic(
        ENV.observation_space, ENV.action_space, (8,), recurrent=8, layers=3, context=20
    ).clone(frozen=frozen)

    @jax.jit
    def compute(key):
        state, first = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(key, 4), ENV.params)

        def step(carry, key):
            state, t = carry
            action = t.legal_actions.argmax(-1)
            carry = jax.vmap(ENV.step, in_axes=(None, 0, 0, None))(key, state, action, ENV.params)
            return carry, t

        window = jax.lax.scan(step, (state, first), jax.random.split(key, 9))[1]
        params = network.init(key, first, network.initial(4))

        def objective(params):
            policy, value, _ = network.apply(params, window, network.initial(4), method="unroll")
            return policy.entropy().sum() + value.sum()

        return jax.grad(objective)(params)["params"]

    found = compute(random.key(1))
    core = found["core"]
    size = lambda x: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(x))
    parts = {"embedding": found["embedding"], "positions": core["positions"]}
    parts |= {name: x for name, x in core.items() if name.startswith("blocks")}
    parts |= {"actor": found["actor"], "head": found["head"], "value": found["value_head"]}
    return {name: size(x) for name, x in parts.items()}


@pytest.mark.parametrize("frozen", [0, 2])
def test_no_gradient_reaches_frozen_layers(frozen):
    found = gradients(frozen)
    below = {"embedding", "positions", "blocks_0", "blocks_1"}
    assert {name for name, size in found.items() if size == 0} == (below if frozen else set())
    assert found["blocks_2"] > 1e-6 and found["head"] > 1e-6


def test_the_recipe_freezes_as_many_as_it_is_told_to():
    recipe = module.recipe(ENV, replace(Config(), SIZES))
    assert recipe.parts["actor_critic"].network.frozen == 2


def test_the_loss_is_the_sum_of_its_terms(monkeypatch):
    rng = np.random.default_rng(0)
    draw = lambda: jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    x = types.SimpleNamespace(
        log_prob=draw(), reference=draw(), advantage=draw(), value=draw(), target=draw()
    )
    now = types.SimpleNamespace(log_prob=draw(), entropy=jnp.abs(draw()), value=draw())
    monkeypatch.setattr(module, "evaluate", lambda net, x: now)
    h = replace(Config(), {"kl.weight": 0.3})
    found = trading_loss.function(types.SimpleNamespace(hyper=h), x)
    ratio = np.exp(now.log_prob - x.log_prob)
    clipped = np.clip(ratio, 0.8, 1.2)
    policy = -np.minimum(ratio * x.advantage, clipped * x.advantage)
    log_ratio = np.asarray(x.reference - now.log_prob)
    divergence = np.exp(log_ratio) - log_ratio - 1
    near = x.value + np.clip(now.value - x.value, -0.2, 0.2)
    worse = np.maximum((now.value - x.target) ** 2, (near - x.target) ** 2)
    scale = float(found.metrics["value_loss"][0, 0] / worse[0, 0])
    np.testing.assert_allclose(found.metrics["value_loss"], scale * worse, rtol=1e-4)
    expected = policy + 0.3 * divergence - 0.05 * now.entropy + 0.5 * scale * worse
    np.testing.assert_allclose(found.value, expected, rtol=1e-4, atol=1e-5)
    assert scale in (0.5, 1.0)


def test_what_cannot_be_frozen_is_refused():
    with pytest.raises(UserError, match="3 blocks"):
        flag_trader(ENV, replace(Config(), {**SIZES, "frozen": 4}))
    with pytest.raises(UserError):
        flag_trader(ENV, replace(Config(), {**SIZES, "decoder.model": "nowhere"}))
