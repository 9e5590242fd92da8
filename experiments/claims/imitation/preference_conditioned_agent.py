"""A preference-conditioned agent whose network is a table over pictures and styles, at the minimum
of its loss on demonstrations in a level, in float64."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.imitation import preference_conditioned_agent as agent
from jaxrl.core.settings import Static
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.envs.grids import playtest
from jaxrl.networks.heads import categorical

SIZE, SHOWN, SKILL, LATENT, STYLE = 9, 16, 0.98, 12, 8
PICTURES, STEPS = 512, 2304  # at least as many as demonstrations have, so that shapes stay the same
ENV = envs.make("playtest", size=SIZE)
STYLES, LIMIT, FRAMES = len(playtest.STYLES), ENV.max_steps or 0, agent.Shown().frames
COVERAGE = playtest.paths(SIZE - 2)[1] / (SIZE - 2) ** 2  # of the styles' paths


@dataclasses.dataclass(frozen=True)
class Tables:
    """A stand-in for the network: random latents of pictures, random features of which styles are
    means, and tables of policies and predictions by style and picture.

    known: first numbers of the latents of pictures in demonstrations, [P]; rows of tables are
        theirs, and the last one, of which no number is known, is of all other pictures.
    styles: of demonstrations that are learned from, [(M - 1) S, Z]; a style that is told is that of
        the closest. frames: number of pictures that styles see.
    """

    eye: Array
    features: Array
    known: Array
    styles: Array
    frames: int

    def see(self, observation: Array) -> Array:
        flat = observation.reshape(*observation.shape[:-3], -1)
        return flat.astype(self.eye.dtype) / 255 @ self.eye

    def style(self, observation: Array) -> Array:
        seen = self.see(observation[:, : self.frames])
        return jnp.tanh(seen @ self.features).mean(-2)

    def rows(self, latent: Array, style: Array) -> tuple[Array, Array]:
        """Return the rows of tables, by style and by picture."""
        apart = jnp.square(style[..., None, :] - self.styles).sum(-1)
        return apart.argmin(-1) % STYLES, self.picture(latent)

    def picture(self, latent: Array) -> Array:
        """Return the rows of pictures."""
        apart = jnp.abs(latent[..., :1] - self.known)
        return jnp.where(apart.min(-1) < 1e-9, apart.argmin(-1), PICTURES - 1)

    def apply(self, policy: Array, prediction: Array, *inputs: Any, method: str) -> Any:
        """Apply a method of the network with tables [S, P, A] and [S, P, A, L]."""
        if method == "see":
            return self.see(*inputs)
        if method == "style":
            return self.style(*inputs)
        rows = self.rows(*inputs[:2])
        if method == "policy":
            return categorical(policy[rows], inputs[2])
        return prediction[(*rows, inputs[2])]


@functools.cache
def prepare(seed: int, conditioned: bool) -> tuple[Any, Transition, np.ndarray]:
    """Return the recipe, the steps [N] that are learned from, and the pictures that styles of
    demonstrations are made of, [(M - 1) S, K]."""
    data = agent.Shown(demonstrations=SHOWN, skill=SKILL, seed=seed)
    steps, exists = agent.demonstrate(ENV, data)
    learned = len(exists) - STYLES
    x = jax.tree.map(lambda x: x[:learned][exists[:learned]], steps)
    frames = agent.pick_frames(steps, exists, data.frames, STYLES)[:-1]
    config: Any = Static(dataclasses.replace(agent.Config(), data=data, conditioned=conditioned))
    return agent.recipe(ENV, config), x, frames.reshape(-1, *frames.shape[2:])


def minimum(net: Tables, x: Transition, conditioned: bool) -> tuple[Array, Array]:
    """Return the tables of policies and predictions at the minimum of the loss on steps [N]."""
    style = np.asarray(x.timestep.goal).argmax(-1)
    row = np.asarray(net.picture(net.see(jnp.asarray(x.observation))))
    action, after = np.asarray(x.action, int), net.see(jnp.asarray(x.next_observation))
    count = np.zeros((STYLES, PICTURES, 4))
    prediction = np.ones((*count.shape, LATENT))
    for asked in (style,) if conditioned else range(STYLES):
        np.add.at(count, (asked, row, action), 1.0)  # pyright: ignore[reportArgumentType]
        prediction[asked, row, action] = after
    total = count.sum(-1, keepdims=True)
    share = np.where(total > 0, count / np.maximum(total, 1), 0.25)
    return jnp.asarray(np.log(np.maximum(share, 1e-12))), jnp.asarray(prediction)


@jax.jit
def play(key: Key, eye: Array, known: Array, actions: Array) -> Array:
    """Return coverage, the followed share of the path, and agreement of episodes of each style,
    [3, S], by actions [S, P] at pictures."""
    net = Tables(eye, eye, known, eye, FRAMES)
    params: Any = playtest.Params(style=jnp.arange(STYLES))  # pyright: ignore[reportArgumentType]
    keys = jax.random.split(key, STYLES)
    state, see = jax.vmap(ENV.reset)(keys, params)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        state, see, found, over = carry
        action = actions[jnp.arange(STYLES), net.picture(net.see(see.observation))]
        state, see = jax.vmap(ENV.step)(keys, state, action, params)
        found = jax.tree.map(lambda old, new: jnp.where(over, old, new), found, see.metrics)
        return (state, see, found, over | see.truncated), None

    carry = (state, see, see.metrics, jnp.zeros(STYLES, bool))
    found = jax.lax.scan(step, carry, length=LIMIT)[0][2]
    names = ("coverage", "followed", "agreement")
    return jnp.stack([found[name] for name in names]).astype(float)


def learn(
    key: Key, seed: int, conditioned: bool = True, moved: int = 0, frames: int = FRAMES
) -> tuple[Array, Array]:
    """Return the largest slope of the loss at its minimum on the demonstrations of a seed, and what
    greedy episodes come to, see `play`.

    moved: by how much the style that is told is another. frames: number of pictures of a
    demonstration that its style is made of.
    """
    recipe, x, shown = prepare(seed, conditioned)
    keys = jax.random.split(key, 4)
    eye = jax.random.normal(keys[0], (3 * SIZE**2, LATENT))
    net = Tables(eye, jax.random.normal(keys[1], (LATENT, STYLE)), eye, eye, frames)
    pictures = np.zeros((PICTURES, SIZE, SIZE, 3), np.uint8)
    different = np.unique(np.asarray(x.observation), axis=0)
    pictures[: len(different)] = different
    known = net.see(jnp.asarray(pictures))[:, 0].at[len(different) :].set(jnp.inf)
    net = dataclasses.replace(net, known=known)
    net = dataclasses.replace(net, styles=net.style(jnp.asarray(shown)))
    tables = minimum(net, x, conditioned)

    def with_tables(tables: tuple[Array, Array]) -> Any:
        apply = functools.partial(net.apply, *tables)
        return SimpleNamespace(
            agent=apply,
            target=SimpleNamespace(agent=apply),
            key=lambda name: keys[2],
            hyper=SimpleNamespace(prediction_weight=0.5),
        )

    exists = np.arange(STEPS) < len(x.action)
    every = jax.tree.map(lambda x: jnp.asarray(np.resize(x, (STEPS, *x.shape[1:]))), x)

    def total(tables: tuple[Array, Array]) -> Array:
        output: Any = recipe.losses[0](with_tables(tables), every)
        return jnp.where(exists, output.value, 0.0).sum()

    slope = jnp.stack([jnp.abs(x).max() for x in jax.grad(total)(tables)]).max()
    none = jnp.zeros(STYLES * PICTURES)
    goal = jnp.repeat(jnp.roll(jnp.eye(STYLES), moved, -1), PICTURES, 0)
    begin = TimeStep(
        jnp.tile(pictures, (STYLES, 1, 1, 1)), none, none > 0, none > 0, none == 0, goal=goal
    )
    # The first step of an episode learns the style, and the others have it from memory.
    memory = recipe.act(with_tables(tables), begin, recipe.memory(len(none)), keys[3], True)[1]
    later = dataclasses.replace(begin, first=none > 0, goal=jnp.zeros_like(goal))
    action = recipe.act(with_tables(tables), later, memory, keys[3], True)[0]
    return slope, play(keys[3], eye, known, action.reshape(STYLES, PICTURES))


def errors_of(key: Key, **wrong: Any) -> dict[str, Array]:
    """Return the errors of the agent, see `errors`."""
    seed_key, key = jax.random.split(key)
    seed = int(jax.random.randint(seed_key, (), 0, 2**31 - 1))
    slope, (coverage, followed, agreement) = learn(key, seed, **wrong)
    plain_slope, (plain_coverage, _, plain_agreement) = learn(key, seed, conditioned=False)
    return {
        "rest": jnp.maximum(slope, plain_slope),
        "path": 1 - followed.min(),
        "actions": 1 - agreement.min(),
        "coverage": jnp.abs(coverage - COVERAGE).max(),
        "more coverage": jnp.maximum(0.1 - (coverage - plain_coverage).mean(), 0),
        "more actions": jnp.maximum(0.3 - (agreement - plain_agreement).mean(), 0),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return by how much each of these fails.

    "rest": slope of the loss at tables of the shares of demonstrated actions and of next latents,
    with a style and without. Greedy episodes, the worst of four styles: "path", the share of the
    style's path that is left out; "actions", that of actions that are not the expert's; "coverage",
    its distance from the path's. "more coverage", "more actions": on average coverage is 0.1, and
    the share of the expert's actions 0.3, above those of the agent without a style.
    """
    return errors_of(key)


