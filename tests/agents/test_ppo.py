import dataclasses
import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.agents.policy_gradient import a2c as a2c_
from jaxrl.agents.policy_gradient import ppo as ppo_
from jaxrl.agents.policy_gradient.ppo import Config, ppo
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.train import advance, start, train
from jaxrl.networks.actor_critic import ActorCritic
from tests.counting import NEVER, counting
from tests.learning.probes import PROBES, play, probe
from tests.losses.advantages.windows import brute_force_gae

TINY = Config(num_envs=4, num_steps=8, epochs=1, minibatches=1, hidden=(8,), learning_rate=0.01)
INF = float("inf")
jitted = jax.jit(train, static_argnums=(0, 2))
x64 = jax.enable_x64


@functools.cache
def short():
    """Episodes of three steps, cut by the clock: several end within every window."""
    return counting(terminates_after=NEVER, truncates_after=3)


def run_of(algorithm, steps, hyper=None, key=0):
    return jitted(algorithm, start(algorithm, random.key(key), hyper), steps)


def params_of(run):
    return jax.tree.leaves(run.state.agent.params)


def assert_close(a, b, **tolerance):
    for x, y in zip(params_of(a), params_of(b), strict=True):
        np.testing.assert_allclose(x, y, **(tolerance or {"atol": 1e-6}))


def differ(a, b):
    return any(
        (np.abs(x - y) > 1e-5).any() for x, y in zip(params_of(a), params_of(b), strict=True)
    )


def float64(tree):
    cast = lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x
    return jax.tree.map(cast, tree)


# ------------------------------------------------------------------------------- the loss


def reference_loss(network, params, batch, advantage, target, config, old_value):
    """Equation 9 of the paper, written out for a categorical policy; means over [T, B]."""
    policy, value, _ = network.apply(params, batch.transitions.timestep, (), method="unroll")
    log_probs = jax.nn.log_softmax(policy.logits)
    log_prob = jnp.take_along_axis(log_probs, batch.transitions.action[..., None], -1)[..., 0]
    ratio = jnp.exp(log_prob - batch.transitions.extras["log_prob"])
    clipped = jnp.where(ratio > 1 + config.clip, 1 + config.clip, ratio)
    clipped = jnp.where(clipped < 1 - config.clip, 1 - config.clip, clipped)
    surrogate = jnp.where(ratio * advantage < clipped * advantage, ratio, clipped) * advantage
    near = old_value + jnp.clip(value - old_value, -config.value_clip, config.value_clip)
    error = jnp.maximum((value - target) ** 2, (near - target) ** 2) / 2
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
    return (
        -surrogate.mean()
        + config.value_weight * error.mean()
        - config.entropy_weight * entropy.mean()
    )


@pytest.mark.parametrize("normalize_advantage", [False, True])
def test_the_gradient_is_that_of_equation_9(normalize_advantage):
    """One step of plain descent at rate 1 against central differences in float64, on experience of
    another policy, so that some ratios are clipped."""
    config = dataclasses.replace(
        TINY,
        optimiser="sgd",
        max_grad_norm=INF,
        normalize_advantage=normalize_advantage,
        entropy_weight=0.03,
        value_clip=0.1,
        clip=0.1,
    )
    env = counting(terminates_after=4)
    algorithm = ppo(env, config)
    agent = ppo_.agent(env, config)
    source_state = start(algorithm, random.key(0)).state.source
    from jaxrl.sources.rollouts import rollouts

    policy = algorithm.policy(start(algorithm, random.key(0)).state)
    collect = rollouts(env, config.num_envs, config.num_steps).collect
    _, batch, _ = jax.jit(lambda s: collect(s, policy, random.key(1)))(source_state)
    with x64(True):
        state = float64(agent.init(random.key(2), agent.hyper))
        # Weights that are not small, and hyper-parameters of which float32 kept seven digits.
        state = dataclasses.replace(
            state, params=jax.tree.map(lambda x: 3 * x + 0.01, state.params)
        )
        state = replace_hyper(
            state,
            {"learning_rate": 1.0}
            | {k: getattr(config, k) for k in agent.hyper if k != "learning_rate"},
        )
        batch = float64(batch)
        after, _ = jax.jit(agent.update)(state, batch, random.key(0))
        ours = jax.tree.map(lambda a, b: a - b, state.params, after.params)

        network = ActorCritic(env.observation_space, env.action_space, config.hidden)
        t = batch.transitions
        value = network.apply(state.params, t.timestep, ())[1]
        next_value = network.apply(state.params, t.next_timestep, ())[1]
        advantage = np.stack(
            [
                brute_force_gae(
                    *(
                        np.asarray(x)[:, b]
                        for x in (t.reward, value, next_value, t.terminated, t.done)
                    ),
                    config.discount,
                    config.trace,
                )
                for b in range(config.num_envs)
            ],
            1,
        )
        target = advantage + value
        if normalize_advantage:
            advantage = (advantage - advantage.mean()) / advantage.std()
        loss = jax.jit(
            lambda p: reference_loss(network, p, batch, advantage, target, config, value)
        )
        moved = jnp.exp(t.extras["log_prob"]) - 1 / 3
        assert (jnp.abs(moved) > 1e-4).any()
        for i in range(3):
            flat, unravel = jax.flatten_util.ravel_pytree(state.params)
            direction = jax.random.normal(jax.random.key(i), flat.shape)
            ahead, behind = (loss(unravel(flat + e * direction)) for e in (1e-6, -1e-6))
            numeric = (ahead - behind) / 2e-6
            exact = jax.flatten_util.ravel_pytree(ours)[0] @ direction
            np.testing.assert_allclose(exact, numeric, rtol=1e-5)


