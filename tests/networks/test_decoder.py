"""Language models from folders, against a forward pass in NumPy and against `transformers`."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.shared import Shared
from jaxrl.core.types import TimeStep
from jaxrl.kit.parts import Part, trainable
from jaxrl.networks import decoder, decoder_files
from jaxrl.networks.compute import Compute, computing
from jaxrl.networks.decoder import Adapters
from jaxrl.networks.heads import ReadOut, log_prob_and_entropy

safetensors = pytest.importorskip("safetensors.numpy")

V, D, LAYERS, HEADS, KEYS, WIDTH, LENGTH = 11, 12, 2, 4, 2, 6, 16
COMMON = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 10,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": WIDTH,
    "max_position_embeddings": LENGTH,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
CONFIGS = {
    "llama": {"model_type": "llama", "rope_theta": 50.0},
    "llama3": {
        "model_type": "llama",
        "attention_bias": True,
        "rope_theta": 50.0,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 12},
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {
        "model_type": "qwen3",
        "rope_parameters": {"rope_type": "default", "rope_theta": 9.0},
    },
}
TEXTS = np.random.default_rng(1).integers(0, V, (LENGTH, 3))  # [T, B]


def random_tensors(config, seed=0):
    """Draw the tensors of a file, by the names that such files have."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
    kind = config["model_type"]
    rows = {"q": HEADS * WIDTH, "k": KEYS * WIDTH, "v": KEYS * WIDTH, "o": D}
    found = {"model.embed_tokens.weight": draw(V, D), "model.norm.weight": 1 + draw(D)}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = draw(V, D)
    for i in range(LAYERS):
        prefix = f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}.{name}.weight"] = 1 + draw(D)
        for name, size in rows.items():
            inputs = HEADS * WIDTH if name == "o" else D
            found[f"{prefix}.self_attn.{name}_proj.weight"] = draw(size, inputs)
            if config.get("attention_bias") or (kind == "qwen2" and name != "o"):
                found[f"{prefix}.self_attn.{name}_proj.bias"] = draw(size)
        if kind == "qwen3":
            for name in ("q_norm", "k_norm"):
                found[f"{prefix}.self_attn.{name}.weight"] = 1 + draw(WIDTH)
        for name, shape in {"gate": (10, D), "up": (10, D), "down": (D, 10)}.items():
            found[f"{prefix}.mlp.{name}_proj.weight"] = draw(*shape)
    return found


def frequency(config, i):
    """Rotation of the pair i, in radians per token."""
    rope = config.get("rope_parameters", {})
    theta = config.get("rope_theta", rope.get("rope_theta", 10_000.0))
    plain = theta ** (-2 * i / WIDTH)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return plain
    wavelength, first = 2 * np.pi / plain, scaling["original_max_position_embeddings"]
    if wavelength < first / scaling["high_freq_factor"]:
        return plain
    if wavelength > first / scaling["low_freq_factor"]:
        return plain / scaling["factor"]
    smooth = first / wavelength - scaling["low_freq_factor"]
    smooth /= scaling["high_freq_factor"] - scaling["low_freq_factor"]
    return (1 - smooth) * plain / scaling["factor"] + smooth * plain


