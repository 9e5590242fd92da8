"""A run of a recipe resumes to the same bits, whatever the recipe keeps.

An agent of the kit has no state but `jaxrl.kit.state.State`, one pytree that a checkpoint holds
whole. So this is tested here once, with a recipe that keeps something in every place there is; the
contract of algorithms checks only some names.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core import random, shared
from jaxrl.core.examples import example_timestep
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, hyper, loss
from jaxrl.kit.groups import Normalization, Optimizer, Priorities, Replay, Target
from jaxrl.runtime import checkpoints, continuing
from jaxrl.runtime.driver import Program
from tests.learning.probes import probe


@group
class Config:
    replay: Replay = Replay(num_envs=2, num_steps=2, updates=2, batch_size=4, capacity=16, warmup=4)
    priorities: Priorities = Priorities(importance_steps=50.0)
    optimizer: Optimizer = Optimizer(learning_rate_end=0.0, learning_rate_steps=40.0)
    flat: Optimizer = Optimizer(name="rmsprop", flat=True)
    target: Target = Target(rate=0.5, period=2)
    normalization: Normalization = Normalization(observation=True)
    discount: float = hyper(0.9, low=0, high=1)


class Normalized(nn.Module):
    """Action values with running moments beside the parameters."""

    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(2)(nn.BatchNorm(not train, momentum=0.5)(x))


def recipe(env, config):
    @loss("q", "ensemble")
    def q_loss(net, x):
        q, state = net.q(x.observation, train=True, mutable="batch_stats")
        goal = x.reward + net.hyper.discount * net.target.q(x.next_timestep.observation).max(-1)
        error = jnp.take_along_axis(q, x.action[..., None], -1)[..., 0] - goal
        spread = net.ensemble(x.observation)[..., 0] - jax.random.normal(net.key(), goal.shape)
        value = jnp.square(error) + jnp.square(spread).sum(0)
        return LossOutput(value, state={"q": state}, priority=jnp.abs(error))

    @loss("own")
    def own_loss(net, x):
        return jnp.square(net.own(x.observation) - net.anchor(x.observation) - x.reward[:, None])[
            :, 0
        ]

    def act(net, timestep, memory, key, greedy):
        q = net.q(timestep.observation) + memory[:, None]
        noise = jax.random.gumbel(key, q.shape)
        action = (q if greedy else q + noise).argmax(-1).astype(env.action_space.dtype)
        return action, memory + 0.1, {}

    def update(net, batch):
        net = net.descend(q_loss, batch).descend(own_loss, batch, every=2).update_targets()
        seen = net.extra["seen"] + batch.transitions.reward.sum()
        return net.replace(extra={"seen": seen, "key": jax.random.split(net.extra["key"])[0]})

    inputs = (example_timestep(env).observation,)
    dense = nn.Dense(1)
    return Recipe(
        parts={
            "q": Part(Normalized(), inputs, config.optimizer, config.target),
            "ensemble": Part(dense, inputs, config.flat, members=3),
            "own": Part(dense, inputs, optax.sgd(0.1, momentum=0.9)),
            "anchor": Part(dense, inputs, begins_as="own"),
        },
        act=act,
        losses=(q_loss, own_loss),
        update=update,
        extra={"seen": jnp.float32(0), "key": random.key(5)},
        memory=lambda n: jnp.zeros(n),
    )


keeper = AlgorithmBuilder(
    "keeper",
    Config,
    recipe,
    source=lambda env, config: config.replay.source(
        env, None, config.priorities.sampler("priorities")
    ),
)


def numbers(tree):
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def program():
    algorithm = keeper(probe())
    program = Program(algorithm, members=2)
    keys = jax.vmap(random.key)(jnp.arange(2))
    hyper = {n: jnp.full(2, v, jnp.float32) for n, v in algorithm.hyper.items()}
    begin = lambda: program.start(keys, hyper)
    return program, keys, begin, program.compile(begin())


def test_a_run_resumes_to_the_same_bits(program, tmp_path):
    program, keys, begin, chunk = program
    straight = numbers(chunk(begin(), 6))
    for steps in (1, 3, 5):
        halfway = chunk(begin(), steps)
        path = checkpoints.save(tmp_path, steps, shared.strip(halfway), {})
        resumed, _ = continuing.restore(path, program.shapes(keys))
        after = numbers(chunk(program.place(resumed), 6 - steps))
        assert [x.tobytes() for x in after] == [x.tobytes() for x in straight]


def test_each_place_holds_something_that_changes(program):
    """Otherwise its loss would not show."""
    _, _, begin, chunk = program
    before, after = (shared.strip(progress).run.state for progress in (begin(), chunk(begin(), 6)))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(before)]
    pairs = zip(paths, numbers(before), numbers(after), strict=True)
    changed = {path for path, x, y in pairs if x.tobytes() != y.tobytes()}
    for place in ("extra", "updates", "env_steps", "target", "batch_stats", "optimizer", "source"):
        assert any(place in path for path in changed), (place, sorted(changed))
    for part in ("q", "ensemble", "own"):
        assert any(f"'{part}'].params" in path for path in changed), part
    assert not any("'anchor'].params" in path for path in changed)