def test_a_run_can_be_differentiated_by_its_learning_rate(monkeypatch):
    """Without a limit on gradients too, where inf / norm once gave NaN.

    The losses' stop_gradient also cuts the outer derivative (later advantages depend on the rate),
    so with it the derivative is only close to that of the run; without it they are equal.
    """
    config = dataclasses.replace(TINY, num_steps=4, epochs=2, max_grad_norm=INF)
    env = probe()
    algorithm = ppo(env, config)
    with x64(True):
        begin = start(algorithm, random.key(0))
        begin = dataclasses.replace(
            begin, state=dataclasses.replace(begin.state, agent=float64(begin.state.agent))
        )
        begin = play(begin, PROBES["reward depends on both"].vector())

        def ending(algorithm):
            def end(rate):
                run, _ = train(algorithm, replace_hyper(begin, {"learning_rate": rate}), 3)
                return sum((x**2).sum() for x in params_of(run))

            return end

        end = jax.jit(ending(algorithm))
        numeric = (end(1e-2 + 1e-6) - end(1e-2 - 1e-6)) / 2e-6
        assert abs(numeric) > 1e-3
        np.testing.assert_allclose(jax.jit(jax.grad(end))(1e-2), numeric, rtol=0.05)
        monkeypatch.setattr(jax.lax, "stop_gradient", lambda x: x)
        untraced = ppo(dataclasses.replace(env), config)  # another environment, so another program
        exact = jax.jit(jax.grad(ending(untraced)))(1e-2)
        np.testing.assert_allclose(exact, numeric, rtol=1e-5)


# ------------------------------------------------------------------------------- on-policy


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recurrent": 6},
        {"normalize_observation": True},
        {"normalize_reward": True},
        {"recurrent": 6, "normalize_observation": True, "normalize_reward": True},
    ],
    ids=["feed-forward", "gru", "observations", "rewards", "all"],
)
def test_the_ratio_is_1_before_the_first_update(changes):
    """In each of several windows, over many episode ends. The surrogate reports the largest
    deviation as the policy's loss."""
    config = dataclasses.replace(TINY, num_steps=40, **changes)

    def deviation(log_prob, old, advantage, clip):
        return jnp.full_like(log_prob, jnp.abs(jnp.expm1(log_prob - old)).max())

    env = counting(terminates_after=5, truncates_after=7)
    agent = ppo_.agent(env, config, deviation)
    algorithm = ppo_.on_rollouts(env, agent, config)
    begin = start(algorithm, random.key(0))
    begin = jax.tree_util.tree_map_with_path(  # weights large enough to see a difference
        lambda path, x: 3 * x if "params" in str(path) and x.ndim == 2 else x, begin
    )
    run, row = jitted(algorithm, begin, 4)
    assert row["episodes"].total > 100
    assert m.values(row)["policy_loss"] < 1e-5
    before, after = (jax.tree.leaves(r.state.agent) for r in (begin, run))
    assert any((x != y).any() for x, y in zip(before, after, strict=True) if x.ndim == 2)


def test_with_one_epoch_of_one_minibatch_it_is_a2c():
    config = a2c_.Config(
        num_envs=4,
        num_steps=8,
        hidden=(8,),
        optimiser="adam",
        learning_rate=0.01,
        entropy_weight=0.01,
    )
    env = counting(terminates_after=4)
    plain = a2c_.a2c(env, config)
    once = ppo(env, a2c_.as_ppo(config))
    a, _ = run_of(plain, 6)
    b, _ = run_of(once, 6)
    assert_close(a, b, atol=1e-6)
    twice, _ = run_of(ppo(env, dataclasses.replace(a2c_.as_ppo(config), epochs=2)), 6)
    assert differ(a, twice)