def forward(config, weights, text):
    """Compute the logits [T, V] of one text [T], position by position and head by head."""
    w = {name: x.astype(np.float64) for name, x in weights.items()}

    def norm(x, name):
        return w[f"{name}.weight"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def rotate(x, t):
        half, result = WIDTH // 2, x.copy()
        for i in range(half):
            angle = t * frequency(config, i)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            result[[i, i + half]] = turn @ x[[i, i + half]]
        return result

    x = w["model.embed_tokens.weight"][text]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}"
        y = norm(x, f"{prefix}.input_layernorm")
        q, k, v = (
            linear(y, f"{prefix}.self_attn.{n}_proj").reshape(len(text), -1, WIDTH) for n in "qkv"
        )
        if config["model_type"] == "qwen3":
            q, k = (norm(z, f"{prefix}.self_attn.{n}_norm") for n, z in (("q", q), ("k", k)))
        attended = np.zeros((len(text), HEADS, WIDTH))
        for t in range(len(text)):
            for head in range(HEADS):
                group = head // (HEADS // KEYS)
                scores = [
                    rotate(q[t, head], t) @ rotate(k[s, group], s) / np.sqrt(WIDTH)
                    for s in range(t + 1)
                ]
                share = np.exp(scores) / np.exp(scores).sum()
                attended[t, head] = share @ v[: t + 1, group]
        x = x + linear(attended.reshape(len(text), -1), f"{prefix}.self_attn.o_proj")
        y = norm(x, f"{prefix}.post_attention_layernorm")
        gate, up = (linear(y, f"{prefix}.mlp.{n}_proj") for n in ("gate", "up"))
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}.mlp.down_proj")
    x = norm(x, "model.norm")
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def write_folder(folder, name="llama", **changes):
    config = {**COMMON, **CONFIGS[name], **changes}
    weights = random_tensors({**COMMON, **CONFIGS[name]})
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(weights, folder / "model.safetensors")
    return config, weights


def logits(network, variables, texts=TEXTS):
    apply = jax.jit(lambda v, x: network.apply(v, x, method="logits"))
    return np.asarray(apply(variables, jnp.asarray(texts)))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_a_forward_pass_by_hand(tmp_path, name):
    config, weights = write_folder(tmp_path, name)
    network = decoder_files.read_model(tmp_path, LENGTH)
    found = logits(network, network.init(jax.random.key(0)))
    expected = np.stack([forward(config, weights, text) for text in TEXTS.T], 1)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(expected).max() > 1


def test_decoding_with_the_cache_is_the_whole_text_at_once(tmp_path):
    """A new text begins in the middle, with the old one's keys in the cache."""
    write_folder(tmp_path, "qwen3")
    network = decoder_files.read_model(tmp_path, LENGTH)
    variables, blank = network.init(jax.random.key(0)), network.initial(3)
    first = jnp.zeros(TEXTS.shape, bool).at[0].set(True).at[5, 1].set(True)
    fill = jnp.zeros(TEXTS.shape)
    steps = TimeStep(jnp.asarray(TEXTS), fill, fill > 0, fill > 0, first)
    unroll = lambda steps: network.apply(variables, steps, blank.shrink(), method="unroll")
    policy, value, _ = jax.jit(unroll)(steps)

    def step(memory, now):
        memory = memory.restart(now.first)
        policy, value, memory = network.apply(variables, now, memory)
        return memory, (policy.logits, value)

    _, (found, values) = jax.jit(lambda m: jax.lax.scan(step, m, steps))(blank)
    np.testing.assert_allclose(found, policy.logits, atol=1e-5)
    np.testing.assert_array_equal(values, value)
    read = network.apply(variables, steps, blank, method="read")[0]
    np.testing.assert_allclose(read.logits[:, 0], found[:, 0], atol=1e-5)
    whole = jax.nn.log_softmax(logits(network, variables))
    np.testing.assert_allclose(found[:, 0], whole[:, 0], atol=1e-5)
    again = jax.nn.log_softmax(logits(network, variables, TEXTS[5:]))
    np.testing.assert_allclose(found[5:, 1], again[:, 1], atol=1e-5)


def test_a_window_computed_again_has_its_logits_in_parts(tmp_path, monkeypatch):
    """The same log-probabilities, entropies and gradients of both."""
    monkeypatch.setattr(decoder, "LOGITS", 4 * V)  # four tokens at a time
    write_folder(tmp_path, "qwen2")
    network = decoder_files.read_model(tmp_path, LENGTH)
    variables, blank = network.init(jax.random.key(0)), network.initial(3).shrink()
    fill = jnp.zeros(TEXTS.shape)
    steps = TimeStep(jnp.asarray(TEXTS), fill, fill > 0, fill > 0, fill.at[0].set(1) > 0)

    def loss(variables, is_again):
        with computing(Compute(remat=is_again)):
            policy = network.apply(variables, steps, blank, method="unroll")[0]
        assert isinstance(policy, ReadOut) == is_again
        both = log_prob_and_entropy(policy, jnp.asarray(TEXTS[::-1]))
        return sum((x * jnp.cos(x)).sum() for x in both)

    (one, slope), (other, again) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, is_again=x)))(variables)
        for x in (False, True)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, slope, again)


