"""Dreamer 4: a policy improved in imagination against the cloned one, from data alone."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from jaxrl import losses
from jaxrl.core import metrics as m
from jaxrl.core import train
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.types import Array, Batch, Environment, Key, Policy
from jaxrl.envs.pixels.catch import catch
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.networks.shortcut_world_model import next_frame
from jaxrl.systems.planning import dreamer4
from jaxrl.systems.planning.dreamer4_imagination import dreamer4_imagination
from jaxrl.systems.planning.dreamer4_world_model import dreamer4_world_model

PAPER = {
    "title": "Training Agents Inside of Scalable World Models",
    "authors": "Hafner, Yan and Lillicrap",
    "year": 2025,
    "arxiv": "2509.24527",
}
CLAIM = (
    "From data of which a tenth tells the actions, and without a step of the environment, a policy "
    "improved in the imagination of a shortcut-forced world model beats the cloned one."
)
PARTS = (
    "jaxrl/systems/planning/dreamer4.py",
    "jaxrl/systems/planning/dreamer4_world_model.py",
    "jaxrl/systems/planning/dreamer4_imagination.py",
    "jaxrl/systems/planning/imagination.py",
    "jaxrl/networks/shortcut_world_model.py",
    "jaxrl/losses/generative/flows.py",
    "jaxrl/losses/policies/trust_regions.py",
)

METRIC = "return of complete real episodes of Catch (-1 to 1), actions drawn from the policy"
MARGIN = 0.2
EPISODES = 2048  # of the data set
SKILLS = (-1.0, 0.5)  # of who played them: half never do what the expert would
LABELLED = 0.1  # of them tell their actions
WORLD, IMAGINED = 1500, 300  # gradient steps of the two phases
BATCH = 48
DENOISING = (1, 2, 4)  # steps of which the errors are measured
ROWS, COLUMNS = 5, 3
STEPS = 2  # of them in imagination
LEARNING_RATE = 3e-3  # of both phases
SIZES = {"width": 32, "hidden": (32,), "levels": 4, "context": 3, "scale": 4.0, "horizon": 4}
SIZES |= {"bins": 21, "symlog_range": 1.0, "skills": SKILLS, "labelled": LABELLED}
SIZES |= {"model.learning_rate": LEARNING_RATE, "behaviour.learning_rate": LEARNING_RATE}
FIRST = replace(dreamer4_world_model.Config(), SIZES)
SECOND = replace(dreamer4_imagination.Config(), SIZES | {"steps": STEPS})
# What each variant changes; all share data, seeds and programs.
VARIANTS = {
    "imagination": {},
    "imagination, model not told actions": {"conditioned": 0.0},
    "imagination, no shortcut targets": {"bootstrap": 0.0},
}
NOTES = (
    "Paper: Minecraft from pixels; here Catch on 5 x 3 cells, one token a frame and no tokenizer. "
    "2048 episodes, about half of them by players who never do what an expert would and the "
    "others by some who ask an expert every second time. Cloning sees the labelled actions only; "
    "half of each batch are labelled episodes, as rewards and ends are seen in all. Ablation: the "
    "labels do not reach the world model, so that imagination cannot tell what actions do. Errors "
    "are of frames imagined from first frames and true actions, mean squares of features, 0 or 1. "
    "Board, sizes, rates, batches and steps of the world model, which both sides share, were "
    "chosen on other seeds by those errors; imagination's own settings were not tuned. The players "
    "were changed once, before the recorded run: of those who never err on purpose even the clone "
    "that acts greedily is perfect."
)


def rollout_error(env: Environment, state: Any, batch: Batch, key: Key, steps: int) -> Array:
    """The mean squared error per feature of frames that are imagined, by `steps` denoising steps
    each, from the first frames and the actions of `batch`'s episodes."""
    model: Any = dreamer4.network(env, FIRST)
    start_key, key = jax.random.split(key)
    frames, action, exists = dreamer4.whole_episodes(env, batch, True, FIRST.scale)
    start = model.as_context(frames[0], action[0], start_key)
    apply = functools.partial(model.apply, state.parts["model"].params)
    _, cache = apply(start, model.initial(frames.shape[1]))

    def step(cache, inputs):
        action, frame, key = inputs
        imagined, _, cache = next_frame(model, apply, cache, action, key, steps)
        return cache, jnp.square((imagined - frame) / FIRST.scale).mean(-1)

    keys = jax.random.split(key, len(action) - 1)
    _, error = jax.lax.scan(step, cache, (action[1:], frames[1:], keys))
    return losses.masked_mean(error, exists[1:])


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _run(key, hyper, count, batch_size, updates, played):
    """One run: what is measured of it, by name."""
    env = catch(rows=ROWS, columns=COLUMNS)
    sizes = {"data.episodes": count, "data.batch_size": batch_size}
    first = dreamer4_world_model(env, replace(FIRST, sizes))
    second = dreamer4_imagination(env, replace(SECOND, sizes))
    train_key, key, held_key = jax.random.split(key, 3)
    world, imagined = updates

    run, row = train.train(first, train.start(first, train_key, hyper), world)
    known = {name: value for name, value in hyper.items() if name in second.hyper}
    new = train.start(second, train_key, known)  # the same key: the same episodes
    begun = dataclasses.replace(new, state=take_over(new.state, run.state.agent))
    run, dreams = train.train(second, begun, imagined)

    cloned = begun.state.agent
    both = jax.tree.map(lambda *states: jnp.stack(states), cloned, run.state.agent)

    def real(greedy):
        def play(state):
            policy = Policy(second.agent.act, second.agent.memory, state)  # type: ignore
            return evaluate(env, policy, key, played, greedy).returns.mean()

        return jax.vmap(play)(both)

    drawn, greedy = real(False), real(True)

    held = dreamer4.Data(played, played, SKILLS).source(env)
    fresh = held.init(held_key, {"data.labelled": 1.0}, ())  # type: ignore[arg-type]
    error = lambda steps: rollout_error(env, cloned, fresh.whole, key, steps)
    return {
        "cloned": drawn[0],
        "imagined": drawn[1],
        "cloned, greedy": greedy[0],
        "imagined, greedy": greedy[1],
        "data": run.state.source.whole.transitions.reward.sum(0).mean(),
        **{f"error of {steps} denoising steps": error(steps) for steps in DENOISING},
        "frame loss": m.values(row)["frame_loss"],
        "return imagined": m.values(dreams)["imagined_return"],
    }


