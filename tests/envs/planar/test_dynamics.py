"""Articulated kit against textbook equations and an independent dense implementation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from jaxrl import envs
from jaxrl.envs.planar import articulated, cartpole_swingup, cheetah, double_pendulum
from jaxrl.envs.planar.skeletons import (
    FREE,
    HINGE,
    NO_PARENT,
    REVERSED_HINGE,
    SLIDE_X,
    SLIDE_Z,
    Physics,
    Skeleton,
)

# One tree with every kind of joint on a fixed root, one on a free root.
FIXED = Skeleton(
    parents=(NO_PARENT, 0, 1, 1, 3, 0),
    joints=(SLIDE_X, HINGE, REVERSED_HINGE, SLIDE_Z, HINGE, REVERSED_HINGE),
    motors=(0, 2, 3, 4),
)
FLOATING = Skeleton(
    parents=(NO_PARENT, 0, 1, 0, 3),
    joints=(FREE, HINGE, SLIDE_X, REVERSED_HINGE, HINGE),
    motors=(1, 2, 3),
)
PENDULUM = Skeleton(parents=(NO_PARENT,), joints=(HINGE,), motors=(0,), limited=(0,))
CHAIN = Skeleton(parents=(NO_PARENT, 0, 1), joints=(HINGE,) * 3)
TOUCHING = Skeleton(
    parents=(NO_PARENT, 0), joints=(FREE, HINGE), motors=(1,), limited=(1,), feelers=(0, 1)
)
BLOCK = Skeleton(parents=(NO_PARENT, 0), joints=(SLIDE_X, SLIDE_Z), motors=(0,), feelers=(1,))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _physics(links: int, **changes: Any) -> Physics:
    """Return point masses a meter below each other, and nothing else."""
    values: dict[str, Any] = {
        "mass": np.ones(links),
        "inertia": np.zeros(links),
        "center": np.array([(0.0, -1.0)] * links),
        "place": np.array([(0.0, 0.0)] + [(0.0, -1.0)] * (links - 1)),
        "low": np.full(links, -np.inf),
        "high": np.full(links, np.inf),
        "stop_stiffness": 0.0,
        "stop_damping": 0.0,
        "gear": np.ones(links),
    } | {k: np.zeros(links) for k in ("armature", "damping", "stiffness")}
    return Physics(**(values | changes))


def _random(skeleton: Skeleton, seed: int) -> Physics:
    rng, n = np.random.default_rng(seed), len(skeleton.parents)
    return _physics(
        n,
        mass=rng.uniform(0.2, 2.0, n),
        inertia=rng.uniform(0.02, 0.5, n),
        center=rng.normal(size=(n, 2)),
        place=rng.normal(size=(n, 2)),
        armature=rng.uniform(0.0, 0.3, n),
        damping=rng.uniform(0.0, 2.0, n),
        stiffness=rng.uniform(0.0, 5.0, n),
        gear=rng.uniform(1.0, 10.0, len(skeleton.motors)),
    )


@functools.cache
def _accelerations(skeleton: Skeleton):
    def one(physics, q, velocity, torque, dt):
        return jnp.stack(articulated.accelerations(skeleton, physics, q, velocity, torque, dt))

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0, None)))


@functools.cache
def _advance(skeleton: Skeleton):
    def steps(physics, q, velocity, torque, dt, n):
        def one(_, state):
            return articulated.advance(skeleton, physics, *state, torque, dt, 1)

        return jax.lax.fori_loop(0, n, one, (q, velocity))

    return jax.jit(steps)


# --------------------------------------------------------------- dense, written independently


class Dense:
    """Dynamics of the same trees by Jacobians: rotations, complex-step derivatives, one linear
    solve."""

    def __init__(self, skeleton: Skeleton, physics: Physics):
        self.skeleton, self.physics = skeleton, physics
        self.size = len(skeleton.parents) + 2 * (skeleton.joints[0] == FREE)

    def bodies(self, q: np.ndarray) -> np.ndarray:
        """Return x and z of each center of mass, and the angle: [L, 3]."""
        p, frames, rows, left = self.physics, [], [], list(q)
        for link, joint in enumerate(self.skeleton.joints):
            parent = self.skeleton.parents[link]
            origin, angle = (np.zeros(2), 0.0) if parent == NO_PARENT else frames[parent]
            origin = origin + _rotate(np.asarray(p.place)[link], angle)
            if joint == FREE:
                origin, angle = origin + np.array([left.pop(0), left.pop(0)]), left.pop(0)
            else:
                x = left.pop(0)
                angle = angle + {HINGE: x, REVERSED_HINGE: -x}.get(joint, 0.0)
                slide = {SLIDE_X: (x, 0.0), SLIDE_Z: (0.0, x)}.get(joint, (0.0, 0.0))
                origin = origin + _rotate(np.array(slide), angle)
            frames.append((origin, angle))
            rows.append([*(origin + _rotate(np.asarray(p.center)[link], angle)), angle])
        return np.array(rows)

    def jacobian(self, q: np.ndarray) -> np.ndarray:
        """Return the Jacobian of `bodies`, [L, 3, D]."""
        steps = [np.imag(self.bodies(q + 1e-30j * e)) / 1e-30 for e in np.eye(self.size)]
        return np.stack(steps, axis=-1)

    def drift(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return the accelerations of the bodies if those of the coordinates are 0: [L, 3]."""
        e = 1e-5
        return (self.jacobian(q + e * v) - self.jacobian(q - e * v)) @ v / (2 * e)

    def weights(self) -> np.ndarray:
        p = self.physics
        return np.stack([p.mass, p.mass, p.inertia], axis=-1)

    def accelerations(self, q: np.ndarray, v: np.ndarray, torque: np.ndarray) -> np.ndarray:
        p, j, w = self.physics, self.jacobian(q), self.weights()
        first = self.size - len(p.mass)
        own = np.zeros((3, self.size))  # armature, damping, stiffness of each coordinate
        for row, values in zip(own, (p.armature, p.damping, p.stiffness), strict=True):
            row[first:] = values
        if first:
            own[:, :3] = 0.0
        mass = np.einsum("lai,la,laj->ij", j, w, j) + np.diag(own[0])
        pull = np.zeros_like(w)
        pull[:, 1] = -np.asarray(p.mass) * p.gravity
        force = np.einsum("lai,la->i", j, pull - w * self.drift(q, v)) - own[1] * v - own[2] * q
        force[[first + link for link in self.skeleton.motors]] += np.asarray(p.gear) * torque
        return np.linalg.solve(mass, force)


