"""All answers of a small text environment, and what is best among them.

found = enumerate_answers(envs.make("judged_words"))
reference = answer_log_probs(network, params, found)        # [P, A], of P prompts and A answers
best = optimal_answers(found.reward, reference, beta=0.5)
kl = losses.categorical_kl(best, reference)                 # [P]
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import solvers
from jaxrl.core.errors import UserError
from jaxrl.core.judges import win_probabilities
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, Transition, Tree, struct

MOST_ANSWERS = 100_000
TRIES = 1024  # prompts that are drawn in search of different ones


@struct
class Answers:
    """Every answer to each of P prompts: A of them, all in the same order.

    text: tokens of each answer, int32 [A, L], filled up with END (the last token).
    transitions: the episodes in which they are given, [T, P * A], those of a prompt side by side.
    within: which steps belong to an episode, bool [T, P * A]. mask: which of these are decisions.
    prompts: keys that `Environment.reset` begins each prompt from, [P].
    reward: return of each answer, float32 [P, A].
    preference: probability that answer i is preferred to answer j, float32 [P, A, A]; None without
        a judge.
    """

    text: Array
    transitions: Transition
    within: Array
    mask: Array
    prompts: Key
    reward: Array
    preference: Array | None


def enumerate_answers(
    env: Environment, params: Tree = None, key: Key | None = None, most: int = MOST_ANSWERS
) -> Answers:
    """Return every answer to every prompt of a text environment (`envs.language.answering`).

    params: the environment's parameters; None for its own.
    key: from which prompts are drawn until no new one is found, which may miss rare ones.
    most: the most episodes to play.

    It looks at values, so it cannot be traced. Raises `UserError` for an environment that is not
    one of answers, and for more than `most` episodes.
    """
    params = env.params if params is None else params
    _, first = jax.eval_shape(env.reset, jax.random.key(0), params)
    space = env.action_space
    if env.max_steps is None or not isinstance(space, Discrete) or first.tokens is None:
        raise UserError(f"'{env.name}' has no answers to enumerate; it is not a text environment.")
    prompts = _prompts(env, params, jax.random.key(0) if key is None else key)
    reading = _reading(env, params, prompts[0])
    text = _texts(space.n, env.max_steps - reading, most // len(prompts), env.name)
    actions = np.pad(text, ((0, 0), (reading, 0))).T  # while a prompt is read they have no effect
    play = jax.vmap(functools.partial(_play, env, params), in_axes=(0, 1), out_axes=1)
    many = jnp.repeat(prompts, len(text))
    t = jax.jit(play)(many, jnp.asarray(np.tile(actions, (1, len(prompts)))))
    ended = jnp.cumsum(t.done, 0) - t.done > 0  # before this step
    running, last = ~ended, ~ended & t.done
    by_prompt = lambda x: x.reshape(len(prompts), -1, *x.shape[1:])
    reward = by_prompt(jnp.where(running, t.reward, 0).sum(0))
    preference = None
    if env.judge is not None:
        row = jnp.argmax(last, 0)
        at_end = lambda x: x[row, jnp.arange(x.shape[1])]
        judged = jax.tree.map(at_end, t.next_timestep.privileged["judged"])
        preference = win_probabilities(env.judge, judged, len(text))
    decision = t.timestep.tokens["decision"]
    return Answers(jnp.asarray(text), t, running, running & decision, prompts, reward, preference)


def answer_log_probs(network: Any, params: Tree, answers: Answers) -> Array:
    """Return the log-probability [P, A] by which a policy gives each answer.

    network: a policy with memory that is applied to whole episodes by
        `network.apply(params, timestep, memory, method="unroll")`, such as
        `networks.actor_critic.ActorCritic`. params: its parameters.
    """
    t = answers.transitions
    memory = network.initial(t.action.shape[1])
    policy = network.apply(params, t.timestep, memory, method="unroll")[0]
    each = jnp.where(answers.mask, policy.log_prob(t.action), 0).sum(0)
    return each.reshape(answers.reward.shape)


def optimal_answers(reward: Array, reference_log_prob: Array, beta: Array | float) -> Array:
    """Return the log-probabilities [..., A] of the policy that maximizes E[r] - beta KL(pi || ref).

    pi(y) = ref(y) exp(r(y) / beta) / Z

    reward, reference_log_prob: [..., A]. Source: Rafailov et al., 2023, "Direct preference
    optimization", equation 4.
    """
    return jax.nn.log_softmax(reference_log_prob + reward / beta)


def nash_answers(
    preference: Array, reference_log_prob: Array, beta: Array | float, steps: int = 1000
) -> Array:
    """Return the log-probabilities [..., A] of the equilibrium of a regularized preference game.

    It is pi = argmax_p P(p > pi) - beta KL(p || ref), the one policy with a
    `solvers.preference_gap` of 0, found by `steps` steps of Nash mirror prox.

    preference: [..., A, A]. reference_log_prob: [..., A]. beta: positive.
    """
    step = lambda _, x: solvers.nash_mirror_prox(preference, x, reference_log_prob, 1.0, beta)
    return jax.lax.fori_loop(0, steps, step, jax.nn.log_softmax(reference_log_prob))


def best_of_n(log_prob: Array, score: Array, n: int) -> Array:
    """Return the log-probabilities [..., A] of the best of n answers by a score.

    It is written by a policy n times, and the answer with the highest score is kept, one of equally
    good ones at random:

    P(y) = (F(y)^n - F'(y)^n) p(y) / (F(y) - F'(y))

    with F and F' the probabilities of an answer that scores no higher, and lower, than y.

    log_prob: [..., A], of the policy. score: [..., A]. n: at least 1.
    """
    p = jnp.exp(log_prob)
    lower = score[..., None, :] < score[..., :, None]
    tied = score[..., None, :] == score[..., :, None]
    below, tie = (jnp.where(x, p[..., None, :], 0).sum(-1) for x in (lower, tied))
    # (a^n - b^n) / (a - b) is the sum of a^i b^(n - 1 - i), which a difference would round away.
    powers = (below + tie)[..., None] ** jnp.arange(n) * below[..., None] ** jnp.arange(n)[::-1]
    return log_prob + jnp.log(powers.sum(-1))


@struct
class Frontier:
    """Gold beside proxy: the gains of a policy by a proxy of the reward, means over prompts, [...].

    kl: KL(policy || reference). Figures of over-optimization have its square root on the x axis.
    gold: expected reward. proxy: expected score by the proxy, what the policy learns from.
    win_rate: probability that its answer is preferred to the reference's; None without a judge.

    Source: Gao et al., 2023, "Scaling laws for reward model overoptimization", section 3.
    """

    kl: Array
    gold: Array
    proxy: Array
    win_rate: Array | None


def frontier(
    log_prob: Array,
    reference_log_prob: Array,
    reward: Array,
    score: Array,
    preference: Array | None = None,
) -> Frontier:
    """Return gold beside proxy of one policy or of many.

    log_prob: [..., P, A], of the policies, such as those of one run, or `best_of_n` for growing n.
    reference_log_prob: [P, A]. reward: [P, A], gold. score: [P, A], by the proxy.
    preference: [P, A, A], as in `Answers`.
    """
    p, reference = jnp.exp(log_prob), jnp.exp(reference_log_prob)
    mean = lambda values: (p * values).sum(-1).mean(-1)
    won = None
    if preference is not None:
        won = mean((preference * reference[:, None]).sum(-1))
    kl = jnp.where(p > 0, log_prob - reference_log_prob, 0)
    return Frontier(mean(kl), mean(reward), mean(score), won)


def _prompts(env: Environment, params: Tree, key: Key) -> Key:
    """Return keys that begin different prompts, sorted by the text of the prompts."""
    keys = jax.random.split(key, TRIES)
    steps = env.max_steps or 0

    def read(key):
        state, timestep = env.reset(key, params)

        def step(carry, _):
            state, timestep = carry
            forced = jnp.argmax(timestep.legal_actions)
            new = env.step(key, state, forced.astype(env.action_space.dtype), params)
            seen = jnp.where(timestep.tokens["decision"], -1, new[1].observation)
            return new, seen

        _, seen = jax.lax.scan(step, (state, timestep), None, steps)
        return jnp.append(timestep.observation, seen)

    seen = np.asarray(jax.jit(jax.vmap(read))(keys))
    return keys[np.unique(seen, axis=0, return_index=True)[1]]


def _reading(env: Environment, params: Tree, key: Key) -> int:
    """Return the number of steps in which a prompt is read."""
    actions = jnp.zeros(env.max_steps, env.action_space.dtype)
    tokens = jax.jit(functools.partial(_play, env, params))(key, actions).timestep.tokens
    if np.any(np.asarray(tokens.get("turn", 0))):
        raise UserError(
            f"'{env.name}' has several turns; only answers of one turn can be enumerated "
            "(`envs.language.answering`)."
        )
    return int(np.argmax(np.asarray(tokens["decision"])))


def _texts(tokens: int, length: int, most: int, name: str) -> np.ndarray:
    """Return all answers of up to `length` (L) tokens out of `tokens`, int32 [A, L]; the last token
    ends an answer and fills it up."""
    end = tokens - 1
    if (count := sum(end**n for n in range(length + 1))) > most:
        raise UserError(
            f"'{name}' has {count} answers to each prompt; at most {most} can be enumerated."
        )
    rows = [
        (*written, *[end] * (length - n))
        for n in range(length + 1)
        for written in itertools.product(range(end), repeat=n)
    ]
    return np.array(rows, np.int32)


def _play(env: Environment, params: Tree, key: Key, actions: Array) -> Transition:
    """Return the transitions [T] of an episode that begins from `key` and does `actions` [T]."""

    def step(carry, action):
        state, timestep = carry
        state, after = env.step(key, state, action, params)
        return (state, after), Transition(timestep, action, after, (), {})

    return jax.lax.scan(step, env.reset(key, params), actions)[1]
