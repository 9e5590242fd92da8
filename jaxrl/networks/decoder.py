"""Language models in the layout of Llama and Qwen, as policies that keep a cache, with adapters.

Rotary positions (Su et al., 2021, "RoFormer", arXiv:2104.09864), root-mean-square normalization
(Zhang & Sennrich, 2019, arXiv:1910.07467), gated perceptrons (Shazeer, 2020, "GLU variants improve
transformer", arXiv:2002.05202) and heads that share keys (Ainslie et al., 2023, arXiv:2305.13245).
Parameters are called as in files of such models; `networks.decoder_files` reads and writes them.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from jaxrl.core.types import Array, TimeStep
from jaxrl.networks import compute
from jaxrl.networks.dense import dense, hidden_matmul, matmul
from jaxrl.networks.heads import Categorical, ReadOut, categorical
from jaxrl.networks.transformer import Cache, CachedDecoder

LOGITS = 2**22  # that exist at once where activations are computed again: 16 MiB
KERNELS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Sizes and variants of a language model.

    vocabulary: number of tokens (V). width: of the residual stream (D). inner: of the perceptrons.
    heads, key_heads: numbers of heads of queries, and of keys and values.
    head_width: of a head (d). epsilon: of normalizations.
    context: largest number of tokens that the model is meant for.
    frequencies: of the rotary positions, [d / 2] radians per token.
    biases: kernels with a bias. head_norms: whether queries and keys are normalized (Qwen3).
    tied: whether logits are read out by the embeddings.
    """

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    context: int
    frequencies: tuple[float, ...]
    epsilon: float = 1e-6
    biases: tuple[str, ...] = ()
    head_norms: bool = False
    tied: bool = False

    def shape(self, kernel: str) -> tuple[int, int]:
        """Return the shape [inputs, outputs] of one of `KERNELS`."""
        queries, keys = self.heads * self.head_width, self.key_heads * self.head_width
        return {
            "q_proj": (self.width, queries),
            "k_proj": (self.width, keys),
            "v_proj": (self.width, keys),
            "o_proj": (queries, self.width),
            "gate_proj": (self.width, self.inner),
            "up_proj": (self.width, self.inner),
            "down_proj": (self.inner, self.width),
        }[kernel]


@dataclasses.dataclass(frozen=True)
class Adapters:
    """Low-rank adapters of some kernels (Hu et al., 2021, "LoRA", arXiv:2106.09685).

    A layer computes W x + (alpha / rank) B A x (section 4.1), with W frozen.

    rank: 0 for no adapters. kernels: those of `KERNELS` that have adapters, in every block.
    """

    rank: int = 0
    alpha: float = 16.0
    kernels: tuple[str, ...] = ("q_proj", "v_proj")

    @property
    def scale(self) -> float:
        """Factor of an adapter's output."""
        return self.alpha / self.rank


NO_ADAPTERS = Adapters()


class Linear(nn.Module):
    """One of `KERNELS`, [..., inputs] -> [..., outputs], with its adapter if it has one."""

    shape: tuple[int, int]
    bias: bool
    adapters: Adapters | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        zeros, lecun = nn.initializers.zeros, nn.initializers.lecun_normal()
        inputs, outputs = self.shape
        y = hidden_matmul(x, self.param("kernel", lecun, self.shape))
        if self.bias:
            y = y + self.param("bias", zeros, (outputs,))
        if self.adapters is not None:
            a = self.param("lora_a", lecun, (inputs, self.adapters.rank))
            b = self.param("lora_b", zeros, (self.adapters.rank, outputs))
            y = y + self.adapters.scale * hidden_matmul(hidden_matmul(x, a), b)
        return y


