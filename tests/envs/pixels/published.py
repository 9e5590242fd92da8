"""Games of the `minatar` package as values: random positions of each, set in the package's own
object, and read back from it and from ours in one form.

A position is a dict of plain numbers, lists and arrays, named like the package's attributes.
"""

# pyright: reportArgumentType=false
# (states of NumPy numbers)

from __future__ import annotations

import dataclasses
import importlib
import logging

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.envs.pixels import minatar_asterix as asterix
from jaxrl.envs.pixels import minatar_breakout as breakout
from jaxrl.envs.pixels import minatar_freeway as freeway
from jaxrl.envs.pixels import minatar_seaquest as seaquest
from jaxrl.envs.pixels import minatar_seaquest_swimmers as swimmers
from jaxrl.envs.pixels import minatar_space_invaders as space_invaders

logging.disable(logging.WARNING)  # the package warns that it cannot draw
RULES = {
    module._RULES.name.removeprefix("minatar_"): module._RULES
    for module in (asterix, breakout, freeway, seaquest, space_invaders)
}


class Scripted:
    """Stand-in for `numpy.random.RandomState` that returns given answers."""

    def __init__(self, answers):
        self.answers = list(answers)

    def rand(self, *size):
        return self.answers.pop(0)

    def randint(self, *arguments, **named):
        value = self.answers.pop(0)
        return value(*arguments) if callable(value) else value


def game(name, ramping=True):
    return importlib.import_module(f"minatar.environments.{name}").Env(ramping=ramping)


def _no(chance):
    """Return an answer of `rand()` with which an event of probability below 0.9 happens, or does
    not."""
    return 0.0 if chance else 0.9


# ------------------------------------------------------------------------------ what is drawn


def script(name, draws, position):
    """Return the package's random numbers, in case it asks, for a step from `position` in which
    ours drew `draws`."""
    if name == "asterix":
        place = np.float32(draws.place)
        return [_no(draws.right), _no(draws.gold), lambda n: int(place * np.float32(n))]
    if name == "freeway":
        return [np.abs(draws), np.where(draws > 0, 0.9, 0.1)]
    if name == "seaquest":
        enemy = [_no(draws.right), _no(draws.submarine), int(draws.lane)]
        diver = [_no(draws.diver_right), int(draws.diver_lane)]
        return (enemy if position["e_spawn_timer"] == 0 else []) + diver
    return []


# ------------------------------------------------------------------------------ positions


def random_position(name, rng):
    return globals()[f"_random_{name}"](rng)


def _random_breakout(rng):
    bricks = np.zeros((10, 10))
    bricks[1:4] = rng.random((3, 10)) < rng.choice([0.0, 0.1, 0.5, 1.0])
    return {
        "pos": int(rng.integers(10)),
        "ball_x": int(rng.integers(10)),
        "ball_y": int(rng.choice([rng.integers(9), 8, 0])),
        "ball_dir": int(rng.integers(4)),
        "last_x": int(rng.integers(10)),
        "last_y": int(rng.integers(9)),
        "strike": bool(rng.random() < 0.3),
        "brick_map": bricks,
    }


def _random_asterix(rng):
    density = rng.choice([0.0, 0.4, 0.8, 1.0])
    entities = [
        [int(rng.integers(10)), i + 1, bool(rng.random() < 0.5), bool(rng.random() < 0.4)]
        if rng.random() < density
        else None
        for i in range(8)
    ]
    x, y = int(rng.integers(10)), int(rng.integers(1, 9))
    near = entities[y - 1]
    if near is not None and rng.random() < 0.7:
        x = int(np.clip(near[0] + rng.integers(-2, 3), 0, 9))
    return {
        "player_x": x,
        "player_y": y,
        "entities": entities,
        "spawn_speed": int(rng.choice([1, 1, 2, 10])),
        "spawn_timer": int(rng.integers(3)),
        "move_speed": int(rng.choice([1, 1, 2, 5])),
        "move_timer": int(rng.integers(3)),
        "ramp_timer": int(rng.choice([-1, 0, 50])),
        "ramp_index": int(rng.integers(6)),
    }


