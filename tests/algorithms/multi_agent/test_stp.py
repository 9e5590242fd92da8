"""STP: what is asked for and what is learned, against loops over statements and texts."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import stp as module
from jaxrl.algorithms.multi_agent.stp import (
    Asked,
    Config,
    Learned,
    Progress,
    Round,
    ask,
    barely_provable,
    elegant,
    match,
    remember,
    seed_weights,
    stp,
    weigh_proofs,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Policy
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel

SIZES = {"letters": 2, "length": 3, "lemmas": 2, "steps": 2, "count": 8}
ENV = envs.make("posed_theorems", **SIZES)
WORDS = ENV.vocabulary
END = len(WORDS) - 1
H = replace(Config(), {"length_weight": 0.1, "proof_rate": 0.6, "conjecture_rate": 0.45})


def draw_round(number=40, proofs=5, seed=0):
    """Draw statements of few kinds, many of them equal, with few different proofs."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2, (number, 3))
    tokens[rng.random(number) < 0.5, 2] = END
    proof = rng.integers(4, 6, (number, proofs, 3))
    for place in (2, 1):
        proof[..., place:][rng.random((number, proofs)) < 0.4] = END
    right = rng.random((number, proofs)) < rng.choice([0, 0.3, 0.6], (number, 1))
    there = rng.random(number) < 0.9
    return Round(
        *(jnp.asarray(x) for x in (
            tokens, there, (rng.random(number) < 0.6) & there, rng.random(number) < 0.7,
            rng.integers(0, 3, number), rng.random(number) < 0.2, right & there[:, None],
            rng.random((number, proofs)) < 0.4, proof,
        ))
    )  # fmt: skip


def to_numpy(x):
    return jax.tree.map(np.asarray, x)


def text_length(tokens):
    return list(tokens).index(END) if END in tokens else len(tokens)


def test_weights_of_proofs():
    x = draw_round()
    found, x = np.asarray(weigh_proofs(x, H, END)), to_numpy(x)
    groups = {}
    for i, text in enumerate(map(tuple, x.tokens)):
        if x.there[i]:
            groups.setdefault(text, []).append(i)
    expected, too_easy = np.zeros(x.right.shape), 0
    for members in groups.values():
        rate = np.mean([x.right[i].mean() for i in members])
        first = []
        for i in members:
            seen = set()
            for g in np.flatnonzero(x.right[i]):
                if tuple(x.proof[i, g]) not in seen:
                    seen.add(tuple(x.proof[i, g]))
                    first.append((i, g))
        too_easy += rate > 0.6
        for i, g in first if rate <= 0.6 else []:
            expected[i, g] = np.exp(-0.1 * text_length(x.proof[i, g])) / len(first)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (expected > 0).sum() > 10
    easy = dataclasses.replace(
        draw_round(), right=jnp.asarray(x.there[:, None] & (x.proof > 0).all(-1))
    )
    assert not np.asarray(weigh_proofs(easy, H, END)).any()


def test_barely_provable_conjectures():
    counts = []
    for seed in range(6):
        x = draw_round(seed=seed)
        history = Learned(jnp.zeros(3, bool), x.tokens[::9], jnp.int32(2))
        barely, lemma, new = map(np.asarray, barely_provable(x, history, H, 9))
        x, before = to_numpy(x), {tuple(t) for t in np.asarray(history.conjectures)[:2]}
        invoked = (x.right & x.invokes).any(-1)
        expected_new, expected = set(), set()
        for text in {tuple(t) for t in x.tokens}:
            same = [i for i in range(40) if x.newest[i] and tuple(x.tokens[i]) == text]
            good = [i for i in same if x.conjectured[i] and not x.listed[i] and x.right[i].any()]
            if not good or text in before:
                continue
            best = next((i for i in good if invoked[i]), good[0])
            expected_new.add(best)
            if np.mean([x.right[i].mean() for i in same]) < 0.45:
                expected.add(best)
        assert set(np.flatnonzero(new)) == expected_new
        assert set(np.flatnonzero(barely)) == expected
        np.testing.assert_array_equal(lemma, np.where(invoked, x.lemma, 9))
        counts.append((len(expected), len(expected_new)))
    assert sum(a for a, _ in counts) > 8 and any(a < b for a, b in counts)


