"""Policy heads, from features to a distribution over actions; the only file that uses distrax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, bounds
from jaxrl.core.types import Array
from jaxrl.networks.dense import dense, matmul
from jaxrl.networks.initializers import initializer

Distribution = distrax.Distribution

ILLEGAL = -1e9  # finite, so that entropies of masked actions are 0 and not NaN
FEW = 256  # up to this many actions a sum is faster than a gather, whose gradient is a scatter


class Categorical(distrax.Categorical):
    """The categorical distribution of distrax without its runtime checks.

    distrax checks at every sample that the probabilities are finite, and at every log-probability
    that the value exists, which takes as long as a small network. Here NaN logits give an
    arbitrary action, and an action outside 0 .. n - 1 gives a meaningless log-probability.

    `logits` are normalized log-probabilities and finite, as `ILLEGAL` is.
    """

    def _sample_n(self, key, n):
        return jax.random.categorical(key, self.logits, shape=(n, *self.logits.shape[:-1]))

    def log_prob(self, value):
        n = self.num_categories
        if n > FEW:
            return jnp.take_along_axis(self.logits, value[..., None], -1)[..., 0]
        return (jax.nn.one_hot(value, n) * self.logits).sum(-1)

    def entropy(self):
        return -(jnp.exp(self.logits) * self.logits).sum(-1)


def categorical(logits: Array, legal_actions: Array | None = None) -> Categorical:
    """Return the categorical distribution of `logits` [..., n] over `legal_actions`, bool
    [..., n]."""
    return Categorical(_mask(logits, legal_actions))


class ReadOut(Categorical):
    """The categorical distribution of logits that are a product of features and a kernel, of which
    a part exists at a time: for vocabularies whose logits of a whole window would not fit memory.

    The gradient computes each part again. Only log-probabilities and entropies are computed in
    parts; whatever asks for `logits` gets all of them.

    features: [..., D]. kernel: [D, n]. legal_actions: bool [..., n], None for all.
    temperature: what the logits are divided by. rows: number of rows of logits in a part.
    """

    def __init__(
        self,
        features: Array,
        kernel: Array,
        legal_actions: Array | None = None,
        temperature: Array | float = 1.0,
        rows: int = 1,
    ):
        self._given = features, kernel, legal_actions, temperature
        self._rows = rows
        self._probs, self._dtype = None, jnp.int32

    @property
    def _logits(self) -> Array:
        features, kernel, legal_actions, temperature = self._given
        whole: Any = _read_out(features, kernel, legal_actions, temperature)
        return whole.logits

    @property
    def num_categories(self) -> int:
        return self._given[1].shape[-1]

    def at_temperature(self, temperature: Array | float) -> ReadOut:
        """Return the distribution with its logits divided by a temperature."""
        features, kernel, legal_actions, own = self._given
        return ReadOut(features, kernel, legal_actions, own * temperature, self._rows)

    def log_prob(self, value):
        return self.log_prob_and_entropy(value)[0]

    def entropy(self):
        return self.log_prob_and_entropy(jnp.zeros(self.batch_shape, jnp.int32))[1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self._given[0].shape[:-1]

    def log_prob_and_entropy(self, value: Array) -> tuple[Array, Array]:
        """Return the log-probabilities of values [...], and the entropies [...]."""
        features, kernel, legal_actions, temperature = self._given
        rows = min(self._rows, value.size)
        count = -(-value.size // rows)

        def split(x: Array) -> Array:  # [count, rows, ...], the last part filled up with zeros
            flat = x.reshape(value.size, *x.shape[features.ndim - 1 :])
            filled = jnp.pad(flat, ((0, count * rows - value.size), *((0, 0),) * (flat.ndim - 1)))
            return filled.reshape(count, rows, *flat.shape[1:])

        @jax.checkpoint
        def part(given: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
            x, value, legal = given
            policy = _read_out(x, kernel, legal, temperature)
            return policy.log_prob(value), policy.entropy()

        found = jax.lax.map(part, jax.tree.map(split, (features, value, legal_actions)))
        return jax.tree.map(lambda x: x.reshape(-1)[: value.size].reshape(value.shape), found)


def _read_out(
    features: Array, kernel: Array, legal: Array | None, temperature: Array | float
) -> Categorical:
    """Return the distribution of all logits, illegal ones the same at any temperature."""
    logits = matmul(features, kernel)
    return categorical(logits / temperature, legal)


def log_prob_and_entropy(policy: Any, value: Array) -> tuple[Array, Array]:
    """Return the log-probabilities of values and the entropies of a policy, with one pass over
    logits that are computed in parts."""
    if isinstance(policy, ReadOut):
        return policy.log_prob_and_entropy(value)
    return policy.log_prob(value), policy.entropy()


class Mixture(distrax.Distribution):
    """A distribution over mixtures of tokens, points [V] of the simplex.

    Drawn is the mean of `draws` (K) tokens, each a one-hot vector, that are independent samples of
    the softmax of logits [..., V]; where `single` (bool [...]) it is one token. The mode is the
    mean of what is drawn, which is a mixture too, and where `single` the likeliest token.

    joint: whether log-probabilities and entropies are those of all K tokens together, whose logits
        are then divided by K; if not, they are means over the tokens. Log-probabilities are those
        of an order of the tokens: they lack the multinomial coefficient, a constant. They exist for
        all mixtures: K times, or once, the mean log-probability of a token from the mixture.
    """

    def __init__(self, logits: Array, single: Array, draws: int = 1, joint: bool = True):
        super().__init__()
        self.weight = jnp.where(single, 1.0, draws if joint else 1.0)
        self.log_probs = jax.nn.log_softmax(logits / self.weight[..., None])
        self.single, self.draws = single, draws

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.log_probs.shape[-1:]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.log_probs.shape[:-1]

    def _sample_n(self, key, n):
        shape = (self.draws, n, *self.batch_shape)
        tokens = jax.random.categorical(key, self.log_probs, shape=shape)
        drawn = jax.nn.one_hot(tokens, self.log_probs.shape[-1])
        return jnp.where(self.single[..., None], drawn[0], drawn.mean(0))

    def log_prob(self, value):
        return self.weight * (value * self.log_probs).sum(-1)

    def entropy(self):
        return -self.weight * (jnp.exp(self.log_probs) * self.log_probs).sum(-1)

    def mode(self):
        likeliest = jax.nn.one_hot(self.log_probs.argmax(-1), self.log_probs.shape[-1])
        return jnp.where(self.single[..., None], likeliest, jnp.exp(self.log_probs))


class PolicyHead(nn.Module):
    """A distribution over actions in `space` from features [..., D].

    Discrete: a categorical distribution, restricted to `legal_actions` (bool [..., num_actions])
        if given.
    MultiDiscrete: independent categoricals, with `legal_actions` [..., components, largest size].
    Box: a normal distribution. Its mean is linear in the features, or the tanh of that if
        `bounded_mean`. Its standard deviation is a parameter that starts at `exp(log_std)`
        (`deviation` "learned"), a constant `exp(log_std)` ("fixed"), `exp(log_std)` times a
        softplus of a linear layer of the features ("of_state"), or between 0.1 and 1 times
        `exp(log_std)`, by a sigmoid of such a layer ("bounded", as in Dreamer v3's code). Both are
        in units of the box's half-width around its center (of 1 around 0 if it is unbounded). The
        environment clips actions outside the box. With the deviation "of_noise" it is a
        `StateDependentNormal`: the standard deviations of its noise matrix are parameters that
        start at `exp(log_std)`.
    """

    space: Space
    initializer: str = "lecun"
    log_std: float = 0.0
    bounded_mean: bool = False
    deviation: str = "learned"

    @nn.compact
    def __call__(self, features: Array, legal_actions: Array | None = None) -> Distribution:
        match self.space:
            case Discrete(n):
                return categorical(self._linear(n)(features), legal_actions)
            case MultiDiscrete(sizes):
                width = max(sizes)
                logits = self._linear(len(sizes) * width)(features)
                logits = logits.reshape(*logits.shape[:-1], len(sizes), width)
                exists = jnp.arange(width) < jnp.asarray(sizes)[:, None]
                logits = _mask(jnp.where(exists, logits, ILLEGAL), legal_actions)
                return distrax.Independent(Categorical(logits), 1)
            case Box(shape=shape):
                size = int(np.prod(shape))
                mean = self._linear(size)(features).reshape(*features.shape[:-1], *shape)
                mean = jnp.tanh(mean) if self.bounded_mean else mean
                if self.deviation == "of_noise":
                    start = nn.initializers.constant(self.log_std)
                    deviation = jnp.exp(self.param("log_std", start, (features.shape[-1], size)))
                    noisy = jax.lax.stop_gradient(features)
                    return StateDependentNormal(self.space, mean, noisy, deviation)
                return normal(self.space, mean, self._deviation(features, shape))
        raise _unsupported_error(self.space)

    def _deviation(self, features: Array, shape: tuple[int, ...]) -> Array | float:
        """The standard deviation in half-widths, of a shape that broadcasts to [..., *shape]."""
        if self.deviation == "fixed":
            return np.exp(self.log_std)
        if self.deviation == "learned":
            start = nn.initializers.constant(self.log_std)
            return jnp.exp(self.param("log_std", start, shape))
        raw = self._linear(int(np.prod(shape)), "deviation")(features)
        if self.deviation == "bounded":
            relative = 0.1 + 0.9 * jax.nn.sigmoid(raw + 2)
        else:
            relative = jax.nn.softplus(raw) / np.log(2) + 1e-6  # 1 where the layer returns 0
        return np.exp(self.log_std) * relative.reshape(*raw.shape[:-1], *shape)

    def _linear(self, size: int, name: str = "linear") -> nn.Dense:
        # With orthogonal weights the first policy is close to uniform.
        return dense(size, initializer(self.initializer, 0.01), name=name)


def normal(space: Box, mean: Array, deviation: Array | float) -> Distribution:
    """Return a normal distribution over actions in `space`, which the environment clips.

    mean, deviation: [..., *shape], in half-widths of the box around its center.
    """
    center, half_width = scale(space)
    deviation = jnp.broadcast_to(half_width * deviation, mean.shape)
    return distrax.Independent(distrax.Normal(center + half_width * mean, deviation), center.ndim)


class StateDependentNormal(distrax.Independent):
    """A normal distribution over actions in `space` whose noise is linear in features (gSDE).

    An action is mean + features @ matrix, in half-widths of the box around its center, and the
    entries of the matrix are independent normals with standard deviations `deviation`. So without
    the matrix an action is normal, with variance features^2 @ deviation^2 (plus 1e-6, which keeps
    it above 0): log-probabilities, entropies, divergences and samples are those of that
    distribution. `explore` gives the action for a matrix.

    mean: [..., *shape]. features: [..., F]. deviation: [F, size], size the product of `shape`.

    Source: Raffin, Kober and Stulp, 2020, arXiv:2005.05719; the constant is that of
    Stable-Baselines3.
    """

    def __init__(self, space: Box, mean: Array, features: Array, deviation: Array):
        variance = jnp.square(features) @ jnp.square(deviation)
        center, half_width = scale(space)
        spread = half_width * jnp.sqrt(variance + 1e-6).reshape(mean.shape)
        super().__init__(distrax.Normal(center + half_width * mean, spread), center.ndim)
        self.features, self.deviation, self.half_width = features, deviation, half_width

    def explore(self, normals: Array) -> Array:
        """Return the actions [..., *shape] for noise matrices [..., F, size] in units of the
        standard deviations of their entries."""
        noise = jnp.einsum("...f,...fa->...a", self.features, self.deviation * normals)
        mean = jnp.asarray(self.mode())
        return mean + jnp.asarray(self.half_width) * noise.reshape(mean.shape)


class Squashed(distrax.Transformed):
    """A distribution squashed by tanh.

    Log-probabilities from `sample_and_log_prob` are accurate up to the bounds. Those of a given
    action are not, since an action near a bound has lost digits.
    """

    def mode(self):
        """The squashed mean, which is the median."""
        return self.bijector.forward(self.distribution.mode())


def gaussian(policy: Distribution) -> tuple[Array, Array] | None:
    """Return the mean and standard deviation [..., D] of a Gaussian policy [...], else None.

    The numbers of an action are flattened into one axis.
    """
    normal = getattr(policy, "distribution", None)
    if not isinstance(normal, distrax.Normal):
        return None
    flat = lambda x: x.reshape(*policy.batch_shape, -1)
    return flat(normal.loc), flat(normal.scale)


def squash(space: Box) -> distrax.Block:
    """Return the bijector of tanh into the bounded box `space`."""
    center, half_width = scale(space)
    within = distrax.Chain([distrax.ScalarAffine(center, half_width), distrax.Tanh()])
    return distrax.Block(within, center.ndim)


def squashed_normal(space: Box, mean: Array, deviation: Array) -> Squashed:
    """Return a normal distribution squashed by tanh into the bounded box `space`.

    mean, deviation: [..., *shape], before the tanh.
    """
    inside = distrax.Independent(distrax.Normal(mean, deviation), len(space.shape))
    return Squashed(inside, squash(space))


class SquashedStateDependentNormal(Squashed):
    """A `StateDependentNormal` squashed by tanh into the bounded box `space`.

    mean, features, deviation: as there, before the tanh.
    """

    def __init__(self, space: Box, mean: Array, features: Array, deviation: Array):
        unbounded = Box(-np.inf, np.inf, space.shape)
        inside = StateDependentNormal(unbounded, mean, features, deviation)
        super().__init__(inside, squash(space))
        self.inside = inside

    def explore(self, normals: Array) -> Array:
        """Return the actions [..., *shape] for noise matrices, as `StateDependentNormal` does."""
        return jnp.asarray(self.bijector.forward(self.inside.explore(normals)))


class SquashedHead(nn.Module):
    """A normal distribution from features [..., D], squashed by tanh into the bounded box `space`.

    Its mean and the logarithm of its standard deviation are linear in the features. Source:
    Haarnoja et al., 2018, arXiv:1812.05905, appendix C; the logarithm is bounded as in the authors'
    code.

    With the deviation "of_noise" it is a `SquashedStateDependentNormal`: the standard deviations of
    its noise matrix are parameters that start at `exp(log_std)`, the features are learned for the
    noise too, and the mean is clipped to [-2, 2], as in Stable-Baselines3's SAC.
    """

    space: Box
    initializer: str = "lecun"
    deviation: str = "of_state"
    log_std: float = 0.0

    @nn.compact
    def __call__(self, features: Array) -> Squashed:
        center, _ = scale(self.space)
        noisy, size = self.deviation == "of_noise", center.size
        outputs = size if noisy else 2 * size
        layer = dense(outputs, initializer(self.initializer, 0.01), name="linear")
        shaped = lambda x: x.reshape(*x.shape[:-1], *center.shape)
        if noisy:
            start = nn.initializers.constant(self.log_std)
            deviation = jnp.exp(self.param("log_std", start, (features.shape[-1], size)))
            mean = shaped(jnp.clip(layer(features), -2.0, 2.0))
            return SquashedStateDependentNormal(self.space, mean, features, deviation)
        mean, log_std = jnp.split(layer(features), 2, -1)
        deviation = jnp.exp(shaped(jnp.clip(log_std, -20.0, 2.0)))
        return squashed_normal(self.space, shaped(mean), deviation)


def check_action_space(space: Space, agent: str) -> None:
    """Raise `UserError` if no policy head supports `space`; the message names `agent`."""
    _check_one_agent(space, agent)
    if not isinstance(space, Discrete | MultiDiscrete | Box):
        raise _unsupported_error(space, agent)


def check_discrete(space: Space, agent: str) -> None:
    """Raise `UserError` unless `space` is `Discrete`; the message names `agent`."""
    _check_one_agent(space, agent)
    if isinstance(space, Discrete):
        return
    wrapper = "flat_actions" if isinstance(space, MultiDiscrete) else None
    if isinstance(space, Box) and np.isfinite(bounds(space)).all():
        wrapper = "discretized_actions"
    way = f" (jaxrl.envs.wrappers.{wrapper} provides them)" if wrapper else ""
    raise UserError(f"{agent} cannot act in {space!r}; it needs Discrete actions{way}.")


def check_bounded(space: Space, agent: str) -> None:
    """Raise `UserError` unless `space` is one bounded `Box`; the message names `agent`."""
    _check_one_agent(space, agent)
    if not isinstance(space, Box) or not np.isfinite(bounds(space)).all():
        raise UserError(f"{agent} cannot act in {space!r}; it needs a bounded Box.")


def _check_one_agent(space: Space | Mapping[str, Space], agent: str) -> None:
    """Raise `UserError` for the spaces of several agents, by their names."""
    if isinstance(space, Mapping) and len(space) > 1:
        raise UserError(
            f"{agent} learns for one agent, but here {len(space)} act ({', '.join(space)}); "
            "ippo and mappo are among the algorithms for several."
        )


def _unsupported_error(space: Space, agent: str = "PolicyHead") -> UserError:
    return UserError(
        f"{agent} cannot act in {space!r}; it needs a Discrete, MultiDiscrete or Box action space."
    )


def _mask(logits: Array, legal_actions: Array | None) -> Array:
    return logits if legal_actions is None else jnp.where(legal_actions, logits, ILLEGAL)


def scale(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """The center and half-width of a box, each with its shape; 0 and 1 where it is unbounded."""
    low, high = bounds(box)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
    return (low + high) / 2, (high - low) / 2