def _random_freeway(rng):
    cars = []
    for i in range(8):
        speed = int(rng.integers(1, 6)) * int(rng.choice([-1, 1]))
        x = int(rng.choice([0, 9, 3, 4, 5, rng.integers(10)]))
        cars.append([x, i + 1, int(rng.integers(abs(speed) + 1)), speed])
    pos = int(rng.choice([1, rng.integers(1, 10)]))
    return {
        "cars": cars,
        "pos": pos,
        "move_timer": int(rng.choice([0, rng.integers(4)])),
        "terminate_timer": 2500,
    }


def _random_space_invaders(rng):
    maps = lambda density: (rng.random((10, 10)) < density).astype(float)
    aliens = maps(rng.choice([0.0, 0.03, 0.3]))
    if rng.random() < 0.7:
        aliens[9] = 0
    if rng.random() < 0.5:
        aliens[:, [0, 9]] = 0  # so that they do not turn
    if not aliens.any():
        aliens[rng.integers(9), rng.integers(10)] = 1
    return {
        "pos": int(rng.integers(10)),
        "f_bullet_map": maps(rng.choice([0.0, 0.1, 0.5])),
        "e_bullet_map": maps(rng.choice([0.0, 0.1, 0.3])),
        "alien_map": aliens,
        "alien_dir": int(rng.choice([-1, 1])),
        "enemy_move_interval": int(rng.integers(6, 13)),
        "alien_move_timer": int(rng.integers(3)),
        "alien_shot_timer": int(rng.integers(3)),
        "shot_timer": int(rng.integers(3)),
        "ramp_index": 0,
    }


def _random_seaquest(rng):
    """Draw a position with most things close to the submarine, so that much happens."""
    x, y = int(rng.integers(10)), int(rng.choice([0, 0, rng.integers(9), rng.integers(9)]))
    heading = rng.random(10) < 0.5  # heading of the enemies in each row
    near = rng.random() < 0.7
    near_x = lambda: int(np.clip(x + rng.integers(-3, 4), 0, 9) if near else rng.integers(10))
    near_y = lambda: int(np.clip(y + rng.integers(-1, 2), 1, 8) if near else rng.integers(1, 9))
    fish, subs, bombs, bullets, divers = [], [], [], [], []
    for _ in range(rng.integers(6)):
        row = near_y()
        one = [near_x(), row, bool(heading[row]), int(rng.integers(3))]
        if one not in fish:  # the package would step the second of two equal ones twice
            fish.append(one)
    for _ in range(rng.integers(6)):
        row = near_y()
        one = [near_x(), row, bool(heading[row]), int(rng.integers(3)), int(rng.integers(2))]
        if one not in subs:
            subs.append(one)
    for _ in range(rng.integers(3)):
        bombs.append([near_x(), near_y(), bool(rng.random() < 0.5)])
    cannon_timer = int(rng.integers(3))
    for _ in range(rng.integers(3 if cannon_timer else 2)):
        one = [near_x(), int(np.clip(near_y() - rng.integers(2), 0, 8)), bool(rng.random() < 0.5)]
        if one not in bullets:
            bullets.append(one)
    if rng.random() < 0.15:  # two bullets that meet where a fish swims to
        row, column, cannon_timer = near_y(), int(rng.integers(2, 8)), 1
        bullets = [[column - 1, row, True], [column + 1, row, False]][:: int(rng.choice([-1, 1]))]
        one = [column - 1 if heading[row] else column + 1, row, bool(heading[row]), 0]
        fish = [*(other for other in fish if other != one), one]
    diver_timer = int(rng.integers(3))
    for _ in range(rng.integers(3 if diver_timer else 2)):
        one = [near_x(), near_y(), bool(rng.random() < 0.5), int(rng.integers(3))]
        if one not in divers:
            divers.append(one)
    return {
        "oxygen": int(rng.choice([0, 1, 19, 20, 120, 200])),
        "diver_count": int(rng.choice([-1, 0, 1, 5, 6, 6])),
        "sub_x": x,
        "sub_y": y,
        "sub_or": bool(x == 9 or (x > 0 and rng.random() < 0.5)),
        "f_bullets": bullets,
        "e_bullets": bombs,
        "e_fish": fish,
        "e_subs": subs,
        "divers": divers,
        "e_spawn_speed": int(rng.choice([1, 2, 20])),
        "e_spawn_timer": int(rng.integers(3)),
        "d_spawn_timer": diver_timer,
        "move_speed": int(rng.choice([2, 3, 5])),
        "ramp_index": int(rng.integers(6)),
        "shot_timer": cannon_timer,
        "surface": bool(y == 0 and rng.random() < 0.3),
    }


