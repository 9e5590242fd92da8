"""Uni-O4: clones that disagree, whose word counts when a policy is replaced, and what goes on."""

import dataclasses
import functools
from types import SimpleNamespace

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.offline import uni_o4 as uni_o4_module
from jaxrl.algorithms.offline import uni_o4_improvement as improvement
from jaxrl.algorithms.offline.shared.two_phases import Half
from jaxrl.algorithms.offline.uni_o4 import behaviors_loss, disagreement, uni_o4
from jaxrl.algorithms.offline.uni_o4_improvement import uni_o4_improvement
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.commands import command_line, train
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.learn import take_over
from jaxrl.core.settings import Static, Values, replace
from jaxrl.core.spaces import Box
from jaxrl.core.types import Batch
from jaxrl.datasets.transitions import from_episodes
from jaxrl.envs import make
from jaxrl.runtime import continuing
from tests.counting import counting
from tests.datasets.stand_in import no_training

__all__ = ["no_training"]

ENV = make("pendulum")
UPDATES, ROWS = 2, 12  # of a round
SIZES = {"batch_size": ROWS // UPDATES, "updates": UPDATES, "hidden": (8,), "model_hidden": (8,)}
SIZES |= {"num_policies": 3, "discount": 0.9, "reward_scale": 2.0}
CONFIGS = {
    uni_o4: replace(uni_o4.Config(), SIZES),
    uni_o4_improvement: replace(uni_o4_improvement.Config(), SIZES | {"starts": 5, "horizon": 4}),
}
PPO = replace(ppo.Config(), {"hidden": (8,), "num_envs": 2, "num_steps": 4, "observation": True})
NETWORK = policy_network(ENV, PPO.torso, PPO.memory)
POLICY = Half(NETWORK, "policy_alone")


@functools.cache
def learner(builder):
    agent = builder.agent(ENV, CONFIGS[builder])
    agent = dataclasses.replace(agent, init=jax.jit(agent.init))
    return agent, jax.jit(agent.update)


def state(builder, **hyper):
    agent, _ = learner(builder)
    return agent.init(random.key(0), agent.hyper | hyper)


def with_parts(state, **params):
    new = {n: dataclasses.replace(state.parts[n], params=p) for n, p in params.items()}
    return dataclasses.replace(state, parts=state.parts | new)


def params(state, name):
    return state.parts[name].params


def batch():
    rng = np.random.default_rng(0)
    flags = np.zeros((2, ROWS), bool)
    flags[1, -1] = True
    episode = {
        "observations": rng.normal(size=(ROWS + 1, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, size=(ROWS, 1)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminations": flags[0],
        "truncations": flags[1],
    }
    x = jax.tree.map(jnp.asarray, from_episodes([episode]))
    came = {"next_action": jnp.roll(x.action, -1, 0), "return": jnp.cumsum(x.reward[::-1])[::-1]}
    return Batch(dataclasses.replace(x, extras=came), jnp.float32(UPDATES))


# ------------------------------------------------------------------------------- the losses


def normals(mean, std):
    """Policies [n, B] of one number each."""
    mean, std = (jnp.float32(x)[..., None] for x in jnp.broadcast_arrays(mean, std))
    return distrax.Independent(distrax.Normal(mean, std), 1)


def log_density(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


MEAN = np.array([[0.0, 1.0], [0.5, -1.0], [2.0, 3.0]])  # [n, B]
STD = np.array([[1.0], [0.5], [2.0]])
ACTION = np.array([0.4, 2.5])  # [B]


def apart():
    """The divergence of each policy from that other one which finds the action likeliest."""
    density = log_density(ACTION, MEAN, STD)
    found = np.empty_like(MEAN)
    for i in range(3):
        for b in range(2):
            k = max((j for j in range(3) if j != i), key=lambda j: density[j, b])
            ratio, gap = STD[i, 0] / STD[k, 0], (MEAN[i, b] - MEAN[k, b]) / STD[k, 0]
            found[i, b] = -np.log(ratio) + 0.5 * (ratio**2 + gap**2 - 1)
    return found


@pytest.mark.slow
def test_behaviors_imitate_and_are_pushed_apart():
    net = SimpleNamespace(
        behaviors=lambda x: normals(MEAN, STD), hyper=SimpleNamespace(alpha=jnp.float32(0.3))
    )
    x = SimpleNamespace(timestep=(), action=jnp.asarray(ACTION, jnp.float32)[:, None])
    output = behaviors_loss(net, x)
    loss, said = output.value, output.metrics
    cloning = -log_density(ACTION, MEAN, STD)
    np.testing.assert_allclose(said["cloning_loss"], cloning, rtol=1e-5)
    np.testing.assert_allclose(said["disagreement"], apart(), rtol=1e-5)
    np.testing.assert_allclose(loss, (cloning - 0.3 * apart()).sum(0), rtol=1e-5)


def test_q_goes_by_the_datas_next_action_and_v_by_its_returns():
    """Three steps: one goes on, one terminates, one is cut off; two critics."""
    own, copy, v = np.array([[1.0, 2.0]] * 3), np.array([[10.0, 20.0]] * 3), np.array([3.0, 4, 5])
    net = SimpleNamespace(
        critic=lambda t, a: jnp.asarray(own) * a,
        target=SimpleNamespace(critic=lambda t, a: jnp.asarray(copy) * a),
        value=lambda t: t * jnp.asarray(v),
        hyper=SimpleNamespace(discount=0.5, reward_scale=2.0),
    )
    action, after, reward = np.array([1.0, -1.0, 2.0]), np.array([7.0, 8.0, 9.0]), np.ones(3)
    x = SimpleNamespace(
        timestep=1.0,
        next_timestep=-1.0,
        action=jnp.asarray(action)[:, None],
        reward=jnp.asarray(reward),
        terminated=jnp.array([False, True, False]),
        truncated=jnp.array([False, False, True]),
        extras={"next_action": jnp.asarray(after)[:, None], "return": jnp.array([1.0, 2.0, 3.0])},
    )
    follows = np.stack([copy[0] * 7, np.zeros(2), -v[2:].repeat(2)])
    error = 2 * reward[:, None] + 0.5 * follows - own * action[:, None]
    np.testing.assert_allclose(uni_o4_module.sarsa_loss(net, x), (error**2).sum(1) / 2, rtol=1e-6)
    output = uni_o4_module.return_loss(net, x)
    loss = output.value
    np.testing.assert_allclose(loss, (2 * np.array([1.0, 2.0, 3.0]) - v) ** 2 / 2, rtol=1e-6)


def test_the_data_say_what_came_of_each_action(no_training):
    """Returns use the discount of the run, up to the end of the episode."""
    source = uni_o4_module.source(ENV, replace(CONFIGS[uni_o4], {"data.size": 400}))
    state = source.init(random.key(0), {"discount": 0.9}, None)
    x = jax.tree.map(lambda x: np.asarray(x)[:, 0], state.source.transitions.value)
    batch = source.sample(state, jnp.float32(0), random.key(1))
    assert set(batch.transitions.extras) == {"next_action", "return"}
    ends = np.flatnonzero(x.done)
    for i in range(ROWS):
        seen = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], batch.transitions)
        row = int(np.flatnonzero((x.observation == seen.observation).all(-1))[0])
        rest = x.reward[row : ends[ends >= row][0] + 1]
        total = (0.9 ** np.arange(len(rest)) * rest).sum()
        np.testing.assert_allclose(seen.extras["return"], total, rtol=1e-4)
        if not seen.done:
            np.testing.assert_array_equal(seen.extras["next_action"], x.action[row + 1])


@pytest.mark.parametrize("values", ["sarsa", "iql"])
def test_q_and_v_are_learned_as_the_settings_say(values):
    config = replace(CONFIGS[uni_o4], {"values": values})
    found = uni_o4_module.recipe(ENV, Static(config)).losses[:2]
    iql = uni_o4_module.value_loss, uni_o4_module.critic_loss
    sarsa = uni_o4_module.return_loss, uni_o4_module.sarsa_loss
    assert found == {"sarsa": sarsa, "iql": iql}[values]


@pytest.mark.slow
def test_implicit_q_learning_needs_no_outcomes(no_training):
    config = replace(CONFIGS[uni_o4], {"values": "iql", "data.size": 400})
    algorithm = uni_o4(ENV, config)
    state = jax.eval_shape(lambda key: algorithm.init(key, algorithm.hyper), random.key(0))
    assert not hasattr(state.source, "returns")
    jax.eval_shape(algorithm.step, state, random.key(0))


def test_whom_a_member_is_pushed_from_does_not_move():
    action = jnp.asarray(ACTION, jnp.float32)[:, None]
    first = lambda mean: disagreement(normals(mean, STD), action)[0].sum()
    gradient = jax.grad(first)(jnp.float32(MEAN))
    assert (gradient[0] != 0).all() and (gradient[1:] == 0).all()
    assert first(MEAN + 0.01 * gradient) > first(MEAN)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_advantage_is_that_of_the_action_that_the_behavior_policy_samples(weighted):
    """Two policies at three states; some actions are beyond the bounds."""
    action = jnp.float32([[1.0, 3.0, -1.0], [-4.0, 0.0, 2.0]])[..., None]
    behaviors = SimpleNamespace(
        sample=lambda seed: action, log_prob=lambda x: jnp.where(x is action, x[..., 0], jnp.nan)
    )
    critic = lambda t, a: jnp.stack([t * a[..., 0], t * a[..., 0] - t + 1], -1)
    net = SimpleNamespace(
        behaviors=lambda t: behaviors,
        target=SimpleNamespace(critic=critic),
        value=lambda t: 0.5 * t,
        key=lambda name: None,
        hyper=SimpleNamespace(expectile=0.7),
    )
    t = jnp.float32([1.0, 2.0, 3.0])
    x = improvement.sample_behaviors(net, t, ENV.action_space, weighted)
    t, action = np.array([1.0, 2.0, 3.0]), np.array([[1.0, 2.0, -1.0], [-2.0, 0.0, 2.0]])
    advantage = t * action + np.minimum(0, 1 - t) - 0.5 * t
    advantage -= advantage.mean(1, keepdims=True)
    advantage /= advantage.std(1, keepdims=True)
    if weighted:
        advantage *= np.where(advantage > 0, 0.7, 0.3)
    np.testing.assert_allclose(x.advantage, advantage, rtol=1e-5, atol=1e-6)
    # The ratio is that of what was sampled, not of what the environment clips it to.
    np.testing.assert_array_equal(x.log_prob, [[1.0, 3.0, -1.0], [-4.0, 0.0, 2.0]])


@pytest.mark.parametrize("env_steps,clip", [(0.0, 0.25), (5.0, 0.125), (20.0, 0.0)])
def test_the_improvement_is_ppos_with_a_clip_that_falls(env_steps, clip):
    hyper = {"clip": 0.25, "entropy_weight": 0.1, "improvement.learning_rate_steps": 10.0}
    net = SimpleNamespace(
        policies=lambda t: normals(MEAN, STD), hyper=Values(hyper), env_steps=jnp.float32(env_steps)
    )
    action = np.array([[0.4, 2.5], [0.6, -1.5], [1.0, 2.0]])
    new = log_density(action, MEAN, STD)
    ratio = np.array([[1.1, 0.7], [1.4, 1.0], [0.9, 1.3]])
    advantage = np.array([[1.0, -1.0], [2.0, 0.5], [-0.3, 1.0]])
    number = lambda x: jnp.asarray(x, jnp.float32)
    x = improvement.Sample(
        (), number(action)[..., None], number(new - np.log(ratio)), number(advantage)
    )
    output = improvement.policies_loss(net, x)
    loss, said = output.value, output.metrics
    surrogate = -np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
    entropy = 0.5 * np.log(2 * np.pi * np.e * np.broadcast_to(STD, MEAN.shape) ** 2)
    expected = surrogate - 0.1 * entropy
    np.testing.assert_allclose(said["policy_loss"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, expected.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        said["approximate_kl"], ratio - 1 - np.log(ratio), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_amq_in_a_environment_made_by_hand():
    """x' = x + a, which ends beyond 2; Q(x, a) = 10 x + a."""
    timestep = example_timestep(ENV)
    at = lambda x: dataclasses.replace(timestep, observation=jnp.asarray(x, jnp.float32))
    found = improvement.amq(
        lambda t: jnp.ones_like(t.observation),
        lambda t, a: 10 * t.observation + a,
        lambda t, a, key: dataclasses.replace(
            t, observation=t.observation + a, terminated=t.observation + a > 2
        ),
        dataclasses.replace(at([0.0, -9.0]), terminated=jnp.zeros(2, bool)),
        jax.random.split(random.key(0), 4),
    )
    # From 0: 1, 11, 21, and there it ends; from -9: -89, -79, -69, -59.
    np.testing.assert_allclose(found, np.mean([1, 11, 21, -89, -79, -69, -59]))


# ------------------------------------------------------------------------------- the phases


@pytest.mark.slow
def test_clones_are_pushed_apart():
    _, update = learner(uni_o4)

    def after(alpha):
        now, info = state(uni_o4, alpha=alpha, **{"optimizer.learning_rate": 0.01}), None
        for i in range(40):
            now, info = update(now, batch(), random.key(i))
        return now, info.metrics

    (alike, plain), (apart, pushed) = after(0.0), after(0.6)
    assert pushed["disagreement"] > 2 * plain["disagreement"]
    # Until improvement begins the clones are their own behavior policies.
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    same(params(apart, "policies"), params(apart, "behaviors"))
    # What else is learned does not depend on it.
    for name in ("value", "critic", "model"):
        same(alike.parts[name], apart.parts[name])
    assert pushed["model_loss"] == plain["model_loss"]


def constant(params, means):
    """Policies [n] whose mean action is 2 * `means` in every state."""
    zero = jax.tree.map(jnp.zeros_like, params)
    linear = zero["params"]["head"]["linear"]
    linear = {**linear, "bias": jnp.asarray(means, jnp.float32)[:, None]}
    return {"params": {**zero["params"], "head": {**zero["params"]["head"], "linear": linear}}}


def by_hand(**hyper):
    """Q = tanh(action / 2) for every state, in a model where nothing moves. Members 0 and 2 have
    become better than their behavior policies, member 1 worse."""
    now = state(uni_o4_improvement, **{"improvement.learning_rate": 0.0}, **hyper)
    target = jax.tree.map(jnp.zeros_like, now.parts["critic"].target)

    def write(path, x):
        kernel = "kernel" in jax.tree_util.keystr(path)
        where = (slice(None), -1 if x.shape[1] > 1 and x.shape[1] == 4 else 0, 0)
        return x.at[where].set(1.0) if kernel else x

    target = jax.tree_util.tree_map_with_path(write, target)
    critic = dataclasses.replace(now.parts["critic"], target=target)
    now = dataclasses.replace(now, parts=now.parts | {"critic": critic})
    policies = params(now, "policies")
    return with_parts(
        now,
        policies=constant(policies, [0.5, -0.5, 0.1]),
        behaviors=constant(policies, [-0.5, 0.5, 0.0]),
        model=jax.tree.map(jnp.zeros_like, params(now, "model")),
    )


@pytest.mark.slow
@pytest.mark.parametrize("margin,replaced", [(0.0, [0, 2]), (0.5, [0]), (np.inf, [])])
def test_a_better_policy_replaces_its_behavior_policy_and_a_worse_one_does_not(margin, replaced):
    agent, update = learner(uni_o4_improvement)
    old = by_hand(margin=margin)
    new, info = update(old, batch(), random.key(1))
    np.testing.assert_allclose(new.extra["scores"], np.tanh([0.5, -0.5, 0.1]), atol=1e-3)
    policies, before, after = (
        params(new, "policies"),
        *(params(s, "behaviors") for s in (old, new)),
    )
    jax.tree.map(np.testing.assert_array_equal, policies, params(old, "policies"))  # rate 0
    for i in range(3):
        source = policies if i in replaced else before
        same = jax.tree.map(lambda a, b, i=i: bool((a[i] == b[i]).all()), after, source)
        assert all(jax.tree.leaves(same)), i
    np.testing.assert_allclose(info.metrics["replaced"], len(replaced) / 3, rtol=1e-6)
    # The best one by AM-Q acts.
    action = agent.act(new, batch().transitions.timestep, (), random.key(0), True)[0]
    np.testing.assert_allclose(action, 1.0)


@pytest.mark.slow
def test_the_datas_actions_have_no_say_in_the_improvement():
    _, update = learner(uni_o4_improvement)
    old, x, key = state(uni_o4_improvement), batch(), random.key(7)
    new, _ = update(old, x, key)
    other = dataclasses.replace(x.transitions, action=-x.transitions.action)
    again, _ = update(old, dataclasses.replace(x, transitions=other), key)
    jax.tree.map(np.testing.assert_array_equal, new.parts, again.parts)
    # What was learned stands still.
    for name in ("value", "critic", "model"):
        jax.tree.map(np.testing.assert_array_equal, new.parts[name], old.parts[name])


# ------------------------------------------------------------------------------- what goes on


@pytest.mark.slow
def test_the_improvement_goes_on_with_all_that_was_learned(no_training):
    first, second = (builder(ENV, config) for builder, config in CONFIGS.items())
    assert first.env_steps == second.env_steps == UPDATES  # a round at once
    old, new = (a.init(random.key(i), a.hyper) for i, a in enumerate((first, second)))
    inner, _ = learner(uni_o4)[1](old.agent.agent, batch(), random.key(1))
    learned = dataclasses.replace(old.agent, agent=inner)
    taken = take_over(new, first.agent.hand_over(learned)).agent.agent
    jax.tree.map(np.testing.assert_array_equal, taken.parts, inner.parts)
    # The policies' own optimizer was not used so far, and its plans begin.
    assert (inner.parts["behaviors"].optimizer.count == UPDATES).all()
    assert (taken.parts["policies"].optimizer.count == 0).all()
    assert (inner.env_steps, taken.env_steps) == (UPDATES, 0)


@pytest.mark.slow
def test_ppo_goes_on_with_the_best_member_and_the_value_bit_for_bit(no_training):
    offline, online = uni_o4_improvement(ENV, CONFIGS[uni_o4_improvement]), ppo(ENV, PPO)
    old, new = (a.init(random.key(i), a.hyper) for i, a in enumerate((offline, online)))
    scores = {"scores": jnp.float32([-2.0, -1.0, -3.0])}
    inner = dataclasses.replace(old.agent.agent, extra=scores)
    old = dataclasses.replace(old.agent, agent=inner)
    taken = take_over(new, offline.agent.hand_over(old))
    t = batch().transitions.timestep
    for greedy in (True, False):
        before = offline.agent.act(old, t, (), random.key(1), greedy)[0]
        after = online.agent.act(taken.agent, t, (), random.key(1), greedy)[0]
        np.testing.assert_array_equal(before, after)
    weights = params(taken.agent.agent, "actor_critic")
    best = jax.tree.map(lambda x: x[1], params(inner, "policies"))
    policy, value, _ = NETWORK.apply(weights, t, ())
    np.testing.assert_array_equal(policy.mode(), POLICY.apply(best, t).mode())
    # Online, rewards are not scaled.
    scaled = NETWORK.apply(params(inner, "value"), t, method="value_alone")
    np.testing.assert_allclose(value, scaled / 2.0, rtol=1e-6)
    # And PPO learns on.
    later = jax.eval_shape(online.step, taken, random.key(0))[0]
    assert jax.tree.structure(later) == jax.tree.structure(taken)
    for before, after in zip(jax.tree.leaves(taken), jax.tree.leaves(later), strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)


def test_settings_that_cannot_work():
    environment = replace(CONFIGS[uni_o4], {"data.num_envs": 2})
    for config in (environment, replace(CONFIGS[uni_o4], {"data.name": ""})):
        with pytest.raises(UserError, match="from a dataset alone"):
            uni_o4(ENV, config)
    late = replace(CONFIGS[uni_o4_improvement], {"starts": ROWS + 1})
    with pytest.raises(UserError, match="12 transitions"):
        uni_o4_improvement.agent(ENV, late)
    for space in ({"a": ENV.observation_space}, Box(0, 1, (3,), np.uint8)):
        odd = dataclasses.replace(counting(), observation_space=space)
        for builder, config in CONFIGS.items():
            with pytest.raises(UserError, match=f"^{builder.name} .* one box of real numbers"):
                builder.agent(odd, config)


@pytest.mark.slow
def test_three_runs_one_after_the_other(no_training, tmp_path, monkeypatch):
    """A warm start carries the best member and value of each seed to the next algorithm's run."""
    common = "--quiet --evaluate_every -1 --seeds 2 --env pendulum --agent.torso.hidden 4"
    phase = "--steps 4 --agent.data.name random --agent.data.batch_size 8 --agent.data.updates 2"
    phase += " --agent.num_policies 2 --agent.model_hidden 4"
    online = "--steps 8 --agent.rollouts.num_envs 2 --agent.rollouts.num_steps 4"
    online += " --agent.minibatches 1 --agent.normalization.observation true"
    online += " --agent.optimizer.learning_rate 0"
    runs = (
        ("first", "uni_o4", phase),
        (
            "second",
            "uni_o4_improvement",
            f"{phase} --agent.starts 4 --agent.horizon 2 --warm-start first",
        ),
        ("third", "jaxrl.algorithms.policy_gradient.ppo:ppo", f"{online} --warm-start second"),
    )
    monkeypatch.chdir(tmp_path)
    for name, algorithm, words in runs:
        words = f"{common} {words} --algorithm {algorithm} --name {name}".split()
        assert command_line.call(train.main, [*words, "--out", "."]) == 0
    before = continuing.load_all(tmp_path / "second")
    after = continuing.load_all(tmp_path / "third")
    for old, new in zip(before, after, strict=True):
        given = old.algorithm.agent.hand_over(old.policy.state).agent
        both = (params(x, "actor_critic") for x in (new.policy.state.agent, given))
        jax.tree.map(np.testing.assert_array_equal, *both)
    first, second = (jax.tree.leaves(params(x.policy.state.agent, "actor_critic")) for x in after)
    assert any((x != y).any() for x, y in zip(first, second, strict=True))
