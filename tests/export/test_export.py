"""Exported policies take the actions of the policies that they were made of."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.commands import command_line
from jaxrl.commands import export as script
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Policy, TimeStep
from jaxrl.envs import timesteps
from jaxrl.export import compiled, numpy_program, operations
from jaxrl.export.acting import Acting, acting, channels
from jaxrl.export.numpy_reader import Policy as Reader
from tests.runtime import tiny

NUMBER, STEPS = 250, 4  # episodes side by side, and steps of each: 1,000 observations
# Normalized observations, continuous actions, illegal actions, a memory that sees rewards, several
# agents, whole numbers in the memory.
NAMES = ("dqn", "ppo", "sac", "spiral", "r2d2", "mappo", "ecrm_reinforce")


@dataclasses.dataclass
class Case:
    name: str
    acting: Acting
    inputs: list[TimeStep]
    actions: list[dict[str, np.ndarray]]


def policy_of(name: str) -> tuple[Environment, Policy]:
    """Return the environment of an algorithm's tiny configuration, and a policy with random
    weights."""
    env, config = registry.tiny(name)
    algorithm = registry.builder(name)[0](env, config)
    return env, algorithm.policy(jaxrl.start(algorithm, random.key(1)).state)


@pytest.fixture(scope="module", params=NAMES)
def case(request) -> Case:
    """A policy, time steps that are unlike each other, and its own actions."""
    env, policy = policy_of(request.param)
    memory, inputs, actions = policy.memory(NUMBER), [], []
    act = jax.jit(lambda timestep, memory: policy.act(policy.state, timestep, memory, KEY, True))
    for i in range(STEPS):
        inputs.append(_timestep(env, np.random.default_rng(i), first=i == 0))
        action, memory, _ = act(inputs[-1], memory)
        actions.append(action)
    return Case(request.param, acting(env, policy), inputs, actions)


KEY = random.key(0)


def _timestep(env, generator, first: bool) -> TimeStep:
    """Return time steps [NUMBER] with normal observations and rewards, and one legal action at
    least."""
    shapes = jax.eval_shape(lambda: env.reset(random.key(0), env.params)[1])

    def draw(x):
        if x.dtype == bool:
            drawn = generator.random((NUMBER, *x.shape)) < 0.6
            return drawn | (np.arange(x.shape[-1]) == 0) if x.shape else np.full(NUMBER, first)
        return generator.normal(size=(NUMBER, *x.shape)).astype(x.dtype)

    return jax.tree.map(draw, shapes)


def _assert_same(found, expected) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(np.asarray(y).dtype, np.floating):
            np.testing.assert_allclose(x, y, atol=2e-5)
        else:
            # Two best actions may be equal but for rounding.
            assert np.mean(np.asarray(x) == np.asarray(y)) > 0.995


def test_it_reads_only_what_the_action_depends_on(case):
    names = set(case.acting.inputs)
    assert names <= set(channels(case.inputs[0])) and not names & {"terminated", "truncated"}
    assert any(name.startswith("observation") for name in names)


def test_stablehlo_acts_as_the_policy_for_any_number_of_episodes(case, tmp_path):
    pytest.importorskip("flatbuffers")
    compiled.write_stablehlo(case.acting, tmp_path / "new" / "policy", {"env": "x"})
    policy = compiled.load(tmp_path / "new" / "policy").policy
    memory = policy.memory(NUMBER)
    for timestep, expected in zip(case.inputs, case.actions, strict=True):
        action, memory, _ = policy.act(None, timestep, memory, KEY, True)
        assert jax.tree.structure(action) == jax.tree.structure(expected)
        _assert_same(action, expected)
    one = jax.tree.map(lambda x: x[:1], case.inputs[0])
    action, _, _ = policy.act(None, one, policy.memory(1), KEY, True)
    _assert_same(action, jax.tree.map(lambda x: x[:1], case.actions[0]))


def test_numpy_acts_as_the_policy(case, tmp_path):
    numpy_program.write(case.acting, tmp_path / "policy.npz", {"env": "x"})
    policy = Reader(tmp_path / "policy.npz")
    memories = [policy.memory] * NUMBER
    for timestep, expected in zip(case.inputs, case.actions, strict=True):
        found = channels(timestep)
        steps = [{name: found[name][i] for name in policy.inputs} for i in range(NUMBER)]
        done = [policy.act(step, memory) for step, memory in zip(steps, memories, strict=True)]
        memories = [memory for _, memory in done]
        actions = {name: np.stack([x[name] for x, _ in done]) for name in policy.about["actions"]}
        _assert_same(compiled._action(actions), expected)


@pytest.mark.slow
def test_onnx_acts_as_the_policy(case, tmp_path):
    pytest.importorskip("jax2onnx")
    runtime = pytest.importorskip("onnxruntime")
    command = [sys.executable, "-m", "tests.export.onnx_case", case.name, "policy.onnx"]
    done = subprocess.run(
        command, cwd=tmp_path, env=tiny.environment(), capture_output=True, text=True, check=True
    )
    if case.name == "ecrm_reinforce":  # whole numbers that are divided
        assert "jax2onnx cannot convert the policy" in done.stdout
        return
    session = runtime.InferenceSession(tmp_path / "policy.onnx")
    names = [x.name for x in session.get_outputs()]
    memory = {k: np.repeat(np.asarray(x)[None], NUMBER, 0) for k, x in case.acting.memory.items()}
    for timestep, expected in zip(case.inputs, case.actions, strict=True):
        found = channels(timestep)
        given = {name: np.asarray(found[name]) for name in case.acting.inputs} | memory
        read = {x.name for x in session.get_inputs()}
        outputs = session.run(None, {name: x for name, x in given.items() if name in read})
        outputs = dict(zip(names, outputs, strict=True))
        memory = {name: outputs[f"next_{name}"] for name in memory}
        actions = {name: outputs[name] for name in case.acting.actions}
        _assert_same(compiled._action(actions), expected)


# -------------------------------------------------------------------------------- the programs


def test_a_program_keeps_only_what_its_outputs_need():
    def function(x, y, z):
        constant = jnp.sin(jnp.arange(3.0))  # computed once, here
        unused = jnp.exp(y)
        return jax.jit(lambda x: x * constant)(x) + 0 * unused.shape[0], z

    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    program = operations.trace(function, shape, shape, shape)
    x, y, z = program.inputs
    assert {x, z} <= program.dependencies and y not in program.dependencies
    assert not {"sin", "exp", "iota"} & {operation.name for operation in program.operations}
    found, same = program.run(*3 * [jnp.ones(3)])
    np.testing.assert_allclose(found, np.sin(np.arange(3.0)), rtol=1e-6)
    np.testing.assert_array_equal(same, np.ones(3))


OPERATIONS = {
    "matrices": lambda x, n: (x @ x.T, jnp.einsum("ij,kl->ljki", x, x)),
    "batches": lambda x, n: jnp.einsum("bij,bjk->bki", x.reshape(2, 2, 3), x.reshape(2, 3, 2)),
    "parts": lambda x, n: jnp.concatenate([x[::2], x[:1, ::-1], *jnp.split(x, 3)]),
    "sums": lambda x, n: (x.sum(0), x.max(1), (x > 0).any(), (x > -9).all(0), jax.lax.cumsum(x, 1)),
    "whole": lambda x, n: (
        n // 3, n % 3, -n // 2, n**2, jnp.clip(n, -2, 2), jnp.sign(n), jax.lax.cumsum(n, 0)
    ),
    "choices": lambda x, n: (jnp.where(x > 0, x, n[:, None]), jnp.argmin(x, 1), jnp.argmax(x)),
    "functions": lambda x, n: (
        jax.nn.softmax(x), jax.nn.gelu(x), jax.nn.silu(x), jax.nn.elu(x), jax.nn.softplus(x),
        jnp.sqrt(jnp.abs(x)), jax.lax.rsqrt(x**2 + 1), jnp.floor(x), jnp.isfinite(x),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_reader_computes_what_jax_does(name, tmp_path):
    function = OPERATIONS[name]
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    n = np.array([-7, 0, 5], np.int32)
    leaves = lambda inputs: jax.tree.leaves(function(inputs["x"], inputs["n"]))
    named = lambda inputs, memory: ({f"a{i:02}": y for i, y in enumerate(leaves(inputs))}, memory)
    shapes = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype), "n": jax.ShapeDtypeStruct((3,), n.dtype)}
    numpy_program.write(Acting(named, shapes, {}), tmp_path / "p.npz", {})
    found, _ = Reader(tmp_path / "p.npz").act({"x": x, "n": n})
    expected = leaves({"x": jnp.asarray(x), "n": jnp.asarray(n)})
    for ours, theirs in zip(found.values(), expected, strict=True):
        assert np.shape(ours) == theirs.shape and np.asarray(ours).dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


def test_what_the_reader_cannot_do_is_refused(tmp_path):
    shapes = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    sorting = Acting(lambda inputs, memory: ({"a": jnp.sort(inputs["x"])}, memory), shapes, {})
    with pytest.raises(UserError, match="uses the operation 'sort'"):
        numpy_program.write(sorting, tmp_path / "p.npz", {})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
        lambda x: jnp.ones(3, jnp.bfloat16),
    ],
)
def test_numbers_that_numpy_does_not_have_are_refused(function, tmp_path):
    shapes = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    half = Acting(lambda inputs, memory: ({"a": function(inputs["x"])}, memory), shapes, {})
    with pytest.raises(UserError, match="computes in bfloat16, which NumPy does not have"):
        numpy_program.write(half, tmp_path / "p.npz", {})
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------- the command


def test_the_command_writes_a_policy_that_plays(finished_run, tmp_path, capsys):
    pytest.importorskip("flatbuffers")
    file = tmp_path / "policy.stablehlo"
    assert command_line.call(script.main, [str(finished_run), "--out", str(file)]) == 0
    assert "Inputs: observation. Greedy actions." in capsys.readouterr().out
    exported = jaxrl.load(file)
    assert exported.about["algorithm"] == "ppo" and exported.env.name == "cartpole"
    trained = jaxrl.load(finished_run)
    play = lambda policy: jaxrl.evaluate(exported.env, policy, KEY, episodes=8)
    np.testing.assert_array_equal(play(exported.policy).returns, play(trained.policy).returns)


@pytest.mark.slow
def test_a_policy_keeps_the_settings_and_wrappers_of_its_environment(tmp_path):
    pytest.importorskip("flatbuffers")
    words = ("--env-params", "force=20", "--wrappers", "[{frame_stack: {frames: 2}}]")
    run = tiny.train(tmp_path, "run", *words)
    assert command_line.call(script.main, [str(run)]) == 0
    exported = jaxrl.load(run / "policy.stablehlo")
    assert exported.env is jaxrl.load(run).env
    assert jaxrl.evaluate(exported.env, exported.policy, KEY, episodes=2).finished.all()


def test_the_reader_runs_without_jax(finished_run, tmp_path):
    out = tmp_path / "policy.npz"
    argv = [str(finished_run), "--format", "numpy", "--out", str(out)]
    assert command_line.call(script.main, argv) == 0
    code = """
