"""Contract of every registered algorithm with the loop, sweeps, devices and accelerators, at the
smallest settings that take all its branches (`TINY` of its module).

The first half traces and compiles nothing; the second compiles and runs one program for each name.
Each day some names are tested (`tests/rota.py`): a core, those that a change can affect, and others
in turn; fewer in the second half. `make test-all` tests all of them.

That a run resumes to the same bits is a property of the kit and of checkpoints, since the whole
state is one pytree, and is tested there (`tests/kit/test_resuming.py`); here it is checked for the
names of the day.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import registry
from jaxrl.algorithms.meta import lpg
from jaxrl.core import metrics as m
from jaxrl.core import random, shared, spaces
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers, read_hyper
from jaxrl.core.settings import lookup, replace
from jaxrl.core.train import advance, start
from jaxrl.runtime import checkpoints, continuing
from jaxrl.runtime.driver import Program, Progress
from tests import rota
from tests.contracts.devices import all_gathers, assert_equal, numbers
from tests.contracts.effects import without_effect
from tests.contracts.structure import check_structure

NAMES = registry.names()
TODAY = rota.plan()
TRACED = TODAY.algorithms_today(size=20, most=50)
COMPILED = TODAY.algorithms_today(size=7, most=16)
SPLIT = TODAY.algorithms_today(size=3, most=8)  # compiled for eight devices, and for one
# So few that `make test` compiles them too.
FEW = TODAY.algorithms if len(TODAY.algorithms) <= 3 else set()


def each(chosen, late=()):
    """Parametrize a test by name: names not chosen are marked `rest`, those of `late` `slow`."""
    marks = {name: [] if name in chosen else [pytest.mark.rest] for name in NAMES}
    for name in late:
        marks[name].append(pytest.mark.slow)
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in NAMES])


traced = each(TRACED)
compiled = each(COMPILED, late=COMPILED - FEW)
split = each(SPLIT, late=SPLIT - FEW)


@functools.cache
def tiny(name):
    env, config = registry.tiny(name)
    if name == "lpg":  # which learns by a rule that others evolved: here one that nobody did
        state = lpg.agent(env, config).init(random.key(0), hypers(config))
        path = Path(tempfile.mkdtemp()) / "rule.npz"
        lpg.save_rule(path, state.rule)
        config = dataclasses.replace(config, rule=str(path))
    return env, registry.builder(name)[0](env, config)


# Datasets are a few random steps.
pytestmark = pytest.mark.usefixtures("no_training")


def test_the_selection_knows_every_name():
    assert set(TODAY.families) == set(NAMES)


# -------------------------------------------------------------------------------- shapes alone


@traced
def test_structure(name):
    """A step gives back what it takes, and each hyperparameter may differ between members."""
    algorithm = tiny(name)[1]
    check_structure(algorithm)
    run = shapes_of_a_run(algorithm)
    metrics = jax.eval_shape(lambda run: advance(algorithm, run)[1], run)
    assert "diverged" in metrics
    measured = jax.eval_shape(algorithm.measure, run.state, run.key)
    assert all(x.shape == () for x in measured.values()) and measured.keys() <= set(
        algorithm.scores
    )
    assert algorithm.scores.keys() <= metrics.keys() | measured.keys()


@pytest.mark.parametrize(
    ("name", "shown"),
    {
        "map_elites": ["coverage", "QD-score"],
        "lifelong_ppo": ["performance", "forgetting"],
        "league": ["won", "exploitability"],
        "spiral": ["exploitability"],
        "general_utilities": ["utility"],
        "token_supervised": ["pass@1"],
        "grpo": [],
        "ppo": [],
    }.items(),
)
def test_its_own_scores_have_names(name, shown):
    assert list(tiny(name)[1].scores.values()) == shown


def shapes_of_a_run(algorithm):
    return jax.eval_shape(lambda: start(algorithm, random.key(0)))


@traced
def test_the_policy_acts_in_its_environment(name):
    env, algorithm = tiny(name)

    def act(greedy):
        policy = algorithm.policy(start(algorithm, random.key(0)).state)
        reset = jax.vmap(env.reset, in_axes=(0, None))
        timestep = reset(jax.random.split(random.key(1), 3), env.params)[1]
        memory = policy.memory(3)
        action, after, _ = policy.act(policy.state, timestep, memory, random.key(2), greedy)
        example = jax.tree.map(lambda x: jnp.stack([x] * 3), spaces.example(env.action_space))
        return (action, after), (example, memory)

    for greedy in (True, False):
        got, expected = jax.eval_shape(functools.partial(act, greedy))
        alike = lambda x, y: x.shape == y.shape and x.dtype == y.dtype
        assert all(jax.tree.leaves(jax.tree.map(alike, got, expected)))


@traced
def test_it_lowers_for_accelerators(name):
    """XLA has not seen it there, but every operation has a rule for a TPU and for a GPU. The step
    has no effects either: what a checkpoint keeps is all that the next step depends on."""
    algorithm = tiny(name)[1]
    step = jax.jit(functools.partial(advance, algorithm)).trace(shapes_of_a_run(algorithm))
    assert not step.jaxpr.effects
    for platform in ("tpu", "cuda"):
        assert "stablehlo" in step.lower(lowering_platforms=(platform,)).as_text()


# Hyperparameters that only options or environments other than those of `TINY` use, or only metrics.
NOMINAL, VARIANCE = "reward.nominal_weight", "reward.variance_weight"
OPTIONAL = {
    "ads": ("discount",),  # as long as progress does not set it
    **dict.fromkeys(("cal_ql", "combo", "cql"), ("alpha",)),  # unless it is learned
    **dict.fromkeys(("crl", "gciql", "qrl"), ("extraction.cloning",)),
    **dict.fromkeys(("dpo", "evolve", "online_dpo", "rlhf_workflow", "spar"), ("temperature",)),
    "temporal_self_rewarding": ("temperature",),
    "oer": ("exploration_noise",),  # of TD3+BC; there is nothing to explore
    "ta_lpg": (
        *("prediction_entropy_weight", "entropy_weight", "signal_weight", "target_weight"),
        *("baseline_learning_rate", "gae_lambda"),  # of the gradient alone
    ),
    "uni_o4": ("improvement", "expectile"),  # what another phase learns
    "uni_o4_improvement": ("optimizer", "model", "target", "reward_scale", "discount", "alpha"),
    "v_mpo": ("policy_bound",),
    "vision_zero": ("high", "low"),
    "dreamer4_imagination": ("model",),  # what another phase learns
    "dreamer4_world_model": ("behavior",),
    "evolution_strategy": ("learning_rate", "weight_decay"),
    "iqn": ("risk",),
    "maddpg": ("logit_penalty",),
    "map_elites": ("floor",),
    "payment_bandits": ("exploration",),
    **dict.fromkeys(("pf_ppo", "salmon"), (NOMINAL, VARIANCE)),
    "reward_ensembles": (NOMINAL,),
    "reward_robust_rlhf": (VARIANCE,),
    "rlif": ("rate",),
}


@traced
def test_every_hyperparameter_has_an_effect_or_is_refused(name):
    env, algorithm = tiny(name)
    found, optional = without_effect(env, algorithm), OPTIONAL.get(name, ())
    for path in optional:
        assert path in found or any(other.startswith(f"{path}.") for other in found), (
            f"OPTIONAL lists {path}"
        )
    for path in found:
        if path in optional or path.split(".")[0] in optional:
            continue
        group, _, last = path.rpartition(".")
        if last == "target_kl" and not lookup(algorithm.config, f"{group}.early_stop"):
            continue
        with pytest.raises(UserError):
            changed = replace(algorithm.config, {path: other(algorithm.hyper[path])})
            registry.builder(name)[0](env, changed)


# --------------------------------------------------------------------------------- whole programs


@compiled
def test_members_checkpoints_and_resume(name, tmp_path):
    """Members 0 and 1 differ in the seed, each further one in one hyperparameter from member 0.
    Three steps at once and three with a checkpoint between end in the same bits."""
    algorithm = tiny(name)[1]
    names = sorted(algorithm.hyper)
    count = len(names) + 2
    hyper = {n: jnp.full(count, algorithm.hyper[n], jnp.float32) for n in names}
    for i, n in enumerate(names):
        hyper[n] = hyper[n].at[i + 2].set(other(algorithm.hyper[n]))
    seeds = jnp.zeros(count, int).at[1].set(1)
    program = Program(algorithm, members=count)
    keys = jax.vmap(random.key)(seeds)
    first = program.start(keys, hyper)
    for n, values in hyper.items():
        np.testing.assert_array_equal(read_hyper(first.run)[n], values)
    chunk = program.compile(first)

    straight = chunk(program.start(keys, hyper), 3)
    halfway = chunk(first, 2)
    path = checkpoints.save(tmp_path, 2, shared.strip(halfway), {})
    resumed, _ = continuing.restore(path, program.shapes(keys))
    after = chunk(program.place(resumed), 1)
    assert bits(after) == bits(straight)

    assert (np.asarray(after.row["diverged"].step) == m.NEVER).all()
    state = [np.asarray(x) for x in numbers(after.run.state) if x.dtype == jnp.float32]
    differs = lambda i: any(not np.array_equal(x[0], x[i], equal_nan=True) for x in state)
    assert all(differs(i) for i in range(1, count))  # the seed, and each value stored


def other(value):
    """Another value near a hyperparameter's default that its range allows."""
    return 0.3 if np.isinf(value) or value == 0 else 0.9 * float(value)