# ------------------------------------------------------------------------------- its settings


@functools.cache
def epochs(n, early_stop=False):
    config = dataclasses.replace(TINY, epochs=n, early_stop=early_stop, learning_rate=0.05)
    return ppo(short(), config)


def test_target_kl_stops_before_the_step_that_went_too_far():
    """The first minibatch's divergence is 0, the second's is not."""
    one, _ = run_of(epochs(1), 1)
    for target, same in ((1e-8, True), (INF, False)):
        four, row = run_of(epochs(4, True), 1, {"target_kl": target})
        assert differ(one, four) != same
        assert m.values(row)["stopped_early"] == same
    none, _ = run_of(epochs(4, True), 1, {"target_kl": -1.0})
    assert_close(none, start(epochs(4), random.key(0)), atol=0)
    ignored, _ = run_of(epochs(4), 1, {"target_kl": -1.0})
    assert_close(ignored, run_of(epochs(4), 1)[0], atol=0)


def test_value_clip_works_from_the_second_step_on():
    for n, same in ((1, True), (4, False)):
        free, _ = run_of(epochs(n), 1)
        held, _ = run_of(epochs(n), 1, {"value_clip": 1e-3})
        assert differ(free, held) != same


def test_every_switch_of_the_objective_reaches_the_parameters():
    base, _ = run_of(epochs(4), 2)
    for hyper in (
        {"clip": 0.01}, {"value_weight": 0.0}, {"entropy_weight": 0.5}, {"discount": 0.5},
        {"trace": 0.0}, {"learning_rate": 0.01}, {"max_grad_norm": 1e-6},
    ):  # fmt: skip
        assert differ(base, run_of(epochs(4), 2, hyper)[0]), hyper
    assert jitted._cache_size() < 100
    for changes in ({"normalize_advantage": False}, {"optimiser": "sgd"}, {"activation": "relu"}):
        other = ppo(short(), dataclasses.replace(epochs(4).config, **changes))
        assert other.config != base and other is not epochs(4)


def test_the_learning_rate_follows_its_schedule():
    algorithm = epochs(1)
    frames = algorithm.frames
    run = start(
        algorithm,
        random.key(0),
        {"learning_rate": 0.4, "learning_rate_end": 0.1, "learning_rate_steps": 3 * frames},
    )
    rates = []
    for _ in range(5):
        run, row = jitted(algorithm, run, 1)
        rates.append(m.values(row)["learning_rate"])
    np.testing.assert_allclose(rates, [0.4, 0.3, 0.2, 0.1, 0.1], rtol=1e-5)
    _, row = run_of(algorithm, 1, {"learning_rate": 0.4, "learning_rate_end": 0.1})
    assert m.values(row)["learning_rate"] == np.float32(0.4)


def test_chunks_of_a_minibatch_give_the_same_gradient():
    config = dataclasses.replace(TINY, chunk_rows=0)
    whole, _ = run_of(ppo(short(), config), 2)
    chunked, _ = run_of(ppo(short(), dataclasses.replace(config, chunk_rows=8)), 2)
    assert_close(whole, chunked, atol=2e-5)


@pytest.mark.parametrize("envs,steps,recurrent", [(24, 128, 0), (50, 100, 0), (37, 100, 4)])
def test_any_size_of_minibatch_works_with_the_defaults(envs, steps, recurrent):
    """Also one beyond the cache that no fixed chunk divides."""
    config = Config(num_envs=envs, num_steps=steps, minibatches=1, hidden=(4,), recurrent=recurrent)
    algorithm = ppo(short(), config)
    jax.eval_shape(lambda key: advance(algorithm, start(algorithm, key)), random.key(0))


# ------------------------------------------------------------------------------- spaces


def masked(space):
    """Only the action of the observation's number is legal, and one fixed other."""
    base = counting(terminates_after=3)

    def legal(timestep):
        t = timestep.observation[0].astype(jnp.int32)
        if isinstance(space, Discrete):
            return jnp.arange(space.n) == t % space.n
        return jnp.arange(max(space.sizes)) == (t % jnp.asarray(space.sizes))[:, None]

    def reset(key, params):
        state, timestep = base.reset(key, params)
        return state, dataclasses.replace(timestep, legal_actions=legal(timestep))

    def step(key, state, action, params):
        fits = jnp.all(
            action
            == (
                state.t
                % jnp.asarray(
                    getattr(space, "sizes", space.n if isinstance(space, Discrete) else None)
                )
            )
        )
        state, timestep = base.step(key, state, jnp.where(fits, 0, 1000), params)
        return state, dataclasses.replace(timestep, legal_actions=legal(timestep))

    return dataclasses.replace(base, reset=reset, step=step, action_space=space)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete((2, 3))])
