"""Team battle: two against two with one in reserve, between teams that differ from game to game.

Each side has a team of three monsters, two of them active (left and right). First both sides
choose, hidden from each other, who waits in reserve. Then in each turn a side chooses for its left
and then for its right monster, and the other side does not see it before both sides have chosen.
Switches come first, then the strikes of the fast, of the middle and of the slow monsters; those of
equal speed strike at the same time. Damage is attack x strike x effect, where 6 elements form a
circle: a strike has effect 2 on the next two elements, 1/2 on the last two, and else 1.

| build | speed | health | attack |
|---|---|---|---|
| swift | fast | 120 | 32 |
| even | middle | 150 | 28 |
| sturdy | slow | 190 | 24 |

Actions: 0 and 1, strike the left or the right opponent with the monster's own element (strike 3/2);
2 and 3, strike it with the monster's second element (1); 4, strike both with the own element (9/8
each, 3/2 if there is only one); 5, guard, so that no strike does damage in this turn (not in two
turns in succession); 6, switch with the reserve (only one of a side). A strike at a place hits who
is there when it comes, and the other opponent if that one has fallen. A fallen monster is replaced
by the reserve after the turn; without one its place stays empty, and the choice there is a guard
that does nothing. At first, actions 0, 1 and 2 say who waits.

A game ends when a side has no monster left or after `turns` turns; then more monsters win, and of
equally many the larger sum of health. Reward, at the end: 1 for the winner, -1 for the loser, 0 for
both in a draw. Observation, float32 [118]: for each monster of the mover (left, right, reserve) and
then of the other side its health, whether it stands, its own element (one-hot), build, second
element and whether it guarded in the last turn; then whether this is the first choice of all,
whether it is for the right monster, the mover's choice for the left one (one-hot) and the turn.

A team is three monsters, each with one of 6 elements, 3 builds and a second element that is not its
own. `POOL` teams were drawn once; the environment has `teams` of them, the first ones in an order
that is drawn from `order`, or the last ones if they are `unseen`. A game is played between two of
these teams, drawn independently, so that a team may meet itself. All else is deterministic.

This is the kind of game, at a small size, of VGC-Bench (Angliss et al., 2025, "A benchmark for
generalizing across diverse team strategies in competitive Pokémon", arXiv:2506.10326), where two of
four, chosen from six, fight two. From there are hidden choices for two monsters, of which the
second knows the first, teams seen by both sides, the reward, and the teams' numbers: 1, 4, 16 or 64
in training, and 72 others. The rules and their numbers are ours; damage there is random, and moves,
items and abilities are many.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import Rules, environment, one_hot
from jaxrl.envs.options import at_least

OWN, SECOND, BOTH, GUARD, SWITCH = 0, 2, 4, 5, 6  # OWN and SECOND: at the left; + 1: at the right
ACTIONS = 7
NOT_YET = -1

ELEMENTS = 6
BUILDS = ("swift", "even", "sturdy")
TEAM = 3  # monsters: left, right and reserve
RESERVE = 2
POOL = 136  # teams, of which 72 are left beside the 64 that one may train on

HEALTH = np.asarray([120, 150, 190], np.float32)
ATTACK = np.asarray([32, 28, 24], np.float32)
POWER_OWN, POWER_SECOND, POWER_BOTH = 1.5, 1.0, 1.125
_AHEAD = (np.arange(ELEMENTS) - np.arange(ELEMENTS)[:, None]) % ELEMENTS
# Effect of a strike with the row's element on a monster of the column's.
EFFECT = np.select([(_AHEAD == 1) | (_AHEAD == 2), _AHEAD >= 4], [2.0, 0.5], 1.0).astype(np.float32)


@struct
class Monsters:
    """Monsters of both sides, each in the order left, right, reserve; all [2, 3]."""

    element: Any  # int32, below ELEMENTS
    build: Any  # int32, a place in BUILDS: the lower, the faster
    second: Any  # int32: element of the second strike
    health: Any  # float32; 0 for the fallen
    guarded: Any  # bool: guarded in the last turn


@struct
class State:
    monsters: Monsters
    chosen: Any  # int32 [4]: choices of this turn so far, side by side; the others NOT_YET
    turn: Any  # int32; in turn 0 both choose who waits
    turns: Any  # int32: the number of turns of a game


def _count(state: State) -> Array:
    return (jnp.asarray(state.chosen) != NOT_YET).sum()


def _at_first(state: State) -> Array:
    return jnp.asarray(state.turn) == 0


def _mover(state: State) -> Array:
    count = _count(state)
    return jnp.where(_at_first(state), count, count // 2).astype(jnp.int32)


def _slot(state: State) -> Array:
    """Return the place of the monster that is chosen for: 0 left or 1 right."""
    return jnp.where(_at_first(state), 0, _count(state) % 2)


def _play(state: State, action: Array) -> State:
    count, first = _count(state), _at_first(state)
    chosen = jnp.asarray(state.chosen).at[count].set(jnp.asarray(action, jnp.int32))
    complete = count == jnp.where(first, 1, 3)
    arranged = rearrange(state.monsters, chosen[:2])
    fought = fight(state.monsters, chosen.reshape(2, 2))

    def after(old: Array, arranged: Array, fought: Array) -> Array:
        return jnp.where(complete, jnp.where(first, arranged, fought), old)

    return State(
        jax.tree.map(after, jax.tree.map(jnp.asarray, state.monsters), arranged, fought),
        jnp.where(complete, NOT_YET, chosen),
        jnp.asarray(state.turn, jnp.int32) + complete,
        jnp.asarray(state.turns, jnp.int32),
    )


def rearrange(monsters: Monsters, place: Array) -> Monsters:
    """Return the monsters after each side's one at `place` [2] and the reserve have changed places;
    RESERVE changes nothing."""
    rows = jnp.arange(TEAM)
    place = place[:, None]
    order = jnp.where(rows == place, RESERVE, jnp.where(rows == RESERVE, place, rows))
    return jax.tree.map(lambda x: jnp.take_along_axis(jnp.asarray(x), order, 1), monsters)


def fight(monsters: Monsters, choice: Array) -> Monsters:
    """Return the monsters after a turn in which the left and right ones of both sides do `choice`
    [2, 2]."""
    switches = choice == SWITCH
    leaves = jnp.where(switches.any(1), jnp.argmax(switches, 1), RESERVE)
    monsters = rearrange(monsters, leaves)
    active = jax.tree.map(lambda x: x[:, :RESERVE], monsters)
    guards = (choice == GUARD) & (active.health > 0)
    health = active.health
    for speed in range(len(BUILDS)):
        strikes = (health > 0) & (active.build == speed)
        hurt = damage(active, health > 0, choice) * strikes[..., None]
        taken = hurt.sum(1)[::-1]  # by place of the other side
        health = jnp.maximum(health - jnp.where(guards, 0.0, taken), 0.0)
    whole = jnp.concatenate([health, monsters.health[:, RESERVE:]], 1)
    guarded = jnp.concatenate([guards, jnp.zeros((2, 1), bool)], 1)
    monsters = Monsters(monsters.element, monsters.build, monsters.second, whole, guarded)
    fallen = monsters.health == 0
    replaced = ~fallen[:, RESERVE] & fallen[:, :RESERVE].any(1)
    return rearrange(monsters, jnp.where(replaced, jnp.argmax(fallen[:, :RESERVE], 1), RESERVE))


def damage(active: Monsters, stands: Array, choice: Array) -> Array:
    """Return the damage [2, 2, 2] that the active monster of each side and place does by its
    `choice` [2, 2] to the other side's left and right one, if nobody guards.

    stands: bool [2, 2], who has not fallen.
    """
    target = stands[::-1][:, None]  # of the other side, for both strikers
    places = jnp.arange(2)
    at = jnp.where((choice == OWN + 1) | (choice == SECOND + 1), 1, 0)[..., None]
    there = jnp.take_along_axis(jnp.broadcast_to(target, (2, 2, 2)), at, 2)
    aimed = places == jnp.where(there, at, 1 - at)
    own = (choice == OWN) | (choice == OWN + 1)
    second = (choice == SECOND) | (choice == SECOND + 1)
    spread = jnp.where(target.all(-1), POWER_BOTH, POWER_OWN)
    power = (
        aimed * (POWER_OWN * own + POWER_SECOND * second)[..., None]
        + ((choice == BOTH) * spread)[..., None]
    )
    element = jnp.where(second, active.second, active.element)
    effect = jnp.asarray(EFFECT)[element[..., None], active.element[::-1][:, None]]
    return jnp.asarray(ATTACK)[active.build][..., None] * power * effect * target


def _legal(state: State) -> Array:
    mover, slot = _mover(state), _slot(state)
    health = jnp.asarray(state.monsters.health)
    own, other = health[mover] > 0, health[1 - mover] > 0
    first_choice = jnp.asarray(state.chosen)[2 * mover]
    can_switch = own[RESERVE] & ((slot == 0) | (first_choice != SWITCH))
    can_guard = ~jnp.asarray(state.monsters.guarded)[mover, slot]
    true = jnp.ones((), bool)
    stands = jnp.stack(
        [other[0], other[1], other[0], other[1], true, can_guard, can_switch]
    )  # fmt: skip
    actions = jnp.arange(ACTIONS)
    legal = jnp.where(own[slot], stands, actions == GUARD)
    return jnp.where(_at_first(state), actions < TEAM, legal)


def _observe(state: State) -> Array:
    mover, monsters = _mover(state), state.monsters
    sides = jax.tree.map(lambda x: jnp.asarray(x)[jnp.stack([mover, 1 - mover])], monsters)
    code = lambda x, size: (x[..., None] == jnp.arange(size)).astype(jnp.float32)
    each = jnp.concatenate(
        [
            (sides.health / jnp.asarray(HEALTH)[sides.build])[..., None],
            (sides.health > 0)[..., None].astype(jnp.float32),
            code(sides.element, ELEMENTS),
            code(sides.build, len(BUILDS)),
            code(sides.second, ELEMENTS),
            sides.guarded[..., None].astype(jnp.float32),
        ],
        -1,
    )
    first, right = _at_first(state), _slot(state) == 1
    chosen = jnp.where(right, jnp.asarray(state.chosen)[2 * mover], NOT_YET)
    flags = jnp.stack([first, right]).astype(jnp.float32)
    turn = jnp.minimum(state.turn / state.turns, 1.0).astype(jnp.float32)
    return jnp.concatenate([each.ravel(), flags, one_hot(chosen, ACTIONS), turn[None]])


def _over(state: State) -> Array:
    beaten = (jnp.asarray(state.monsters.health) <= 0).all(1).any()
    late = jnp.asarray(state.turn) > state.turns
    return (beaten | late) & (jnp.asarray(state.chosen)[0] == NOT_YET)


def _payoff(state: State, params: Tree) -> Array:
    health = jnp.asarray(state.monsters.health)
    standing, left = (health > 0).sum(1), health.sum(1)
    by_number = jnp.sign(standing[0] - standing[1])
    by_health = jnp.sign(left[0] - left[1])
    first = jnp.where(by_number != 0, by_number, by_health).astype(jnp.float32)
    return jnp.stack([first, -first])


@functools.cache
def pool() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return element, build and second element of the monsters of all teams, int32 [POOL, 3]."""
    rng = np.random.default_rng(0)
    element = rng.integers(0, ELEMENTS, (POOL, TEAM))
    build = rng.integers(0, len(BUILDS), (POOL, TEAM))
    second = (element + rng.integers(1, ELEMENTS, (POOL, TEAM))) % ELEMENTS
    return tuple(x.astype(np.int32) for x in (element, build, second))  # type: ignore[return-value]


