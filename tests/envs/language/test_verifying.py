"""Tasks of one's own: prompts as texts, rewards by a Python function, and vocabularies."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.envs.language import verifying as module
from jaxrl.envs.language.verifying import Params, verifying
from jaxrl.envs.language.vocabulary import characters, tokenizer

LETTERS, END = characters("abc"), 3
PROMPTS = ["ab", "c", "bca"]


def length_and_rank(prompt, answer):
    """Pay something that depends on all of both texts."""
    digits = "".join(str(1 + "abc".index(x)) for x in answer)
    return len(prompt) + int(digits or 0) / 1000


def play(env, keys):
    """Play uniformly random actions: tokens and rewards [..., T]."""

    def episode(key):
        state, first = env.reset(key, env.params)

        def step(carry, key):
            state, now, done = carry
            logits = jnp.where(now.legal_actions, 0.0, -jnp.inf)
            action = jax.random.categorical(key, logits)
            state, new = env.step(key, state, action, env.params)
            seen = jnp.where(done, -1, action), jnp.where(done, 0, new.reward)
            return (state, new, done | new.terminated), (*seen, now.tokens["decision"])

        start = state, first, jnp.zeros((), bool)
        _, found = jax.lax.scan(step, start, jax.random.split(key, env.max_steps))
        return first.observation, found

    for _ in range(keys.ndim):
        episode = jax.vmap(episode)
    return jax.jit(episode)(keys)


def test_rewards_are_those_of_the_function_for_prompts_of_any_length():
    env = verifying("own", PROMPTS, length_and_rank, LETTERS, 3)
    first, (tokens, rewards, decisions) = jax.tree.map(
        np.asarray, play(env, jax.random.split(jax.random.key(0), 60))
    )
    prompts = set()
    for one, text, reward, decided in zip(first, tokens, rewards, decisions, strict=True):
        known = LETTERS.decode([one, *text[(text >= 0) & ~decided]])
        answer = [int(x) for x in text[(text >= 0) & decided]]
        assert len(answer) == 3 or answer[-1] == END
        said = LETTERS.decode([x for x in answer if x != END])
        last = np.flatnonzero(text >= 0)[-1]
        assert reward[last] == pytest.approx(length_and_rank(known, said))
        assert not np.any(np.delete(reward, last))
        prompts.add(known)
    assert prompts == set(PROMPTS)
    check_environment(env)


def test_the_host_is_called_once_for_a_batch_and_only_with_answers_that_ended():
    calls = []

    def verify(prompts, answers):
        calls.append(list(answers))
        return [float(len(x)) for x in answers]

    env = verifying("own", ["ab"], verify, LETTERS, 1, batched=True)
    calls.clear()
    _, (tokens, rewards, _) = play(env, jax.random.split(jax.random.key(0), (4, 5)))
    jax.block_until_ready(rewards)
    # One step leads through the prompt, in which no answer ends; the other ends all.
    assert [len(x) for x in calls] == [4 * 5]
    said = ["" if x == END else LETTERS.decode([x]) for x in np.asarray(tokens)[..., 1].flat]
    assert sorted(calls[0]) == sorted(said)


def test_rows_that_are_not_needed_are_not_graded():
    seen = []

    def grade(needed, rows):
        seen.append((needed.copy(), rows[0].copy()))
        return np.where(needed, rows[0] * 2, 0).astype(np.float32)

    call = jax.jit(jax.vmap(jax.vmap(module.call_for_rows(grade)), in_axes=(0, None)))
    needed, x = jnp.array([[True, False], [False, False]]), jnp.array([1.0, 2.0])
    np.testing.assert_array_equal(call(needed, x), [[2, 0], [0, 0]])
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0][1], [1, 2, 1, 2])
    np.testing.assert_array_equal(call(jnp.zeros_like(needed), x), np.zeros((2, 2)))
    assert len(seen) == 1


def test_answers_that_were_cut_off_may_be_paid_nothing():
    pay = lambda prompt, answer: 1.0
    for must_end in (False, True):
        env = verifying("own", ["a"], pay, LETTERS, 1, must_end=must_end)
        _, (tokens, rewards, _) = play(env, jax.random.split(jax.random.key(0), 20))
        ended = tokens[:, 0] == END
        assert ended.any() and not ended.all()
        np.testing.assert_array_equal(rewards[:, 0], 1.0 if not must_end else ended)


def test_held_out_prompts_are_others():
    prompts = ["aa", "ab", "ac", "ba", "bb"]
    env = verifying("own", prompts, lambda p, a: 0.0, LETTERS, 1, held_out=0.4)
    reset = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    found = []
    for held_out in (False, True):
        state, _ = reset(jax.random.split(jax.random.key(1), 60), Params(held_out))
        found.append({LETTERS.decode(text[:2]) for text in np.asarray(state.text)})
    assert len(found[0]) == 3 and len(found[1]) == 2 and not found[0] & found[1]


@pytest.mark.parametrize(
    ("verify", "said"),
    [
        (lambda p, a: 1 / 0, "raised ZeroDivisionError"),
        (lambda p, a: "good", "returned 'good', which is no number"),
        (lambda p, a: float("nan"), "returned nan; a reward must be finite"),
        (lambda p: 1.0, "raised TypeError"),
    ],
)
def test_functions_that_fail_are_refused_in_a_sentence(verify, said):
    with pytest.raises(UserError, match=rf"verify of 'own' {said}.*prompt 'ab', answer ''"):
        verifying("own", PROMPTS, verify, LETTERS, 3)


def test_tasks_that_cannot_be_are_refused_in_a_sentence():
    pay = lambda prompt, answer: 1.0
    with pytest.raises(UserError, match="needs at least one of each"):
        verifying("own", [], pay, LETTERS, 3)
    with pytest.raises(UserError, match="has no tokens: ''"):
        verifying("own", ["a", ""], pay, LETTERS, 3)
    with pytest.raises(UserError, match="The text 'ax' has 'x', which is not in 'abc'"):
        verifying("own", ["ax"], pay, LETTERS, 3)
    with pytest.raises(UserError, match="must differ"):
        characters("aba")
    short = lambda prompts, answers: []
    with pytest.raises(UserError, match="returned 0 rewards for 1 answers"):
        verifying("own", ["a"], short, LETTERS, 3, batched=True)


def write_tokenizer(folder, size=12, end=7):
    """Write a tokenizer of pairs of letters, with a special first token before each text."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["<s>", "a", "b", "c", "ab", "ca", "<pad>", "</s>"]
    model = tokenizers.models.BPE({x: i for i, x in enumerate(words)}, [("a", "b"), ("c", "a")])
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(["<s>", "<pad>", "</s>"])
    made.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    made.decoder = tokenizers.decoders.Fuse()
    made.save(str(folder / "tokenizer.json"))
    config = {"vocab_size": size, "eos_token_id": end}
    (folder / "config.json").write_text(json.dumps(config))