def with_adapters(folder):
    """Return a network with adapters, and its parameters with random numbers for zeros."""
    adapters = Adapters(3, 6.0, ("q_proj", "o_proj", "down_proj"))
    network = decoder_files.read_model(folder, LENGTH, adapters)
    blank = network.init(jax.random.key(0))
    drawn = lambda path, x: jax.random.normal(jax.random.key(len(str(path))), x.shape)
    return (
        network,
        blank,
        {**blank, "params": jax.tree_util.tree_map_with_path(drawn, blank["params"])},
    )


def test_new_adapters_change_nothing_and_merged_ones_compute_the_same(tmp_path):
    _, weights = write_folder(tmp_path / "first")
    plain = decoder_files.read_model(tmp_path / "first", LENGTH)
    expected = logits(plain, plain.init(jax.random.key(0)))
    network, blank, changed = with_adapters(tmp_path / "first")
    np.testing.assert_allclose(logits(network, blank), expected, atol=1e-6)
    found = logits(network, changed)
    assert np.abs(found - expected).max() > 0.1
    decoder_files.write(network, changed, tmp_path / "second")
    merged = decoder_files.read_model(tmp_path / "second", LENGTH)
    np.testing.assert_allclose(logits(merged, merged.init(jax.random.key(0))), found, atol=1e-4)
    written = safetensors.load_file(tmp_path / "second" / "model.safetensors")
    name = "model.layers.1.self_attn.o_proj.weight"
    own = changed["params"]["decoder"]["blocks_1"]["o_proj"]
    by_hand = weights[name] + 2.0 * np.asarray(own["lora_a"] @ own["lora_b"]).T  # alpha / rank
    np.testing.assert_allclose(written[name], by_hand, atol=1e-5)
    assert written.keys() == weights.keys()
    same = "model.layers.1.self_attn.v_proj.weight"
    np.testing.assert_array_equal(written[same], weights[same])


def test_the_base_is_frozen_and_only_adapters_get_gradients(tmp_path):
    write_folder(tmp_path)
    network, _, changed = with_adapters(tmp_path)
    part = Part(network, ())

    def total(own, frozen):
        read = part.apply({**own, "frozen": frozen}, jnp.asarray(TEXTS), method="logits")
        return jnp.square(read).sum()

    frozen = changed["frozen"]
    assert isinstance(frozen, Shared)
    of = lambda value: Shared(value, frozen.digest, frozen.original)
    own = trainable(changed)
    assert set(own) == {"params"}
    to_base = jax.jit(jax.grad(lambda value: total(own, of(value))))(frozen.value)
    assert not any(np.any(x) for x in jax.tree.leaves(to_base))
    to_own = jax.jit(jax.grad(lambda own: total(own, frozen)))(own)["params"]["decoder"]
    assert all(np.any(x) for x in jax.tree.leaves(to_own))
    assert len(jax.tree.leaves(to_own)) == LAYERS * 3 * 2


def test_shards_and_other_precisions_are_read(tmp_path):
    _, weights = write_folder(tmp_path)
    whole = decoder_files.read_model(tmp_path)
    expected = logits(whole, whole.init(jax.random.key(0)))
    (tmp_path / "model.safetensors").unlink()
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        some = {n: x.astype(jnp.bfloat16) for n, x in weights.items() if places[n] == file}
        safetensors.save_file(some, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    network = decoder_files.read_model(tmp_path)
    found = logits(network, network.init(jax.random.key(0)))
    assert 0 < np.abs(found - expected).max() < 0.1
    index.write_text(json.dumps({"weight_map": {"x": "../x"}}))
    with pytest.raises(UserError, match="must map tensors to files of its folder"):
        decoder_files.read_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "part-7.safetensors"}}))
    with pytest.raises(UserError, match=r"has no part-7\.safetensors"):
        decoder_files.read_model(tmp_path)


