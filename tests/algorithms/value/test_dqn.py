"""DQN's line, Rainbow among it, against NumPy: tables in the networks' place."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.c51 import c51
from jaxrl.algorithms.value.double_dqn import double_dqn
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.algorithms.value.dueling_dqn import dueling_dqn
from jaxrl.algorithms.value.n_step_dqn import n_step_dqn
from jaxrl.algorithms.value.noisy_dqn import noisy_dqn
from jaxrl.algorithms.value.prioritized_dqn import prioritized_dqn
from jaxrl.algorithms.value.rainbow import rainbow
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from tests.kit.stub import huber, masked, stub, transitions

N, ATOMS, LOW, HIGH = 64, 7, -3.0, 4.0
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, 2, ATOMS)).astype(np.float32)
NOISE = dict(zip(("evaluate", "choose", "predict"), RNG.normal(size=(3, 2, ATOMS)), strict=True))
HYPER = {"discount": 0.9, "huber": 0.5, "lowest_return": LOW, "highest_return": HIGH}
HYPER |= {"exploration.start": 1.0, "exploration.end": 0.2, "exploration.steps": 100.0}

# What of Rainbow each has: double, noisy, a distribution, several steps.
DOES = {
    dqn: "",
    double_dqn: "double",
    dueling_dqn: "double",
    prioritized_dqn: "double",
    n_step_dqn: "steps",
    noisy_dqn: "noisy",
    c51: "atoms",
    rainbow: "double noisy atoms steps",
}
every = pytest.mark.parametrize("system", DOES, ids=lambda system: system.name)


def recipe_of(system):
    fewer = {"num_atoms": ATOMS} if "atoms" in DOES[system] else {}
    return system.recipe(envs.make("cartpole"), settings.replace(system.Config(), fewer))


def net_of(system, env_steps=0.0):
    """Networks that look up rows of tables by observation, with the noise of a key's name."""
    outputs = slice(None) if "atoms" in DOES[system] else slice(1)

    def of(table):
        return lambda s, rngs=None: jnp.asarray(
            (table[s.observation] + (NOISE[rngs["noise"]] if rngs else 0.0))[..., outputs]
        )

    return stub(
        q=of(TABLE),
        target={"q": of(COPY)},
        hyper=HYPER,
        key=lambda name: name,
        env_steps=jnp.float32(env_steps),
    )


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def expected(does, x):
    """Loss and priority of each of N transitions."""
    noise = lambda name: NOISE[name] if "noisy" in does else 0.0
    now, evaluated = TABLE[:N] + noise("predict"), COPY[N:] + noise("evaluate")
    chooser = TABLE[N:] + noise("choose") if "double" in does else evaluated
    atoms = np.linspace(LOW, HIGH, ATOMS)
    q = softmax(chooser) @ atoms if "atoms" in does else chooser[..., 0]
    if x.next_timestep.legal_actions is not None:
        q = np.where(x.next_timestep.legal_actions, q, -np.inf)
    gammas = (0.7 if "steps" in does else 0.9) * ~x.terminated  # a truncated step bootstraps
    losses, priorities = [], []
    for b, (best, gamma, reward) in enumerate(zip(q.argmax(-1), gammas, x.reward, strict=True)):
        taken, following = now[b, x.action[b]], evaluated[b, best]
        if "atoms" not in does:
            error = abs(taken[0] - reward - gamma * following[0])
            losses.append(huber(error, 0.5))
            priorities.append(error)
            continue
        goal = np.zeros(ATOMS)  # Bellemare et al., 2017, algorithm 1
        for p, z in zip(softmax(following), atoms, strict=True):
            place = (np.clip(reward + gamma * z, LOW, HIGH) - LOW) / (HIGH - LOW) * (ATOMS - 1)
            low, high = int(np.floor(place)), int(np.ceil(place))
            goal[low] += p * (high - place) if high > low else p
            goal[high] += p * (place - low) if high > low else 0.0
        losses.append(-(goal * np.log(softmax(taken))).sum())
        kept = goal[goal > 0]
        priorities.append(losses[-1] + (kept * np.log(kept)).sum())  # Rainbow: the divergence
    return np.asarray(losses), np.asarray(priorities)


def experience(legal):
    x = transitions(N, discount=np.full(N, 0.7, np.float32))
    return masked(x) if legal else x


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@every
def test_loss_and_priorities_are_those_of_the_papers(system, legal):
    x = experience(legal)
    loss, report = recipe_of(system).losses["q_loss"].function(net_of(system), x)
    losses, priorities = expected(DOES[system], x)
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["priority"], priorities, rtol=1e-3, atol=1e-4)


@every
def test_only_legal_actions_are_chosen(system):
    timestep, recipe = experience(legal=True).timestep, recipe_of(system)
    key = "choose" if "noisy" in DOES[system] else random.key(2)
    for greedy in (False, True):
        action = recipe.act(net_of(system), timestep, (), key, greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


def test_epsilon_falls_with_the_steps():
    x, recipe = transitions(4000).timestep, recipe_of(dqn)
    x = dataclasses.replace(x, observation=x.observation % N)
    best = TABLE[x.observation, :, 0].argmax(-1)
    for env_steps, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2), (1000, 0.2)):
        action = recipe.act(net_of(dqn, env_steps), x, (), random.key(1), False)[0]
        np.testing.assert_allclose((action != best).mean(), epsilon / 2, atol=0.03)


def test_who_has_noise_explores_by_it_alone():
    x, recipe = transitions(N).timestep, recipe_of(noisy_dqn)
    for greedy, noise in ((True, 0.0), (False, NOISE["choose"])):
        action = recipe.act(net_of(noisy_dqn), x, (), "choose", greedy)[0]
        np.testing.assert_array_equal(action, (TABLE[:N] + noise)[..., 0].argmax(-1))


def test_who_replays_by_priority():
    env = envs.make("cartpole")
    by_priority = {
        s.name for s in DOES if "priorities.importance" in s.source(env, s.Config()).hyper
    }
    assert by_priority == {"prioritized_dqn", "rainbow"}


@pytest.mark.parametrize(
    ("env", "changes", "sentence"),
    [
        ("pendulum", {}, "rainbow cannot act in Box.*; it needs Discrete actions"),
        ("cartpole", {"channels": (16,)}, "convolutions need images"),
        ("cartpole", {"hidden": ()}, r"hidden is \[\]; it must have at least one entry"),
        ("cartpole", {"n_step": 1}, "n_step is 1; it must be at least 2"),
        ("cartpole", {"num_atoms": 1}, "num_atoms is 1; it must be at least 2"),
        ("cartpole", {"highest_return": -10.0}, "the atoms lie between them"),
        ("cartpole", {"capacity": 4}, "capacity is 4; .* needs at least"),
        ("cartpole", {"learning_rate": math.nan}, "learning_rate is nan; it must be a number"),
    ],
)
def test_bad_settings_are_one_sentence(env, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        rainbow(envs.make(env), settings.replace(rainbow.Config(), changes))