def test_a_tokenizer_of_a_folder_is_a_vocabulary_of_the_models_size(tmp_path):
    write_tokenizer(tmp_path)
    words = tokenizer(tmp_path)
    assert words.encode("abcac") == [0, 4, 5, 3]
    assert words.decode([0, 4, 5, 3]) == "abcac"
    assert (words.size, words.end, len(words.tokens)) == (12, 7, 8)
    env = verifying("own", ["ab", "cab"], lambda p, a: float(a.startswith("c")), words, 2)
    assert env.action_space.n == 12
    first, (tokens, rewards, decisions) = jax.tree.map(
        np.asarray, play(env, jax.random.split(jax.random.key(0), 50))
    )
    assert set(first) == {0}  # <s>
    chosen = (tokens >= 0) & decisions
    assert tokens[chosen].max() == 7  # those of the model alone are never legal
    special = {0, 6, 7}
    for text, reward, decided in zip(tokens, rewards, chosen, strict=True):
        answer = [words.tokens[x] for x in text[decided] if x not in special]
        assert reward.sum() == "".join(answer).startswith("c")
    assert 0 < rewards.sum() < 50


def test_tokenizers_that_do_not_fit_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        tokenizer(tmp_path)
    write_tokenizer(tmp_path, size=7)
    with pytest.raises(UserError, match=r"has 8 tokens, and config\.json beside it says"):
        tokenizer(tmp_path)
    write_tokenizer(tmp_path, end=[6, 7])
    with pytest.raises(UserError, match="is one of '<pad>', '</s>'; say which by end="):
        tokenizer(tmp_path)
    assert tokenizer(tmp_path, end="<pad>").end == 6
    with pytest.raises(UserError, match="has no token '<end>'"):
        tokenizer(tmp_path, end="<end>")
    write_tokenizer(tmp_path, end=None)
    with pytest.raises(UserError, match=r"eos_token_id beside .* is None"):
        tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is no file of tokenizers"):
        tokenizer(tmp_path)
