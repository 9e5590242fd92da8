"""Token algorithms whose policy is a language model from a folder, with a reward on the host."""

import itertools

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.commands import command_line, export
from jaxrl.core import random, shared
from jaxrl.core.errors import UserError
from jaxrl.envs.language.verifying import verifying
from jaxrl.envs.language.vocabulary import characters
from jaxrl.networks import decoder_files
from jaxrl.runtime.driver import Program
from tests.contracts.devices import assert_equal, numbers

pytest.importorskip("safetensors")

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 4,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
SMALL = {"prompts": 4, "answers": 4, "num_shards": 2, "lora_rank": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    decoder_files.write_new(path, CONFIG)
    return path


def verify(prompt: str, answer: str) -> float:
    return 1.0 if answer == prompt[::-1] else 0.5 * (answer[:1] == prompt[-1:])


PROMPTS = ["".join(p) for n in (1, 2) for p in itertools.product("abc", repeat=n)]


@pytest.fixture(scope="module")
def env():
    return verifying("reverse", PROMPTS, verify, characters("abc"), 3)


def build(name, env, folder, **settings):
    builder = getattr(jaxrl.algorithms, name)
    return builder(env, {**SMALL, "decoder.model": str(folder), **settings})


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.slow
def test_only_adapters_have_an_optimizer_a_reference_and_updates(env, folder):
    grpo = build("grpo", env, folder, learning_rate=0.1)
    begun = jaxrl.start(grpo, jaxrl.key(0))
    run, _ = jax.jit(lambda run: jaxrl.train(grpo, run, 2))(begun)
    first, last = (x.state.agent.parts["actor_critic"] for x in (begun, run))
    own = jax.tree.structure(first.params["params"])
    assert shared.is_shared(first.params["frozen"])
    assert jax.tree.structure(last.optimizer.mu["params"]) == own
    assert jax.tree.structure(last.target["params"]) == own
    assert set(last.target) == set(last.optimizer.mu) == {"params"}
    for before, after in zip(
        leaves(first.params["frozen"].value), leaves(last.params["frozen"].value), strict=True
    ):
        np.testing.assert_array_equal(before, after)
    for before, after in zip(leaves(first.params["params"]), leaves(last.target), strict=True):
        np.testing.assert_array_equal(before, after)
    changed = last.params["params"]["decoder"]["blocks_0"]["q_proj"]["lora_b"]
    assert np.abs(changed).max() > 1e-3
    stripped = shared.strip(run).state.agent.parts["actor_critic"]  # as a checkpoint has it
    assert stripped.params["frozen"].value is None


@pytest.mark.slow
def test_members_share_the_frozen_weights_and_draw_adapters_of_their_own(env, folder):
    program = Program(build("grpo", env, folder), 2)
    begun = program.start(jax.vmap(random.key)(np.arange(2)))
    params = begun.run.state.agent.parts["actor_critic"].params
    kernels = params["frozen"].value["decoder"]["blocks_0"]["q_proj"]["kernel"]
    own = np.asarray(params["params"]["decoder"]["blocks_0"]["q_proj"]["lora_a"])
    assert kernels.shape == (16, 32)
    assert own.shape == (2, 16, 2) and np.abs(own[0] - own[1]).max() > 0.1
    end = program.compile(begun)(begun, 1).run.state
    assert end.agent.parts["actor_critic"].params["frozen"].value["embed_tokens"].shape == (4, 16)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"model": 2}, {"batch": 2}], ids=["model", "batch"])
