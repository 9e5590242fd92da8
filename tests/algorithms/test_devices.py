"""One program gives the same numbers on one device and on four, for every kind of source."""

import pytest

from jaxrl import envs
from jaxrl.algorithms.planning.dreamer import dreamer
from jaxrl.algorithms.planning.muzero import muzero
from jaxrl.algorithms.policy_gradient.reinforce import reinforce
from jaxrl.algorithms.value.rainbow import rainbow
from jaxrl.core import random, settings
from tests.contracts.devices import all_gathers, assert_equal, compile_steps

REPLAY = {"num_envs": 4, "num_steps": 1, "updates": 2, "capacity": 256, "batch_size": 8}
CASES = {
    "reinforce": (reinforce, "catch", {"num_envs": 8, "torso.hidden": (8,)}),
    "rainbow": (
        rainbow,
        "catch",
        REPLAY | {"warmup": 16, "num_atoms": 5, "torso.hidden": (8,)},
    ),
    "muzero": (
        muzero,
        "cartpole",
        REPLAY
        | {"warmup": 64, "simulations": 2, "unroll": 2, "n_step": 2, "torso.hidden": (8,)}
        | {"width": 4, "num_atoms": 5, "reanalyse": 0.5},
    ),
    "dreamer": (
        dreamer,
        "cartpole",
        REPLAY
        | {"warmup": 32, "length": 4, "horizon": 2, "deterministic": 4, "groups": 2, "classes": 2}
        | {"hidden": (8,), "bins": 5},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_program_means_the_same_on_four_devices(name):
    builder, environment, changes = CASES[name]
    config = settings.replace(builder.Config(), changes | {"num_shards": 4})
    algorithm = builder(envs.make(environment), config)
    assert algorithm.num_shards == 4
    ends, programs = [], []
    for count in (1, 4):
        run, program = compile_steps(algorithm, random.key(0), 2, count)
        run, row = program(run)
        ends.append((run.state, row))
        programs.append(program)
    assert_equal(*ends)
    assert "all-reduce" in programs[1].as_text()
    if name != "dreamer":  # where each step of a window begins an imagined episode
        assert max(all_gathers(programs[1]), default=0) < 16  # a batch has 8 items
