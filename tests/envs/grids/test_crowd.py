"""Crowds: moves against a plain simulation, lines of sight against points on them, locks, views."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.crowd import FREE, Crowd

SIDE, AGENTS, BOXES, GAMES = 4, 3, 2, 3000
STEPS = np.array([[0, 0], [0, 1], [1, 0], [0, -1], [-1, 0]], np.int32)


def simulate(place, alive, box, lock, step, wall, pull):
    """The places of agents and boxes after one step, by sets and dictionaries."""
    agents = [("agent", i) for i in range(len(place)) if alive[i]]
    boxes = [("box", k) for k in range(len(box))]
    home = {a: tuple(place[a[1]]) for a in agents} | {b: tuple(box[b[1]]) for b in boxes}
    way = {a: tuple(step[a[1]]) for a in agents}
    along = lambda cell, way, sign=1: (cell[0] + sign * way[0], cell[1] + sign * way[1])
    taken_by = {b: set() for b in boxes}
    for a in agents:
        touched = along(home[a], way[a], -1 if pull[a[1]] else 1)
        for b in boxes:
            if way[a] != (0, 0) and home[b] == touched:
                taken_by[b].add(a)
    goal, failed = {a: along(home[a], way[a]) for a in agents}, set()
    for b in boxes:
        ways = {way[a] for a in taken_by[b]}
        goal[b] = along(home[b], next(iter(ways))) if len(ways) == 1 else home[b]
        if ways and (len(ways) > 1 or lock[b[1]] != FREE):
            failed.add(b)
    for x, cell in goal.items():
        inside = all(0 <= c < SIDE for c in cell)
        if not inside or wall[cell] or sum(other == cell for other in goal.values()) > 1:
            failed.add(x)
    while True:
        held = {home[x] for x in failed}
        new = {x for x in goal if x not in failed and goal[x] in held}
        for b, takers in taken_by.items():
            if b in failed or takers & failed:
                new |= ({b} | takers) - failed
        if not new:
            break
        failed |= new
    end = {x: home[x] if x in failed else goal[x] for x in home}
    places = [end.get(("agent", i), tuple(place[i])) for i in range(len(place))]
    return np.array(places), np.array([end[b] for b in boxes])


def games():
    """Random crowds [GAMES], and what they do."""
    rng = np.random.default_rng(0)
    cells = np.array([rng.permutation(SIDE * SIDE)[: AGENTS + BOXES + 2] for _ in range(GAMES)])
    spots = np.stack([cells // SIDE, cells % SIDE], -1).astype(np.int32)
    wall = np.zeros((GAMES, SIDE, SIDE), bool)
    for i in (AGENTS + BOXES, AGENTS + BOXES + 1):
        wall[np.arange(GAMES), spots[:, i, 0], spots[:, i, 1]] = True
    crowd = Crowd(
        spots[:, :AGENTS],
        rng.random((GAMES, AGENTS)) < 0.9,
        spots[:, AGENTS : AGENTS + BOXES],
        np.where(rng.random((GAMES, BOXES)) < 0.15, 0, FREE).astype(np.int32),
    )
    step = STEPS[rng.integers(0, 5, (GAMES, AGENTS))]
    return crowd, step, wall, rng.random((GAMES, AGENTS)) < 0.4


def test_moves_are_those_of_a_plain_simulation():
    crowd, step, wall, pull = games()
    after = jax.tree.map(np.asarray, jax.jit(jax.vmap(crowds.move))(crowd, step, wall, pull))
    moved = (after.place != crowd.place).any(), (after.box != crowd.box).any(-1)
    assert moved[0] and moved[1].sum() > 200
    for i in range(GAMES):
        one = jax.tree.map(lambda x, i=i: x[i], crowd)
        expected = simulate(one.place, one.alive, one.box, one.lock, step[i], wall[i], pull[i])
        np.testing.assert_array_equal(after.place[i], expected[0])
        np.testing.assert_array_equal(after.box[i], expected[1])
    ids = np.where(crowd.alive, after.place @ [SIDE, 1], -1 - np.arange(AGENTS))
    ids = np.concatenate([ids, after.box @ [SIDE, 1]], 1)
    assert all(len(set(row)) == AGENTS + BOXES for row in ids.tolist())  # never two in one cell


MOVE = jax.jit(crowds.move)  # of one shape: who is missing is dead, and boxes are far away


def take(places, steps, boxes=(), pull=(False, False)):
    missing = AGENTS - len(places)
    crowd = crowds.gather(
        np.array(list(places) + [[0, 0]] * missing),
        np.array([*boxes, [SIDE - 1, 0], [SIDE - 1, 2]][:BOXES]),
    )
    crowd = dataclasses.replace(crowd, alive=np.arange(AGENTS) < len(places))
    steps = np.array(list(steps) + [[0, 0]] * missing, np.int32)
    pull = np.array([*pull, False, False][:AGENTS])
    after = MOVE(crowd, steps, np.zeros((SIDE, SIDE), bool), pull)
    return after.place.tolist()[: len(places)], after.box.tolist()[: len(boxes)]


def test_who_is_blocked_blocks_whoever_follows():
    east, west = [0, 1], [0, -1]
    # Two want one cell, a third the place of the first: all stay.
    assert take([[1, 1], [1, 3], [1, 0]], [east, west, east])[0] == [[1, 1], [1, 3], [1, 0]]
    assert take([[1, 0], [1, 1]], [east, east])[0] == [[1, 1], [1, 2]]  # one after the other
    assert take([[1, 0], [1, 1]], [east, west])[0] == [[1, 1], [1, 0]]  # past one another


def test_boxes_are_pushed_and_pulled():
    east, west = [0, 1], [0, -1]
    assert take([[0, 0]], [east], [[0, 1]]) == ([[0, 1]], [[0, 2]])
    assert take([[0, 0]], [east], [[0, 1], [0, 2]]) == ([[0, 0]], [[0, 1], [0, 2]])  # not two
    assert take([[0, 2]], [east], [[0, 1]], [True]) == ([[0, 3]], [[0, 2]])
    assert take([[0, 2]], [east], [[0, 1]], [False]) == ([[0, 3]], [[0, 1]])
    # Two who tear at a box in opposite directions stay.
    torn = take([[0, 1], [0, 3]], [west, east], [[0, 2]], [True, True])
    assert torn == ([[0, 1], [0, 3]], [[0, 2]])
    assert take([[0, 0], [0, 2]], [east, east], [[0, 1]], [False, True]) == (
        [[0, 1], [0, 3]],
        [[0, 2]],
    )


def test_a_team_unlocks_what_it_has_locked():
    crowd = crowds.gather(np.array([[0, 0], [0, 2], [3, 3]]), np.array([[0, 1], [3, 2]]))
    team = np.array([0, 1, 1])
    toggle = jax.jit(lambda crowd, wants: crowds.toggle_locks(crowd, wants, team))
    wants = lambda crowd, *who: toggle(crowd, np.isin(range(3), who))
    locked = wants(crowd, 0)
    assert locked.lock.tolist() == [0, FREE]
    assert wants(locked, 1).lock.tolist() == [0, FREE]
    assert wants(locked, 0).lock.tolist() == [FREE, FREE]
    assert wants(crowd, 0, 1, 2).lock.tolist() == [FREE, 1]  # two teams reach for the first
    assert wants(locked, 0, 1).lock.tolist() == [FREE, FREE]
    dead = dataclasses.replace(crowd, alive=jnp.array([False, True, True]))
    assert wants(dead, 0).lock.tolist() == [FREE, FREE]


def test_lines_of_sight_cross_the_cells_that_have_points_on_them():
    height, width = 4, 5
    bits = np.unpackbits(
        crowds.sight_lines(height, width).view(np.uint8), axis=-1, bitorder="little"
    )
    share = np.linspace(0, 1, 1999)[1:-1, None]
    centers = np.stack(np.mgrid[:height, :width], -1).reshape(-1, 2)
    for i, a in enumerate(centers):
        for j, b in enumerate(centers):
            points = a + share * (b - a)
            inner = (np.abs(points - np.floor(points) - 0.5) > 1e-6).all(1)
            on = set((np.rint(points[inner]).astype(int) @ [width, 1]).tolist()) - {i, j}
            assert set(np.flatnonzero(bits[i, j]).tolist()) == on


def test_walls_hide_what_is_behind_them():
    opaque = np.zeros((3, 5), bool)
    opaque[1, 2] = True
    seen = np.asarray(jax.jit(crowds.visible)(jnp.array([[1, 0], [0, 2]]), opaque))
    expected = ["11110", "11100", "11110"], ["11111", "11111", "10001"]
    assert [["".join(map(str, row)) for row in x.astype(int)] for x in seen] == list(expected)


def test_a_view_is_the_square_around_an_agent():
    planes = np.arange(1, 13, dtype=np.float32).reshape(3, 4, 1)
    seen = np.ones((1, 3, 4), bool)
    seen[0, 1, 1] = False
    view = np.asarray(crowds.look(planes, jnp.array([[0, 1]]), 1, seen))[0, ..., 0]
    np.testing.assert_array_equal(view, [[0, 0, 0], [1, 2, 3], [5, 0, 7]])
