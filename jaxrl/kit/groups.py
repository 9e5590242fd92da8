"""Settings that algorithms share, in groups that nest in a Config."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import optax

from jaxrl.core import shuffle
from jaxrl.core.errors import UserError, unknown
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
    "torch_rmsprop": lambda x: optax.scale_by_rms(x.decay, x.eps, eps_in_sqrt=False),
    "centered_rmsprop": lambda x: optax.scale_by_stddev(x.decay, x.eps),
    "sgd": lambda x: optax.trace(x.momentum) if x.momentum else optax.identity(),
}


@group
class Optimizer:
    """Optimizer: a gradient transformation, its step size over time, and gradient clipping."""

    name: str = static("adam", choices=TRANSFORMATIONS)
    """Gradient transformation."""
    learning_rate: float = hyper(3e-4, low=0, log=True)
    """Step size at the start."""
    learning_rate_end: float = hyper(0.0, low=0, log=True)
    """Step size after `learning_rate_steps`."""
    learning_rate_steps: float = hyper(INF, above=0, high=INF)
    """Environment steps over which the step size changes; infinite for a constant step size."""
    schedule: str = static("linear", choices=SCHEDULES)
    """Shape of the step size over time."""
    max_grad_norm: float = hyper(INF, above=0, high=INF)
    """Global norm that longer gradients are scaled down to; infinite for no clipping."""
    beta1: float = static(0.9, low=0, below=1)
    """Decay of Adam's running mean of gradients."""
    beta2: float = static(0.999, low=0, below=1)
    """Decay of Adam's running mean of squared gradients."""
    decay: float = static(0.99, low=0, below=1)
    """Decay of RMSProp's running mean of squared gradients (and of gradients, if centered)."""
    eps: float = static(1e-8, low=0)
    """Epsilon that Adam and PyTorch's RMSProp add to the root of the mean square, and the other
    RMSProps to the mean square."""
    momentum: float = static(0.0, low=0, below=1)
    """Momentum of stochastic gradient descent."""
    weight_decay: float = static(0.0, low=0)
    """Decoupled weight decay per step, multiplied by the step size (as in AdamW)."""
    flat: bool = False
    """Descend all parameters as one vector: fewer operations, faster for small networks."""


def transformation(x: Optimizer) -> optax.GradientTransformation:
    """Return the transformation whose output the step size multiplies.

    The state is the same with and without a weight decay, so a run may continue from one without.
    """
    scaled = TRANSFORMATIONS[x.name](x)

    def add_decay(updates, state, params=None):
        updates, state = scaled.update(updates, state, params)
        return jax.tree.map(lambda u, p: u + x.weight_decay * p, updates, params), state

    return optax.GradientTransformation(scaled.init, add_decay) if x.weight_decay else scaled


def plain_optimizer(name: str) -> optax.GradientTransformation:
    """Return the transformation called `name` with an epsilon of 1e-5 and RMSProp's decay of 0.99,
    for algorithms that are written without parts. Raises `UserError` where there is none."""
    if name not in TRANSFORMATIONS:
        raise unknown("optimizer", name, TRANSFORMATIONS)
    return transformation(Optimizer(name, eps=1e-5, decay=0.99))


@group
class Target:
    """Target network: a copy of the parameters that follows them."""

    rate: float = hyper(0.005, low=0, high=1)
    """Averaging rate tau of the target network when it is updated; 1 copies the parameters."""
    period: int = static(1, low=1)
    """Number of updates between two updates of the target network."""


@group
class Torso:
    """Layers before a head."""

    channels: ClassVar[tuple[int, ...]] = ()

    hidden: tuple[int, ...] = static((256, 256), low=1, high=WIDE, least_length=1)
    """Widths of the hidden layers."""
    activation: str = static("relu", choices=ACTIVATIONS)
    """Activation after each hidden layer."""
    initializer: str = static("lecun", choices=INITIALIZERS)
    """Initial weights: lecun (normal), orthogonal, or torch (uniform, with biases, as in
    PyTorch)."""


@group
class LinearTorso(Torso):
    """Layers before a head, of which there may be none."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear heads."""


