"""CrossQ: one joint batch, no copies, and the moments of its layers."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.continuous_control import crossq
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N = 32
RNG = np.random.default_rng(4)
DRAWN, LOG_PROB = RNG.normal(size=(2, 2 * N)).astype(np.float32)
CRITICS = RNG.normal(size=(2 * N, 2)).astype(np.float32)
IN_HALF_WIDTHS = LOG_PROB + np.log(2.0)
CONFIG = replace(crossq.Config(), {"torso.hidden": (4,), "critic.hidden": (6,)})
RECIPE = crossq.recipe(ENV, Static(CONFIG))


def stub_net():
    """Return a net whose critics give the table's values less the mean of their joint batch."""
    asked = []

    def policy(s, train=False, mutable=None):
        said = DRAWN[s.observation], LOG_PROB[s.observation]
        drawn = types.SimpleNamespace(sample_and_log_prob=lambda seed: said)
        return (drawn, {"batch_stats": "the actor's"}) if train else drawn

    def critic(s, a, train=False, mutable=None):
        asked.append(len(a))
        q = CRITICS[s.observation] + np.asarray(a)[..., None]
        if not train:
            return q
        assert mutable == "batch_stats"
        return q - q.mean(0), {"batch_stats": "the critic's"}

    temperature = lambda: np.float32(0.3)
    net = stub(actor=policy, critic=critic, temperature=temperature, key=lambda: None,
               hyper={"discount": 0.9})  # fmt: skip
    return net, asked


def test_both_states_are_one_batch_of_critics_without_copies():
    x, (net, asked) = transitions(N, actions=0), stub_net()
    output = losses_of(RECIPE)["critic_loss"](net, x)
    loss, state = output.value, output.state
    both = CRITICS + np.concatenate([x.action, DRAWN[N:]])[:, None]
    both -= both.mean(0)
    following = both[N:].min(-1) - 0.3 * IN_HALF_WIDTHS[N:]
    target = x.reward + 0.9 * ~x.terminated * following
    expected = 0.5 * ((both[:N] - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    assert asked == [2 * N] and state == {"critic": {"batch_stats": "the critic's"}}
    assert RECIPE.parts["critic"].target is None


def test_the_policy_climbs_critics_that_are_not_trained_meanwhile():
    net, asked = stub_net()
    output = losses_of(RECIPE)["actor_loss"](net, transitions(N, actions=0))
    loss, log_prob, state = output.value, output.aux, output.state
    value = (CRITICS[:N] + DRAWN[:N, None]).min(-1)
    np.testing.assert_allclose(loss, 0.3 * IN_HALF_WIDTHS[:N] - value, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_prob, IN_HALF_WIDTHS[:N], rtol=1e-5)
    assert asked == [N] and state == {"actor": {"batch_stats": "the actor's"}}


def test_each_critics_moments_are_those_of_the_joint_batch():
    no = jnp.zeros(2 * N, bool)
    observation = jnp.float32(RNG.normal(size=(2 * N, 3)))
    action = jnp.float32(RNG.uniform(-2, 2, (2 * N, 1)))
    timestep = TimeStep(observation, jnp.zeros(2 * N), no, no, no)
    part = RECIPE.parts["critic"]
    params = part.init(random.key(0))
    _, new = part.apply(params, timestep, action, train=True, mutable="batch_stats")
    means = [x for p, x in jax.tree_util.tree_leaves_with_path(new) if "mean" in str(p[-1])]
    (first,) = [x for x in means if x.shape[-1] == 4]  # of the inputs
    inputs = np.concatenate([observation, action / 2], -1)
    np.testing.assert_allclose(first, 0.01 * np.stack([inputs.mean(0)] * 2), rtol=1e-3, atol=1e-6)
    # To act, what is said of one does not depend on the others.
    alone = jax.tree.map(lambda x: x[:1], (timestep, action))
    together = part.apply(params, timestep, action)
    np.testing.assert_allclose(part.apply(params, *alone), together[:1], rtol=1e-4, atol=1e-5)