CLAIM = Exact(
    paper=Paper(
        "Preference-conditioned Pixel-based AI Agent For Game Testing",
        "Abdelfattah, Brown and Zhang",
        2023,
        "2308.09289",
        "An agent that sees pixels and explores as a user's demonstrations show, cloned with a "
        "supervised and a self-supervised objective, covers more of a game and tests it better "
        "than earlier agents.",
    ),
    claim="The minimum of the loss over tables, on 15 demonstrations of each style, acts in each "
    "of four styles as its expert does when it is shown one more demonstration. The minimum "
    "without a style covers less of the level by 0.1 on average, and agrees with the experts in "
    "0.3 less of its actions.",
    left_out="Networks, generalization to pictures that demonstrations lack (so experts err in 2 % "
    "of their actions alone), what the self-supervised objective adds, which is nothing in tables, "
    "3D games, earlier agents, and the detector of objects and the novelty reward of the authors' "
    "agent. A style is a mean of random features of 16 pictures, told by its nearest neighbor.",
    notes="Margins were chosen on other seeds, where the agent without a style went around the rim "
    "whatever style was asked for: that is the most common action where styles part.",
    parts=(
        "jaxrl/algorithms/imitation/preference_conditioned_agent.py",
        "jaxrl/envs/grids/playtest.py",
    ),
    errors=errors,
    planted={
        "no style": lambda key: errors_of(key, conditioned=False),
        "another style is told": lambda key: errors_of(key, moved=1),
        "styles of first pictures": lambda key: errors_of(key, frames=1),
    },
    tolerance=1e-6,
    effect=0.1,
    seeds=5,
    minutes=10.0,
    mutations=(
        Mutation(
            "predictions are of the next step's picture",
            "jaxrl.losses:self_prediction",
            lambda loss: (
                lambda prediction, target, done: loss(prediction, jnp.roll(target, 1, 1), done)
            ),
        ),
        Mutation(
            "cloning of half the log-probability squared",
            "jaxrl.losses:behavior_cloning",
            lambda clone: lambda log_prob: clone(-(log_prob**2) / 2),
        ),
    ),
)