@group
class ImageTorso(Torso):
    """Layers before a head, with convolutions for images."""

    channels: tuple[int, ...] = static((), low=1, high=WIDE)
    """Channels of 3 x 3 convolutions, for images [height, width, channels]; none for the default.
    That flattens grids, and encodes pictures as Dreamer (64 x 64 pixels) or Nature DQN do."""


@group
class LinearImageTorso(ImageTorso):
    """Layers before a head, of which there may be none but convolutions."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear heads."""


@group
class Memory:
    """Memory of a policy."""

    recurrent: int = static(0, low=0)
    """Width of a GRU; 0 for a policy without memory."""
    transformer: int = static(0, low=0)
    """Number of layers of a transformer of that width in place of the GRU; 0 for the GRU."""
    attention_heads: int = static(2, low=1)
    """Number of attention heads of the transformer; must divide its width."""


@group
class Rollouts:
    """Windows of experience from environments that run side by side."""

    num_envs: int = static(64, low=1, high=MANY)
    """Number of environments that run in parallel."""
    num_steps: int = static(128, low=1, high=MANY)
    """Number of steps of each environment between two updates."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the environments: at most so many devices can share a run."""
    reset_pool: int | None = static(None, low=1)
    """Number of fresh episodes drawn ahead for each window, for environments whose reset is
    slow."""

    def source(self, env: Environment, tasks: Tasks | None = None) -> Source:
        return rollouts(env, self.num_envs, self.num_steps, tasks, self.reset_pool)

    def check_whole_episodes(self, env: Environment, name: str) -> None:
        """Raise `UserError`, naming the algorithm `name`, unless a rollout is one whole episode of
        each copy of `env`, all drawn anew."""
        if self.num_steps != env.max_steps:
            limit = f"a limit of {env.max_steps} steps" if env.max_steps else "no time limit"
            raise UserError(
                f"num_steps is {self.num_steps}, and '{env.name}' has {limit}; {name} learns from "
                "whole episodes, so both must be equal (see time_limit)."
            )
        if self.reset_pool:
            raise UserError(
                f"reset_pool is {self.reset_pool}; {name} learns from whole episodes, whose first "
                "states are always drawn anew."
            )


@group
class Episodes:
    """Whole episodes, one from each of several environments."""

    num_envs: int = static(16, low=1, high=MANY)
    """Number of episodes in one update."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the environments: at most so many devices can share a run."""

    def source(self, env: Environment, tasks: Tasks | None = None) -> Source:
        return episodes(env, self.num_envs, tasks, self.num_shards)


