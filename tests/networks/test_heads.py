import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.kit.acting import temper
from jaxrl.networks.heads import (
    PolicyHead,
    ReadOut,
    SquashedHead,
    SquashedStateDependentNormal,
    StateDependentNormal,
    categorical,
    check_action_space,
    check_bounded,
    check_discrete,
    gaussian,
    log_prob_and_entropy,
    scale,
)

INF = float("inf")
FEATURES = jax.random.normal(jax.random.key(0), (5, 4))
SPACES = {
    "discrete": Discrete(3),
    "multi": MultiDiscrete((2, 4)),
    "box": Box(-2.0, 2.0, (2,)),
    "scalar": Box(0.0, 1.0, ()),
    "matrix": Box(-1.0, 1.0, (2, 3)),
    "unbounded": Box(-INF, INF, (2,)),
}


def policy(space, features=FEATURES, legal=None, scale=1.0, initializer="orthogonal", **kw):
    head = PolicyHead(space, initializer, **kw)
    params = head.init(random.key(1), features)
    params = jax.tree.map(lambda x: x * scale if x.ndim > 1 else x, params)
    return head.apply(params, features, legal)


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))
def test_shapes_and_dtypes(space):
    for features in (FEATURES, jnp.stack([FEATURES] * 2)):
        p = policy(space, features)
        batch = features.shape[:-1]
        for action in (p.sample(seed=random.key(0)), p.mode()):
            assert action.shape == (*batch, *space.shape)
            assert action.dtype == space.dtype
            assert p.log_prob(action).shape == batch
        assert p.entropy().shape == batch
        assert jnp.isfinite(p.entropy()).all()


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 4))])
def test_the_first_policy_is_close_to_uniform(space):
    sizes = (space.n,) if isinstance(space, Discrete) else space.sizes
    np.testing.assert_allclose(policy(space).entropy(), np.log(sizes).sum(), atol=1e-3)


@pytest.mark.slow
def test_illegal_actions_are_never_chosen():
    legal = jnp.array([[True, False, True]] * 3 + [[False, True, False]] * 2)
    p = policy(Discrete(3), legal=legal, scale=100.0)
    assert (np.asarray(p.probs)[~np.asarray(legal)] == 0).all()
    samples = jnp.stack([p.sample(seed=k) for k in jax.random.split(random.key(0), 50)])
    assert jnp.take_along_axis(legal[None].repeat(50, 0), samples[..., None], -1).all()
    assert jnp.take_along_axis(legal, p.mode()[:, None], 1).all()
    np.testing.assert_allclose(p.entropy()[3:], 0, atol=1e-6)
    np.testing.assert_allclose(p.log_prob(jnp.array([0, 0, 0, 1, 1]))[3:], 0, atol=1e-6)


@pytest.mark.slow
def test_masked_gradients_are_finite():
    legal = jnp.array([[True, False, True]] * 4 + [[False, True, False]])
    head = PolicyHead(Discrete(3))
    params = head.init(random.key(1), FEATURES)

    def f(params):
        p = head.apply(params, FEATURES, legal)
        return p.entropy().sum() + p.log_prob(jnp.array([0, 0, 2, 2, 1])).sum()

    gradient = jax.grad(f)(params)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(gradient))


def test_components_of_different_sizes_and_their_masks():
    space = MultiDiscrete((2, 4))
    p = policy(space, scale=100.0)
    samples = np.stack([p.sample(seed=k) for k in jax.random.split(random.key(0), 60)])
    assert samples[..., 0].max() == 1 and samples[..., 1].max() == 3
    logits = np.asarray(p.distribution.logits)
    legal = jnp.array([[True, False, True, True], [False, True, True, False]])
    p = policy(space, legal=legal[None].repeat(5, 0), scale=100.0)
    samples = np.stack([p.sample(seed=k) for k in jax.random.split(random.key(0), 60)])
    assert set(samples[..., 0].ravel()) == {0} and set(samples[..., 1].ravel()) <= {1, 2}
    action = jnp.array([[0, 1]] * 5)
    expected = logits[:, 1, 1] - np.log(np.exp(logits[:, 1, 1:3]).sum(-1))
    np.testing.assert_allclose(p.log_prob(action), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "space,center,half_width",
    [
        (Box(-2.0, 2.0, (2,)), 0.0, 2.0),
        (Box(0.0, 1.0, (2,)), 0.5, 0.5),
        (Box((-1.0, 0.0), (1.0, 10.0), (2,)), [0.0, 5.0], [1.0, 5.0]),
        (Box(-INF, INF, (2,)), 0.0, 1.0),
        (Box(0.0, INF, (2,)), 0.0, 1.0),
    ],
)
def test_normals_are_in_units_of_the_box(space, center, half_width):
    p = policy(space, scale=0.0)
    np.testing.assert_allclose(p.mode(), np.broadcast_to(center, (5, 2)))
    p = policy(space, log_std=-1.0)
    action = p.mode() + 0.3
    np.testing.assert_allclose(
        p.log_prob(action),
        scipy.stats.norm.logpdf(0.3, scale=np.exp(-1) * np.ones(2) * half_width).sum(),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        p.entropy(),
        scipy.stats.norm.entropy(scale=np.exp(-1) * np.ones(2) * half_width).sum(),
        rtol=1e-4,
    )