def test_illegal_actions_are_never_taken_nor_learnt(space):
    algorithm = ppo(masked(space), dataclasses.replace(TINY, epochs=2, entropy_weight=0.1))
    run, row = run_of(algorithm, 5)
    values = m.values(row)
    assert values["diverged"] == m.NEVER
    assert values["episode_return"] == 10 + 20 + 30  # an illegal action would have cost 1000
    np.testing.assert_allclose(values["entropy"], 0, atol=1e-5)
    assert all(jnp.isfinite(x).all() for x in params_of(run))


@pytest.mark.parametrize(
    "space", [MultiDiscrete((2, 3)), Box(-1.0, 1.0, (2, 2)), Box(0.0, 5.0, ())], ids=str
)
def test_action_spaces(space):
    base = counting()
    step = lambda key, state, action, params: base.step(key, state, jnp.int32(0), params)
    env = dataclasses.replace(base, step=step, action_space=space)
    run, row = run_of(ppo(env, TINY), 3)
    assert m.values(row)["diverged"] == m.NEVER
    assert differ(run, start(ppo(env, TINY), random.key(0)))


# ------------------------------------------------------------------------------- the builder


def test_the_same_arguments_give_the_same_object():
    env = short()
    assert ppo(env) is ppo(env, Config()) is ppo(env, config=Config())
    assert ppo(env, TINY) is ppo(env, dataclasses.replace(TINY))
    assert ppo(env, TINY) is not ppo(counting(), TINY)


@pytest.mark.parametrize(
    "changes,sentence",
    [
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"minibatches": 3}, "minibatches=3"),
        ({"num_shards": 3}, "num_shards=3"),
        ({"recurrent": 4, "minibatches": 8}, "4 sequences"),
        ({"activation": "tan"}, "did you mean 'tanh'"),
        ({"optimiser": "adan"}, "did you mean 'adam'"),
        ({"learning_rate_schedule": "linera"}, "did you mean 'linear'"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a number"),
        ({"reset_pool": 0}, "reset_pool"),
        ({"shuffle": "bijektion"}, "did you mean 'bijection'"),
        ({"shuffle": "bijection", "num_steps": 6, "minibatches": 2}, "power of two"),
        ({"chunk_rows": 5}, "chunk"),
        ({"learning_rate_schedule": "exponential"}, "an exponential schedule needs a positive"),
        ({"hidden": (8, 0)}, r"hidden is \[8, 0\]; each entry must be at least 1"),
        ({"initialiser": "lecum"}, "did you mean 'lecun'"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_traced(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        ppo(short(), dataclasses.replace(TINY, **changes))


def test_what_cannot_be_acted_in():
    with pytest.raises(UserError, match="ppo cannot act in"):
        ppo(dataclasses.replace(counting(), action_space={"a": Discrete(2)}), TINY)


def test_32_seeds_in_one_program():
    """Orthogonal weights by a batched QR once hung here."""
    config = dataclasses.replace(TINY, hidden=(16, 16))
    algorithm = ppo(short(), config)
    go = jax.jit(jax.vmap(lambda key: train(algorithm, start(algorithm, key), 2)))
    runs, rows = go(jax.random.split(random.key(0), 32))
    assert (rows["diverged"].step == m.NEVER).all()
    assert all(len(np.unique(np.asarray(x).reshape(32, -1), axis=0)) == 32 for x in params_of(runs))


def test_chunked_and_driven_training_have_the_same_bits():
    algorithm = ppo(short(), dataclasses.replace(TINY, epochs=2, minibatches=2))
    begin = start(algorithm, random.key(0))
    whole, _ = jitted(algorithm, begin, 4)
    parts, _ = jitted(algorithm, jitted(algorithm, begin, 1)[0], 3)
    driven = jax.jit(
        lambda run, n: jax.lax.fori_loop(0, n, lambda _, run: advance(algorithm, run)[0], run)
    )
    for run in (parts, driven(begin, 4), driven(driven(begin, 3), 1)):
        for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(run.state), strict=True):
            np.testing.assert_array_equal(a, b)
    assert driven._cache_size() == 1
