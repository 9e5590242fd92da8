"""Settings that systems share, in groups that nest in a Config."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import optax

from jaxrl.core import shuffle
from jaxrl.core.errors import unknown
from jaxrl.core.hyper import MANY, WIDE, hyper, static
from jaxrl.core.schedules import SCHEDULES
from jaxrl.core.settings import group
from jaxrl.core.types import Environment, Source, Tasks
from jaxrl.kit import minibatches
from jaxrl.kit.minibatches import STEP, Unit
from jaxrl.networks.initializers import INITIALIZERS
from jaxrl.networks.torsos import ACTIVATIONS
from jaxrl.sources.episodes import episodes
from jaxrl.sources.replay import replay
from jaxrl.sources.rollouts import rollouts
from jaxrl.sources.samplers import UNIFORM, Sampler, proportional

INF = math.inf

# Without a learning rate: it multiplies their output, so that it can be an array.
TRANSFORMATIONS = {
    # The root of 0 has no gradient: eps_root keeps meta-gradients through Adam finite.
    "adam": lambda x: optax.scale_by_adam(x.beta1, x.beta2, x.eps, eps_root=1e-16),
    "radam": lambda x: optax.scale_by_radam(x.beta1, x.beta2, x.eps, eps_root=1e-16),
    "rmsprop": lambda x: optax.scale_by_rms(x.decay, x.eps),
    "centered_rmsprop": lambda x: optax.scale_by_stddev(x.decay, x.eps),
    "sgd": lambda x: optax.trace(x.momentum) if x.momentum else optax.identity(),
}


@group
class Optimizer:
    """A gradient transformation, its step size over time, and a bound on the gradient's norm."""

    name: str = static("adam", choices=TRANSFORMATIONS)
    """The gradient transformation."""
    learning_rate: float = hyper(3e-4, low=0)
    """Step size at the start."""
    learning_rate_end: float = hyper(0.0, low=0)
    """Step size after `learning_rate_steps`."""
    learning_rate_steps: float = hyper(INF, above=0, high=INF)
    """Environment steps over which the step size changes; infinite for a constant one."""
    schedule: str = static("linear", choices=SCHEDULES)
    """How it changes."""
    max_grad_norm: float = hyper(INF, above=0, high=INF)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    beta1: float = static(0.9, low=0, below=1)
    """Adam's decay of the mean of gradients."""
    beta2: float = static(0.999, low=0, below=1)
    """Adam's decay of the mean of their squares."""
    decay: float = static(0.99, low=0, below=1)
    """RMSProp's decay of the mean of squares; centered, the mean of gradients is taken off."""
    eps: float = static(1e-8, low=0)
    """What Adam adds to the root of that mean, and RMSProp to the mean."""
    momentum: float = static(0.0, low=0, below=1)
    """Of stochastic gradient descent."""
    weight_decay: float = static(0.0, low=0)
    """Share of the weights taken off in each step, times the step size, apart from the gradient
    (as in AdamW)."""
    flat: bool = False
    """Descend all parameters as one vector: fewer operations, faster for small networks."""


def transformation(x: Optimizer) -> optax.GradientTransformation:
    """What the step size multiplies. A weight decay changes nothing of the state, so that a run may
    go on from one without."""
    scaled = TRANSFORMATIONS[x.name](x)

    def decayed(updates, state, params=None):
        updates, state = scaled.update(updates, state, params)
        return jax.tree.map(lambda u, p: u + x.weight_decay * p, updates, params), state

    return optax.GradientTransformation(scaled.init, decayed) if x.weight_decay else scaled


def plain_optimizer(name: str) -> optax.GradientTransformation:
    """Return the transformation called `name` with an epsilon of 1e-5 and RMSProp's decay of 0.99,
    for algorithms that are written without parts. Raises `UserError` where there is none."""
    if name not in TRANSFORMATIONS:
        raise unknown("optimizer", name, TRANSFORMATIONS)
    return transformation(Optimizer(name, eps=1e-5, decay=0.99))


@group
class Target:
    """How a copy of the parameters follows them."""

    rate: float = hyper(0.005, low=0, high=1)
    """Share tau of the parameters that enters the copy when it moves; 1 for all of it."""
    period: int = static(1, low=1)
    """Updates between two moves."""


@group
class Torso:
    """The layers before a head."""

    channels: ClassVar[tuple[int, ...]] = ()

    hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """What follows each layer."""
    initializer: str = static("lecun", choices=INITIALIZERS)
    """Initial weights: lecun (normal), or orthogonal."""


@group
class LinearTorso(Torso):
    """The layers before a head, of which there may be none."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear heads."""


@group
class ImageTorso(Torso):
    """The layers before a head, with convolutions before them for images."""

    channels: tuple[int, ...] = static((), low=1, high=WIDE)
    """Channels of 3 x 3 convolutions, for images [height, width, channels]; none flattens them."""


@group
class LinearImageTorso(ImageTorso):
    """The layers before a head, of which there may be none but convolutions."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear heads."""


@group
class Memory:
    """What a policy remembers."""

    recurrent: int = static(0, low=0)
    """Width of a GRU; 0 for a policy without memory."""
    transformer: int = static(0, low=0)
    """Layers of a transformer of that width in the GRU's place; 0 for the GRU."""
    attention_heads: int = static(2, low=1)
    """Of the transformer; its width is a multiple of them."""


