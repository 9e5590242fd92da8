"""Deal or no deal: its rules beside plain Python, divisions by brute force, and its players."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.games import deal_or_no_deal as d
from jaxrl.envs.games.deal_or_no_deal_players import chances, self_interested
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import episodes

SIZES = {"turns": 6, "fewest": 3, "most": 5, "largest": 2}
SMALL = envs.make("deal_or_no_deal", **SIZES)
FULL = envs.make("deal_or_no_deal")


def play(env, policy, number, seed=0):
    """Play complete talks; return them as NumPy arrays [T, B], with the states before each step."""
    source = episodes(env, number, keep_states=True)

    def collect(key):
        return source.collect(source.init(key, {}, policy), policy, key)[1]

    batch = jax.device_get(jax.jit(collect)(random.key(seed)))
    x = batch.transitions
    return x, x.extras["env_state"].game, np.asarray(batch.mask)


def talks(x, games, mask):
    """Yield (counts, values, actions, column) of each talk."""
    for i in range(mask.shape[1]):
        length = int(mask[:, i].sum())
        yield games.counts[0, i], games.values[0, i], [int(a) for a in x.action[:length, i]], i


def all_divisions(counts):
    return [np.asarray(p) for p in itertools.product(*(range(c + 1) for c in counts))]


def is_efficient(counts, values, pieces):
    """Return by brute force whether no division dominates the one that gives player 0 `pieces`."""
    own, other = values[0] @ pieces, values[1] @ (counts - pieces)
    for p in all_divisions(counts):
        mine, theirs = values[0] @ p, values[1] @ (counts - p)
        if mine >= own and theirs >= other and (mine > own or theirs > other):
            return False
    return True


class Talk:
    """The rules in plain Python."""

    def __init__(self, counts, turns, largest):
        self.counts, self.turns, self.largest = tuple(counts), turns, largest
        self.pieces = list(itertools.product(range(largest + 1), repeat=3))
        self.said, self.named, self.last_own = [], {}, {}

    def legal(self):
        count, player = len(self.pieces), len(self.said + list(self.named)) % 2
        possible = {i for i, p in enumerate(self.pieces) if all(np.asarray(p) <= self.counts)}
        if self.is_closed:
            return possible | {count + d.DISAGREE}
        if not self.said:
            return possible
        legal = (possible - {self.last_own.get(player)}) | {count + d.DISAGREE, count + d.END}
        if player in self.last_own:
            legal.add(count + d.INSIST)
        if self.said[-1] <= count:  # a proposal, or an insistence
            legal.add(count + d.AGREE)
        return legal

    @property
    def is_closed(self):
        return len(self.said) == self.turns or self.said[-1:] == [len(self.pieces) + d.END]

    def do(self, action):
        player = len(self.said + list(self.named)) % 2
        if self.is_closed:
            self.named[player] = action
        else:
            self.said.append(action)
            if action < len(self.pieces):
                self.last_own[player] = action

    def deal(self):
        """Return the pieces of both, or None."""
        if max(self.named.values()) >= len(self.pieces):
            return None
        pieces = np.asarray([self.pieces[self.named[p]] for p in (0, 1)])
        return pieces if (pieces.sum(0) == self.counts).all() else None


@pytest.mark.parametrize("who", ["random", "self_interested"])
def test_rules_are_those_in_plain_python(who):
    policy = random_policy(SMALL) if who == "random" else self_interested(SMALL)
    x, games, mask = play(SMALL, policy, 192)
    deals = closed_early = 0
    for counts, values, actions, i in talks(x, games, mask):
        talk = Talk(counts, SIZES["turns"], SIZES["largest"])
        for t, action in enumerate(actions):
            legal = np.flatnonzero(x.timestep.legal_actions[t, i])
            assert set(legal) == talk.legal() and action in talk.legal()
            assert x.timestep.role[t, i] == t % 2
            assert x.timestep.privileged["talking"][t, i] == (not talk.is_closed)
            assert len(talk.named) < 2
            talk.do(action)
        assert len(talk.named) == 2
        last, deal = len(actions) - 1, talk.deal()
        paid = np.zeros(2) if deal is None else (deal * values).sum(1) / 10
        np.testing.assert_allclose(x.reward[: last + 1, i].sum(0), paid, atol=1e-6)
        metrics = {n: float(v[last, i]) for n, v in x.next_timestep.metrics.items()}
        best = deal is not None and is_efficient(counts, values, deal[0])
        expected = {"agreement": deal is not None, "joint_utility": paid.sum(), "pareto": best}
        assert metrics == pytest.approx({n: float(v) for n, v in expected.items()})
        assert not any(v[:last, i].any() for v in x.next_timestep.metrics.values())
        deals += deal is not None
        closed_early += len(talk.said) < SIZES["turns"]
    assert 0 < deals < 192 and 0 < closed_early < 192


def test_scenarios_are_all_that_the_text_allows():
    counts, values = d.scenarios(5, 7, 4)
    assert ((counts >= 1) & (counts <= 4)).all() and set(counts.sum(1)) == {5, 6, 7}
    assert ((counts[:, None] * values).sum(-1) == 10).all()
    assert (values.max(1) > 0).all() and (values.min(1) > 0).any(1).all()
    rows = {tuple(np.r_[c, *v]) for c, v in zip(counts, values, strict=True)}
    assert len(rows) == len(counts)
    # With 1, 1 and 3 pieces: all pairs of values, less those that break a rule.
    worth = [(a, b, c) for c in range(4) for a in range(11 - 3 * c) for b in [10 - 3 * c - a]]
    pairs = [
        (v, w)
        for v, w in itertools.product(worth, repeat=2)
        if all(a + b > 0 for a, b in zip(v, w, strict=True))
        and any(a * b > 0 for a, b in zip(v, w, strict=True))
    ]
    assert (counts == (1, 1, 3)).all(1).sum() == len(pairs)


def test_pareto_is_that_of_brute_force():
    counts, values = d.scenarios(5, 7, 4)
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(counts), 150, replace=False)
    table = d.divisions(4)
    each = jax.jit(jax.vmap(jax.vmap(d.is_pareto, (None, None, 0)), (0, 0, None)))
    found = np.asarray(each(counts[chosen], values[chosen], table))
    for row, i in enumerate(chosen):
        for j in rng.choice(len(table), 40, replace=False):
            if (table[j] <= counts[i]).all():
                assert found[row, j] == is_efficient(counts[i], values[i], table[j])
    assert 0 < found.mean() < 1


def test_an_observation_is_what_the_mover_knows():
    x, games, mask = play(SMALL, random_policy(SMALL), 64)
    sizes = SIZES["largest"], SIZES["turns"]
    seen = jax.jit(jax.vmap(lambda g: d.see(g, sizes[0])))
    read = jax.jit(jax.vmap(lambda o: d.read_observation(o, *sizes)))
    write = jax.jit(jax.vmap(lambda s: d.write_observation(s, sizes[0])))
    states = jax.tree.map(lambda a: a[mask], games)
    known, observed = seen(states), x.timestep.observation[mask]
    found = jax.device_get(read(observed))
    there = {"own": known.has_own, "other": known.has_other}
    for name, value in vars(jax.device_get(known)).items():
        same = getattr(found, name) == value
        ok = np.asarray(there.get(name, np.ones(len(same), bool)))
        assert same.reshape(len(same), -1)[ok].all(), name
    # The other's values show nowhere.
    other = 1 - states.turn % 2
    values = states.values.copy()
    values[np.arange(len(other)), other] = 7
    hidden = dataclasses.replace(states, values=values)
    np.testing.assert_array_equal(write(seen(hidden)), observed)


@pytest.fixture(scope="module")
def experts():
    env = expert_channel(FULL)
    return play(env, expert_policy(env), 256)


def test_the_expert_proposes_nothing_that_is_dominated_and_always_agrees(experts):
    x, games, mask = experts
    table, proposals = d.divisions(4), 0
    for counts, values, actions, i in talks(x, games, mask):
        for t, action in enumerate(actions):
            if action < len(table) and x.timestep.privileged["talking"][t, i]:
                share = table[action] if t % 2 == 0 else counts - table[action]
                assert is_efficient(counts, values, share)
                proposals += 1
        last = len(actions) - 1
        metrics = {n: float(v[last, i]) for n, v in x.next_timestep.metrics.items()}
        assert metrics["agreement"] == metrics["pareto"] == 1
    assert proposals > 256


def test_the_experts_first_offer_and_its_last_are_those_of_brute_force(experts):
    x, games, mask = experts
    table, conceded = d.divisions(4), 0
    for counts, values, actions, i in talks(x, games, mask):
        best = [p for p in all_divisions(counts) if is_efficient(counts, values, p)]
        mine = {tuple(p): int(values[0] @ p) for p in best}
        theirs = {tuple(p): int(values[1] @ (counts - p)) for p in best}
        nash = max(mine, key=lambda p: (mine[p] * theirs[p], mine[p]))
        fair = [p for p in mine if mine[p] >= mine[nash] and 2 * theirs[p] >= theirs[nash]]
        assert mine[tuple(table[actions[0]])] == max(mine[p] for p in fair)
        offers = [a for t, a in enumerate(actions[:8]) if t % 2 == 0 and a < len(table)]
        worth = [int(values[0] @ table[a]) for a in offers]
        talked = x.timestep.privileged["talking"][: len(actions), i]
        acts = [a for a, now in zip(actions[::2], talked[::2], strict=True) if now]
        if len(acts) > d.PATIENCE and acts[d.PATIENCE] < len(table):
            assert mine[tuple(table[acts[d.PATIENCE]])] >= mine[nash]
            conceded += 1
        assert min(worth) >= mine[nash]
    assert conceded > 0


def test_the_expert_does_better_than_self_interested_players(experts):
    def ends(x, mask):
        metrics = x.next_timestep.metrics
        return {name: np.where(mask, value, 0).sum(0) for name, value in metrics.items()}

    x, _, mask = play(FULL, self_interested(FULL), 512)
    among, best = ends(x, mask), ends(experts[0], experts[2])
    deals = among["agreement"] > 0
    assert 0.85 < deals.mean() < 0.99  # they agree in most cases, and not on what is best
    assert 0.3 < among["pareto"][deals].mean() < 0.6
    assert best["joint_utility"].mean() > among["joint_utility"].mean() + 0.2


def test_chances_are_of_legal_actions():
    x, _, mask = play(SMALL, random_policy(SMALL), 64, seed=3)
    largest, turns = SIZES["largest"], SIZES["turns"]
    each = jax.jit(jax.vmap(lambda o: chances(d.read_observation(o, largest, turns), largest)))
    found = np.asarray(each(x.timestep.observation[mask]))
    legal = x.timestep.legal_actions[mask]
    assert (found[~legal] == 0).all() and (found >= 0).all()
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


def test_it_is_an_environment_and_bad_sizes_are_refused():
    check_environment(SMALL, steps=16)
    assert d.sizes(FULL) == (10, 4) and d.sizes(SMALL) == (6, 2)
    with pytest.raises(UserError, match="at least 2 turns"):
        d.deal_or_no_deal(turns=1)
    with pytest.raises(UserError, match="1 to 4 pieces"):
        d.deal_or_no_deal(largest=5)
    with pytest.raises(UserError, match="no scenario"):
        d.deal_or_no_deal(fewest=20, most=30)
    with pytest.raises(UserError, match="another game"):
        self_interested(envs.make("kuhn_poker"))
    assert FULL.action_space.n == 129