# ------------------------------------------------------------------------------ to our states


def state(name, p):
    """Build our state at the position `p` (a mapping), as NumPy."""
    return globals()[f"_state_{name}"](p)


def _int(value):
    return np.int32(value)


def _masks(plane):
    return (np.asarray(plane, np.int32) << np.arange(10)).sum(1).astype(np.int32)


def _state_breakout(p):
    dx, dy = [(-1, -1), (1, -1), (1, 1), (-1, 1)][p["ball_dir"]]
    assert not p["brick_map"][[0, 4, 5, 6, 7, 8, 9]].any()
    return breakout.State(
        paddle=_int(p["pos"]),
        x=_int(p["ball_x"]),
        y=_int(p["ball_y"]),
        dx=_int(dx),
        dy=_int(dy),
        last_x=_int(p["last_x"]),
        last_y=_int(p["last_y"]),
        strike=np.bool_(p["strike"]),
        bricks=_int((p["brick_map"][1:4].reshape(-1).astype(np.int64) << np.arange(30)).sum()),
    )


def _state_asterix(p):
    there = [[-1, 0, False, False] if e is None else e for e in p["entities"]]
    return asterix.State(
        player_x=_int(p["player_x"]),
        player_y=_int(p["player_y"]),
        x=np.asarray([e[0] for e in there], np.int32),
        right=np.asarray([e[2] for e in there], bool),
        gold=np.asarray([e[3] for e in there], bool),
        spawn_interval=_int(p["spawn_speed"]),
        spawn_timer=_int(p["spawn_timer"]),
        move_interval=_int(p["move_speed"]),
        move_timer=_int(p["move_timer"]),
        ramp_timer=_int(p["ramp_timer"]),
        ramps=_int(p["ramp_index"]),
    )


def _state_freeway(p):
    x, row, timer, speed = np.asarray(p["cars"], np.int32).T
    assert (row == np.arange(1, 9)).all()
    return freeway.State(
        y=_int(p["pos"]), walking_timer=_int(p["move_timer"]), x=x, speed=speed, timer=timer
    )


def _state_space_invaders(p):
    return space_invaders.State(
        x=_int(p["pos"]),
        bullets=_masks(p["f_bullet_map"]),
        bombs=_masks(p["e_bullet_map"]),
        aliens=_masks(p["alien_map"]),
        direction=_int(p["alien_dir"]),
        cannon_timer=_int(p["shot_timer"]),
        move_interval=_int(p["enemy_move_interval"]),
        move_timer=_int(p["alien_move_timer"]),
        bomb_timer=_int(p["alien_shot_timer"]),
    )


def _pad(rows, n, width):
    """Put the columns of `rows` in the last of `n` places; the others are empty."""
    table = [[-1] + [0] * (width - 1)] * (n - len(rows)) + [list(row) for row in rows]
    return np.asarray(table, np.int8).reshape(n, width).T


