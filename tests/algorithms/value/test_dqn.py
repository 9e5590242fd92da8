"""DQN and its variants, Rainbow among them, against NumPy, with tables for networks."""

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
from jaxrl.core.settings import Static
from tests.kit.stub import huber, mask_actions, stub, transitions

N, ATOMS, LOW, HIGH = 64, 7, -3.0, 4.0
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, 2, ATOMS)).astype(np.float32)
NOISE = dict(zip(("evaluate", "choose", "predict"), RNG.normal(size=(3, 2, ATOMS)), strict=True))
HYPER = {"discount": 0.9, "huber": 0.5, "lowest_return": LOW, "highest_return": HIGH}
HYPER |= {"exploration.start": 1.0, "exploration.end": 0.2, "exploration.steps": 100.0}

# The extensions that each algorithm has: double, noisy, a distribution, several steps.
EXTENSIONS = {
    dqn: "",
    double_dqn: "double",
    dueling_dqn: "double",
    prioritized_dqn: "double",
    n_step_dqn: "steps",
    noisy_dqn: "noisy",
    c51: "atoms",
    rainbow: "double noisy atoms steps",
}
every = pytest.mark.parametrize("algorithm", EXTENSIONS, ids=lambda algorithm: algorithm.name)


def recipe_of(algorithm):
    fewer = {"num_atoms": ATOMS} if "atoms" in EXTENSIONS[algorithm] else {}
    config = settings.replace(algorithm.Config(), fewer)
    return algorithm.recipe(envs.make("cartpole"), Static(config))


def net_of(algorithm, env_steps=0.0):
    """Make networks that look up rows of tables by observation, with the noise of a key's name."""
    outputs = slice(None) if "atoms" in EXTENSIONS[algorithm] else slice(1)

    def network(table):
        return lambda s, rngs=None: jnp.asarray(
            (table[s.observation] + (NOISE[rngs["noise"]] if rngs else 0.0))[..., outputs]
        )

    return stub(
        q=network(TABLE),
        target={"q": network(TARGET)},
        hyper=HYPER,
        key=lambda name: name,
        env_steps=jnp.float32(env_steps),
    )


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def losses_and_priorities(extensions, x):
    """Return the loss and the priority of each of N transitions, [N] each."""
    noise = lambda name: NOISE[name] if "noisy" in extensions else 0.0
    now, evaluated = TABLE[:N] + noise("predict"), TARGET[N:] + noise("evaluate")
    chooser = TABLE[N:] + noise("choose") if "double" in extensions else evaluated
    atoms = np.linspace(LOW, HIGH, ATOMS)
    q = softmax(chooser) @ atoms if "atoms" in extensions else chooser[..., 0]
    if x.next_timestep.legal_actions is not None:
        q = np.where(x.next_timestep.legal_actions, q, -np.inf)
    gammas = (0.7 if "steps" in extensions else 0.9) * ~x.terminated  # a truncated step bootstraps
    losses, priorities = [], []
    for b, (best, gamma, reward) in enumerate(zip(q.argmax(-1), gammas, x.reward, strict=True)):
        taken, following = now[b, x.action[b]], evaluated[b, best]
        if "atoms" not in extensions:
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
    return mask_actions(x) if legal else x


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@every
def test_losses_and_priorities_are_those_of_the_papers(algorithm, legal):
    x = experience(legal)
    (q_loss,) = recipe_of(algorithm).losses
    output = q_loss(net_of(algorithm), x)
    losses, priorities = losses_and_priorities(EXTENSIONS[algorithm], x)
    np.testing.assert_allclose(output.value, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.priority, priorities, rtol=1e-3, atol=1e-4)


@every
def test_only_legal_actions_are_chosen(algorithm):
    timestep, recipe = experience(legal=True).timestep, recipe_of(algorithm)
    key = "choose" if "noisy" in EXTENSIONS[algorithm] else random.key(2)
    for greedy in (False, True):
        action = recipe.act(net_of(algorithm), timestep, (), key, greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


def test_epsilon_falls_over_the_steps():
    x, recipe = transitions(4000).timestep, recipe_of(dqn)
    x = dataclasses.replace(x, observation=x.observation % N)
    best = TABLE[x.observation, :, 0].argmax(-1)
    for env_steps, epsilon in ((0, 1.0), (50, 0.6), (100, 0.2), (1000, 0.2)):
        action = recipe.act(net_of(dqn, env_steps), x, (), random.key(1), False)[0]
        np.testing.assert_allclose((action != best).mean(), epsilon / 2, atol=0.03)


def test_noisy_networks_explore_by_noise_alone():
    x, recipe = transitions(N).timestep, recipe_of(noisy_dqn)
    for greedy, noise in ((True, 0.0), (False, NOISE["choose"])):
        action = recipe.act(net_of(noisy_dqn), x, (), "choose", greedy)[0]
        np.testing.assert_array_equal(action, (TABLE[:N] + noise)[..., 0].argmax(-1))


def test_only_two_replay_by_priority():
    env = envs.make("cartpole")
    prioritized = {
        a.name for a in EXTENSIONS if "priorities.importance" in a.source(env, a.Config()).hyper
    }
    assert prioritized == {"prioritized_dqn", "rainbow"}


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