def test_the_share_with_the_lowest_ratios_is_left_out():
    rng = np.random.default_rng(0)
    ratio, lemma = rng.integers(0, 9, 60) / 4, rng.integers(0, 5, 60)
    among = rng.random(60) < 0.7
    lemma[7], among[7] = 5, True  # alone with its lemma
    for share in (0.0, 0.2, 0.5):
        kept = np.asarray(elegant(*map(jnp.asarray, (ratio, lemma, among)), share))
        for i in range(60):
            peers = np.sort(ratio[among & (lemma == lemma[i])])
            expected = among[i]
            if among[i] and len(peers) > 1:
                expected = ratio[i] >= peers[int(len(peers) * share)]
            assert kept[i] == expected
        assert kept[7] and (share == 0) == (kept == among).all()


def test_matching_gives_every_wanted_statement_to_the_most_similar_free_conjecture():
    rng = np.random.default_rng(0)
    similar = rng.normal(size=(12, 30))
    similar[3] += 1.5
    among, wanted = rng.random(12) < 0.7, rng.random(30) < 0.8
    among[3] = True
    key = random.key(4)
    limited = 0
    for most in (1.0, 2.5, 100.0):
        found = np.asarray(match(key, *map(jnp.asarray, (similar, among, wanted)), most))
        order = np.asarray(jax.random.permutation(key, 30))
        weight, share = np.zeros(12), among.sum() / wanted.sum()
        for place in order[wanted[order]]:
            free = [i for i in range(12) if among[i] and weight[i] < most]
            limited += len(free) < among.sum()
            weight[max(free, key=lambda i: similar[i, place])] += share
        np.testing.assert_allclose(found, weight, atol=1e-5)
        assert found.sum() == pytest.approx(among.sum(), rel=1e-5)
    assert limited > 5
    none = match(key, jnp.asarray(similar), jnp.asarray(among), jnp.zeros(30, bool), 4.0)
    assert not np.asarray(none).any()


def test_what_is_remembered():
    x = draw_round(number=6)
    new = jnp.array([False, True, False, False, True, False])
    old = jnp.array([[0, 1, 1], [1, 1, 1], [9, 9, 9]])
    after = remember(
        Learned(jnp.zeros(4, bool), old, jnp.int32(2)), x, new, jnp.array([0, 4, 2, 4, 4, 1])
    )
    expected = [x.tokens[1], x.tokens[4], old[0]]
    np.testing.assert_array_equal(after.conjectures, expected)
    assert int(after.count) == 3
    right = np.asarray(x.right.any(-1) & x.newest)
    np.testing.assert_array_equal(after.proved, [right[0], right[5], right[2], False])
    once = Learned(jnp.zeros(4, bool), jnp.full((5, 3), 9), jnp.int32(0))
    after = remember(once, x, new, jnp.full(6, 4))
    assert int(after.count) == 2 and not after.proved.any()


def test_seeds_are_drawn_by_rate_with_the_lemmas_of_their_proofs():
    proof = jnp.array([[0, 4], [3, 1], [0, 2], [-1, -1], [1, 4]])
    rate = jnp.array([0.5, 0.5, 0.9, 0.0, 0.3])
    found = np.asarray(seed_weights(Progress((), rate, proof), 2, 0.35))
    expected = [[1, 0, 0.5], [0, 1, 0.5], [1, 0, 0.5], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(found, expected)
    sizes = replace(Config(), {"given": 4, "conjectures": 60, "seed_rate": 0.35}).groups
    tasks = ask(ENV, sizes)
    start = tasks.init(random.key(0), Policy(None, None), {})
    drawn = to_numpy(jax.jit(lambda state: tasks.sample(state, random.key(1), 64))(start))
    assert drawn.given.all() and set(drawn.statement[:4]) < set(range(8))
    assert len(set(drawn.statement[:8])) == 8  # none twice before all were asked for
    rate = jnp.array([0.0, 0.2, 0.5, 0.9, 0.4, 0.9, 0.9, 0.9])
    proof = jnp.tile(jnp.array([1, 4]), (8, 1)).at[3].set(jnp.array([2, 3]))
    state = dataclasses.replace(start, rate=rate, proof=proof)
    sample = jax.jit(jax.vmap(lambda key: tasks.sample(state, key, 64)))
    drawn = to_numpy(sample(jax.random.split(random.key(2), 200)))
    assert drawn.given[:, :4].all() and not drawn.given[:, 4:].any()
    for places, lemmas in ((drawn.statement[:, 4:], drawn.lemma[:, 4:]),):
        assert set(places.ravel()) == {2, 3, 4, 5, 6, 7}
        # Statement 3 has two lemmas and none, 2.5 of 10 parts; others 1.5.
        assert (places == 3).mean() == pytest.approx(0.25, abs=0.02)
        assert set(lemmas[places == 2]) == {1, 2} and set(lemmas[places == 3]) == {0, 1, 2}
        assert (lemmas[places == 2] == 2).mean() == pytest.approx(1 / 3, abs=0.03)
    often = np.bincount(drawn.statement[:, :4].ravel(), minlength=8) / 200
    assert (often[:2] > 0.95).all() and (often[2:] < 0.6).all()
    params = tasks.params(state, Asked(jnp.int32(3), jnp.array(False), jnp.int32(1)))
    np.testing.assert_array_equal(params.proof, [2, 3])
    assert (int(params.statement), int(params.lemma), bool(params.given)) == (3, 1, False)


def play(config, seed=1):
    """Return the tasks before, the batch and the tasks after each of three rounds, of texts by an
    expert who writes other letters in conjectures, and other tokens in proofs."""
    env = expert_channel(ENV)
    noisy, expert = add_noise(ENV, expert_policy(env), 0.2), expert_policy(env)

    def act(state, timestep, memory, key, greedy):
        other, memory, extras = noisy.act(state, timestep, memory, key, greedy)
        action, *_ = expert.act(state, timestep, memory, key, greedy)
        flip = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.3, action.shape)
        letter = (action < 2) & (timestep.legal_actions.sum(-1) > 1)
        conjecture = jnp.where(flip & letter, 1 - action, action)
        action = jnp.where(timestep.tokens["turn"] == 0, conjecture, other)
        return action, memory, {**extras, "log_prob": jnp.zeros(action.shape)}

    policy = Policy(act, noisy.memory, noisy.state)
    source = config.groups.source(env)

    def run(key):
        state, history = source.init(key, {}, policy), []
        for i in range(3):
            before = state.source.tasks
            state, batch, _ = source.collect(state, policy, jax.random.fold_in(key, i))
            history.append((before, batch, state.source.tasks))
        return history

    return jax.jit(run)(random.key(seed))


