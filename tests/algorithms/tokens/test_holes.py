"""No token algorithm learns from what its policy does not write: prompts, replies, outputs of
tools.

The policy does not see which tokens are forced, so that only masks keep it from learning them. Its
logits and values are shifted by two tables of zeros, one for decisions and one for all other steps.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_of
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import Categorical
from tests import rota
from tests.kit.stub import stub

MIXTURES = {"cot2", "cot2_supervised"}  # actions are no tokens; see their own test
NAMES = [n for n, place in registry.built_in().items() if ".algorithms.tokens." in place]
NAMES = [n for n in NAMES if n not in MIXTURES]
FAST = ("grpo", "token_ppo")
TODAY = rota.plan().algorithms_today(size=16, most=24)
MARKS = {n: pytest.mark.slow if n in TODAY else pytest.mark.rest for n in NAMES if n not in FAST}
named = pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS.get(n, ())) for n in NAMES])
# Enough successes by chance that groups differ.
ENV = envs.make("text_maze", size=2, turns=2, openings=0)
COUNTDOWN = envs.make("countdown", numbers=2, attempts=1)
OWN = {  # what needs hints, tools, or steps that are checked
    "guide_grpo": envs.make("hinted_addition", digits=1),
    "spear": envs.make("lookup"),
    "spectral_po": COUNTDOWN,
}
WITHOUT_BONUS = {"refuel"}  # which refuses one
READ_AFTER = {("archer", "critic")}  # values that are read where an utterance has ended
SETTINGS = {
    "recurrent": 0, "transformer": 0, "prompts": 4, "answers": 4, "num_envs": 16, "k": 2,
    "epochs": 2, "minibatches": 2, "informative": 0.0, "critic_steps": 0.0, "warmup": 0.0,
    "survey": 0.0,
    "kl.weight": 0.1, "entropy_weight": 0.1, "optimizer.learning_rate": 0.1,
    "optimizer.eps": 1e-8, "critic_optimizer.learning_rate": 0.1,
}  # fmt: skip


class Shifted(ActorCritic):
    """A policy and a value that are shifted by tables, of decisions and of other steps."""

    def setup(self):
        super().setup()
        zeros = jax.nn.initializers.zeros
        self.logit_shift = self.param("logit_shift", zeros, (2, self.action_space.n))
        self.value_shift = self.param("value_shift", zeros, (2,))

    def _policy(self, x, timestep):
        kind = timestep.tokens["decision"].astype(int)
        plain = self.head(self.actor(x), None)  # any token is legal
        return Categorical(jax.nn.log_softmax(plain.logits + self.logit_shift[kind]))

    def _value(self, x, timestep):
        return (
            super()._value(x, timestep) + self.value_shift[timestep.tokens["decision"].astype(int)]
        )


@functools.cache
def update(name, **changes):
    """Return the parts of an agent after an update by an algorithm."""
    builder, kind = registry.builder(name)
    config = kind()
    if name in WITHOUT_BONUS:
        changes = {"entropy_weight": 0.0} | changes
    for setting, value in (SETTINGS | changes).items():
        with contextlib.suppress(UserError):  # not a setting of this algorithm
            config = replace(config, {setting: value})
    env = OWN.get(name, ENV)
    network = Shifted(env.observation_space, env.action_space, widths=())
    parts = builder.recipe(env, Static(config)).parts
    networks = {n: network for n, part in parts.items() if type(part.network) is ActorCritic}
    algorithm = builder(env, config, networks=networks)
    state = start(algorithm, random.key(0)).state
    after, _ = jax.jit(algorithm.step)(state, random.key(1))
    return {n: after.agent.parts[n].params["params"] for n in networks}


@named
def test_nothing_is_learned_where_nothing_is_decided(name):
    """A gradient that is not exactly 0 moves a weight, by Adam."""
    for part, params in update(name).items():
        if (name, part) in READ_AFTER:
            continue
        logits, values = np.asarray(params["logit_shift"]), np.asarray(params["value_shift"])
        assert not logits[..., 0, :].any() and not values[..., 0].any()  # of each of twins
    logits = np.asarray(update(name)["actor_critic"]["logit_shift"])
    assert (logits[1] != 0).all()


@pytest.mark.slow
def test_critics_learn_the_values_of_decisions():
    assert update("token_ppo")["actor_critic"]["value_shift"][1] != 0
    assert update("ppo_max")["critic"]["value_shift"][1] != 0


def test_without_masks_it_would_be_learned(monkeypatch):
    """Else the tests above show nothing."""
    monkeypatch.setattr(answers, "decisions", lambda timestep, mask: mask)
    params = update("grpo", clip=0.3)["actor_critic"]  # not one that is built already
    assert np.asarray(params["logit_shift"])[0].any()


def test_advantages_of_tokens_skip_what_is_read():
    """Two utterances with three tokens read between them, and one before: by hand."""
    decision = np.array([[0, 1, 1, 0, 0, 0, 1, 1]], bool).T
    value, reward = np.arange(1.0, 9.0)[:, None], np.zeros((8, 1))
    reward[2], reward[7] = 0.5, 1.0
    last = np.arange(8)[:, None] == 7
    none = np.zeros((8, 1), bool)
    step = TimeStep(none, reward, last, none, none)
    x = Transition(step, none, step, (), {"log_prob": np.zeros((8, 1))})
    net = stub(hyper={"discount": 0.9, "gae_lambda": 0.8})
    batch = Batch(x, jnp.float32(0), memory=(), mask=jnp.asarray(decision))
    following = np.append(value[1:], [[99.0]], 0)
    found = sample_of(net, batch, jnp.asarray(value), jnp.asarray(following))
    d = 1.0 - 8
    c = 0.9 * 8 - 7 + 0.72 * d
    b = 0.5 + 0.9 * 7 - 3 + 0.72 * c
    a = 0.9 * 3 - 2 + 0.72 * b
    expected = np.array([0, a, b, 0, 0, 0, c, d])
    np.testing.assert_allclose(found.advantage[:, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(found.target, found.advantage + value, rtol=1e-5)