def test_a_mesh_splits_the_kernels_by_their_names_and_computes_the_same(env, folder, layout):
    grpo = build("grpo", env, folder)
    alone = Program(grpo)
    begun = alone.start(random.key(0))
    expected = numbers(alone.compile(begun)(begun, 1).run.state)
    program = Program(grpo, None, layout)
    begun = program.start(random.key(0))
    params, by_model = begun.run.state.agent.parts["actor_critic"].params, layout.get("model", 1)
    block = params["frozen"].value["decoder"]["blocks_0"]
    for name, axis in {"q_proj": 1, "gate_proj": 1, "o_proj": 0, "down_proj": 0}.items():
        x = block[name]["kernel"]
        held = list(x.shape)
        held[axis] //= by_model
        assert x.sharding.shard_shape(x.shape) == tuple(held)
    adapter = params["params"]["decoder"]["blocks_0"]["q_proj"]
    assert adapter["lora_a"].sharding.shard_shape((16, 2)) == (16, 2)
    assert adapter["lora_b"].sharding.shard_shape((2, 32)) == (2, 32 // by_model)
    assert_equal(expected, numbers(program.compile(begun)(begun, 1).run.state), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_max", "dpo", "nash_mirror_prox"])
def test_other_algorithms_have_it_as_their_policy(folder, name):
    judged = jaxrl.make("judged_words", letters=3, length=2)
    env = judged if name != "ppo_max" else verifying("r", PROMPTS, verify, characters("abc"), 3)
    settings = {"prompts": 4} if name == "nash_mirror_prox" else {}
    settings = {"count": 8, "batch_size": 4} if name == "dpo" else settings
    settings = {"prompts": 4, "answers": 2} if name == "ppo_max" else settings
    builder = getattr(jaxrl.algorithms, name)
    built = builder(env, {**settings, "decoder.model": str(folder), "lora_rank": 2})
    run = jaxrl.start(built, jaxrl.key(0))
    run, _ = jax.jit(lambda run: jaxrl.train(built, run, 2))(run)
    assert all(np.isfinite(x).all() for x in leaves(run.state.agent.parts["actor_critic"].params))
    measured = jax.jit(built.measure)(run.state, jaxrl.key(1))
    assert name == "ppo_max" or np.isfinite(measured["exact_return"])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rest_em", {"answers": 2}),  # begins rounds at the reference
        ("kimi_k1_5", {"answers": 2, "count": 8, "passes.minibatches": 2}),  # with a new optimizer
        ("rewarded_soups", {"answers": 4}),  # mixes parameters
        ("ilql", {"texts.writer": "policy", "count": 8, "num_envs": 4}),  # has values with a cache
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_puts_parameters_or_networks_together_can_be_traced(folder, name, settings):
    env = jaxrl.make("ruled_words", letters=3, length=2)
    assert env.action_space.n == CONFIG["vocab_size"]
    settings = {**settings, "decoder.model": str(folder), "lora_rank": 2}
    settings |= {} if name == "ilql" else {"prompts": 4}
    built = getattr(jaxrl.algorithms, name)(env, settings)
    begun = jax.eval_shape(lambda key: jaxrl.start(built, key), random.key(0))
    after = jax.eval_shape(lambda run: jaxrl.train(built, run, 1)[0], begun)
    assert shared.is_shared(after.state.agent.parts["actor_critic"].params["frozen"])


def test_another_vocabulary_than_the_models_is_refused_in_a_sentence(folder):
    said = r"has a vocabulary of 4 tokens, and 'addition' is of Discrete\(.*13.*\); both must be"
    with pytest.raises(UserError, match=said):
        build("grpo", jaxrl.make("addition"), folder)
    env = verifying("reverse", PROMPTS, verify, characters("abc"), 3)
    with pytest.raises(UserError, match="There is no folder"):
        build("grpo", env, folder / "none")


@pytest.mark.slow
def test_grpo_improves_a_model_from_the_command_line_and_writes_it(tmp_path, monkeypatch, folder):
    """A task in a file of one's own, as in docs/tutorials/tokens.md."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_reversal.py").write_text(
        "from jaxrl.core.types import Environment\n"
        "from jaxrl.envs.language.verifying import verifying\n"
        "from jaxrl.envs.language.vocabulary import characters\n\n\n"
        "def verify(prompt, answer):\n"
        "    return float(answer == prompt[::-1])\n\n\n"
        "def task() -> Environment:\n"
        "    return verifying('reverse', ['ab', 'bc', 'ca'], verify, characters('abc'), 2)\n"
    )
    from jaxrl.commands import train

    words = ["grpo", "--model", str(folder), "--env", "my_reversal:task", "--answers", "16"]
    words += ["--prompts", "8", "--learning-rate", "0.003", "--steps", "80000", "--quiet"]
    words += ["--entropy-weight", "0.03", "--evaluate-every", "-1"]
    assert command_line.call(train.main, words) == 0
    (run,) = (tmp_path / "runs").iterdir()
    trained = jaxrl.load(run, trust=True)
    found = jaxrl.evaluate(trained.env, trained.policy, jaxrl.key(0), 64)
    assert found.metrics["success"].mean() > 0.9
    assert command_line.call(export.main, [str(run), "--format", "safetensors", "--trust"]) == 0
    read = lambda params: params["params"]["decoder"]["blocks_0"]["q_proj"]["kernel"]
    written = decoder_files.read_model(run / "model", 4).init(jaxrl.key(0))
    learned = trained.policy.state.parts["actor_critic"].params
    np.testing.assert_array_equal(read(written), read(learned))
    first = decoder_files.read_model(folder, 4).init(jaxrl.key(0))
    assert np.abs(read(written) - read(first)).max() > 1e-3