CONFIG = replace(
    Config(),
    {"given": 6, "conjectures": 18, "proofs": 6, "rounds": 2, "recurrent": 8, "transformer": 1}
    | {"history": 5, "proof_rate": 0.9, "conjecture_rate": 0.99, "seed_rate": 0.1},
)


@pytest.fixture(scope="module")
def history():
    return play(CONFIG)


def read_texts(batch, column):
    """Return the tokens that were written in both turns of the newest half of a column."""
    t = batch.transitions
    half = slice(len(batch.mask) // 2, None)
    inside, decided = (
        np.asarray(batch.mask)[half, column],
        np.asarray(t.timestep.tokens["decision"]),
    )
    turn, action = np.asarray(t.timestep.tokens["turn"])[half, column], np.asarray(t.action)
    here = inside & decided[half, column]
    return [[int(a) for a in action[half, column][here & (turn == k)]] for k in (0, 1)], inside


def test_rates_and_proofs_of_given_statements(history):
    kept = False
    for before, batch, after in history:
        tasks = to_numpy(jax.tree.map(lambda x: x[len(x) // 2], batch.transitions.task))
        reward = np.asarray(batch.transitions.reward)
        rate, proof = np.array(before.rate), np.array(before.proof)
        right = {}
        for b in range(CONFIG.groups.num_envs):
            if tasks.given[b]:
                (_, written), inside = read_texts(batch, b)
                success = reward[len(reward) // 2 :, b][inside].sum() > 0
                right.setdefault(int(tasks.statement[b]), []).append(success)
                if success:
                    moves = [w - WORDS.index("A") for w in written if w != END]
                    proof[tasks.statement[b]] = moves + [4] * (2 - len(moves))
        for place, found in right.items():
            rate[place] = max(rate[place], np.mean(found))
        kept |= (rate > 0).any() and len(right) < 8
        np.testing.assert_allclose(after.rate, rate, atol=1e-6)
        np.testing.assert_array_equal(after.proof, proof)
    assert kept and 0 < np.asarray(history[-1][2].rate).max() <= 1


class Recorder:
    """A net that records what an update descends."""

    def __init__(self, extra):
        self.hyper, self.extra, self.parts = CONFIG, extra, {"actor_critic": self}
        self.params, self.seen, self.metrics = None, [], {}

    def key(self, name):
        return random.key(7)

    def restart(self, actor_critic):
        return self

    def epochs(self, passes, window, step, unit):
        self.seen.append(window)
        return self

    def report(self, **metrics):
        self.metrics |= metrics
        return self

    def replace(self, extra):
        self.extra = extra
        return self

    def update_targets(self):
        return self


def test_the_tokens_of_both_roles_have_their_weights(history, monkeypatch):
    rng = np.random.default_rng(0)
    features = {n: jnp.asarray(rng.normal(size=(n, 3)), jnp.float32) for n in (8, 48)}
    monkeypatch.setattr(
        module, "statement_features", lambda net, tokens, end: features[len(tokens)]
    )
    recipe = module.recipe(ENV, CONFIG)
    net = Recorder(recipe.extra)
    for _, batch, _ in history[:2]:
        recipe.update(net, batch)
    # Leave statements for conjectures to be matched to.
    before = net.extra = dataclasses.replace(net.extra, proved=jnp.zeros(8, bool))
    batch = history[2][1]
    recipe.update(net, batch)
    (window, mask), after = (net.seen[-1].x, np.asarray(net.seen[-1].mask)), net.extra
    weight = np.asarray(window.advantage)
    t, length = batch.transitions, len(batch.mask) // 2
    rows = {}
    fields = {name: [] for name in Round.__dataclass_fields__}
    for p, w in itertools.product(range(24), range(2)):
        part = slice(w * length, (w + 1) * length)
        texts = []
        for g in range(6):
            b = p * 6 + g
            at = lambda x, part=part, b=b: np.asarray(x)[part, b]
            inside, turn = at(batch.mask), at(t.timestep.tokens["turn"])
            here = inside & at(t.timestep.tokens["decision"])
            last = np.flatnonzero(inside & at(t.done))[0]
            written = [list(at(t.action)[here & (turn == k)]) for k in (0, 1)]
            ends = {k: at(v)[last] > 0 for k, v in t.next_timestep.metrics.items()}
            texts.append((written, ends))
            rows[p, w, g] = b * 2 + w
        pad = lambda x, size: x + [END] * (size - len(x))
        fields["tokens"].append(pad(texts[0][0][0], 8))
        fields["there"].append(True)
        fields["newest"].append(w == 1)
        fields["conjectured"].append(not bool(np.asarray(t.task.given)[w * length, p * 6]))
        fields["lemma"].append(int(np.asarray(t.task.lemma)[w * length, p * 6]))
        fields["listed"].append(any(e["listed"] for _, e in texts))
        fields["right"].append([e["success"] for _, e in texts])
        fields["invokes"].append([e["invokes"] for _, e in texts])
        fields["proof"].append([pad(x[1], 3) for x, _ in texts])
    x = Round(**{name: jnp.asarray(np.array(value)) for name, value in fields.items()})
    proofs = np.asarray(weigh_proofs(x, CONFIG, END))
    barely, lemma, _ = barely_provable(x, before, CONFIG, 2)
    shortest = [
        min(
            text_length(x.proof[j, g])
            for j in range(48)
            for g in range(6)
            if (x.tokens[i] == x.tokens[j]).all() and x.right[j, g]
        )
        if barely[i]
        else 0
        for i in range(48)
    ]
    ratio = np.array(shortest) / [max(text_length(y), 1) for y in np.asarray(x.tokens)]
    kept = elegant(jnp.asarray(ratio), lemma, barely, 0.2)
    posed = np.asarray(
        match(random.key(7), features[48] @ features[8].T, kept, ~after.proved, CONFIG.most)
    )
    assert (proofs > 0).sum() > 3 and (posed > 0).sum() >= 2, (barely.sum(), kept.sum())
    cleared = 0
    for (p, w, g), column in rows.items():
        i, part = p * 2 + w, slice(w * length, (w + 1) * length)
        turn = np.asarray(t.timestep.tokens["turn"])[part, p * 6 + g]
        decided = np.asarray(t.timestep.tokens["decision"] & batch.mask)[part, p * 6 + g]
        expected = np.where(turn == 0, posed[i] if g == 0 else 0, proofs[i, g])
        expected = np.where(decided, expected, 0)
        found = np.where(mask[:, column], weight[:, column], 0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        seen = np.asarray(window.timestep.observation)[:, column]
        real = np.array(np.asarray(t.observation)[part, p * 6 + g])
        if posed[i] > 0 and g == 0 and int(lemma[i]) != int(x.lemma[i]):
            real[1], cleared = WORDS.index("-"), cleared + 1
        if not (posed[i] > 0 and g > 0):
            np.testing.assert_array_equal(seen[:10], real[:10])
    assert float(net.metrics["proved"]) == np.asarray(after.proved).mean() > 0
    assert float(net.metrics["conjectures_learned"]) == (posed > 0).sum()
    assert cleared >= 1


def test_other_environments_and_settings_are_refused():
    with pytest.raises(UserError, match="'posed_sums'"):
        stp(envs.make("posed_sums"), Config())
    with pytest.raises(UserError, match="there are 8 statements"):
        stp(ENV, replace(Config(), {"given": 9}))
    with pytest.raises(UserError, match="early_stop"):
        stp(ENV, replace(CONFIG, {"early_stop": True}))
