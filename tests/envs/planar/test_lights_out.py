"""Lights Out: which lights can be reached, and by how few presses, against brute force."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from jaxrl.envs.planar import lights_out

# Nullities of square boards: sequence A159257 of the OEIS.
NULLITIES = {1: 0, 2: 0, 3: 0, 4: 4, 5: 2, 6: 0}


def _press(lights, row, column):
    """Return the lights of a board after a press, by the rule of the game."""
    after = lights.copy()
    for down, right in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
        y, x = row + down, column + right
        if 0 <= y < lights.shape[0] and 0 <= x < lights.shape[1]:
            after[y, x] ^= 1
    return after


def _reach(rows, columns):
    """Return the fewest presses from a dark board to each board that can be reached, by search."""
    dark = np.zeros((rows, columns), int)
    found, layer = {dark.tobytes(): 0}, [dark]
    while layer:
        following = []
        for board in layer:
            for row, column in itertools.product(range(rows), range(columns)):
                after = _press(board, row, column)
                if after.tobytes() not in found:
                    found[after.tobytes()] = found[board.tobytes()] + 1
                    following.append(after)
        layer = following
    return found


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 2), (2, 3), (3, 3), (1, 5), (2, 5)])
def test_solutions_are_those_of_brute_force(rows, columns):
    found = _reach(rows, columns)
    solution = lights_out.board_solution(rows, columns)
    matrix = lights_out.neighbors(rows, columns)
    size = rows * columns
    assert len(found) * len(solution.kernel) == 2**size
    assert not (matrix @ solution.kernel.T % 2).any()
    fewest = jax.jit(jax.vmap(lambda x: lights_out.fewest_presses(solution, x)))
    boards = np.array(list(itertools.product((0, 1), repeat=size)))
    presses = np.asarray(fewest(boards))
    reached = (presses @ matrix.T % 2 == boards).all(1)
    for board, press, ok in zip(boards, presses, reached, strict=True):
        key = board.reshape(rows, columns).tobytes()
        assert ok == (key in found)  # the equation has a solution if and only if there is a way
        if ok:
            assert press.sum() == found[key]


@pytest.mark.parametrize(("side", "nullity"), NULLITIES.items())
def test_the_kernel_has_its_known_size(side, nullity):
    solution = lights_out.board_solution(side, side)
    assert len(solution.kernel) == 2**nullity
    assert len({tuple(x) for x in solution.kernel.tolist()}) == 2**nullity
    matrix = lights_out.neighbors(side, side)
    assert not (matrix @ solution.kernel.T % 2).any()
    rng = np.random.default_rng(side)
    wanted = matrix @ rng.integers(0, 2, (side * side, 64)) % 2
    np.testing.assert_array_equal(matrix @ (solution.inverse @ wanted % 2) % 2, wanted)