def bits(progress: Progress):
    return [np.asarray(x).tobytes() for x in numbers(progress)]


# Algorithms that gather more over devices than 64 numbers, and what it is.
GATHERED = {
    "achievement_distillation": "the windows, from whose episodes steps and pairs are drawn",
    "arp": "windows, flattened for a loss, and the rows that embeddings of times learn from",
    "cost_sensitive_portfolio": "windows, whose time and episodes are one axis in convolutions",
    "decision_transformer": "the rows that the embeddings of times are learned from",
    "dreamer": "each step of a window begins an imagined episode",
    "dreamer4_imagination": "keys and values of the transformer's windows",
    "dreamer4_world_model": "keys and values of the transformer's windows",
    "genetic": "the weights of parents",
    "ppga": "the weights of elites",
    "gmah": "the window in the words that the replay packs it into",
    "lamo": "the rows that the embeddings of times are learned from",
    "modt": "the rows that the embeddings of times are learned from",
    "sbd": "the rows that the embeddings of times are learned from",
    "lifelong_ppo": "what the rehearsal buffer keeps",
    "stp": "statements and proofs of the last rounds, which are compared with one another",
    "vpl": "the pairs of segments that a user is asked about",
    "heron": "the pairs of segments, which are drawn from the whole window",
    "ultrafeedback": "the answers of a batch, drawn from a dataset that every device holds",
    **dict.fromkeys(
        [
            *(name for name, family in TODAY.families.items() if family == "tokens"),
            *("self_redteam", "pasodoble", "ssp", "spc", "vision_zero", "glider", "mae", "comas"),
            "flag_trader",
            *("a_lol", "a_lol_value"),
            *("spiral", "dpo", "online_dpo", "orpo", "simpo", "cpo", "kto", "t_reg"),
            *("nash_mirror_prox", "egpo", "nash_md", "inpo", "sppo", "rebel"),
            *("spo", "copg", "reward_model", "reward_ensembles", "reward_robust_rlhf", "pf_ppo"),
            *("preference_model", "rlhf_workflow", "temporal_self_rewarding", "seppo", "cgpo"),
            *("rewarded_soups", "domain_reward_model", "salmon_reward_model", "salmon"),
            *("salsa", "salsa_supervised", "smart", "genius", "evolve", "spar"),
            *("seq2seq_reward_model", "seq2seq_rm", "makto"),
        ],
        "the transformer's caches, or what its positions are learned from",
    ),
}


