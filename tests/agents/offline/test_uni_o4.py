"""Uni-O4: clones that disagree, whose word counts when a policy is replaced, and what PPO gets."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.agents.offline import uni_o4
from jaxrl.agents.offline.experience import Experience
from jaxrl.agents.policy_gradient import ppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch
from jaxrl.datasets.data import from_episodes
from jaxrl.envs import make
from jaxrl.networks.critics import ActionValues
from tests.counting import counting

ENV = make("pendulum")
UPDATES, ROWS = 2, 12  # of a round
CONFIG = uni_o4.Config(
    experience=Experience(batch_size=ROWS // UPDATES, updates=UPDATES),
    hidden=(8,),
    model_hidden=(8,),
    policies=3,
    starts=5,
    horizon=4,
    discount=0.9,
    reward_scale=2.0,
)
NETWORK = ppo.policy_network(ENV, ppo.Config(hidden=(8,)))
POLICY = uni_o4.Half(NETWORK, "policy_alone")
CRITIC = ActionValues(ENV.observation_space, ENV.action_space, (8,), activation="tanh")


@functools.cache
def learner(phase):
    agent = uni_o4.agent(ENV, dataclasses.replace(CONFIG, phase=phase))
    agent = dataclasses.replace(agent, init=jax.jit(agent.init))
    return agent, jax.jit(agent.update)


def state(phase="improvement", **hyper):
    agent, _ = learner(phase)
    return agent.init(random.key(0), agent.hyper | hyper)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    flags = np.zeros((2, ROWS), bool)
    flags[1, -1] = True
    episode = {
        "observations": rng.normal(size=(ROWS + 1, 3)).astype(np.float32),
        "actions": rng.uniform(-2, 2, size=(ROWS, 1)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminations": flags[0],
        "truncations": flags[1],
    }
    return Batch(jax.tree.map(jnp.asarray, from_episodes([episode])), jnp.float32(UPDATES))


def stacked(params, timestep):
    return jax.vmap(POLICY.apply, (0, None))(params, timestep)


def shaken(params, key):
    """Weights at a distance from `params`."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noise = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noise)