def test_large_models_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_files, "_SHARD", 2000)
    write_folder(tmp_path / "first")
    (tmp_path / "first" / "tokenizer.json").write_text("{}")
    network = decoder_files.read_model(tmp_path / "first")
    variables = network.init(jax.random.key(0))
    decoder_files.write(network, variables, tmp_path / "second", dtype="bfloat16")
    assert len(list((tmp_path / "second").glob("model-*.safetensors"))) > 2
    assert (tmp_path / "second" / "tokenizer.json").exists()
    again = decoder_files.read_model(tmp_path / "second")
    np.testing.assert_allclose(
        logits(again, again.init(jax.random.key(0))), logits(network, variables), atol=0.1
    )
    with pytest.raises(UserError, match="holds a model already"):
        decoder_files.write(network, variables, tmp_path / "second")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "type 'gpt2'; it must be one of llama, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "only silu"),
        ({"use_sliding_window": True}, "only attention to all earlier tokens"),
        ({"quantization_config": {"bits": 4}}, "only weights in floating point"),
        ({"hidden_size": "12"}, "hidden_size .* is '12'; it must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "it must divide the 4 heads"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "scales positions by 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lack or have a bad 'factor'"),
        ({"intermediate_size": 9}, r"has the shape \[12, 10\]; config.json says \[12, 9\]"),
        ({"num_hidden_layers": 3}, r"lacks 9 tensors of its model, such as 'model\.layers\.2\."),
        ({"num_hidden_layers": 1}, "which a model of this type lacks"),
    ],
)
def test_folders_that_do_not_fit_are_refused_in_a_sentence(tmp_path, changes, said):
    write_folder(tmp_path, **changes)
    with pytest.raises(UserError, match=said):
        decoder_files.read_model(tmp_path, LENGTH)


def test_folders_that_cannot_be_read_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no folder"):
        decoder_files.read_model(tmp_path / "none")
    with pytest.raises(UserError, match=r"has no config\.json"):
        decoder_files.read_model(tmp_path)
    write_folder(tmp_path)
    with pytest.raises(UserError, match="have up to 17 tokens"):
        decoder_files.read_model(tmp_path, LENGTH + 1)
    with pytest.raises(UserError, match="There is no kernel 'x'"):
        decoder_files.read_model(tmp_path, LENGTH, Adapters(1, 1.0, ("x",)))
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(UserError, match="is no file of safetensors"):
        decoder_files.read_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        decoder_files.read_model(tmp_path)


def test_a_new_model_is_one_that_can_be_read(tmp_path):
    config = {**COMMON, **CONFIGS["qwen2"]}
    decoder_files.write_new(tmp_path / "new", config, seed=1)
    network = decoder_files.read_model(tmp_path / "new")
    assert np.std(logits(network, network.init(jax.random.key(0)))) > 0
    with pytest.raises(UserError, match="holds a model already"):
        decoder_files.write_new(tmp_path / "new", config)


LLAMA31 = LLAMA3 | {"rope_theta": 100.0, "original_max_position_embeddings": 8}
REFERENCES = {
    "Llama": {"attention_bias": True, "rope_parameters": LLAMA31},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16, "tie_word_embeddings": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_logits_are_those_of_transformers_and_it_reads_what_is_written(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    common = {k: v for k, v in COMMON.items() if k != "head_dim"} | {"hidden_size": 32}
    config = getattr(transformers, f"{name}Config")(
        **common, **REFERENCES[name], initializer_range=0.3
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():  # also biases and norms, which begin as constants
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model(torch.tensor(TEXTS.T)).logits.numpy().swapaxes(0, 1)
    model.save_pretrained(tmp_path / "first", max_shard_size="20kB")
    network = decoder_files.read_model(tmp_path / "first")
    variables = network.init(jax.random.key(0))
    np.testing.assert_allclose(logits(network, variables), expected, atol=1e-4)
    network, _, changed = with_adapters(tmp_path / "first")
    decoder_files.write(network, changed, tmp_path / "second")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second").float()
    with torch.no_grad():
        read = again(torch.tensor(TEXTS.T)).logits.numpy().swapaxes(0, 1)
    np.testing.assert_allclose(logits(network, changed), read, rtol=1e-4, atol=1e-3)