def _rotate(point: np.ndarray, angle: Any) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, s], [-s, c]]) @ point


def _body(name: str) -> tuple[Skeleton, Physics]:
    if name == "cheetah":
        env = envs.make("cheetah")
        body = cheetah.body()
        return dataclasses.replace(body.skeleton, limited=(), feelers=()), env.params
    skeleton = {"fixed": FIXED, "floating": FLOATING}[name]
    return skeleton, _random(skeleton, seed=len(name))


def _states(skeleton: Skeleton, n: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    shape = (n, skeleton.size)
    return (
        rng.normal(size=shape),
        3 * rng.normal(size=shape),
        rng.normal(size=(n, len(skeleton.motors))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fixed", "floating", "cheetah"])
def test_accelerations_are_those_of_the_dense_equations(name):
    skeleton, physics = _body(name)
    dense = Dense(skeleton, physics)
    states = _states(skeleton)
    ours = _accelerations(skeleton)(physics, *states, 0.0)
    for index, state in enumerate(zip(*states, strict=True)):
        np.testing.assert_allclose(ours[index], dense.accelerations(*state), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["floating", "cheetah"])
def test_only_gravity_changes_the_momenta_of_a_body_in_flight(name):
    skeleton, physics = _body(name)
    dense, states = Dense(skeleton, physics), _states(skeleton)
    ours = np.asarray(_accelerations(skeleton)(physics, *states, 0.0))
    w = dense.weights()
    for q, v, a in zip(*states[:2], ours, strict=True):
        place, j = dense.bodies(q), dense.jacobian(q)
        push = w * (j @ a + dense.drift(q, v))  # rates of the bodies' momenta
        total = np.asarray(physics.mass).sum()
        scale = np.abs(push).sum()
        np.testing.assert_allclose(push[:, 0].sum(), 0.0, atol=1e-8 * scale)
        np.testing.assert_allclose(push[:, 1].sum(), -total * physics.gravity, atol=1e-8 * scale)
        away = place[:, :2] - (w[:, :1] * place[:, :2]).sum(0) / total
        spin = push[:, 2] + away[:, 1] * push[:, 0] - away[:, 0] * push[:, 1]
        np.testing.assert_allclose(spin.sum(), 0.0, atol=1e-8 * scale)


# ------------------------------------------------------------------------ textbook equations


def test_cart_and_pole_follow_the_equations_of_barto_sutton_and_anderson():
    p = envs.make("cartpole_swingup").params
    q, v, u = _states(cartpole_swingup.SKELETON)
    q[:, 0] = np.clip(q[:, 0], -1.7, 1.7)
    p = dataclasses.replace(p, damping=np.zeros(2))
    ours = _accelerations(cartpole_swingup.SKELETON)(p, q, v, u, 0.0)
    m, length = p.mass[1], p.center[1][1]
    inertia, mass = p.inertia[1] + m * length**2, p.mass.sum()
    sin, cos = np.sin(q[:, 1]), np.cos(q[:, 1])
    push = (10 * u[:, 0] + m * length * v[:, 1] ** 2 * sin) / mass
    turn = m * length * (p.gravity * sin - cos * push) / (inertia - (m * length * cos) ** 2 / mass)
    np.testing.assert_allclose(ours[:, 1], turn, rtol=1e-10)
    np.testing.assert_allclose(ours[:, 0], push - m * length * turn * cos / mass, rtol=1e-10)


def test_double_pendulum_follows_its_lagrangian_equations():
    """Compare in absolute angles, as in Bogdanov (2004), "Optimal control of a double inverted
    pendulum"."""
    p = envs.make("double_pendulum").params
    q, v, u = _states(double_pendulum.SKELETON)
    q[:, 0] = np.clip(q[:, 0], -0.9, 0.9)
    p = dataclasses.replace(p, damping=np.zeros(3))
    ours = np.asarray(_accelerations(double_pendulum.SKELETON)(p, q, v, u, 0.0))
    m0, m1, m2 = p.mass
    l1, c1, c2 = 0.6, 0.3, 0.3
    for index in range(len(q)):
        a, b = q[index, 1], q[index, 1] + q[index, 2]
        wa, wb = v[index, 1], v[index, 1] + v[index, 2]
        d1, d2, d3 = m0 + m1 + m2, m1 * c1 + m2 * l1, m2 * c2
        d4, d5 = m1 * c1**2 + m2 * l1**2 + p.inertia[1], m2 * l1 * c2
        d6 = m2 * c2**2 + p.inertia[2]
        matrix = np.array(
            [
                [d1, d2 * np.cos(a), d3 * np.cos(b)],
                [d2 * np.cos(a), d4, d5 * np.cos(a - b)],
                [d3 * np.cos(b), d5 * np.cos(a - b), d6],
            ]
        )
        force = np.array(
            [
                500 * u[index, 0] + d2 * np.sin(a) * wa**2 + d3 * np.sin(b) * wb**2,
                d2 * p.gravity * np.sin(a) - d5 * np.sin(a - b) * wb**2,
                d3 * p.gravity * np.sin(b) + d5 * np.sin(a - b) * wa**2,
            ]
        )
        x, turn_a, turn_b = np.linalg.solve(matrix, force)
        np.testing.assert_allclose(ours[index], [x, turn_a, turn_b - turn_a], rtol=1e-9)


def test_a_pendulum_swings_with_its_elliptic_period_and_follows_runge_kutta():
    physics = _physics(1)
    start, end = 2.0, 3.0  # rad from hanging down, s

    def after(time, steps):
        return _advance(PENDULUM)(
            physics, np.array([start]), np.zeros(1), np.zeros(1), time / steps, steps
        )

    truth = integrate.solve_ivp(
        lambda _, y: (y[1], -9.81 * np.sin(y[0])), (0, end), (start, 0.0), rtol=1e-11, atol=1e-11
    ).y[:, -1]
    errors = [
        np.abs(np.concatenate(after(end, steps)) - truth).max() for steps in (4000, 8000, 16000)
    ]
    assert errors[-1] < 2e-3
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 2.0, rtol=0.03)  # first order
    period = 4 * np.sqrt(1 / 9.81) * special.ellipk(np.sin(start / 2) ** 2)
    q, velocity = after(period, 16000)
    np.testing.assert_allclose([q[0], velocity[0]], [start, 0.0], atol=5e-3)


def test_a_passive_chain_keeps_its_energy_to_first_order_in_the_step():
    physics = _physics(3, inertia=np.full(3, 0.1))
    dense = Dense(CHAIN, physics)

    def energy(q, v):
        speed = dense.jacobian(np.asarray(q)) @ np.asarray(v)
        height = dense.bodies(np.asarray(q))[:, 1]
        return (dense.weights() * speed**2).sum() / 2 + 9.81 * (physics.mass * height).sum()

    drift = []
    for steps in (200, 400, 800, 1600):
        state, worst = (np.array([1.0, 0.5, -0.8]), np.zeros(3)), 0.0
        first = energy(*state)
        for _ in range(20):  # 20 measurements in 2 s
            state = _advance(CHAIN)(physics, *state, np.zeros(0), 2.0 / steps, steps // 20)
            worst = max(worst, abs(energy(*state) - first))
        drift.append(worst)
    ratios = np.divide(drift[:-1], drift[1:])
    assert drift[-1] < 0.003 * 6 * 9.81  # of the difference in energy between standing and hanging
    assert np.all((ratios > 1.7) & (ratios < 2.4)), ratios


# ------------------------------------------------------------------ springs, stops, the ground


@pytest.mark.slow
def test_momenta_drift_in_flight_to_first_order_in_the_step():
    """Check momenta without weight, when both are conserved exactly in continuous time."""
    physics = dataclasses.replace(_random(FLOATING, seed=3), gravity=0.0, armature=np.zeros(5))
    dense = Dense(FLOATING, physics)
    q, v = (x[0] for x in _states(FLOATING)[:2])

    def momenta(q, v):
        w, place, motion = dense.weights(), dense.bodies(q), dense.jacobian(q) @ v
        spin = w[:, 2] * motion[:, 2]
        spin += w[:, 0] * (place[:, 1] * motion[:, 0] - place[:, 0] * motion[:, 1])
        return np.append((w * motion)[:, :2].sum(0), spin.sum())

    drift = []
    for dt in (2e-4, 1e-4):
        end = _advance(FLOATING)(physics, q, v, np.zeros(3), dt, round(0.2 / dt))
        drift.append(momenta(*map(np.asarray, end)) - momenta(q, v))
    assert (np.abs(drift[1]) > 1e-6).all()
    np.testing.assert_allclose(drift[0], 2 * drift[1], rtol=0.05)


def test_springs_and_dampers_are_those_of_the_implicit_step():
    physics = _physics(
        1, stiffness=np.array([50.0]), damping=np.array([3.0]), gravity=0.0, armature=np.ones(1)
    )
    q, velocity, h, torque, inertia = 0.7, -1.3, 0.1, 0.4, 2.0
    after = _advance(PENDULUM)(
        physics, np.array([q]), np.array([velocity]), np.array([torque]), h, 1
    )
    # (I + h b + h^2 k) v' = I v + h (torque - k q)
    expected = (inertia * velocity + h * (torque - 50 * q)) / (inertia + h * 3 + h**2 * 50)
    np.testing.assert_allclose(after[1][0], expected, rtol=1e-12)
    np.testing.assert_allclose(after[0][0], q + h * expected, rtol=1e-12)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_joint_rests_where_its_end_stop_balances_the_motor(side):
    physics = _physics(
        1,
        low=np.array([-0.5]),
        high=np.array([0.3]),
        stop_stiffness=400.0,
        stop_damping=40.0,
        gravity=0.0,
    )
    q, velocity = _advance(PENDULUM)(
        physics, np.zeros(1), np.zeros(1), np.array([side * 20.0]), 0.01, 1000
    )
    edge = 0.3 if side > 0 else -0.5
    np.testing.assert_allclose(q[0], edge + side * 20.0 / 400.0, rtol=1e-6)
    np.testing.assert_allclose(velocity[0], 0.0, atol=1e-6)


MASS, MU, STIFFNESS, SLIP = 3.0, 0.6, 2e4, 0.02


def _ground() -> Physics:
    """Return the physics of a block on a sphere of 0.1 m."""
    return _physics(
        2,
        mass=np.array([0.0, MASS]),
        inertia=np.ones(2),
        center=np.zeros((2, 2)),
        place=np.zeros((2, 2)),
        feeler=np.zeros((1, 2)),
        radius=np.array([0.1]),
        friction=np.array([MU]),
        ground_stiffness=STIFFNESS,
        slip=SLIP,
    )


def _block(push: float, steps: int, dt: float = 0.005) -> tuple[np.ndarray, np.ndarray]:
    """Drop the block from a centimeter and then push it sideways."""
    state = (np.array([0.0, 0.11]), np.zeros(2))
    state = _advance(BLOCK)(_ground(), *state, np.zeros(1), dt, 400)
    state = _advance(BLOCK)(_ground(), *state, np.array([push]), dt, steps)
    return np.asarray(state[0]), np.asarray(state[1])


def test_the_ground_carries_what_rests_on_it():
    q, velocity = _block(0.0, 400)
    np.testing.assert_allclose(STIFFNESS * (0.1 - q[1]), MASS * 9.81, rtol=1e-6)
    np.testing.assert_allclose(velocity, 0.0, atol=1e-8)


def test_friction_holds_below_coulombs_limit_and_slides_above():
    limit = MU * MASS * 9.81
    _, velocity = _block(0.8 * limit, 400)
    creep = SLIP * 0.8 / np.sqrt(1 - 0.8**2)  # speed at which the smoothed law balances the push
    np.testing.assert_allclose(velocity[0], creep, rtol=1e-5)
    _, early = _block(2.0 * limit, 200)
    _, late = _block(2.0 * limit, 400)
    # Using the velocity after the step in the smoothed law causes an error of the order of the
    # step.
    np.testing.assert_allclose((late[0] - early[0]) / (200 * 0.005), limit / MASS, rtol=5e-3)


def test_a_drop_loses_energy_and_never_sticks():
    for dt in (0.001, 0.01):  # stiff ground at a long step
        q, velocity = _block(0.0, 1, dt)
        assert abs(velocity[1]) < 1e-3 and 0.099 - 1e-2 < q[1] < 0.1


def test_the_ground_gives_no_energy():
    """Check also fast, long steps that end deep in the ground."""
    for height, dt in ((1.0, 0.01), (0.4, 0.003)):
        state, energies = (np.array([0.0, 0.1 + height]), np.zeros(2)), []
        for _ in range(120):
            state = _advance(BLOCK)(_ground(), *state, np.zeros(1), dt, 1)
            (_, z), speed = np.asarray(state)
            spring = STIFFNESS * max(0.1 - z, 0.0) ** 2 / 2
            energies.append(MASS * (9.81 * (z - 0.1) + speed[1] ** 2 / 2) + spring)
        assert np.diff(energies).max() < 2e-3 * MASS * 9.81 * height
        assert energies[-1] < 0.5 * energies[0]


def _touching() -> Physics:
    """Return a body whose two links lie in the ground, with a joint beyond its end stop."""
    physics = _random(TOUCHING, seed=4)
    return dataclasses.replace(
        physics,
        place=np.array([(0.0, 0.0), (0.5, 0.1)]),
        low=np.full(2, -0.2),
        high=np.full(2, 0.1),
        stop_stiffness=100.0,
        stop_damping=10.0,
        feeler=np.array([(0.1, -0.2), (0.3, -0.1)]),
        radius=np.array([0.05, 0.02]),
        friction=np.array([0.5, 0.9]),
        ground_stiffness=1e3,
        slip=0.5,
    )


TOUCHING_STATE = np.array([0.3, 0.1, 0.2, 0.15]), np.array([0.7, 0.1, -0.3, 0.2]), np.array([0.4])


def test_the_implicit_step_approaches_the_explicit_one():
    step, physics = _accelerations(TOUCHING), _touching()
    state = [x[None] for x in TOUCHING_STATE]
    now = np.asarray(step(physics, *state, 0.0))
    free = np.asarray(step(dataclasses.replace(physics, ground_stiffness=0.0), *state, 0.0))
    assert np.abs(now - free).max() > 10  # the ground pushes
    gaps = [np.abs(step(physics, *state, h) - now).max() for h in (2e-5, 1e-5)]
    np.testing.assert_allclose(gaps[0] / gaps[1], 2.0, rtol=0.02)


# -------------------------------------------------------------------------------- gradients


@pytest.mark.slow
def test_gradients_through_the_steps_are_finite_differences():
    """Compare gradients in state, action and parameters, with springs, an end stop and the
    ground."""
    physics = _touching()

    def loss(q, v, u, mass, gravity):
        changed = dataclasses.replace(physics, mass=mass, gravity=gravity)
        end = articulated.advance(TOUCHING, changed, q, v, u, 0.01, 2)
        return jnp.sin(jnp.concatenate(end)).sum()

    point = (*TOUCHING_STATE, physics.mass, np.float64(9.81))
    both = jax.jit(jax.value_and_grad(loss, argnums=tuple(range(5))))
    way = tuple(np.random.default_rng(0).normal(size=np.shape(x)) for x in point)
    ahead, behind = (
        both(*[x + sign * 1e-6 * w for x, w in zip(point, way, strict=True)])[0] for sign in (1, -1)
    )
    gradient = both(*point)[1]
    slope = sum((np.asarray(g) * w).sum() for g, w in zip(gradient, way, strict=True))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-6)