# Algorithms without a batch, of which devices share seeds alone, and what they have instead.
WHOLE = {
    "adaptive_ftrl": "tables that every game changes",
    "icpl": "agents that learn side by side, each from rollouts of its own",
    "igt_mpc": "games that every device draws and solves",
    "pragmatic_synthesizer": "examples of a small table, of which every device makes all",
    "targeted_acquisition": "rounds of play, questions and cloning, all on every device",
}


@split
def test_one_program_means_the_same_on_eight_devices(name):
    """Two seeds on devices of their own, and the batch of each, if it has one, on four."""
    algorithm = tiny(name)[1]
    shards = 1 if name in WHOLE else 4
    assert (algorithm.num_shards or 1) % shards == 0, "its TINY settings are for four devices"
    ends, keys = [], jax.vmap(random.key)(jnp.arange(2))
    for layout in ({}, {"seeds": 2, "batch": shards}):
        program = Program(algorithm, 2, layout)
        begun = program.start(keys)
        compiled = program._compile_chunk(begun)
        if layout:
            assert name in WHOLE or "all-reduce" in compiled.as_text()
            assert name in GATHERED or max(all_gathers(compiled), default=0) <= 64
        ends.append(compiled(begun.run, begun.row, jnp.int32(1)))
    assert_equal(*(numbers(end.run.state) for end in ends), 1e-4)