class RMSNorm(nn.Module):
    """Division of x [..., D] by its root mean square, times learned weights."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        weight = self.param("weight", nn.initializers.ones, (x.shape[-1],))
        return weight * (x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon))


class DecoderBlock(nn.Module):
    """A block of a `Decoder`: attention and a gated perceptron, each after a normalization."""

    architecture: Architecture
    adapters: Adapters

    axes = "hg"  # G heads of queries read the same keys

    def setup(self):
        a, adapters = self.architecture, self.adapters

        def linear(name: str) -> Linear:
            own = adapters if adapters.rank and name in adapters.kernels else None
            return Linear(a.shape(name), name in a.biases, own)

        self.q_proj, self.k_proj, self.v_proj, self.o_proj = map(linear, KERNELS[:4])
        self.gate_proj, self.up_proj, self.down_proj = map(linear, KERNELS[4:])
        self.input_layernorm = RMSNorm(a.epsilon)
        self.post_attention_layernorm = RMSNorm(a.epsilon)
        if a.head_norms:
            self.q_norm, self.k_norm = RMSNorm(a.epsilon), RMSNorm(a.epsilon)

    def project(self, x: Array, slot: Array) -> tuple[Array, Array, Array]:
        """Project x [..., D] at positions `slot` [...] to queries [..., key_heads, G, d], and keys
        and values [..., key_heads, d]."""
        a, y = self.architecture, self.input_layernorm(x)
        split = lambda y: y.reshape(*x.shape[:-1], a.key_heads, -1, a.head_width)
        query, key = split(self.q_proj(y)), split(self.k_proj(y))
        value = split(self.v_proj(y))[..., 0, :]
        if a.head_norms:
            query, key = self.q_norm(query), self.k_norm(key)
        angle = (slot[..., None] * jnp.asarray(a.frequencies, jnp.float32))[..., None, None, :]
        query, key = rotate(query, angle), rotate(key, angle)[..., 0, :]
        return query / jnp.sqrt(a.head_width), key, value

    def finish(self, x: Array, attended: Array) -> Array:
        """Add the attention [..., key_heads, G, d] and the perceptron to x [..., D]."""
        x = x + self.o_proj(attended.reshape(*x.shape[:-1], -1))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(nn.silu(self.gate_proj(y)) * self.up_proj(y))


def rotate(x: Array, angle: Array) -> Array:
    """Rotate the pairs (x_i, x_{i + d / 2}) of x [..., d] by an angle [..., d / 2], in radians."""
    first, second = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


class Decoder(CachedDecoder):
    """The blocks of a language model and the normalization after them. `length` is as in
    `CachedDecoder`."""

    architecture: Architecture
    length: int
    adapters: Adapters = NO_ADAPTERS

    def setup(self):
        sizes = self.architecture, self.adapters
        self.blocks = [DecoderBlock(*sizes) for _ in range(self.architecture.layers)]
        self.norm = RMSNorm(self.architecture.epsilon)

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return self.architecture.layers

    def slot_shape(self) -> tuple[int, int]:
        """Return the number of heads of keys, and their width."""
        return self.architecture.key_heads, self.architecture.head_width


class LanguageModel(nn.Module):
    """A language model as a policy over the next token, with a linear value of its last features.

    Observations are tokens, memory is a `Cache`. It has the methods of `ActorCritic`.

    length: number of slots of the cache, as in `CachedDecoder`.
    """

    architecture: Architecture
    length: int
    adapters: Adapters = NO_ADAPTERS

    def setup(self):
        a, scale = self.architecture, nn.initializers.normal(0.02)
        self.embed_tokens = self.param("embed_tokens", scale, (a.vocabulary, a.width))
        self.decoder = Decoder(a, self.length, self.adapters)
        if not a.tied:
            self.lm_head = self.param("lm_head", scale, (a.width, a.vocabulary))
        self.value_head = dense(1, nn.initializers.zeros)

    def __call__(self, timestep: TimeStep, memory: Cache) -> tuple[Categorical, Array, Cache]:
        """Take one step: time step [B], memory [B] -> policy [B], value [B], memory [B]."""
        x, memory = self.decoder(self.embed_tokens[timestep.observation], memory)
        return *self._outputs(x, timestep), memory

    def unroll(self, timestep: TimeStep, memory: Cache) -> tuple[Categorical, Array, Cache]:
        """Unroll over a window: time step [T, B], memory [B] before it -> policy and value [T, B],
        and the memory after each step [T, B]. The memory is reset where `timestep.restarts`."""
        x = self.embed_tokens[timestep.observation]
        x, memory = self.decoder.unroll(x, timestep.restarts, memory)
        policy, value = self._outputs(x, timestep)
        if compute.is_remat():
            rows = max(1, LOGITS // self.architecture.vocabulary)
            policy = ReadOut(x, self._kernel(), timestep.legal_actions, rows=rows)
        return policy, value, memory

    def read(self, timestep: TimeStep, memory: Cache) -> tuple[Categorical, Array, Cache]:
        """Read the beginnings of episodes: time step [T, B] from their first on, blank memory [B]
        -> policy and value [T, B], and the memory [B] after the last step."""
        x, memory = self.decoder.read(self.embed_tokens[timestep.observation], memory)
        return *self._outputs(x, timestep), memory

    def hidden(self, timestep: TimeStep, memory: Cache) -> Array:
        """The features [T, B, D] of a window after the last block: time step [T, B], memory [B]
        before it. The memory is reset where `timestep.restarts`."""
        x = self.embed_tokens[timestep.observation]
        return self.decoder.unroll(x, timestep.restarts, memory)[0]

    def logits(self, tokens: Array) -> Array:
        """Return the logits [T, B, V] of the next token after each of whole texts [T, B]."""
        first = jnp.zeros(tokens.shape, bool).at[0].set(True)
        blank = self.initial(tokens.shape[1]).shrink()
        return self._logits(self.decoder.unroll(self.embed_tokens[tokens], first, blank)[0])

    def _outputs(self, x: Array, timestep: TimeStep) -> tuple[Categorical, Array]:
        policy = categorical(self._logits(x), timestep.legal_actions)
        return policy, self.value_head(x)[..., 0]

    def _logits(self, x: Array) -> Array:
        return matmul(x, self._kernel())

    def _kernel(self) -> Array:
        return self.embed_tokens.T if self.architecture.tied else self.lm_head

    def initial(self, n: int) -> Cache:
        """Return the memory [n] before an episode's first step."""
        return Decoder(self.architecture, self.length, self.adapters, parent=None).initial(n)


def merge_adapters(params: dict, adapters: Adapters) -> dict:
    """Return the parameters of a `LanguageModel` without adapters that computes the same:
    W + (alpha / rank) B A in place of W and its adapter."""
    if not isinstance(params, dict):
        return params
    if "lora_a" not in params:
        return {name: merge_adapters(value, adapters) for name, value in params.items()}
    rest = {name: x for name, x in params.items() if name not in ("lora_a", "lora_b")}
    product = jnp.matmul(params["lora_a"], params["lora_b"], precision=jax.lax.Precision.HIGHEST)
    return {**rest, "kernel": rest["kernel"] + adapters.scale * product}
