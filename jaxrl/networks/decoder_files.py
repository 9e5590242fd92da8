"""Language models in local folders: `config.json` and `model.safetensors`, whole or in shards.

A `Pretrained` is such a model as the network of a part. Nothing is ever downloaded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.core.shared import Original, is_shared
from jaxrl.core.types import Key, Tree
from jaxrl.networks.decoder import (
    KERNELS,
    NO_ADAPTERS,
    Adapters,
    Architecture,
    LanguageModel,
    merge_adapters,
)
from jaxrl.networks.transformer import Cache

EXTRA = "lm"  # of jaxrl, which brings the package safetensors
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TYPES = ("llama", "qwen2", "qwen3")
DTYPES = ("float32", "bfloat16", "float16")
FROZEN = "frozen"  # collection of parameters that no loss descends
_FLOATS = ("F64", "F32", "F16", "BF16")
_SHARD = 4 * 2**30  # bytes of tensors in one file


# ------------------------------------------------------------------------------- config.json


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file. Raises `UserError` for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"The folder '{path.parent}' has no {path.name}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise UserError(f"'{path}' holds a {type(found).__name__}; it must hold a JSON object.")
    return found


def read_architecture(folder: str | Path) -> Architecture:
    """Return the sizes that the `config.json` of a folder says.

    Raises `UserError` for a folder without one, and for whatever this library does not compute:
    other types than llama, qwen2 and qwen3, sliding windows, quantized weights, other activations
    than SiLU, and scalings of positions other than those of Llama 3 and linear ones.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'; give a folder with {CONFIG}.")
    config, path = read_json(folder / CONFIG), folder / CONFIG
    kind = config.get("model_type")
    if kind not in TYPES:
        raise UserError(f"'{path}' is of the type {kind!r}; it must be one of {', '.join(TYPES)}.")

    def refuse(name: str, why: str) -> None:
        raise UserError(f"{name} of '{path}' is {config.get(name)!r}; {why}.")

    def whole(name: str, default: int | None = None) -> int:
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            refuse(name, "it must be a whole number above 0")
        return value  # type: ignore[return-value]

    if config.get("hidden_act", "silu") != "silu":
        refuse("hidden_act", "only silu is supported")
    if config.get("quantization_config"):
        refuse("quantization_config", "only weights in floating point are supported")
    if config.get("use_sliding_window"):
        refuse("use_sliding_window", "only attention to all earlier tokens is supported")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        refuse("layer_types", "only full_attention is supported")
    if config.get("mlp_bias"):
        refuse("mlp_bias", "only perceptrons without biases are supported")
    width, heads = whole("hidden_size"), whole("num_attention_heads")
    key_heads = whole("num_key_value_heads", heads)
    if heads % key_heads:
        refuse("num_key_value_heads", f"it must divide the {heads} heads of queries")
    head_width = whole("head_dim", 128 if kind == "qwen3" else max(1, width // heads))
    if head_width % 2:
        refuse("head_dim", "it must be even")
    biases = KERNELS[:4] if config.get("attention_bias") and kind != "qwen2" else ()
    context = whole("max_position_embeddings", 2048)
    return Architecture(
        vocabulary=whole("vocab_size"),
        width=width,
        inner=whole("intermediate_size"),
        layers=whole("num_hidden_layers"),
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        context=context,
        frequencies=_frequencies(config, head_width, context, path),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        biases=KERNELS[:3] if kind == "qwen2" else biases,
        head_norms=kind == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _frequencies(
    config: Mapping[str, Any], width: int, context: int, path: Path
) -> tuple[float, ...]:
    """Return the frequencies of rotary positions [width / 2], in radians per token.

    Those of Llama 3.1 leave short wavelengths as they are, divide long ones' frequencies by a
    factor, and interpolate between (`_compute_llama3_parameters` of the package transformers, and
    `apply_scaling` in the authors' `llama_models`).
    """
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta"), **old, **new}
    kind = rope.get("rope_type", rope.get("type", "default"))
    try:
        theta = 10_000.0 if rope["rope_theta"] is None else float(rope["rope_theta"])
        found = 1 / theta ** (np.arange(0, width, 2) / width)
        if kind == "linear":
            found = found / float(rope["factor"])
        elif kind == "llama3":
            low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
            turns = float(rope.get("original_max_position_embeddings", context)) * found
            turns = turns / (2 * math.pi)  # in the context of the first training
            share = np.clip((turns - low) / (high - low), 0, 1)
            found = (1 - share) * found / float(rope["factor"]) + share * found
        elif kind != "default":
            raise UserError(
                f"'{path}' scales positions by {kind!r}; default, linear and llama3 are supported."
            )
        if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
            raise UserError(f"'{path}' rotates a part of each head; all of it is supported.")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"The rotary positions in '{path}' lack or have a bad {error}.") from error
    return tuple(float(x) for x in found)


# ------------------------------------------------------------------------------- safetensors


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a file: its name there, its place in the parameters of a `LanguageModel`, and its
    shape in the file; `turned` where the parameters hold its transpose."""

    name: str
    place: tuple[str, ...]
    shape: tuple[int, ...]
    turned: bool = False


def tensors(architecture: Architecture) -> Iterator[Tensor]:
    """Yield all tensors of a model."""
    a = architecture
    yield Tensor("model.embed_tokens.weight", ("embed_tokens",), (a.vocabulary, a.width))
    for i in range(a.layers):
        block, prefix = ("decoder", f"blocks_{i}"), f"model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield Tensor(f"{prefix}.{name}.weight", (*block, name, "weight"), (a.width,))
        for name in ("q_norm", "k_norm") if a.head_norms else ():
            place = (*block, name, "weight")
            yield Tensor(f"{prefix}.self_attn.{name}.weight", place, (a.head_width,))
        for name in KERNELS:
            inside = "self_attn" if name in KERNELS[:4] else "mlp"
            inputs, outputs = a.shape(name)
            full, place = f"{prefix}.{inside}.{name}", (*block, name)
            yield Tensor(f"{full}.weight", (*place, "kernel"), (outputs, inputs), turned=True)
            if name in a.biases:
                yield Tensor(f"{full}.bias", (*place, "bias"), (outputs,))
    yield Tensor("model.norm.weight", ("decoder", "norm", "weight"), (a.width,))
    if not a.tied:
        yield Tensor("lm_head.weight", ("lm_head",), (a.vocabulary, a.width), turned=True)


def read_weights(folder: str | Path, architecture: Architecture) -> dict[str, Any]:
    """Return the parameters in a folder, float32, without those of the value.

    Raises `UserError` for tensors that are missing, unknown, of another shape or no floats, for
    files that cannot be read, and without the package safetensors.
    """
    folder = Path(folder)
    wanted = {tensor.name: tensor for tensor in tensors(architecture)}
    params: dict[str, Any] = {}
    missing = dict.fromkeys(wanted)
    for path in _files(folder):
        with _open(path) as file:
            for name in file.keys():  # noqa: SIM118
                tensor = wanted.get(name)
                if tensor is None:
                    if _is_ignored(name, architecture):
                        continue
                    raise UserError(
                        f"'{path}' has a tensor '{name}', which a model of this type lacks."
                    )
                described = file.get_slice(name)
                shape = tuple(described.get_shape())
                if shape != tensor.shape:
                    raise UserError(
                        f"'{name}' in '{path}' has the shape {list(shape)}; {CONFIG} says "
                        f"{list(tensor.shape)}."
                    )
                if described.get_dtype() not in _FLOATS:
                    raise UserError(
                        f"'{name}' in '{path}' is of the type {described.get_dtype()}; weights "
                        f"must be {', '.join(_FLOATS)}."
                    )
                value = file.get_tensor(name)
                value = (value.T if tensor.turned else value).astype(np.float32)
                _put(params, tensor.place, np.ascontiguousarray(value))
                missing.pop(name, None)
    if missing:
        raise UserError(
            f"'{folder}' lacks {len(missing)} tensors of its model, such as '{next(iter(missing))}'"
            "."
        )
    return params


def _files(folder: Path) -> list[Path]:
    """Return the files of weights in a folder."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UserError(f"The folder '{folder}' has no {WEIGHTS} and no {INDEX}.")
    found = read_json(folder / INDEX).get("weight_map")
    names = sorted({str(x) for x in found.values()}) if isinstance(found, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"'{folder / INDEX}' must map tensors to files of its folder.")
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"The folder '{folder}' has no {name}, which its {INDEX} names.")
    return [folder / name for name in names]


def _open(path: Path) -> Any:
    safetensors = plugins.package("safetensors", EXTRA)
    try:
        return safetensors.safe_open(path, framework="numpy")
    except Exception as error:  # whatever a damaged file leads to
        raise UserError(f"'{path}' is no file of safetensors: {error}.") from error


def _is_ignored(name: str, architecture: Architecture) -> bool:
    """Return whether a tensor follows from others: old files hold frequencies, and some the tied
    logits."""
    tied = architecture.tied and name == "lm_head.weight"
    return tied or name.endswith("rotary_emb.inv_freq")


def _put(params: dict[str, Any], place: tuple[str, ...], value: np.ndarray) -> None:
    for name in place[:-1]:
        params = params.setdefault(name, {})
    params[place[-1]] = value


def _take(params: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    return functools.reduce(lambda tree, name: tree[name], place, params)


# ------------------------------------------------------------------------------- as a network


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A model of a folder as the network of a part, with the methods of `ActorCritic`.

    Without adapters all its parameters learn, from those of the folder. With adapters, they and the
    value's alone learn; all else is frozen, `Shared`: in memory once for all members of a run, and
    in no checkpoint.

    folder: where the model was read. module: what computes. original: the weights of the folder.
    """

    folder: str
    module: LanguageModel
    original: Original

    def init(self, key: Key, *inputs: Tree) -> dict[str, Tree]:
        """Return parameters: those of the folder, a value of 0, and adapters that change nothing.

        B is 0 and A is normal (Hu et al., section 4.1), of variance 1 / inputs.
        """
        a, adapters, weights = self.module.architecture, self.module.adapters, self.original
        value = {"kernel": jnp.zeros((a.width, 1)), "bias": jnp.zeros(1)}
        if not adapters.rank:
            return {"params": {**weights.shared().value, "value_head": value}}
        own: dict[str, Any] = {"value_head": value}
        for i in range(a.layers):
            for name in adapters.kernels:
                place = ("decoder", f"blocks_{i}", name)
                inputs_, outputs = a.shape(name)
                own_key = jax.random.fold_in(key, zlib.crc32("/".join(place).encode()))
                first = jax.random.normal(own_key, (inputs_, adapters.rank)) / math.sqrt(inputs_)
                _put(own, (*place, "lora_a"), first)  # type: ignore[arg-type]
                _put(own, (*place, "lora_b"), jnp.zeros((adapters.rank, outputs)))  # type: ignore[arg-type]
        return {"params": own, FROZEN: weights.shared()}

    def apply(self, variables: Mapping[str, Tree], *args: Any, **options: Any) -> Any:
        """Apply a method of the module to these parameters."""
        return self.module.apply({"params": whole(variables)}, *args, **options)

    def initial(self, n: int) -> Cache:
        """Return the memory [n] before an episode's first step."""
        return self.module.initial(n)


def whole(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `LanguageModel` from those of a `Pretrained`: what learns and what
    is frozen as one tree."""
    frozen = variables.get(FROZEN)
    if frozen is None:
        return variables["params"]
    return _merge(frozen.value if is_shared(frozen) else frozen, variables["params"])


def _merge(tree: Any, more: Mapping[str, Any]) -> Any:
    """Return nested mappings with those in `more`."""
    found = dict(tree)
    for name, value in more.items():
        inner = isinstance(value, Mapping) and name in found
        found[name] = _merge(found[name], value) if inner else value
    return found


def read_model(
    folder: str | Path, length: int | None = None, adapters: Adapters = NO_ADAPTERS
) -> Pretrained:
    """Return the model in a folder as a network.

    length: number of slots of its cache; by default the model's context.

    Raises `UserError` as `read_architecture` and `read_weights` do, for a `length` beyond the
    context of the model, and for adapters of kernels that do not exist.
    """
    architecture = read_architecture(folder)
    length = architecture.context if length is None else length
    if length > architecture.context:
        raise UserError(
            f"The texts have up to {length} tokens, and the model in '{folder}' is meant for "
            f"{architecture.context}; make them shorter, or take another model."
        )
    unknown = set(adapters.kernels) - set(KERNELS)
    if unknown:
        raise UserError(f"There is no kernel '{min(unknown)}'; take some of {', '.join(KERNELS)}.")
    module = LanguageModel(architecture, length, adapters)
    original = Original(read_weights(folder, architecture), f"model '{folder}'")
    return Pretrained(str(folder), module, original)


def write(
    network: Pretrained, variables: Mapping[str, Any], out: str | Path, dtype: str = "float32"
) -> None:
    """Write a model with these parameters as a folder like the one that it was read from, under the
    same names, adapters merged, without the value.

    variables: parameters of `network`, of one member.
    dtype: float32, which loses nothing, bfloat16 or float16.

    Other files of the first folder (`tokenizer.json`, ...) are copied. Raises `UserError` if `out`
    is that folder, or holds weights already.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    out, source = Path(out), Path(network.folder)
    if out.resolve() == source.resolve() or any(out.glob("*.safetensors*")):
        raise UserError(f"'{out}' holds a model already; give another folder.")
    plugins.package("safetensors", EXTRA)
    params = merge_adapters(whole(variables), network.module.adapters)
    kept: Callable[[Path], bool] = lambda path: path.suffix in (".json", ".jinja", ".txt", ".model")
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and kept(path) and path.name not in (CONFIG, INDEX):
            shutil.copyfile(path, out / path.name)
    config = read_json(source / CONFIG)
    config.pop("dtype", None)
    _write(out, {**config, "torch_dtype": dtype}, network.module.architecture, params)


def write_new(folder: str | Path, config: Mapping[str, Any], seed: int = 0) -> None:
    """Write a model with random weights as a folder, to train it from the beginning.

    config: contents of its `config.json`, such as `{"model_type": "llama", "vocab_size": 32,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 31}`.

    Weights are normal with a deviation of 0.02 for embeddings, and 1 / inputs as the variance of
    kernels. Raises `UserError` as `read_architecture` does, and if there is a model already.
    """
    folder = Path(folder)
    if any(folder.glob("*.safetensors*")):
        raise UserError(f"'{folder}' holds a model already; give another folder.")
    plugins.package("safetensors", EXTRA)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(dict(config)))
    architecture = read_architecture(folder)
    module = LanguageModel(architecture, 1)
    tokens = jnp.zeros((1, 1), jnp.int32)
    init = jax.jit(lambda key: module.init(key, tokens, method="logits")["params"])
    params = init(jax.random.key(seed))
    _write(folder, {**config, "torch_dtype": "float32"}, architecture, params)


def _write(out: Path, config: Mapping[str, Any], architecture: Architecture, params: Tree) -> None:
    """Write `config.json` and the weights of a model, of the type `torch_dtype`."""
    numpy = plugins.package("safetensors.numpy", EXTRA)
    dtype = config["torch_dtype"]
    (out / CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n")
    size = np.dtype(jnp.dtype(dtype)).itemsize
    parts: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors(architecture):
        bytes_ = math.prod(tensor.shape) * size
        if parts[-1] and filled + bytes_ > _SHARD:
            parts.append([])
            filled = 0
        parts[-1].append(tensor)
        filled += bytes_
    places: dict[str, str] = {}
    for i, part in enumerate(parts):
        name = WEIGHTS if len(parts) == 1 else f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        arrays = {}
        for tensor in part:
            value = np.asarray(_take(params, tensor.place)).astype(jnp.dtype(dtype))
            # The package writes the memory of an array as it lies, whatever its strides.
            arrays[tensor.name] = np.ascontiguousarray(value.T if tensor.turned else value)
            places[tensor.name] = name
        numpy.save_file(arrays, out / name, metadata={"format": "pt"})
    if len(parts) > 1:
        total = {"total_size": sum(math.prod(t.shape) for part in parts for t in part) * size}
        (out / INDEX).write_text(json.dumps({"metadata": total, "weight_map": places}, indent=2))