def check(key: jax.Array, budget: Budget) -> Check:
    """The policy before and after imagination, seed by seed, for every variant at once."""
    names = list(VARIANTS)
    seeds = budget.num_seeds(2, 5, 20)
    keys = jnp.tile(jax.random.split(key, seeds), len(names))
    changed = {name: value for change in VARIANTS.values() for name, value in change.items()}
    default = {"conditioned": 1.0, "bootstrap": 1.0}
    hyper = {
        name: jnp.repeat(jnp.float32([VARIANTS[v].get(name, default[name]) for v in names]), seeds)
        for name in changed
    }
    sizes = budget.choose((8, 4, (2, 2), 4), (EPISODES, BATCH, (WORLD, IMAGINED), 256))
    run = jax.jit(jax.vmap(lambda key, hyper: _run(key, hyper, *sizes)))
    found = {name: np.asarray(x, np.float64) for name, x in run(keys, hyper).items()}
    of = lambda variant, what: found[what].reshape(len(names), seeds)[names.index(variant)]

    main, untold = names[:2]
    details = [
        figure(f"{what}: {variant}", of(variant, what))
        for variant in names
        for what in found
        if what in ("cloned", "imagined", f"error of {STEPS} denoising steps") or variant == main
    ]
    return compare(
        CLAIM,
        METRIC,
        figure("imagination", of(main, "imagined")),
        figure("cloning", of(main, "cloned")),
        budget,
        MARGIN,
        figure("imagination, model not told actions", of(untold, "imagined")),
        details,
        NOTES,
    )