def test_a_space_without_a_head_raises_an_error():
    check_action_space(Discrete(2), "ppo")
    with pytest.raises(UserError, match=r"ppo cannot act in .*Discrete, MultiDiscrete or Box"):
        check_action_space({"a": Discrete(2)}, "ppo")
    for check in (check_action_space, check_discrete, check_bounded):
        with pytest.raises(UserError, match=r"ppo learns for one agent, but here 2 act \(a, b\)"):
            check({"a": Discrete(2), "b": Discrete(3)}, "ppo")


@pytest.mark.parametrize(
    ("space", "way"),
    [
        (Box(-1, 1, (2,)), " (jaxrl.envs.wrappers.discretized_actions provides them)."),
        (MultiDiscrete((2, 3)), " (jaxrl.envs.wrappers.flat_actions provides them)."),
        (Box(-1, INF, (2,)), "."),
        ({"a": Discrete(2)}, "."),
    ],
)
def test_the_error_of_other_action_spaces_names_a_wrapper(space, way):
    check_discrete(Discrete(2), "dqn")
    with pytest.raises(UserError) as raised:
        check_discrete(space, "dqn")
    assert str(raised.value) == f"dqn cannot act in {space!r}; it needs Discrete actions{way}"
    with pytest.raises(UserError, match="PolicyHead cannot act"):
        policy((Discrete(2),))


@pytest.mark.slow
def test_a_squashed_normal_knows_its_density_up_to_the_bounds():
    """Compare with float64, in which the slope of tanh(u) is 1 / cosh(u)^2."""
    head, features = SquashedHead(Box(-2.0, 4.0, (2,))), jnp.asarray([[0.0], [3.0], [-30.0]])
    # Means 0, 3 and -30; standard deviations 1 and e^2, the upper bound of their logarithm.
    layer = {"kernel": jnp.array([[1.0, 1.0, 0.0, 0.0]]), "bias": jnp.array([0.0, 0.0, 0.0, 50.0])}
    of = lambda features: head.apply({"params": {"linear": layer}}, features)
    draw = {"seed": random.key(1), "sample_shape": 1000}
    action, log_prob = of(features).sample_and_log_prob(**draw)
    u = np.asarray(of(features).distribution.sample(**draw), np.float64)
    density = scipy.stats.norm.logpdf(u, np.asarray(features, np.float64), [1.0, np.exp(2.0)])
    log_slope = np.log(3.0) - 2 * (np.logaddexp(u, -u) - np.log(2.0))
    np.testing.assert_allclose(action, 1 + 3 * np.tanh(u), atol=1e-5)
    np.testing.assert_allclose(log_prob, (density - log_slope).sum(-1), rtol=1e-5, atol=1e-4)
    assert (action == -2.0).any() and (action == 4.0).any()  # tanh is 1 to the last bit
    median = np.broadcast_to(1 + 3 * np.tanh(np.asarray(features)), (3, 2))
    np.testing.assert_allclose(of(features).mode(), median, rtol=1e-6)
    total = lambda features: of(features).sample_and_log_prob(**draw)[1].sum()
    expected = 2 * np.tanh(u).sum((0, 2))  # the noise stays when the mean moves
    np.testing.assert_allclose(jax.grad(total)(features)[:, 0], expected, rtol=1e-3)


def test_a_deviation_of_the_state_a_fixed_one_and_one_that_is_learned():
    space, log_std = Box(-2.0, 2.0, (2,)), np.log(0.3)
    of = lambda deviation: gaussian(policy(space, log_std=log_std, deviation=deviation))[1]
    for kind in ("learned", "fixed"):
        np.testing.assert_allclose(of(kind), np.full((5, 2), 0.6), rtol=1e-5)
    near = np.asarray(of("of_state"))
    np.testing.assert_allclose(near, 0.6, rtol=0.05)  # in half-widths, before any training
    assert len(np.unique(near)) == near.size
    wide = gaussian(policy(space, scale=100.0, deviation="of_state"))[1]
    assert (np.asarray(wide) > 0).all() and wide.max() > 2 * wide.min()
    assert "log_std" not in str(PolicyHead(space, deviation="fixed").init(random.key(0), FEATURES))