def test_disagreement_is_the_divergence_from_the_others_likeliest():
    x = batch().transitions
    policies = shaken(state().policies, random.key(3))

    @jax.jit
    def parts(policies):
        dists = stacked(policies, x.timestep)
        return uni_o4.disagreement(dists, x.action), dists.mean(), dists.stddev()

    found, *moments = parts(policies)
    mean, std = (np.asarray(v, np.float64)[..., 0] for v in moments)
    a = np.asarray(x.action, np.float64)[:, 0]
    density = np.exp(-0.5 * ((a - mean) / std) ** 2) / std
    expected = np.empty_like(mean)
    for i in range(3):
        for b in range(ROWS):
            k = max((j for j in range(3) if j != i), key=lambda j: density[j, b])
            ratio = std[i, b] / std[k, b]
            apart = (mean[i, b] - mean[k, b]) / std[k, b]
            expected[i, b] = -np.log(ratio) + 0.5 * (ratio**2 + apart**2 - 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    # The other one does not move: the first member's term has no gradient for the rest.
    gradient = jax.jit(jax.grad(lambda policies: parts(policies)[0][0].sum()))(policies)
    total = sum(np.abs(np.reshape(g, (3, -1))).sum(1) for g in jax.tree.leaves(gradient))
    assert total[0] > 0 and (total[1:] == 0).all()


def test_the_authors_heuristic_is_cloning():
    """Why the divergence is used: of log pi_i - max_k log pi_k only the first has a gradient."""
    log_prob, others = jnp.array([-1.0, -2.0]), jnp.array([[-0.5, -3.0], [-1.0, -4.0]])
    loss = lambda x: losses.diverse_cloning(x, others, 0.5).sum()
    np.testing.assert_allclose(jax.grad(loss)(log_prob), -1.5)


def test_clones_are_pushed_apart():
    _, update = learner("supervised")

    def after(alpha):
        now, info = state("supervised", alpha=alpha, learning_rate=0.01), None
        for i in range(40):
            now, info = update(now, batch(), random.key(i))
        return now, info.metrics

    (alike, plain), (apart, pushed) = after(0.0), after(0.6)
    assert pushed["disagreement"] > 2 * plain["disagreement"]
    # Until improvement begins the clones are their own behaviour policies.
    jax.tree.map(np.testing.assert_array_equal, apart.policies, apart.behaviours)
    # What else is learnt does not depend on it.
    jax.tree.map(np.testing.assert_array_equal, alike.critics, apart.critics)
    assert pushed["model_loss"] == plain["model_loss"]


def test_amq_in_a_world_made_by_hand():
    """x' = x + a, which ends beyond 2; Q(x, a) = 10 x + a."""
    timestep = example_timestep(ENV)
    at = lambda x: dataclasses.replace(timestep, observation=jnp.asarray(x, jnp.float32))
    found = uni_o4.amq(
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


def constant(params, means):
    """Policies [n] whose mean action is 2 * `means` in every state."""
    zero = jax.tree.map(jnp.zeros_like, params)
    linear = zero["params"]["head"]["linear"]
    linear = {**linear, "bias": jnp.asarray(means, jnp.float32)[:, None]}
    return {"params": {**zero["params"], "head": {**zero["params"]["head"], "linear": linear}}}


def by_hand(**hyper):
    """Q = tanh(action / 2) for every state, in a model where nothing moves. Members 0 and 2 have
    become better than their behaviour policies, member 1 worse."""
    now = state(policy_learning_rate=0.0, **hyper)
    target = jax.tree.map(jnp.zeros_like, now.critics.target)

    def write(path, x):
        kernel = "kernel" in jax.tree_util.keystr(path)
        where = (slice(None), -1 if x.shape[1] > 1 and x.shape[1] == 4 else 0, 0)
        return x.at[where].set(1.0) if kernel else x

    target = jax.tree_util.tree_map_with_path(write, target)
    return dataclasses.replace(
        now,
        policies=constant(now.policies, [0.5, -0.5, 0.1]),
        behaviours=constant(now.behaviours, [-0.5, 0.5, 0.0]),
        critics=dataclasses.replace(now.critics, target=target),
        model=jax.tree.map(jnp.zeros_like, now.model),
    )


@pytest.mark.parametrize("margin,replaced", [(0.0, [0, 2]), (0.5, [0]), (np.inf, [])])
def test_a_better_policy_replaces_its_behaviour_policy_and_a_worse_one_does_not(margin, replaced):
    agent, update = learner("improvement")
    old = by_hand(margin=margin)
    new, info = update(old, batch(), random.key(1))
    np.testing.assert_allclose(new.scores, np.tanh([0.5, -0.5, 0.1]), atol=1e-3)
    jax.tree.map(np.testing.assert_array_equal, new.policies, old.policies)  # rate 0
    for i in range(3):
        source = old.policies if i in replaced else old.behaviours
        same = jax.tree.map(lambda a, b, i=i: bool((a[i] == b[i]).all()), new.behaviours, source)
        assert all(jax.tree.leaves(same)), i
    np.testing.assert_allclose(info.metrics["replaced"], len(replaced) / 3, rtol=1e-6)
    # The best one by AM-Q acts, and is handed over.
    action = agent.act(new, batch().transitions.timestep, (), random.key(0), True)[0]
    np.testing.assert_allclose(action, 1.0)


def test_the_advantage_is_that_of_the_action_that_the_behaviour_policy_samples():
    _, update = learner("improvement")
    old = state()
    old = dataclasses.replace(old, policies=shaken(old.policies, random.key(5)))
    x, key = batch(), random.key(7)
    new, info = update(old, x, key)
    # The data's actions have no say.
    other = dataclasses.replace(x.transitions, action=-x.transitions.action)
    again, _ = update(old, dataclasses.replace(x, transitions=other), key)
    jax.tree.map(np.testing.assert_array_equal, new.policies, again.policies)

    # The first gradient step's loss, recomputed: the second has a rate of 0.
    frozen = state(policy_learning_rate=0.0)
    frozen = dataclasses.replace(frozen, policies=old.policies)
    info = update(frozen, x, key)[1]
    keys = jax.random.split(jax.random.split(key)[0], UPDATES)

    @jax.jit
    def parts(behaviour, policy, t, key):
        behaviour, policy = POLICY.apply(behaviour, t), POLICY.apply(policy, t)
        action = behaviour.sample(seed=key)
        q = CRITIC.apply(old.critics.target, t, jnp.clip(action, -2, 2)).min(-1)
        v = NETWORK.apply(old.critics.value, t, method="value_alone")
        return q - v, jnp.exp(policy.log_prob(action) - behaviour.log_prob(action))

    losses_ = []
    for step in range(UPDATES):
        rows = slice(step * ROWS // UPDATES, (step + 1) * ROWS // UPDATES)
        t = jax.tree.map(lambda leaf, rows=rows: leaf[rows], x.transitions.timestep)
        for i, k in enumerate(jax.random.split(keys[step], 3)):
            pick = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree)
            a, r = map(np.float64, parts(pick(old.behaviours), pick(old.policies), t, k))
            a = (a - a.mean()) / (a.std() + 1e-8)
            losses_.append(-np.minimum(r * a, np.clip(r, 0.75, 1.25) * a).mean())
    np.testing.assert_allclose(info.metrics["policy_loss"], np.mean(losses_), rtol=1e-3, atol=1e-5)


def test_ppo_goes_on_with_the_best_member_and_the_value_bit_for_bit():
    agent, _ = learner("improvement")
    old = state()
    old = dataclasses.replace(old, scores=jnp.array([-2.0, -1.0, -3.0]))
    player = ppo.agent(ENV, ppo.Config(hidden=(8,)))
    fresh = player.init(random.key(9), player.hyper)
    taken = agent.hand_over(old)
    assert jax.tree.structure((taken.params, taken.optimiser)) == jax.tree.structure(
        (fresh.params, fresh.optimiser)
    )
    t = batch().transitions.timestep
    online = dataclasses.replace(fresh, params=taken.params)
    for greedy in (True, False):
        before = agent.act(old, t, (), random.key(1), greedy)
        after = player.act(online, t, (), random.key(1), greedy)
        jax.tree.map(np.testing.assert_array_equal, before, after)
    best = jax.tree.map(lambda x: x[1], old.policies)
    np.testing.assert_array_equal(
        NETWORK.apply(taken.params, t, ())[0].mode(), POLICY.apply(best, t).mode()
    )
    # Online, rewards are not scaled.
    value = NETWORK.apply(old.critics.value, t, method="value_alone")
    np.testing.assert_allclose(NETWORK.apply(taken.params, t, ())[1], value / 2.0, rtol=1e-6)
    supervised, _ = learner("supervised")
    assert supervised.hand_over(old) is old


def test_settings_that_cannot_work():
    for settings, said in (
        ({"phase": "online"}, "phase"),
        ({"policies": 0}, "policies"),
        ({"starts": 13}, "12 transitions"),
    ):
        with pytest.raises(UserError, match=said):
            uni_o4.agent(ENV, dataclasses.replace(CONFIG, **settings))
    odd = dataclasses.replace(counting(), observation_space={"a": ENV.observation_space})
    with pytest.raises(UserError, match="one Box"):
        uni_o4.agent(odd, CONFIG)