def chosen_teams(teams: int, unseen: bool = False, order: int = 0) -> np.ndarray:
    """Return the numbers of the first `teams` teams of the pool in the order drawn from `order`,
    or of the last ones if they are to be `unseen`."""
    numbers = np.random.default_rng([order, POOL]).permutation(POOL)
    return numbers[POOL - teams :] if unseen else numbers[:teams]


def make_rules(teams: np.ndarray, turns: int) -> Rules:
    """Return the rules of games between the teams of these numbers."""
    one, two = (x.ravel() for x in np.meshgrid(teams, teams, indexing="ij"))
    element, build, second = (x[np.stack([one, two], 1)] for x in pool())
    deals = len(one)
    number = lambda x: np.full(deals, x, np.int32)
    return Rules(
        deals=State(
            Monsters(element, build, second, HEALTH[build], np.zeros(build.shape, bool)),
            np.full((deals, 4), NOT_YET, np.int32),
            number(0),
            number(turns),
        ),
        play=_play,
        mover=_mover,
        legal=_legal,
        observe=_observe,
        over=_over,
        payoff=_payoff,
        num_actions=ACTIONS,
        max_moves=2 + 4 * turns,
    )


@functools.cache
def team_battle(
    teams: int = 64, unseen: bool = False, order: int = 0, turns: int = 12
) -> Environment:
    """Battles between some teams of the pool.

    teams: number of teams, up to 136. unseen: take them from the end of the order, where those who
    train on few teams never come. order: seed of the order of all teams, from 0 up. turns: number
    of turns after which a game ends, at least 1.
    """
    name = "team_battle"
    at_least(name, "teams", teams, 1)
    at_least(name, "order", order, 0)
    at_least(name, "turns", turns, 1)
    if teams > POOL:
        raise UserError(f"The teams of '{name}' are {teams}; there are {POOL}.")
    return environment(name, make_rules(chosen_teams(teams, unseen, order), turns), render=_render)


