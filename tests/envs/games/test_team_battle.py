"""The team battle: its rules beside plain Python, known states, its teams and scripted players."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.games import team_battle as b
from jaxrl.envs.games import team_battle_players as players
from jaxrl.evaluation import matches

RULES = b.make_rules(b.chosen_teams(3), 12)
PLAY, LEGAL, OBSERVE = (jax.jit(f) for f in (RULES.play, RULES.legal, RULES.observe))
FIGHT = jax.jit(b.fight)


def monsters(
    element: Any = 0, build: Any = 1, second: Any = 3, health: Any = None, guarded: Any = False
) -> b.Monsters:
    """Return monsters whose fields are broadcast to [2, 3]."""
    pair = lambda x: np.broadcast_to(np.asarray(x), (2, 3))
    build = pair(build)
    health = b.HEALTH[build] if health is None else pair(health).astype(np.float32)
    return b.Monsters(pair(element), build, pair(second), health, pair(guarded))


def fight(begin, *choice):
    return jax.device_get(FIGHT(begin, jnp.asarray(choice, jnp.int32)))


def state(begin, chosen=(-1, -1, -1, -1), turn=1, turns=12):
    return b.State(begin, np.asarray(chosen, np.int32), np.int32(turn), np.int32(turns))


def effect(attacking, defending):
    """Return the effect of one element on another, by the text of the rules."""
    if defending in ((attacking + 1) % 6, (attacking + 2) % 6):
        return 2.0
    return 0.5 if defending in ((attacking - 1) % 6, (attacking - 2) % 6) else 1.0


def simulate(teams, choices):
    """Play a turn in plain Python; `teams` are two lists of dicts in the order left, right,
    reserve, which are changed."""
    for team, choice in zip(teams, choices, strict=True):
        for monster in team:
            monster["guarded"] = False
        for place in (0, 1):
            if choice[place] == b.SWITCH:
                team[place], team[2] = team[2], team[place]
            elif choice[place] == b.GUARD and team[place]["health"] > 0:
                team[place]["guarded"] = True
    for speed in range(3):
        blows = []
        for side in (0, 1):
            there = [m for m in teams[1 - side][:2] if m["health"] > 0]
            for place in (0, 1):
                striker, do = teams[side][place], choices[side][place]
                if striker["health"] <= 0 or striker["build"] != speed or do in (b.GUARD, b.SWITCH):
                    continue
                if not there:
                    continue
                if do == b.BOTH:
                    aims, power = there, 1.5 if len(there) == 1 else 1.125
                else:
                    aimed = teams[1 - side][do % 2]
                    aims, power = [aimed if aimed["health"] > 0 else there[0]], (1.5, 1.0)[do // 2]
                element = striker["second"] if do in (2, 3) else striker["element"]
                for aim in aims:
                    attack = (32, 28, 24)[striker["build"]]
                    blows.append((aim, attack * power * effect(element, aim["element"])))
        for aim, loss in blows:
            if not aim["guarded"]:
                aim["health"] -= loss
        for team in teams:
            for monster in team:
                monster["health"] = max(monster["health"], 0.0)
    for team in teams:
        if team[2]["health"] > 0:
            for place in (0, 1):
                if team[place]["health"] <= 0:
                    team[place], team[2] = team[2], team[place]
                    break


NAMES = ("element", "build", "second", "health", "guarded")


def as_lists(x):
    whole = {name: np.asarray(getattr(x, name)) for name in NAMES}
    return [[{n: whole[n][s, i].item() for n in NAMES} for i in range(3)] for s in range(2)]


def test_a_turn_is_that_of_plain_python():
    rng, over = np.random.default_rng(1), 0
    for _ in range(12):
        deal = rng.integers(0, 9)
        now = jax.tree.map(lambda x, deal=deal: np.asarray(x)[deal], RULES.deals)
        for _ in range(2):
            now = PLAY(now, jnp.int32(rng.integers(0, 3)))
        while not RULES.over(now):
            teams, choices = as_lists(now.monsters), []
            for _ in range(4):
                choices.append(rng.choice(np.flatnonzero(LEGAL(now))))
                now = PLAY(now, jnp.int32(choices[-1]))
            simulate(teams, np.reshape(choices, (2, 2)).tolist())
            assert as_lists(jax.device_get(now.monsters)) == teams
        health = np.asarray(now.monsters.health)
        over += (health == 0).all(1).any()
        lead = np.sign((health > 0).sum(1) @ [1, -1]) or np.sign(health.sum(1) @ [1, -1])
        np.testing.assert_array_equal(RULES.payoff(now, ()), [lead, -lead])
    assert over > 6  # most games end with a defeat


def test_strikes_do_the_damage_of_the_tables():
    plain = monsters()
    assert fight(plain, (0, b.GUARD), (b.GUARD, b.GUARD)).health[1].tolist() == [150] * 3
    hit = lambda begin, do: (begin.health - fight(begin, (do, 5), (5, 6)).health)[1].tolist()
    rested = monsters(health=[[150] * 3, [150, 150, 0]])  # none takes the right one's place
    after = fight(rested, (0, 5), (b.BOTH, b.BOTH)).health
    assert after.tolist() == [[150 - 2 * 31.5, 150, 150], [150 - 42, 150, 0]]
    assert hit(plain, 1)[1] == 42 and hit(plain, 3)[1] == 28  # at the reserve that came
    assert [float(b.EFFECT[2, x]) for x in range(6)] == [0.5, 0.5, 1, 2, 2, 1]
    strong = monsters(element=[[2] * 3, [3] * 3], second=[[5] * 3, [0] * 3])
    assert hit(strong, 1)[1] == 84 and hit(strong, 3)[1] == 14


def test_the_fast_strike_first_and_equals_at_once():
    weak = {"health": [[20, 0, 0], [20, 0, 0]]}
    both = fight(monsters(**weak), (0, 5), (0, 5))
    assert both.health.sum() == 0
    first = fight(monsters(build=[[0, 1, 1], [1, 1, 1]], **weak), (0, 5), (0, 5))
    assert first.health[:, 0].tolist() == [20, 0]


def test_a_strike_finds_the_other_if_its_target_has_fallen_and_the_reserve_comes_after_the_turn():
    begin = monsters(build=[[0, 1, 1], [2, 2, 2]], health=[[99] * 3, [10, 100, 70]])
    after = fight(begin, (0, 0), (5, 5))
    assert after.health[1].tolist() == [10, 100, 70]  # both guard
    after = fight(begin, (0, 0), (0, 0))
    assert after.health[1].tolist() == [70, 58, 0]


def test_choices_are_legal_as_the_rules_say():
    legal = lambda *args, **kwargs: np.flatnonzero(LEGAL(state(*args, **kwargs))).tolist()
    assert legal(monsters(), turn=0) == [0, 1, 2]
    assert legal(monsters()) == list(range(7))
    assert legal(monsters(), (b.SWITCH, -1, -1, -1)) == list(range(6))
    assert legal(monsters(), (b.SWITCH, 0, -1, -1)) == list(range(7))  # of the other side
    assert legal(monsters(guarded=True)) == [0, 1, 2, 3, 4, 6]
    alone = monsters(health=[[0, 50, 0], [50, 0, 0]])
    assert legal(alone) == [b.GUARD]
    assert legal(alone, (b.GUARD, -1, -1, -1)) == [0, 2, 4, 5]


def test_choices_are_hidden_from_the_other_side_and_shown_to_the_own_right_one():
    begin = jax.tree.map(lambda x: x[1], RULES.deals)
    waiting = [OBSERVE(PLAY(begin, jnp.int32(x))) for x in range(3)]
    np.testing.assert_array_equal(waiting[0], waiting[2])
    battle = PLAY(PLAY(begin, jnp.int32(0)), jnp.int32(2))
    left = [OBSERVE(PLAY(battle, jnp.int32(x))) for x in (0, 5)]
    np.testing.assert_array_equal(np.flatnonzero(left[0] != left[1]), [110, 115])
    done = [PLAY(PLAY(battle, jnp.int32(x)), jnp.int32(4)) for x in (0, 5)]
    np.testing.assert_array_equal(OBSERVE(done[0]), OBSERVE(done[1]))
    first, second = (RULES.deals.monsters.element[1][s] for s in (0, 1))
    shown = np.asarray(OBSERVE(battle))[:108].reshape(6, 18)[:, 2:8].argmax(1)
    np.testing.assert_array_equal(shown, [first[2], first[1], first[0], *second])


def test_the_time_ends_a_game():
    for health, lead in (([[9, 0, 0], [2, 2, 0]], -1), ([[9, 0, 0], [5, 0, 0]], 1), (9, 0)):
        late = state(monsters(health=health), turn=13)
        assert RULES.over(late) and not RULES.over(state(monsters(health=health), turn=12))
        np.testing.assert_array_equal(RULES.payoff(late, ()), [lead, -lead])


def test_teams_that_are_unseen_and_orders():
    few, many = b.chosen_teams(4), b.chosen_teams(64)
    np.testing.assert_array_equal(few, many[:4])
    unseen = b.chosen_teams(72, unseen=True)
    assert not set(many) & set(unseen) and len(set(many) | set(unseen)) == b.POOL
    assert set(b.chosen_teams(16, order=1)) != set(many[:16])
    element, build, second = b.pool()
    assert (element != second).all() and (build < 3).all()
    whole = np.stack(b.pool(), -1).reshape(b.POOL, -1)
    assert len(np.unique(whole, axis=0)) == b.POOL


def test_the_battle_keeps_the_rules_of_environments():
    check_environment(envs.make("team_battle", teams=2, turns=2))


def test_scripted_players_strike_as_they_say():
    env = envs.make("team_battle", teams=16)
    cast = {name: players.player(name) for name in ("knowing", "strongest", "random")}
    won = np.asarray(matches.tournament(env, cast, key=random.key(0), games=100).won)
    assert won[0, 1] > 0.7 and won[0, 2] > 0.7
    seen = OBSERVE(state(monsters(element=[[2, 2, 2], [3, 0, 0]], second=[[1] * 3, [4] * 3])))
    found = np.asarray(players.expected_damage(seen))
    strikes = [[84, 0], [0, 21], [56, 0], [0, 14], [63, 15.75]]
    np.testing.assert_allclose(found, strikes)
    assert players.knowing(seen, jnp.ones(7, bool)) == 0


def test_wrong_arguments_are_refused():
    for settings, words in (
        ({"teams": 137}, "there are 136"),
        ({"teams": 0}, "from 1 up"),
        ({"order": -1}, "from 0 up"),
        ({"turns": 0}, "from 1 up"),
    ):
        with pytest.raises(UserError, match=words):
            envs.make("team_battle", **settings)
    with pytest.raises(UserError, match="player 'poet'"):
        players.team_battle_against("poet")