def test_a_bounded_deviation_stays_within_a_tenth_of_its_largest():
    """Dreamer v3's: 0.1 + 0.9 sigmoid(x + 2) half-widths, with x near 0 before any training."""
    space = Box(-2.0, 2.0, (2,))
    of = lambda scale: gaussian(policy(space, scale=scale, deviation="bounded"))[1]
    np.testing.assert_allclose(of(1.0), 2 * (0.1 + 0.9 / (1 + np.exp(-2))), rtol=0.01)
    wide = np.asarray(of(1e4))
    assert wide.min() >= 0.2 and wide.max() <= 2 and wide.min() < 0.21 and wide.max() > 1.99


def test_only_a_policy_in_a_box_is_gaussian():
    mean, deviation = gaussian(policy(Box(-1.0, 1.0, (2, 3))))
    assert mean.shape == deviation.shape == (5, 6)
    assert gaussian(policy(Box(0.0, 1.0, ())))[0].shape == (5, 1)
    assert gaussian(policy(Discrete(3))) is None and gaussian(policy(MultiDiscrete((2, 4)))) is None


# ------------------------------------------------------------------------------- logits in parts

T, B, D, N = 5, 3, 4, 7
KERNEL = jax.random.normal(random.key(2), (D, N))
WINDOW = jax.random.normal(random.key(3), (T, B, D))
CHOSEN = jnp.arange(T * B).reshape(T, B) % N
LEGAL = jax.random.bernoulli(random.key(4), 0.6, (T, B, N)).at[..., 2].set(True)


@pytest.mark.parametrize("rows", [1, 4, 15, 100])
@pytest.mark.parametrize("legal", [None, LEGAL], ids=["all", "some"])
def test_logits_in_parts_are_the_same_policy(rows, legal):
    """15 rows in parts of `rows`, with their gradients, at a temperature."""
    chosen = CHOSEN if legal is None else jnp.where(jnp.arange(B) > 0, 2, legal.argmax(-1))

    def numbers(in_parts, x, kernel, temperature):
        if in_parts:
            found = ReadOut(x, kernel, legal, rows=rows)
        else:
            found = categorical(x @ kernel, legal)
        found = temper(found, temperature)
        assert isinstance(found, ReadOut) == in_parts
        return log_prob_and_entropy(found, chosen), found.logits

    def total(in_parts, *given):
        log_prob, entropy = numbers(in_parts, *given)[0]
        weight = jnp.arange(T * B).reshape(T, B)
        return (weight * log_prob).sum() + (weight**2 * entropy).sum()

    given = WINDOW, KERNEL, jnp.float32(0.7)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, numbers(True, *given), numbers(False, *given))
    ours, theirs = (
        jax.jit(jax.grad(functools.partial(total, way), (0, 1, 2)))(*given) for way in (True, False)
    )
    jax.tree.map(close, ours, theirs)


def test_what_else_a_policy_in_parts_answers():
    found = ReadOut(WINDOW, KERNEL, LEGAL, rows=4)
    whole = categorical(WINDOW @ KERNEL, LEGAL)
    np.testing.assert_array_equal(found.mode(), whole.mode())
    assert found.num_categories == N and found.batch_shape == (T, B)
    np.testing.assert_allclose(found.log_prob(CHOSEN), whole.log_prob(CHOSEN), rtol=1e-5)
    np.testing.assert_allclose(found.entropy(), whole.entropy(), rtol=1e-5)
    sampled = found.sample(seed=random.key(0))
    np.testing.assert_array_equal(sampled, whole.sample(seed=random.key(0)))
    through = jax.jit(lambda policy: policy.at_temperature(2.0).entropy())(found)  # it is a tree
    np.testing.assert_allclose(through, temper(whole, 2.0).entropy(), rtol=1e-5)


def test_only_a_part_of_the_logits_exists():
    """The largest array of the gradient's program has the logits of one part."""

    def biggest(rows):
        def loss(x, kernel):
            log_prob, entropy = ReadOut(x, kernel, rows=rows).log_prob_and_entropy(chosen)
            return (log_prob + entropy).sum()

        x, kernel = jnp.ones((256, 2, 8)), jnp.ones((8, 500))
        chosen = jnp.zeros((256, 2), jnp.int32)
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(x, kernel).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole, logits = biggest(512), 512 * 500 * 4
    assert whole > logits > 6 * biggest(8)


