"""The law that a generative model fine-tuned on rewards should have: p(x) exp(r(x) / beta), on a
grid.

It maximizes the expected reward less beta times the divergence KL(q || p) from the model p that
fine-tuning begins with. For environments of one step whose expert draws from a known density.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, struct


@struct
class GridLaw:
    """A law on the points of a regular grid of a plane box, [N] in all."""

    points: Array  # [N, 2]
    probability: Array  # [N]
    reward: Array  # [N]

    @property
    def expected_reward(self) -> Array:
        return (self.probability * self.reward).sum()


def has_density(env: Environment) -> bool:
    """Return whether the expert of `env` draws points of a plane box from a known density, and one
    step ends the episode."""
    space = env.action_space
    plane = isinstance(space, Box) and space.shape == (2,)
    one_step = env.max_steps == 1 and env.state_of is not None and env.expert is not None
    return plane and one_step and env.log_density is not None


def tilted_law(env: Environment, beta: Array | float, size: int = 160) -> GridLaw:
    """Return the law proportional to p(x) exp(r(x) / beta) on size x size points, cell centers.

    beta: positive; infinite for p itself. Raises `UserError` unless `has_density(env)`.
    """
    if not has_density(env):
        raise UserError(f"'{env.name}' has no known density of points in a plane.")
    density_of = env.log_density
    assert density_of is not None and env.state_of is not None
    space = env.action_space
    low, high = (jnp.broadcast_to(jnp.asarray(x), (2,)) for x in (space.low, space.high))
    share = (jnp.arange(size) + 0.5) / size
    x, y = jnp.meshgrid(share, share, indexing="ij")
    points = low + (high - low) * jnp.stack([x.ravel(), y.ravel()], -1)
    timestep = jax.tree.map(lambda leaf: leaf[0], example_timestep(env))
    state, key = env.state_of(timestep), jax.random.key(0)
    reward = jax.vmap(lambda a: env.step(key, state, a, env.params)[1].reward)(points)
    log_density = jax.vmap(lambda a: density_of(a, env.params))(points)
    return GridLaw(points, jax.nn.softmax(log_density + reward / beta), reward)


def total_variation(law: GridLaw, samples: Array, cells: int = 8) -> Array:
    """Return the total variation between a law and samples [n, 2], both counted in cells x cells
    cells of the law's box; half the sum of absolute differences, from 0 to 1."""
    low = law.points.min(0)
    high = law.points.max(0)

    def count(points: Array, weight: Array) -> Array:
        at = jnp.clip(((points - low) / (high - low) * cells).astype(jnp.int32), 0, cells - 1)
        return jnp.zeros((cells, cells)).at[at[:, 0], at[:, 1]].add(weight)

    own = count(samples, jnp.full(len(samples), 1 / len(samples)))
    return 0.5 * jnp.abs(count(law.points, law.probability) - own).sum()
