"""LaMo (Shi, Liu, Ze, Du and Xu, 2023, "Unleashing the power of pre-trained language models for
offline reinforcement learning", arXiv:2310.20587): a decision transformer whose transformer is a
language model. Its weights are frozen, and low-rank adapters of its queries, keys and values learn;
returns, observations and actions are embedded by residual perceptrons; the policy is read out by a
perceptron; and the language model, with its adapters, goes on predicting text:

    loss  error of the action + language_weight * cross-entropy of the next token

The authors take GPT-2. Here the model is trained first, in `language.steps` gradient steps, on text
character by character: all docstrings of `jaxrl.losses`. It has Llama's blocks with rotary
positions. Adapters, embeddings, weights and rank are those of the authors' code, but for times,
which are added to embeddings before their normalization (there after it); dropout and the warm-up
of the step size are not here, and the actions of a bounded box have a tanh as in
`decision_transformer`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxrl import losses
from jaxrl.algorithms.offline.decision_transformer import ask_target
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.offline.shared.sequences import (
    Sequence,
    act_by_sequence,
    action_error,
    no_steps,
    read_window,
    swap_axes,
)
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Source, Transition, Tree
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import Normalization, Optimizer
from jaxrl.networks.actor_critic import context_length
from jaxrl.networks.decoder import Adapters, Architecture, LanguageModel
from jaxrl.networks.dense import hidden_dense
from jaxrl.networks.heads import PolicyHead
from jaxrl.networks.sequence_policy import Predictions, Steps, is_bounded_box
from jaxrl.sources.played import windows

CHARACTERS = 128  # tokens: ASCII
TOKENS = 3  # of a step
ADAPTED = ("q_proj", "k_proj", "v_proj")  # kernels with adapters: authors' code


@group
class Language:
    """Language model and the text that it learns."""

    steps: float = hyper(2_000.0, low=0)
    """Gradient steps of the language model before anything else; 0 adapts random weights."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the language model before it is frozen."""
    length: int = static(64, low=2)
    """Number of characters in a piece of text."""
    batch_size: int = static(16, low=1, high=MANY)
    """Number of pieces of text in a gradient step."""
    rank: int = static(16, low=1)
    """Rank of the adapters. 16: authors' code."""
    alpha: float = static(32.0, above=0)
    """Factor of the adapters' output, divided by their rank. 32: authors' code."""


@group
class Config:
    """Settings of LaMo: a decision transformer in a frozen language model with adapters
    (arXiv:2310.20587)."""

    data: Data = Data(batch_size=64)
    sequence: Sequence = Sequence(heads=2)
    language: Language = Language()
    optimizer: Optimizer = Optimizer(learning_rate=1e-4, weight_decay=1e-5, max_grad_norm=0.25)
    """Optimizer settings of adapters, embeddings and policy. AdamW, 1e-4, weight decay 1e-5,
    gradient norms up to 0.25: authors' code."""
    normalization: Normalization = Normalization(observation=True)

    language_weight: float = hyper(0.1, low=0)
    """Weight of the language loss. 0.1: authors' code."""
    target_return: float = hyper(0.0)
    """Return that an episode is asked for while the policy acts."""
    return_scale: float = hyper(1000.0, above=0)
    """Divisor of returns before the network sees them."""


@functools.cache
def corpus() -> np.ndarray:
    """Return the text, int32 [N]: the docstrings of all losses, in the order of their names."""
    public = (x for name, x in sorted(vars(losses).items()) if name[0] != "_" and callable(x))
    texts = [function.__doc__ or "" for function in public]
    lines = (" ".join(line.split()) for text in texts for line in text.splitlines())
    return np.frombuffer("\n".join(lines).encode("ascii", "replace"), np.uint8).astype(np.int32)