def noisy(space, seed=0, rows=5, features=4):
    """Return a `StateDependentNormal` with mean, features and deviations, in float32."""
    size = int(np.prod(space.shape))
    rng = np.random.default_rng(seed)
    mean = jnp.float32(rng.normal(size=(rows, *space.shape)))
    inputs = jnp.float32(rng.normal(size=(rows, features)))
    deviation = jnp.exp(jnp.float32(rng.normal(size=(features, size))))
    return StateDependentNormal(space, mean, inputs, deviation), mean, inputs, deviation


@pytest.mark.parametrize("space", [SPACES[n] for n in ("box", "scalar", "matrix", "unbounded")])
def test_state_dependent_noise_is_normal_with_variance_of_squared_features(space):
    p, mean, inputs, deviation = noisy(space)
    q, other_mean, other_inputs, other_deviation = noisy(space, seed=1)
    center, half_width = (np.float64(x) for x in scale(space))

    def closed_form(mean, inputs, deviation):
        variance = np.float64(inputs) ** 2 @ np.float64(deviation) ** 2 + 1e-6
        spread = half_width * np.sqrt(variance).reshape(mean.shape)
        return center + half_width * np.float64(mean), spread

    (m, s), (n, t) = (
        closed_form(mean, inputs, deviation),
        closed_form(other_mean, other_inputs, other_deviation),
    )
    total = lambda x: x.reshape(5, -1).sum(1)
    action = np.asarray(p.sample(seed=random.key(0)))
    assert action.shape == mean.shape
    expected = total(scipy.stats.norm.logpdf(action, m, s))
    np.testing.assert_allclose(p.log_prob(action), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(p.entropy(), total(scipy.stats.norm.entropy(m, s)), rtol=1e-4)
    np.testing.assert_allclose(p.mode(), m, rtol=1e-5)
    divergence = total(np.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - 0.5)
    np.testing.assert_allclose(p.kl_divergence(q), divergence, rtol=1e-4)
    normals = np.random.default_rng(2).normal(size=(5, *deviation.shape))
    noise = np.einsum("bf,bfa->ba", np.float64(inputs), np.float64(deviation) * normals)
    expected = m + half_width * noise.reshape(m.shape)
    np.testing.assert_allclose(p.explore(jnp.float32(normals)), expected, rtol=1e-4, atol=1e-4)


def test_noise_changes_its_deviations_and_not_the_features():
    head = PolicyHead(Box(-1.0, 1.0, (2,)), deviation="of_noise", log_std=-1.0)
    params = head.init(random.key(0), FEATURES)
    assert params["params"]["log_std"].shape == (4, 2)
    spread = lambda params, features: head.apply(params, features).distribution.scale.sum()
    by_params, by_features = jax.grad(spread, (0, 1))(params, FEATURES)
    assert (by_features == 0).all() and (by_params["params"]["log_std"] > 0).all()
    variance = jnp.square(FEATURES).sum(1, keepdims=True) * np.exp(-2.0)
    scales = head.apply(params, FEATURES).distribution.scale
    np.testing.assert_allclose(scales, jnp.sqrt(variance + 1e-6).repeat(2, 1), rtol=1e-5)


@pytest.mark.parametrize("space", [Box(-2.0, 2.0, (2,)), Box(0.0, 1.0, ())])
def test_squashed_state_dependent_noise(space):
    """Against the change of variables of tanh, in float64."""
    _, mean, inputs, deviation = noisy(space)
    mean, deviation = 0.5 * mean, 0.3 * deviation
    p = SquashedStateDependentNormal(space, mean, inputs, deviation)
    center, half_width = (np.float64(x) for x in scale(space))
    variance = np.float64(inputs) ** 2 @ np.float64(deviation) ** 2 + 1e-6
    spread = np.sqrt(variance).reshape(mean.shape)
    action, log_prob = p.sample_and_log_prob(seed=random.key(0))
    before = np.arctanh((np.float64(action) - center) / half_width)
    derivative = half_width * (1 - np.tanh(before) ** 2)
    expected = scipy.stats.norm.logpdf(before, np.float64(mean), spread) - np.log(derivative)
    np.testing.assert_allclose(log_prob, expected.reshape(5, -1).sum(1), rtol=2e-3, atol=2e-3)
    normals = np.random.default_rng(2).normal(size=(5, *deviation.shape))
    noise = np.einsum("bf,bfa->ba", np.float64(inputs), np.float64(deviation) * normals)
    within = np.tanh(np.float64(mean) + noise.reshape(mean.shape))
    np.testing.assert_allclose(
        p.explore(jnp.float32(normals)), center + half_width * within, atol=1e-4
    )
    np.testing.assert_allclose(p.mode(), center + half_width * np.tanh(np.float64(mean)), atol=1e-5)
