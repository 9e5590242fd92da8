"""ArCHer: critics of utterances against exact values of all conversations, and their targets."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens.archer import (
    advantages,
    archer,
    at_next,
    critic_loss,
    split_utterances,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import TimeStep, Transition
from jaxrl.sources import episodes
from tests.kit.stub import stub

LETTERS, TURNS, DISCOUNT = 2, 2, 0.8
ENV = envs.make("guess_letter", letters=LETTERS, turns=TURNS)
UPDATES = 150
SETTINGS = {"num_envs": 32, "capacity": 1024, "batch_size": 128, "recurrent": 32, "transformer": 0}
SETTINGS |= {"passes.epochs": 8, "passes.minibatches": 1, "critic.learning_rate": 5e-3}
SETTINGS |= {"critic.learning_rate_steps": UPDATES * 160, "critic.learning_rate_end": 1e-4}
SETTINGS |= {"discount": DISCOUNT, "warmup": np.inf}  # only critics learn
BEFORE, EQUALS, YES, NO, ASKS = range(2, 7)


def token_probabilities(policy, texts):
    """Return the distribution of the next token after each beginning of the texts, by beginning."""
    network, params = policy
    memory = network.initial(texts.action.shape[1])
    logits = network.apply(params, texts.timestep, memory, method="unroll")[0].logits
    seen, said = np.asarray(texts.observation), jax.nn.softmax(logits)
    found = {}
    for b in range(seen.shape[1]):
        for t in range(len(seen)):
            found.setdefault(tuple(seen[: t + 1, b].tolist()), np.asarray(said[t, b], float))
    return found


def exact_values(next_token, discount=DISCOUNT):
    """Return V of each beginning before an utterance and Q of each after one, by beginning."""
    value, q = {}, {}

    def visit(text, left, turn):
        value[text] = 0.0
        for sign, letter in itertools.product((BEFORE, EQUALS), range(LETTERS)):
            p = next_token[text][sign] * next_token[(*text, sign)][letter]
            said = (*text, sign, letter)
            true = {x for x in left if (x == letter if sign == EQUALS else x < letter)}
            q[said] = 0.0
            for reply, part in ((YES, true), (NO, left - true)):
                if not part or (sign == EQUALS and reply == YES):
                    continue  # a right guess ends the conversation and costs nothing
                later = visit((*said, reply), part, turn + 1) if turn + 1 < TURNS else 0.0
                q[said] += len(part) / len(left) * (discount * later - 1 / TURNS)
            value[text] += p * q[said]
        return value[text]

    visit((ASKS,), set(range(LETTERS)), 0)
    return value, q


@pytest.mark.slow
def test_critics_learn_the_exact_values_of_todays_policy():
    algorithm = archer(ENV, SETTINGS)
    run = start(algorithm, random.key(0))
    run, _ = jax.jit(lambda run: train(algorithm, run, UPDATES))(run)
    parts = run.state.agent.parts
    network = archer.recipe(ENV, algorithm.config).parts["actor_critic"].network
    source = episodes(ENV, 512)
    policy = algorithm.policy(run.state)
    state = source.init(random.key(1), {}, policy)
    texts = jax.jit(source.collect)(state, policy, random.key(2))[1].transitions
    value, q = exact_values(token_probabilities((network, parts["actor_critic"].params), texts))
    both = texts.timestep, texts.next_timestep
    text = jax.tree.map(lambda x, y: jnp.concatenate([x[:1], y]), *both)
    reads = lambda p: network.apply(p, text, network.initial(512), method="unroll")[1]
    seen = np.asarray(text.observation)
    for name, exact in (("value", value), ("critic", q)):
        learned, gaps = np.asarray(jax.jit(jax.vmap(reads))(parts[name].params)), {}
        for b, t in itertools.product(range(512), range(len(seen))):
            beginning = tuple(seen[: t + 1, b].tolist())
            if beginning in exact:
                gaps[beginning] = abs(learned[:, t, b] - exact[beginning])
        assert gaps.keys() == exact.keys()
        errors = np.stack(list(gaps.values()))
        # They still follow samples of what is said and hidden.
        assert errors.mean() < 0.03 and errors.max() < 0.12
        assert np.std(list(exact.values())) > 0.08


# A prompt of one token, an utterance of two, a reply, an utterance of one, which ends the
# conversation; then padding. Beside it a copy in which the second utterance is said anew.
DECIDES = np.array([1, 1, 0, 1, 0], bool)
TURN = np.array([0, 0, 1, 1, 0])
REWARD = np.array([0.2, 0.5, 0, 1, 9], np.float32)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]], bool).T
ANEW = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 0]], bool).T


def conversation():
    wide = lambda x: jnp.asarray(np.repeat(x[:, None], 2, 1))
    none, over = wide(np.zeros(5, bool)), wide(np.arange(5) == 3)
    here = {"decision": wide(DECIDES), "turn": wide(TURN)}
    there = {n: jnp.concatenate([x[1:], x[:1]]) for n, x in here.items()}
    before = TimeStep(wide(np.arange(5)), none, none, none, none, tokens=here)
    after = TimeStep(wide(np.arange(1, 6)), wide(REWARD), over, none, none, tokens=there)
    t = Transition(before, none, after, (), {"anew": jnp.asarray(ANEW)})
    return split_utterances(t, jnp.asarray(MASK))


def test_utterances_are_split():
    x = conversation()
    np.testing.assert_array_equal(x.starts[:, 0], [1, 0, 0, 1, 0])
    np.testing.assert_array_equal(x.ends[:, 1], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(x.copy, np.array([[0, 1]] * 5))
    np.testing.assert_allclose(x.reward[:4, 0], [0.7, 0.7, 0.7, 1])  # of whole utterances
    number = jnp.arange(5.0)[:, None] * jnp.ones(2)
    np.testing.assert_array_equal(at_next(x.ends, number)[:, 0], [1, 1, 3, 3, 0])
    np.testing.assert_array_equal(at_next(x.starts, number[None] + 1)[0, :, 1], [1, 4, 4, 4, 0])


def test_targets_and_advantages_are_those_of_the_equations():
    said = lambda x: (
        lambda text, memory, method: (None, jnp.asarray(x)[..., None] + 0 * text.reward)
    )
    rng = np.random.default_rng(0)
    q, v, target_q, target_v = rng.normal(size=(4, 2, 6)).astype(np.float32)
    initial = type("Network", (), {"initial": lambda self, n: ()})
    net = stub(
        critic=said(q),
        value=said(v),
        target={"critic": said(target_q), "value": said(target_v)},
        network=lambda name: initial(),
        hyper={"discount": DISCOUNT},
    )
    x = conversation()
    found = np.asarray(critic_loss(net, x))
    expected = np.zeros((5, 2))
    first = q[:, 2] - (0.7 + DISCOUNT * target_v[:, 3])  # of tokens 0 and 1, read after both
    last = q[:, 4] - 1.0  # it ends the conversation
    expected[1, 0], expected[3, 0] = (first**2).sum() / 2, (last**2).sum() / 2
    expected[3, 1] = ((v[:, 3] - target_q[:, 4]) ** 2).sum() / 2  # each by its own twin
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    each = np.zeros((5, 2))
    each[3, 1] = q[:, 4].min() - v[:, 3].min()
    np.testing.assert_allclose(advantages(net, x), each, rtol=1e-5)


def test_an_early_stop_and_minibatches_that_do_not_divide_are_refused():
    for changes, message in (
        ({"passes.early_stop": True}, "cannot stop early"),
        ({"passes.minibatches": 3}, "do not divide"),
        ({"packed": True, "passes.chunk_rows": 8}, "archer does not pack"),
    ):
        with pytest.raises(UserError, match=message):
            archer(ENV, SETTINGS | changes)
    with pytest.raises(UserError, match="needs the turns"):
        archer(
            envs.make(
                "cartpole",
            ),
            {"recurrent": 8, "transformer": 0},
        )