def language_model(config: Any) -> LanguageModel:
    """Return the language model, with adapters."""
    sizes, own = config.sequence, config.language
    head = sizes.width // sizes.heads
    architecture = Architecture(
        vocabulary=CHARACTERS,
        width=sizes.width,
        inner=4 * sizes.width,
        layers=sizes.layers,
        heads=sizes.heads,
        key_heads=sizes.heads,
        head_width=head,
        context=max(own.length, TOKENS * sizes.context),
        frequencies=tuple(10_000.0 ** (-2 * i / head) for i in range(head // 2)),
    )
    return LanguageModel(architecture, architecture.context, Adapters(own.rank, own.alpha, ADAPTED))


@dataclasses.dataclass(frozen=True)
class Half:
    """The adapters of a language model, or all of its other weights, as a part of their own."""

    model: LanguageModel
    adapters: bool

    def init(self, key: Key, tokens: Array) -> Tree:
        whole = flatten_dict(self.model.init(key, tokens, method="logits"))
        mine = {k: x for k, x in whole.items() if k[-1].startswith("lora_") == self.adapters}
        return unflatten_dict(mine)

    def apply(self, params: Tree, *inputs: Any) -> Any:
        raise NotImplementedError("Half of a language model computes nothing by itself.")


def together(net: Any) -> Tree:
    """Return the parameters of the whole language model."""
    halves = (net.parts[name].params for name in ("language", "adapters"))
    return unflatten_dict(flatten_dict(next(halves)) | flatten_dict(next(halves)))


class Ends(nn.Module):
    """Layers before and behind the language model: embeddings of steps, and the policy."""

    action_space: Any
    longest: int
    width: int

    def setup(self):
        init = nn.initializers.lecun_normal()
        layer = functools.partial(hidden_dense, self.width, init)
        self.times = nn.Embed(self.longest, self.width)
        self.first_layers = [layer() for _ in range(TOKENS)]
        self.second_layers = [layer() for _ in range(TOKENS)]
        self.norm = nn.LayerNorm()
        self.hidden = layer()
        self.head = PolicyHead(
            self.action_space,
            bounded_mean=is_bounded_box(self.action_space),
            deviation="fixed",
        )

    def embed(self, steps: Steps) -> Array:
        """Embed steps [T, B] as tokens [3 T, B, width]."""
        time = self.times(jnp.minimum(steps.time, self.longest - 1))
        inputs = steps.to_go[..., None], steps.features, steps.action
        tokens = []
        for x, first, second in zip(inputs, self.first_layers, self.second_layers, strict=True):
            linear = first(x)
            tokens.append(linear + second(nn.gelu(linear)) + time)
        stacked = jnp.stack(tokens, 1)
        return self.norm(stacked.reshape(-1, *stacked.shape[2:]))

    def read(self, features: Array, legal_actions: Any = None) -> Any:
        """Read the policy out of features [3 T, B, width]: that of each step's observation."""
        x = features.reshape(-1, TOKENS, *features.shape[1:])[:, 1]
        return self.head(nn.gelu(self.hidden(x)), legal_actions)

    def __call__(self, steps: Steps) -> Any:
        return self.read(self.embed(steps))


def recipe(env: Environment, config: Config) -> Recipe:
    model, own = language_model(config), config.language
    text, space = corpus(), env.action_space

    def predict(net: Any, steps: Steps, legal_actions: Any) -> Predictions:
        """Predict actions by the language model, which sees no step before the first there is."""
        tokens = net.ends(steps, method="embed")
        exists = jnp.repeat(steps.exists, TOKENS, 0)
        before = jnp.concatenate([jnp.zeros_like(exists[:1]), exists[:-1]])

        def unroll(model, tokens, first):
            blank = model.initial(tokens.shape[1]).shrink()
            return model.decoder.unroll(tokens, first, blank)[0]

        features = model.apply(together(net), tokens, exists & ~before, method=unroll)
        policy = net.ends(features, legal_actions, method="read")
        return Predictions(policy, None, None)

    def draw_text(net: Any) -> Array:
        """Draw pieces of text [length, batch_size]."""
        most = len(text) - own.length
        begin = jax.random.randint(net.key("text"), (own.batch_size,), 0, most)
        return jnp.asarray(text)[begin + jnp.arange(own.length)[:, None]]

    def language_error(net: Any, pieces: Array) -> Array:
        """Compute -log p of each next character, [length - 1, batch_size]."""
        logits: Any = model.apply(together(net), pieces[:-1], method="logits")
        return optax.softmax_cross_entropy_with_integer_labels(logits, pieces[1:])

    @loss("language")
    def pretraining_loss(net: Any, pieces: Array) -> LossOutput:
        """Learn the language, in phase one."""
        return LossOutput(language_error(net, pieces))

    @loss("adapters", "ends")
    def sequence_loss(net: Any, x: Transition) -> LossOutput:
        """Clone actions under the return that followed, and keep predicting text."""
        steps = read_window(env, x, x.extras["to_go"] / net.hyper.return_scale)
        policy = predict(net, steps, x.timestep.legal_actions).policy
        language = language_error(net, draw_text(net)).mean()
        error = action_error(space, policy, x.action)
        return LossOutput(error, terms={"language_loss": net.hyper.language_weight * language})

    def update(net: Net, batch: Batch) -> Net:
        learns = net.env_steps < net.hyper.language.steps
        pieces = draw_text(net)
        net = descend_where(net, learns, lambda net: net.descend(pretraining_loss, pieces))
        return descend_where(net, ~learns, lambda net: net.descend(sequence_loss, batch))

    class Whole:
        """Parts of a net that acting reads: the sequence policy, and hyperparameters."""

        def __init__(self, net: Any):
            self.hyper = net.hyper
            self.sequence = functools.partial(predict, net)

    act = act_by_sequence(env, "sequence", ask_target)
    sizes = config.sequence
    example = jnp.zeros((own.length - 1, 1), jnp.int32)
    ends = Ends(space, context_length(env) - 1, sizes.width)
    steps = swap_axes(no_steps(env, sizes.context, 1))
    return Recipe(
        parts={
            "language": Part(Half(model, False), (example,), own.optimizer),
            "adapters": Part(Half(model, True), (example,), config.optimizer),
            "ends": Part(ends, (steps,), config.optimizer),
        },
        act=lambda net, *rest: act(Whole(net), *rest),  # type: ignore[arg-type]
        losses=(pretraining_loss, sequence_loss),
        update=update,
        memory=lambda n: no_steps(env, sizes.context, n),
        needs=("transitions.extras.to_go", "transitions.extras.time"),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows within episodes of the dataset, that begin at any step."""
    return config.data.view_source(env, windows(config.sequence.context, pad=True))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where no sequence policy can act in `env`, for heads without pairs of
    numbers to rotate, and for an environment beside the dataset."""
    config.sequence.check(env, name)
    config.data.check_alone(name, "its returns-to-go are those of recorded episodes")
    if config.sequence.width // config.sequence.heads % 2:
        raise UserError(
            f"Heads are {config.sequence.width // config.sequence.heads} wide; {name} rotates "
            "pairs of their numbers, so sequence.width / sequence.heads must be even."
        )


lamo = AlgorithmBuilder("lamo", Config, recipe, source, check=check)

TINY = TINY_DATA | {
    "env": "pendulum",
    "context": 3,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "language.steps": 2.0,
    "language.length": 8,
    "language.batch_size": 2,
    "language.rank": 2,
    "target_return": -200.0,
}
