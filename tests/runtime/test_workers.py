"""Models on devices of their own: a placement changes what is sent, and no number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core.errors import UserError
from jaxrl.networks.decoder import Architecture, LanguageModel
from jaxrl.runtime.workers import (
    PLACEMENTS,
    Ledger,
    Model,
    TextCalls,
    place_models,
    ppo,
    remax,
    text_steps,
)

PROMPT, ANSWER, TEXTS, V = 2, 2, 8, 8
SIZES = Architecture(V, 8, 8, 1, 4, 4, 2, PROMPT + ANSWER, (1.0,))
NETWORK = LanguageModel(SIZES, length=PROMPT + ANSWER)
CALLS = TextCalls(NETWORK, PROMPT, ANSWER)
PROMPTS = jax.random.randint(jax.random.key(5), (PROMPT, TEXTS), 0, V)


@functools.cache
def models():
    @jax.jit
    def init(key):
        step = jax.tree.map(lambda x: x[0], text_steps(PROMPTS))
        params = NETWORK.init(key, step, NETWORK.initial(TEXTS))
        head = params["params"]["value_head"]
        head["kernel"] = jax.random.normal(key, head["kernel"].shape)  # 0 at first
        return params

    found = {}
    for name, key in zip(
        PLACEMENTS["colocated"], jax.random.split(jax.random.key(0), 4), strict=True
    ):
        learns = name in ("actor", "critic")
        found[name] = Model(init(key), optax.adam(0.01) if learns else None)
    return found


def run(controller, own, placement, devices):
    ledger = Ledger()
    workers = place_models(own, placement, devices, ledger)
    controller(workers, CALLS, PROMPTS, jax.random.key(1))
    return workers, ledger


@pytest.mark.slow
def test_ppo_computes_the_same_on_one_device_and_on_two_sets_of_four():
    one, alone = run(ppo, models(), PLACEMENTS["colocated"], jax.devices()[:1])
    split, ledger = run(ppo, models(), PLACEMENTS["split"], jax.devices())
    for name in ("actor", "critic"):
        ours, theirs = (workers[name].params for workers in (one, split))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), ours, theirs)
        begun = models()[name].params["params"]["decoder"]["blocks_0"]["q_proj"]["kernel"]
        now = ours["params"]["decoder"]["blocks_0"]["q_proj"]["kernel"]
        assert (np.abs(now - begun) > 1e-3).any()
    assert sum(alone.sent.values()) == sum(alone.moved.values()) == 0
    # Texts go from the actor's devices to the critic's and the reward's, and advantages back.
    text, tokens = 4 * TEXTS * (PROMPT + ANSWER), 4 * TEXTS * ANSWER
    for call in ("critic.value", "reward.grade"):
        assert ledger.moved[call] == 4 * text  # to each of four devices, which share one replica
    assert ledger.moved["critic.estimate"] >= 4 * 2 * tokens
    assert ledger.moved["actor.update_actor"] >= 4 * tokens
    assert ledger.sent["actor.to_generation"] > 0 == ledger.sent["actor.to_training"]
    # Weights and moments of what is trained, in quarters but for what is whole.
    held = {name: worker.count_held() for name, worker in split.items()}
    assert held["actor"] == held["critic"] and held["reference"] == held["reward"]
    assert 2.8 < held["actor"] / held["reference"] < 3.1
    assert held["actor"] < one["actor"].count_held() / 2.5


@pytest.mark.slow
def test_remax_has_no_critic():
    own = {name: model for name, model in models().items() if name != "critic"}
    workers, ledger = run(remax, own, dict.fromkeys(own, 0), jax.devices()[:1])
    begun, now = (
        x["params"]["embed_tokens"] for x in (models()["actor"].params, workers["actor"].params)
    )
    assert (np.abs(now - begun) > 1e-3).any()
    assert "actor.generate_greedily" in ledger.sent


def test_rewards_to_go_less_the_greedy_answer():
    log_prob, reference = jnp.array([[-1.0], [-2.0]]), jnp.array([[-1.5], [-1.0]])
    found = CALLS.compare({}, log_prob, reference, jnp.array([3.0]), jnp.array([1.0]))
    later = 3.0 - 0.1 * (-2.0 + 1.0)
    np.testing.assert_allclose(found[:, 0], [later - 0.1 * 0.5 - 1.0, later - 1.0], rtol=1e-6)


def test_placements_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="3 sets of devices cannot share 8 devices evenly"):
        place_models(models(), {"actor": 0, "critic": 1, "reward": 2}, jax.devices(), Ledger())
    with pytest.raises(UserError, match="their places differ: critic, reward"):
        place_models(models(), {"actor": 0, "reference": 0}, jax.devices(), Ledger())