def _state_seaquest(p):
    # Both lists are in the order of arrival; how they interleave does not matter, nor whose turn it
    # is.
    rng = np.random.default_rng(len(p["e_subs"]) + 8 * len(p["e_fish"]) + 64 * (p["oxygen"] + 1))
    lists = {1: list(p["e_subs"]), 0: [[*e, 0] for e in p["e_fish"]]}
    mixed = rng.permutation([1] * len(lists[1]) + [0] * len(lists[0]))
    enemies = [[*lists[kind].pop(0), kind] for kind in mixed]
    turn = int(rng.integers(swimmers.ENEMIES))
    x, y, right, timer, shot_timer, submarine = np.roll(
        _pad(enemies, swimmers.ENEMIES, 6), turn, axis=1
    )
    diver_turn = int(rng.integers(swimmers.DIVERS))
    dx, dy, dright, dtimer = np.roll(_pad(p["divers"], swimmers.DIVERS, 4), diver_turn, axis=1)
    # The newest bullet is in the second place; a single one may be in either.
    bullets = _pad(p["f_bullets"], swimmers.BULLETS, 3)
    alone = len(p["f_bullets"]) == 1
    bx, by, bright = np.roll(bullets, alone * int(rng.integers(2)), axis=1)
    lanes = {True: np.zeros(8, np.int32), False: np.zeros(8, np.int32)}
    for column, row, heading in p["e_bullets"]:
        lanes[bool(heading)][row - 1] |= 1 << column
    return seaquest.State(
        x=np.int8(p["sub_x"]),
        y=np.int8(p["sub_y"]),
        right=np.bool_(p["sub_or"]),
        oxygen=_int(p["oxygen"]),
        on_board=_int(p["diver_count"]),
        surfaced=np.bool_(p["surface"]),
        bullets=swimmers.Bullets(bx, by, bright.astype(bool)),
        divers=swimmers.Divers(dx, dy, dright.astype(bool), _int(dtimer), _int(diver_turn)),
        enemies=swimmers.Enemies(
            x,
            y,
            right.astype(bool),
            _int(timer),
            submarine.astype(bool),
            _int(shot_timer),
            _int(turn),
        ),
        bombs_left=lanes[False],
        bombs_right=lanes[True],
        cannon_timer=_int(p["shot_timer"]),
        spawn_interval=_int(p["e_spawn_speed"]),
        spawn_timer=_int(p["e_spawn_timer"]),
        diver_timer=_int(p["d_spawn_timer"]),
        move_interval=_int(p["move_speed"]),
        ramps=_int(p["ramp_index"]),
    )


def comparable(name, s):
    """Convert our state to a dict of arrays and lists that are equal exactly for equal
    positions."""
    if name == "asterix":  # the contents of an empty place do not matter
        there = s.x != asterix.EMPTY
        s = dataclasses.replace(s, right=s.right & there, gold=s.gold & there)
    if name != "seaquest":
        return {k: np.asarray(v).tolist() for k, v in vars(s).items()}
    plain = {
        k: np.asarray(v).tolist()
        for k, v in vars(s).items()
        if k not in ("bullets", "divers", "enemies")
    }
    rows = lambda *columns: [r for r in np.stack(columns, 1).astype(int).tolist() if r[0] != -1]
    e, d, b = s.enemies, s.divers, s.bullets
    # In the order of arrival.
    ordered = lambda turn, *columns: rows(*(np.roll(c, -turn) for c in columns))
    shot_timer = np.where(e.submarine, e.shot_timer, 0)
    everyone = ordered(e.turn, e.x, e.y, e.right, e.timer, e.submarine, shot_timer)
    return plain | {
        "fish": [r for r in everyone if not r[4]],
        "subs": [r for r in everyone if r[4]],
        "divers": ordered(d.turn, d.x, d.y, d.right, d.timer),
        "bullets": rows(b.x, b.y, b.right),
    }


def position(env, like):
    """Read the position of the package's `env`: the attributes of `like`."""
    return {field: getattr(env, field) for field in like}


def stack(states):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *states)