COLORS = (  # of the elements
    drawing.RED,
    drawing.ORANGE,
    drawing.GREEN,
    drawing.STEEL,
    drawing.BLUE,
    (150, 96, 160),
)
SIZES = (12.0, 16.0, 20.0)  # radius of each build


def _render(state: State) -> np.ndarray:
    """Draw each side's active monsters in front and its reserve behind, with their health above,
    the second element within the own one, and a bar before those who guarded."""
    canvas = drawing.Canvas(360, 200, scale=1.0, origin=(0, 200))
    monsters = jax.tree.map(np.asarray, state.monsters)
    for side, sign in enumerate((1, -1)):
        middle = 180.0 - sign * 30
        for place in range(TEAM):
            x = middle - sign * (110.0 if place == RESERVE else 25.0)
            y = (140.0, 50.0, 95.0)[place]
            build = int(monsters.build[side, place])
            share = float(monsters.health[side, place]) / float(HEALTH[build])
            stands = share > 0
            own = COLORS[int(monsters.element[side, place])] if stands else drawing.SHADE
            canvas.circle((x, y), SIZES[build], own)
            if not stands:
                continue
            canvas.circle((x, y), 5.0, COLORS[int(monsters.second[side, place])])
            bottom, right = y + 26, x - 20 + 40 * share
            canvas.polygon(
                [(x - 20, bottom), (right, bottom), (right, bottom + 4), (x - 20, bottom + 4)],
                drawing.INK,
            )
            if monsters.guarded[side, place]:
                front = x + sign * 26
                canvas.line([(front, y - 18), (front, y + 18)], drawing.INK, 4.0)
    return canvas.frame()