@group
class Replay:
    """Replay buffer of the latest transitions."""

    num_envs: int = static(16, low=1, high=MANY)
    """Number of environments that run in parallel."""
    num_steps: int = static(4, low=1, high=MANY)
    """Number of steps of each environment between two groups of updates."""
    updates: int = static(16, low=1)
    """Number of updates after each window of num_envs * num_steps environment steps."""
    batch_size: int = static(256, low=1, high=MANY)
    """Number of transitions in a minibatch."""
    capacity: int = static(100_000, low=1)
    """Number of transitions that are kept."""
    warmup: int = static(1000, low=0)
    """Environment steps before the first update, by the initial policy (of TD3 and ARO-DDPG: at
    random)."""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the environments: at most so many devices can share a run."""

    def source(
        self,
        env: Environment,
        length: int | None = None,
        sampler: Sampler = UNIFORM,
        keep_memory: bool = False,
        *,
        tasks: Tasks | None = None,
    ) -> Source:
        """Return a source of transitions, or of windows of `length` steps; see `sources.replay`.

        tasks: the environment parameters of episodes; the environment's own by default.
        """
        collected = rollouts(env, self.num_envs, self.num_steps, tasks)
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
    """Prioritized sampling from a replay buffer (Schaul et al., 2016)."""

    of_a_source: ClassVar[bool] = True

    exponent: float = hyper(0.5, low=0)
    """Exponent of priorities; 0 samples uniformly."""
    importance: float = hyper(0.4, low=0, high=1)
    """Exponent of the importance weights at the start; 1 corrects for priorities in full."""
    importance_steps: float = hyper(INF, above=0, high=INF)
    """Environment steps over which the exponent of the importance weights grows to 1."""

    def sampler(self, path: str) -> Sampler:
        """Return the sampler of these settings, which are at `path` in the Config."""
        return proportional(self.exponent, self.importance, self.importance_steps, f"{path}.")


@group
class Epochs:
    """Several epochs over a window of experience in shuffled minibatches."""

    epochs: int = static(4, low=1)
    """Number of epochs over each window."""
    minibatches: int = static(4, low=1)
    """Number of minibatches in one epoch."""
    shuffle: str = static("auto", choices=shuffle.METHODS)
    """Shuffling of minibatches: exact (a uniform permutation, by sorting), bijection (cheap, for
    powers of two), or auto (bijection where possible)."""
    chunk_rows: int = static(-1, low=-1)
    """Number of rows of a minibatch whose gradient is computed at once; 0 for all, -1 for what
    suits the device (2048 on a CPU, all elsewhere)."""

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
    """Several epochs over a window of experience, with an early stop for policies."""

    early_stop: bool = False
    """Take no more gradient steps on a window once a minibatch's estimated KL to the policy that
    collected it exceeds target_kl."""
    target_kl: float = hyper(0.02, above=0, high=INF)
    """Estimated KL divergence at which `early_stop` stops; infinite for never."""


@group
class Normalization:
    """Running statistics that normalize observations."""

    observation: bool = False
    """Standardize observations by running statistics."""


@group
class RolloutNormalization(Normalization):
    """Running statistics that normalize observations and, in rollouts, rewards."""

    reward: bool = False
    """Divide rewards by the standard deviation of the discounted return."""


@group
class EpsilonGreedy:
    """Epsilon-greedy exploration with a probability that falls."""

    start: float = hyper(1.0, low=0, high=1)
    """Probability of a random action at the start."""
    end: float = hyper(0.05, low=0, high=1)
    """Probability of a random action after `steps`."""
    steps: float = hyper(10_000.0, above=0, high=INF)
    """Environment steps over which the probability of a random action falls."""


@group
class StateDependentNoise:
    """Exploration of continuous actions by noise that is a linear function of the policy's last
    features (gSDE; Raffin et al., 2020, arXiv:2005.05719)."""

    enabled: bool = False
    """Explore by state-dependent noise instead of independent noise at each step."""
    interval: int = static(0, low=0, high=MANY)
    """Number of steps after which the noise matrix is drawn anew within a rollout; 0 for never. It
    is always drawn anew at the start of rollouts and of episodes."""
    log_std: float = static(-2.0, low=-20.0, high=2.0)
    """Logarithm of the initial standard deviation of each entry of the noise matrix, in half-widths
    of the actions."""


@group
class OrnsteinUhlenbeck:
    """Ornstein-Uhlenbeck noise: x' = (1 - reversion) x + deviation * normal, from 0 in each
    episode."""

    reversion: float = hyper(0.15, low=0, high=1)
    """Theta, the share of the noise that decays in a step."""
    deviation: float = hyper(0.2, low=0)
    """Sigma, the standard deviation of what a step adds, in half-widths of the actions."""


@group
class Sampling:
    """Sampling from a categorical policy."""

    temperature: float = hyper(1.0, above=0, log=True)
    """Temperature that divides the logits; below 1 samples are likelier ones."""
    top_p: float = hyper(1.0, above=0, high=1)
    """Probability of the likeliest actions that are kept, in a nucleus; 1 keeps all."""
    nucleus: bool = False
    """Sample from the nucleus, the smallest set of likeliest actions whose probabilities reach
    top_p. Which actions these were is kept with each step, so that losses restrict to them too."""


@group
class EvaluationSampling:
    """Sampling from a categorical policy in evaluations that are not greedy, and by a trained
    policy that is loaded."""

    temperature: float = hyper(1.0, above=0, high=INF, log=True)
    """Temperature of evaluations that are not greedy; below 1 samples are likelier ones."""
    top_p: float = hyper(1.0, above=0, high=1)
    """Probability of the nucleus in evaluations that are not greedy; needs `sampling.nucleus`."""