@group
class Rollouts:
    """Windows of experience from environments that run side by side."""

    num_envs: int = static(64, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(128, low=1, high=MANY)
    """Steps of each environment between two updates."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""
    reset_pool: int | None = static(None, low=1)
    """Fresh episodes drawn ahead for each window, for environments whose reset is slow."""

    def source(self, env: Environment, tasks: Tasks | None = None) -> Source:
        return rollouts(env, self.num_envs, self.num_steps, tasks, self.reset_pool)


@group
class Episodes:
    """Whole episodes, one from each of several environments."""

    num_envs: int = static(16, low=1, high=MANY)
    """Episodes in one update."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""

    def source(self, env: Environment, tasks: Tasks | None = None) -> Source:
        return episodes(env, self.num_envs, tasks, self.num_shards)


@group
class Replay:
    """The last transitions, drawn again and again."""

    num_envs: int = static(16, low=1, high=MANY)
    """Environments that run side by side."""
    num_steps: int = static(4, low=1, high=MANY)
    """Steps of each environment between two groups of updates."""
    updates: int = static(16, low=1)
    """Gradient steps after each window of num_envs * num_steps steps."""
    batch_size: int = static(256, low=1, high=MANY)
    """Transitions in a gradient step."""
    capacity: int = static(100_000, low=1)
    """Transitions that are kept."""
    warmup: int = static(1000, low=0)
    """Environment steps, of the initial policy, before the first update."""
    num_shards: int = static(1, low=1)
    """Logical shards of the environments: how many devices can share a run at most."""

    def source(
        self,
        env: Environment,
        length: int | None = None,
        sampler: Sampler = UNIFORM,
        keep_memory: bool = False,
    ) -> Source:
        """Transitions, or windows of `length` steps. See `jaxrl.sources.replay`."""
        collected = rollouts(env, self.num_envs, self.num_steps)
        warmup = max(self.warmup, (length or 1) * self.num_envs)
        return replay(
            collected,
            self.capacity,
            self.batch_size,
            length,
            sampler,
            warmup,
            keep_memory,
            self.num_shards,
        )


@group
class Priorities:
    """Which transitions a replay prefers (Schaul et al., 2016)."""

    of_a_source: ClassVar[bool] = True

    exponent: float = hyper(0.5, low=0)
    """Of priorities; 0 draws uniformly."""
    importance: float = hyper(0.4, low=0, high=1)
    """Exponent of importance weights, at the start; 1 corrects for the priorities in full."""
    importance_steps: float = hyper(INF, above=0, high=INF)
    """Environment steps over which it grows to 1."""

    def sampler(self, path: str) -> Sampler:
        """The sampler of these settings, which are at `path` in the Config."""
        return proportional(self.exponent, self.importance, self.importance_steps, f"{path}.")


@group
class Epochs:
    """Several passes over a window of experience in shuffled minibatches."""

    epochs: int = static(4, low=1)
    """Passes over each window."""
    minibatches: int = static(4, low=1)
    """Gradient steps in one pass."""
    shuffle: str = static("auto", choices=shuffle.METHODS)
    """How minibatches are drawn: exact (a uniform permutation, by sorting), bijection (cheap, for
    powers of two), or auto (bijection where it can be)."""
    chunk_rows: int = static(-1, low=-1)
    """Rows of a minibatch that the gradient is computed on at once; 0 for all, -1 for what suits
    the device (2048 on a CPU, all elsewhere)."""

    def check(self, num_envs: int, num_steps: int, num_shards: int = 1, unit: Unit = STEP) -> None:
        """Raise `UserError` where a window [num_steps, num_envs] does not divide into minibatches
        and chunks of whole units, or cannot be shuffled."""
        minibatches.check(num_envs, num_steps, self.minibatches, num_shards, unit)
        rows = num_envs // num_shards // unit.columns * (1 if unit.sequences else num_steps)
        steps = num_steps * unit.columns if unit.sequences else unit.columns
        minibatches.chunk(self.chunk_rows, rows * num_shards // self.minibatches, steps)
        order = lambda key: shuffle.permutation(key, rows, self.shuffle)
        jax.eval_shape(order, jax.random.key(0))


@group
class Passes(Epochs):
    """Several passes over a window of experience, of a policy that may go too far."""

    early_stop: bool = False
    """Take no more gradient steps on a window once a minibatch's estimated KL to the policy that
    collected it exceeds target_kl."""
    target_kl: float = hyper(0.02, above=0, high=INF)
    """See early_stop; infinite for never."""


@group
class Normalization:
    """Running statistics that what is learned from is divided by."""

    observation: bool = False
    """Standardize observations."""


@group
class RolloutNormalization(Normalization):
    """Running statistics that observations and, in windows of rollouts, rewards are divided by."""

    reward: bool = False
    """Divide rewards by the standard deviation of the discounted return."""


@group
class EpsilonGreedy:
    """A random legal action with a probability that falls."""

    start: float = hyper(1.0, low=0, high=1)
    """The probability at the start."""
    end: float = hyper(0.05, low=0, high=1)
    """The probability after `steps`."""
    steps: float = hyper(10_000.0, above=0, high=INF)
    """Environment steps over which it falls."""


@group
class OrnsteinUhlenbeck:
    """Noise that drifts: x' = (1 - reversion) x + deviation * normal, from 0 in each episode."""

    reversion: float = hyper(0.15, low=0, high=1)
    """Theta, the share of the noise that a step takes off."""
    deviation: float = hyper(0.2, low=0)
    """Sigma, the standard deviation of what a step adds, in half-widths of the actions."""


@group
class Sampling:
    """How a categorical policy is sampled."""

    temperature: float = hyper(1.0, above=0)
    """Temperature that divides the logits; below 1 samples are likelier ones."""
    top_p: float = hyper(1.0, above=0, high=1)
    """Probability of the likeliest actions that are kept (nucleus sampling); 1 keeps all."""
