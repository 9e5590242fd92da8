"""Mechanics of free bodies against closed forms, conservation laws and brute force."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.planar import free_bodies, shapes
from jaxrl.envs.planar.free_bodies import Body

N = 200


def _roll(function, start, steps: int):
    """Apply `function` `steps` times and return every result: leaves [steps, ...]."""

    def body(carry, _):
        carry = function(carry)
        return carry, carry

    return jax.lax.scan(body, start, None, length=steps)[1]


def test_driven_motion_has_its_closed_form():
    rng = np.random.default_rng(0)
    mass, damping, dt = rng.uniform(0.2, 5, (3, N)) * np.array([[1.0], [1.0], [0.01]])
    force, velocity = rng.normal(size=(2, N, 2))

    @jax.jit
    @jax.vmap
    def roll(velocity, force, mass, damping, dt):
        return _roll(lambda v: free_bodies.drive(v, force, mass, damping, dt), velocity, 50)

    q = (mass / (mass + dt * damping))[:, None, None]
    n = np.arange(1, 51)[:, None]
    final = (force / damping[:, None])[:, None]
    expected = final + (velocity[:, None] - final) * q**n
    ours = roll(velocity, force, mass, damping, dt)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------ sliding


@functools.cache
def _sliding():
    """Return a function to positions, angles, velocities and spins [B, T] of a freely sliding body
    of mass 1."""

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, 0))
    def slide(velocity, spin, inverse_inertia, grip, reach, dt):
        zero = jnp.zeros(())
        body = Body(jnp.zeros(2), zero, velocity, spin, zero + 1.0, inverse_inertia)
        return _roll(lambda b: free_bodies.slide(b, grip, reach, dt), body, 400)

    return lambda **arguments: slide(
        *(
            jnp.asarray(arguments[name], jnp.float32)
            for name in ("velocity", "spin", "inverse_inertia", "grip", "reach", "dt")
        )
    )


def test_coulomb_friction_stops_where_the_closed_form_says():
    rng = np.random.default_rng(1)
    friction, gravity, speed = rng.uniform(0.2, 1, N), rng.uniform(2, 10, N), rng.uniform(0.1, 2, N)
    direction = rng.uniform(-np.pi, np.pi, N)
    way = np.stack([np.cos(direction), np.sin(direction)], -1)
    dt = np.repeat([0.02, 0.1, 0.5, 30.0], N // 4)  # exact for every step, even a long one
    bodies = _sliding()(
        velocity=speed[:, None] * way,
        spin=np.zeros(N),
        inverse_inertia=np.full(N, 200.0),
        grip=friction * gravity,
        reach=np.full(N, 0.05),
        dt=dt,
    )
    assert not np.any(bodies.velocity[:, -1]) and not np.any(bodies.spin)
    distance = speed**2 / (2 * friction * gravity)
    np.testing.assert_allclose(bodies.position[:, -1], distance[:, None] * way, rtol=1e-4)
    time = speed / (friction * gravity)
    moving = np.abs(bodies.velocity).max(-1) > 0
    np.testing.assert_array_less(np.abs(moving.sum(1) * dt - time), dt + 1e-4)


def test_a_turning_body_stops_where_the_closed_form_says():
    """Check a disc that only turns: deceleration (2/3) R grip m / I = (4/3) grip / R."""
    rng = np.random.default_rng(2)
    radius, mass = rng.uniform(0.05, 0.5, N), rng.uniform(0.5, 3, N)
    shape = jax.jit(jax.vmap(shapes.disc))(radius, mass)
    spin, grip = rng.uniform(-20, 20, N), rng.uniform(1, 5, N)
    bodies = _sliding()(
        velocity=np.zeros((N, 2)),
        spin=spin,
        inverse_inertia=shape.inverse_inertia * mass,  # `_sliding` has mass 1
        grip=grip,
        reach=shape.reach,
        dt=np.full(N, 0.05),
    )
    angle = np.sign(spin) * spin**2 / (2 * (4 / 3) * grip / radius)
    assert not np.any(bodies.spin[:, -1]) and not np.any(bodies.position)
    np.testing.assert_allclose(bodies.angle[:, -1], angle, rtol=1e-3)


def test_sliding_and_turning_slow_each_other_as_the_ellipse_says():
    """Check that d ln w / d ln v is constant on the ellipse, so w / w0 = (v / v0)^k with k = m
    reach^2 / I, and that either motion lasts longer than alone."""
    rng = np.random.default_rng(3)
    speed, spin = rng.uniform(0.5, 1, N), rng.uniform(5, 20, N)
    inverse_inertia, reach = rng.uniform(100, 300, N), rng.uniform(0.03, 0.06, N)
    bodies = _sliding()(
        velocity=np.stack([speed, 0 * speed], -1),
        spin=spin,
        inverse_inertia=inverse_inertia,
        grip=np.ones(N),
        reach=reach,
        dt=np.full(N, 0.001),
    )
    k = (reach**2 * inverse_inertia)[:, None]
    left = bodies.velocity[..., 0] / speed[:, None]
    np.testing.assert_allclose(bodies.spin / spin[:, None], left**k, rtol=5e-3)
    assert np.all(bodies.velocity[:, -1, 0] > speed - 0.4 * 1.0 + 0.001)  # slower than grip alone
    # Rate of loss at the start: grip v / s.
    slip = np.hypot(speed, reach * spin)
    lost = (speed - bodies.velocity[:, 0, 0]) / 0.001
    np.testing.assert_allclose(lost, speed / slip, rtol=2e-3)


# ------------------------------------------------------------------------------ collisions


@functools.cache
def _collide():
    return jax.jit(jax.vmap(free_bodies.collide))


def _random_pairs(rng: np.random.Generator):
    def body():
        numbers = rng.normal(size=(N, 6)).astype(np.float32)
        mass, inertia = rng.uniform(0.3, 3, (2, N)).astype(np.float32)
        return Body(
            numbers[:, :2], numbers[:, 2], numbers[:, 3:5], numbers[:, 5], 1 / mass, 1 / inertia
        )

    angle = rng.uniform(-np.pi, np.pi, N)
    normal = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    depth = np.where(np.arange(N) % 4, 0.01, -0.01).astype(
        np.float32
    )  # a quarter of the pairs do not touch
    point = rng.normal(size=(N, 2)).astype(np.float32)
    return body(), body(), free_bodies.Contact(depth, normal, point)


def _momentum(bodies):
    """Return momentum [2], angular momentum about the origin and energy of all bodies."""
    linear, angular, energy = 0.0, 0.0, 0.0
    for b in bodies:
        p = b.velocity / np.asarray(b.inverse_mass)[:, None]
        linear = linear + p
        x, y = np.asarray(b.position).T
        angular = angular + x * p[:, 1] - y * p[:, 0] + b.spin / b.inverse_inertia
        energy = energy + (p * b.velocity).sum(-1) / 2 + b.spin**2 / b.inverse_inertia / 2
    return np.asarray(linear), np.asarray(angular), np.asarray(energy)


def _relative(first, second, contact):
    def at_contact(body):
        arm = np.asarray(contact.point - body.position)
        turned = np.stack([-arm[:, 1], arm[:, 0]], -1)
        return body.velocity + np.asarray(body.spin)[:, None] * turned

    return ((at_contact(second) - at_contact(first)) * contact.normal).sum(-1)


@pytest.mark.slow
def test_elastic_collisions_keep_momentum_and_energy():
    first, second, contact = _random_pairs(np.random.default_rng(4))
    one, zero = np.ones(N, np.float32), np.zeros(N, np.float32)
    after = _collide()(first, second, contact, one, zero)
    # About the places before: moving apart is not part of the impulse.
    placed = [
        Body(b.position, b.angle, a.velocity, a.spin, b.inverse_mass, b.inverse_inertia)
        for a, b in zip(after, (first, second), strict=True)
    ]
    for now, before in zip(_momentum(placed), _momentum((first, second)), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-4, atol=1e-4)
    before = _relative(first, second, contact)
    hit = (contact.depth > 0) & (before < 0)
    assert 0.2 < hit.mean() < 0.6
    np.testing.assert_allclose(
        _relative(*placed, contact), np.where(hit, -before, before), rtol=1e-3, atol=1e-4
    )
    untouched = ~hit
    np.testing.assert_array_equal(after[0].velocity[untouched], first.velocity[untouched])


def test_friction_and_restitution_lose_energy_and_keep_momentum():
    rng = np.random.default_rng(5)
    first, second, contact = _random_pairs(rng)
    restitution, friction = rng.uniform(0, 1, (2, N)).astype(np.float32)
    after = _collide()(first, second, contact, restitution, friction)
    placed = [
        Body(b.position, b.angle, a.velocity, a.spin, b.inverse_mass, b.inverse_inertia)
        for a, b in zip(after, (first, second), strict=True)
    ]
    now, before = _momentum(placed), _momentum((first, second))
    np.testing.assert_allclose(now[0], before[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(now[1], before[1], rtol=1e-4, atol=1e-4)
    assert np.all(now[2] <= before[2] * (1 + 1e-5))
    hit = np.any(after[0].velocity != first.velocity, -1)
    assert hit.sum() > 40 and np.all(now[2][hit] < before[2][hit])
    # The impulse lies in Coulomb's cone and reaches its edge if friction is low.
    impulse = (np.asarray(placed[1].velocity) - second.velocity) / second.inverse_mass[:, None]
    push = (impulse * contact.normal).sum(-1)
    rub = np.linalg.norm(impulse - push[:, None] * contact.normal, axis=-1)
    assert np.all(push >= -1e-6) and np.all(rub <= friction * push + 1e-4)
    assert 0.1 < np.isclose(rub[hit], (friction * push)[hit], rtol=1e-3, atol=1e-5).mean() < 1.0


def test_equal_discs_exchange_their_velocities_and_move_apart():
    rng = np.random.default_rng(6)
    radius = rng.uniform(0.1, 0.5, (2, N)).astype(np.float32)
    angle = rng.uniform(-np.pi, np.pi, N)
    normal = np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)
    places = rng.normal(size=(N, 2)).astype(np.float32)
    other = places + (0.9 * radius.sum(0))[:, None] * normal
    contact = jax.vmap(free_bodies.disc_disc)(places, radius[0], other, radius[1])
    speed = rng.uniform(0.5, 2, N).astype(np.float32)[:, None]
    zero, one = np.zeros(N, np.float32), np.ones(N, np.float32)
    first = Body(places, zero, speed * normal, zero, one, one)
    second = Body(other, zero, 0 * normal, zero, one, one)
    first, second = _collide()(first, second, contact, one, zero)
    np.testing.assert_allclose(first.velocity, 0 * normal, atol=1e-5)
    np.testing.assert_allclose(second.velocity, speed * normal, rtol=1e-4, atol=1e-5)
    apart = np.linalg.norm(second.position - first.position, axis=-1)
    np.testing.assert_allclose(apart, radius.sum(0), rtol=1e-5)


# ------------------------------------------------------------------------------ geometry


def test_disc_and_box_touch_where_brute_force_says():
    rng = np.random.default_rng(7)
    half = rng.uniform(0.1, 0.6, (N, 2)).astype(np.float32)
    offset, place = rng.normal(size=(2, N, 2)).astype(np.float32) * 0.3
    angle = rng.uniform(-np.pi, np.pi, N).astype(np.float32)
    radius = rng.uniform(0.1, 0.3, N).astype(np.float32)
    center = place + rng.normal(size=(N, 2)).astype(np.float32) * 0.5

    @jax.jit
    @jax.vmap
    def touch(center, radius, place, angle, offset, half):
        zero = jnp.zeros(())
        box = Body(place, angle, jnp.zeros(2), zero, zero, zero)
        return free_bodies.disc_box(center, radius, box, offset, half)

    contact = touch(center, radius, place, angle, offset, half)
    s = np.linspace(-1, 1, 801)
    one = np.ones_like(s)
    edge = np.concatenate([np.stack(x, -1) for x in ((s, one), (s, -one), (one, s), (-one, s))])
    inside_seen = 0
    for i in range(N):
        turn = np.array(
            [[np.cos(angle[i]), -np.sin(angle[i])], [np.sin(angle[i]), np.cos(angle[i])]]
        )
        points = place[i] + (offset[i] + edge * half[i]) @ turn.T
        away = np.linalg.norm(points - center[i], axis=-1)
        local = (center[i] - place[i]) @ turn - offset[i]
        inside = bool(np.all(np.abs(local) < half[i]))
        inside_seen += inside
        depth = radius[i] + (away.min() if inside else -away.min())
        np.testing.assert_allclose(contact.depth[i], depth, atol=2e-3)
        assert np.linalg.norm(points - contact.point[i], axis=-1).min() < 2e-3
        # Moved back along the normal by the depth, the disc just touches.
        moved = center[i] - contact.normal[i] * contact.depth[i]
        np.testing.assert_allclose(
            np.linalg.norm(points - moved, axis=-1).min(), radius[i], atol=3e-3
        )
    assert 20 < inside_seen < N - 20


def test_a_disc_leaves_all_cells_of_any_maze():
    """Compare with all cells of a random maze, while the kit looks at three."""
    rng = np.random.default_rng(8)
    walls = (rng.random((40, 9, 9)) < 0.4).astype(np.uint8)
    walls[:, [0, -1]] = walls[:, :, [0, -1]] = 1
    cell, radius = 0.5, rng.uniform(0.05, 0.24, 40).astype(np.float32)
    restitution = np.repeat([0.0, 1.0], 20).astype(np.float32)
    free = [np.argwhere(w == 0) for w in walls]
    cells = np.stack([f[rng.integers(len(f), size=100)] for f in free])  # [40, 100, 2]
    places = (cells + rng.uniform(0.0, 1.0, cells.shape) - 4.5) * cell  # row, column
    position = np.stack([places[..., 1], -places[..., 0]], -1).astype(np.float32)
    velocity = rng.normal(size=position.shape).astype(np.float32)
    touch = jax.vmap(free_bodies.push_out_of_cells, (0, 0, None, None, None, None))
    after, speed = jax.jit(jax.vmap(touch, (0, 0, 0, None, 0, 0)))(
        position, velocity, walls, cell, radius, restitution
    )
    depth = clearance(after, walls[:, None], cell) - radius[:, None]
    assert depth.min() > -1e-5
    before = clearance(position, walls[:, None], cell) - radius[:, None]
    touched = before < 0
    assert 0.2 < touched.mean() < 0.9
    np.testing.assert_array_equal(np.asarray(after)[~touched], position[~touched])
    np.testing.assert_array_equal(np.asarray(speed)[~touched], velocity[~touched])
    # It leaves by the shortest way, no farther than it was inside.
    moved = np.linalg.norm(after - position, axis=-1)
    single = touched & (np.abs(moved + before) < 1e-4)
    assert single.sum() > 0.5 * touched.sum()

    def energy(v):
        return (np.asarray(v) ** 2).sum(-1)

    np.testing.assert_allclose(energy(speed)[20:], energy(velocity)[20:], rtol=1e-4)
    assert np.all(energy(speed)[:20] <= energy(velocity)[:20] + 1e-6)
    changed = np.any(speed[:20] != velocity[:20], -1)
    assert changed[touched[:20]].mean() > 0.3


def clearance(position, walls, cell) -> np.ndarray:
    """Return the distance from each `position` [..., 2] to the nearest solid cell of `walls` [...,
    H, W]."""
    height, width = walls.shape[-2:]
    rows, columns = np.mgrid[:height, :width]
    centers = np.stack([columns - (width - 1) / 2, (height - 1) / 2 - rows], -1) * cell
    between = np.abs(np.asarray(position)[..., None, None, :] - centers) - cell / 2
    distance = np.linalg.norm(np.maximum(between, 0), axis=-1)
    distance = np.where(np.all(between < 0, -1), between.max(-1), distance)
    return np.where(walls != 0, distance, np.inf).min((-2, -1))


def test_inertia_and_friction_radius_are_those_of_a_sum_over_points():
    parts = np.array([[0.3, 0.1, 0.12, 0.03], [0.3, -0.02, 0.03, 0.09]], np.float32)
    shape = jax.jit(shapes.boxes)(parts, 2.0)
    s = (np.arange(400) + 0.5) / 200 - 1
    grid = np.stack(np.meshgrid(s, s), -1).reshape(-1, 2)
    points = np.concatenate([p[:2] + grid * p[2:] for p in parts])
    weight = np.concatenate([np.full(len(grid), p[2] * p[3]) for p in parts])
    weight /= weight.sum()
    points -= weight @ points
    away = np.linalg.norm(points, axis=-1)
    np.testing.assert_allclose(1 / shape.inverse_inertia, 2.0 * weight @ away**2, rtol=1e-4)
    np.testing.assert_allclose(shape.reach, weight @ away, rtol=1e-4)
    np.testing.assert_allclose(shape.radius, away.max(), rtol=0.02)