import sys
sys.modules["jax"] = sys.modules["jaxrl"] = None
import numpy_reader
policy = numpy_reader.Policy("policy.npz")
actions, memory = policy.act({"observation": [0.0, 0.1, 0.02, -0.3]})
print(policy.about["env"], int(actions["action"]), memory)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    policy = jaxrl.load(finished_run).policy
    timestep = timesteps.first(jnp.array([[0.0, 0.1, 0.02, -0.3]]))
    action, _, _ = policy.act(policy.state, timestep, policy.memory(1), KEY, True)
    assert done.stdout == f"cartpole {int(action[0])} {{}}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--format pickle", "Unknown value of --format 'pickle'"),
        ("--member 7", "member is 7"),
        ("--out {run}/config.yaml/x", "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(finished_run, capsys, words, said):
    argv = [str(finished_run), *words.format(run=finished_run).split()]
    assert command_line.call(script.main, argv) == 2
    assert said in capsys.readouterr().err


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "policy"
    file.write_text("hello")
    with pytest.raises(UserError, match="is no policy that jaxrl exported"):
        jaxrl.load(file)


def test_environments_on_the_host_are_described_by_their_spaces():
    env = envs.make("gymnasium/CartPole-v1")
    build, Config = registry.builder("dqn")
    algorithm = build(env, Config())
    policy = algorithm.policy(algorithm.init(random.key(0), algorithm.hyper))
    assert list(acting(env, policy).inputs) == ["observation"]
