import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract

T, G = 5, 4
LENGTHS = np.array([5, 3, 1, 0])
MASK = np.arange(T)[:, None] < LENGTHS
AVERAGES = ("sequence", "token", "constant")


def log_probs(rng, *names, shape=(T, G)):
    return {name: -rng.uniform(0.5, 1.5, shape) for name in names}


def two(rng):
    return {**log_probs(rng, "log_prob", "old_log_prob"), "advantage": rng.normal(size=G)}


def far(rng, shape=(T, G)):
    return [
        {"log_prob": np.full(shape, -500.0)},
        {"old_log_prob": np.full(shape, -500.0)},
        {"advantage": np.full(G, 1e6)},
        {"advantage": np.full(G, -1e6), "old_log_prob": np.full(shape, -500.0)},
    ]


def unlikely_reference(rng):
    return [*far(rng), {"reference_log_prob": np.full((T, G), -500.0)}]


CASES = [
    *(
        Case(
            losses.sequence_log_prob,
            lambda rng, normalize=normalize: {
                **log_probs(rng, "log_prob"),
                "mask": MASK,
                "normalize": normalize,
            },
            gradient=("log_prob",),
            time=("log_prob", "mask"),
            extremes=lambda rng: [
                {"log_prob": np.where(MASK, -500.0, -np.inf)},
                {"log_prob": np.where(MASK, -1.0, np.nan)},
            ],
            name=f"sequence_log_prob_{normalize}",
        )
        for normalize in (False, True)
    ),
    *(
        Case(
            losses.token_weights,
            lambda rng, average=average: {"mask": MASK, "average": average},
            time=("mask",),
            extremes=lambda rng: [{"mask": np.zeros((T, G), bool)}],
            name=f"token_weights_{average}",
        )
        for average in AVERAGES
    ),
    Case(
        losses.grpo,
        lambda rng: {
            **two(rng),
            **log_probs(rng, "reference_log_prob"),
            "clip": 0.2,
            "beta": 0.04,
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "reference_log_prob", "advantage"),
        time=("log_prob", "old_log_prob", "reference_log_prob"),
        extremes=unlikely_reference,
    ),
    Case(
        losses.gspo,
        lambda rng: {**two(rng), "clip_low": 0.3, "clip_high": 0.4, "mask": MASK},
        gradient=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob", "mask"),
        extremes=lambda rng: [
            *far(rng),
            {"log_prob": np.where(MASK, -1.0, np.nan)},
            {"old_log_prob": np.where(MASK, -1.0, -np.inf)},
        ],
    ),
    Case(
        losses.gspo_token,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob"),
            "advantage": rng.normal(size=(T, G)),
            "clip_low": 0.3,
            "clip_high": 0.4,
            "mask": MASK,
        },
        surrogate=("log_prob",),
        stopped=("old_log_prob", "advantage"),
        time=("log_prob", "old_log_prob", "advantage", "mask"),
        extremes=lambda rng: [
            *far(rng),
            {"log_prob": np.where(MASK, -1.0, np.nan)},
            {"old_log_prob": np.where(MASK, -1.0, -np.inf)},
            {"advantage": np.where(MASK, 1.0, np.nan)},
        ],
    ),
    Case(
        losses.crpg,
        lambda rng: {
            **log_probs(rng, "log_prob", "reference_log_prob", shape=(3, G)),
            "reward": rng.uniform(size=(3, G)),
            "limit": 5.0,
            "mask": np.array([[True, True, False, True]] * 3),
        },
        surrogate=("log_prob",),
        stopped=("reference_log_prob", "reward"),
        extremes=lambda rng: [
            {"log_prob": np.full((3, G), -500.0)},
            {"reference_log_prob": np.full((3, G), -500.0)},
            {"reward": np.tile([1.0, 0.0, np.nan, 1.0], (3, 1))},
            {"log_prob": np.tile([-1.0, -1.0, np.nan, -1.0], (3, 1))},
            {"mask": np.zeros((3, G), bool)},
        ],
    ),
    *(
        Case(
            losses.rpg,
            lambda rng, kl=kl, normalized=normalized, reinforce=reinforce: {
                **two(rng),
                **log_probs(rng, "reference_log_prob"),
                "beta": 0.1,
                "kl": kl,
                "normalized": normalized,
                "reinforce": reinforce,
            },
            gradient=() if reinforce else ("log_prob",),
            surrogate=("log_prob",) if reinforce else (),
            stopped=("old_log_prob", "reference_log_prob", "advantage"),
            time=("log_prob", "old_log_prob", "reference_log_prob"),
            extremes=unlikely_reference,
            name=f"rpg_{kl}_{normalized}_{reinforce}",
        )
        for kl, normalized, reinforce in [
            ("forward", True, False),
            ("reverse", False, False),
            ("forward", False, True),
            ("reverse", True, True),
        ]
    ),
    *(
        Case(
            losses.rpg_advantage,
            lambda rng, kl=kl, normalized=normalized: {
                **log_probs(rng, "log_prob", "reference_log_prob"),
                "advantage": rng.normal(size=G),
                "beta": 0.1,
                "kl": kl,
                "normalized": normalized,
            },
            stopped=("log_prob", "reference_log_prob", "advantage"),
            time=("log_prob", "reference_log_prob"),
            extremes=lambda rng: [
                {"log_prob": np.full((T, G), -500.0)},
                {"reference_log_prob": np.full((T, G), -500.0)},
                {"advantage": np.full(G, -1e6)},
            ],
            name=f"rpg_advantage_{kl}_{normalized}",
        )
        for kl, normalized in [("forward", True), ("reverse", False)]
    ),
    Case(
        losses.mirror_descent_regression,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob", shape=(3, G)),
            "reward": rng.normal(size=(3, G)),
            "temperature": 0.5,
            "mask": np.array([[True, True, False, True]] * 3),
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "reward"),
        extremes=lambda rng: [
            {"log_prob": np.full((3, G), -500.0)},
            {"reward": np.ones((3, G))},
            {"reward": np.tile([1.0, 0.0, np.nan, 1.0], (3, 1))},
            {"mask": np.zeros((3, G), bool)},
        ],
    ),
    Case(
        losses.guided_ratio,
        lambda rng: {
            **log_probs(rng, "log_prob", "old_log_prob", "hinted_log_prob"),
            "hinted": MASK,
        },
        gradient=("log_prob",),
        stopped=("old_log_prob", "hinted_log_prob"),
        time=("log_prob", "old_log_prob", "hinted_log_prob", "hinted"),
        extremes=lambda rng: [
            {"hinted_log_prob": np.full((T, G), -500.0)},
            {"hinted_log_prob": np.where(MASK, -1.0, np.nan)},
        ],
    ),
]
test_contract = contract(CASES)


def test_sequences_of_any_length():
    log_prob = np.random.default_rng(0).normal(size=(T, G))
    given = jnp.float32(np.where(MASK, log_prob, np.nan)), jnp.array(MASK)
    total = [log_prob[:n, g].sum() for g, n in enumerate(LENGTHS)]
    np.testing.assert_allclose(losses.sequence_log_prob(*given), total, rtol=1e-5)
    ours = losses.sequence_log_prob(*given, normalize=True)
    np.testing.assert_allclose(ours, total / np.maximum(LENGTHS, 1), rtol=1e-5)


@pytest.mark.parametrize("average", AVERAGES)
def test_token_weights_give_the_papers_averages(average):
    """Masks have sequences with gaps, a sequence without tokens, and no tokens at all."""
    rng = np.random.default_rng(0)

    def mean(loss, mask, **settings):
        weight = losses.token_weights(mask, average, **settings)
        return losses.masked_mean(loss * weight, mask)

    for share in (0.0, 0.3, 0.8, 1.0):
        mask = (rng.random((T, G)) < share) & (np.arange(G) != 3)
        loss = rng.normal(size=(T, G))
        each = [loss[mask[:, g], g] for g in range(G) if mask[:, g].any()]
        number, total = np.maximum(mask.sum(0), 1), max(mask.sum(), 1)
        sequences = max(len(each), 1)
        for settings, length in (({}, T), ({"length": 8}, 8)):
            value, slope = {
                "token": (loss[mask].sum() / total, 1 / total),
                "sequence": (sum(x.mean() for x in each) / sequences, 1 / number / sequences),
                "constant": (loss[mask].sum() / length / sequences, 1 / length / sequences),
            }[average]
            given = jnp.float32(np.where(mask, loss, np.nan)), jnp.array(mask)
            ours, gradient = jax.value_and_grad(mean)(*given, **settings)
            np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(gradient, np.where(mask, slope, 0), rtol=1e-5)
    with pytest.raises(ValueError, match="sentence"):
        losses.token_weights(jnp.array(MASK), "sentence")


def test_grpo_is_ppo_and_k3():
    rng = np.random.default_rng(0)
    p, old, ref = -rng.uniform(0.5, 1.5, (3, T, G))
    advantage = rng.normal(size=G)
    ratio = np.exp(p - old)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    k3 = np.exp(ref - p) - (ref - p) - 1
    ours = losses.grpo(*map(jnp.float32, (p, old, ref, advantage)), clip=0.2, beta=0.3)
    np.testing.assert_allclose(ours, -surrogate + 0.3 * k3, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_on_policy_all_have_the_policy_gradient():
    """The gradients at the old policy and the reference are -A, by token or by sequence."""
    log_prob = jnp.float32(-np.random.default_rng(0).uniform(0.5, 1.5, (T, G)))
    advantage = jnp.array([1.0, -0.5, 2.0, -3.0])
    mask = jnp.array(MASK)
    expected = -jnp.broadcast_to(advantage, (T, G))
    for loss in (
        lambda x: losses.grpo(x, log_prob, log_prob, advantage, 0.2, 0.5),
        lambda x: losses.clipped_surrogate(x, log_prob, advantage, 0.2, 0.3),
        lambda x: losses.policy_gradient(x, advantage),
    ):
        ours = jax.grad(lambda x, loss=loss: loss(x).sum())(log_prob)
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
    loss = lambda x: losses.gspo(x, log_prob, advantage, 0.2, 0.3, mask).sum()
    expected = jnp.where(mask, expected / jnp.maximum(LENGTHS, 1), 0)
    np.testing.assert_allclose(jax.grad(loss)(log_prob), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "ratio,advantage,moves",
    [(1.25, 1, True), (1.29, 1, False), (0.7, 1, True), (0.79, -1, False), (1.9, -1, True)],
)
def test_dapo_clips_later_upward(ratio, advantage, moves):
    gradient = jax.grad(losses.clipped_surrogate)(jnp.log(ratio), 0.0, 1.0 * advantage, 0.2, 0.28)
    np.testing.assert_allclose(gradient, -advantage * ratio * moves, rtol=1e-5)


def test_gspo_clips_whole_sequences():
    rng = np.random.default_rng(0)
    p, old = -rng.uniform(0.5, 1.5, (2, T, G))
    advantage = rng.normal(size=G)
    expected = []
    for g, n in enumerate(LENGTHS):
        s = np.exp((p - old)[:n, g].mean()) if n else 1.0
        expected.append(-min(s * advantage[g], np.clip(s, 0.95, 1.1) * advantage[g]))
    given = [jnp.float32(x) for x in (np.where(MASK, p, np.nan), old, advantage)]
    ours = losses.gspo(*given, 0.05, 0.1, jnp.array(MASK))
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_gspo_token_is_gspo_where_advantages_are_equal():
    rng = np.random.default_rng(0)
    p, old = jnp.float32(-rng.uniform(0.5, 1.5, (2, T, G)))
    advantage, mask = jnp.array([1.0, -0.5, 2.0, -3.0]), jnp.array(MASK)
    given = advantage, 0.1, 0.1, mask
    weight = losses.token_weights(mask, "sequence")
    each = lambda p: losses.masked_mean(losses.gspo_token(p, old, *given) * weight, mask)
    whole = lambda p: losses.masked_mean(losses.gspo(p, old, *given), mask.any(0))
    ours, theirs = (jax.jit(jax.value_and_grad(f))(p) for f in (each, whole))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-7)
    moved = (ours[1] != 0).any(0)
    assert moved.any() and not moved[:3].all()  # some sequences are clipped, as a whole


@pytest.mark.slow
def test_gspo_token_gives_each_token_its_own_advantage():
    rng = np.random.default_rng(1)
    p, old, advantage = rng.uniform(-1.5, -0.5, (3, T))
    mask = np.arange(T) < 3
    ratio = np.exp((p - old)[:3].mean())
    gradient = jax.grad(lambda p: losses.gspo_token(p, old, advantage, 9.0, 9.0, mask).sum())
    np.testing.assert_allclose(
        gradient(jnp.float32(p)), np.where(mask, -ratio * advantage, 0), rtol=1e-4
    )


@pytest.mark.parametrize("sums_to_one", [True, False])
@pytest.mark.parametrize(
    "kl,normalized,reinforce",
    list(itertools.product(["forward", "reverse"], [True, False], [True, False])),
)
def test_rpg_has_the_gradient_of_the_regularized_objective(kl, normalized, reinforce, sums_to_one):
    """Enumerate four actions, for a policy and for a measure that does not sum to 1."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        old, ref = (jnp.array(rng.dirichlet(np.ones(4))) for _ in range(2))
        advantage, logits = jnp.array(rng.normal(size=(2, 4)))
        parameters = jax.nn.log_softmax if sums_to_one else lambda x: x
        beta = 0.7

        def objective(x):
            p = jnp.exp(parameters(x))
            divergence = {
                ("forward", True): ref * jnp.log(ref / p),
                ("forward", False): ref * jnp.log(ref / p) + p - ref,
                ("reverse", True): p * jnp.log(p / ref),
                ("reverse", False): p * jnp.log(p / ref) + ref - p,
            }[kl, normalized]
            return (-p * advantage + beta * divergence).sum()

        def surrogate(x):
            given = parameters(x), jnp.log(old), jnp.log(ref), advantage, beta
            return (old * losses.rpg(*given, kl, normalized, reinforce)).sum()

        np.testing.assert_allclose(
            jax.grad(surrogate)(logits), jax.grad(objective)(logits), atol=1e-12
        )
        if not reinforce:  # then the value is also the objective's
            np.testing.assert_allclose(surrogate(logits), objective(logits), atol=1e-12)


@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("normalized", [True, False])
def test_rpgs_advantage_gives_ppo_the_gradient_of_rpg_and_a_clip(kl, normalized):
    rng = np.random.default_rng(0)
    p, ref = jnp.float32(-rng.uniform(0.5, 1.5, (2, 40)))
    old = p + jnp.float32(rng.uniform(-0.4, 0.4, 40))
    advantage = jnp.float32(rng.normal(size=40))
    effective = losses.rpg_advantage(p, ref, advantage, 0.7, kl, normalized)
    gradient = lambda loss: jax.jit(jax.grad(lambda p: loss(p).sum()))(p)
    ours = gradient(lambda p: losses.dual_clipped_surrogate(p, old, effective, 0.2))
    theirs = gradient(lambda p: losses.rpg(p, old, ref, advantage, 0.7, kl, normalized))
    ratio = jnp.exp(p - old)
    clipped = jnp.where(effective > 0, ratio > 1.2, ratio < 0.8)
    assert clipped.any() and not clipped.all()
    np.testing.assert_allclose(ours, jnp.where(clipped, 0, theirs), rtol=1e-4, atol=1e-5)


def test_rpg_rejects_other_divergences():
    x = jnp.zeros(3)
    with pytest.raises(ValueError):
        losses.rpg(x, x, x, x, 0.1, "jeffreys")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        losses.rpg_advantage(x, x, x, 0.1, "jeffreys")  # type: ignore[arg-type]


def test_the_unnormalized_forward_divergence_is_k3():
    p, q, a = jnp.float32(np.random.default_rng(0).normal(size=(3, 5)))
    ours = losses.rpg(p, q, q, a, 1.0, "forward", normalized=False) + jnp.exp(p - q) * a
    np.testing.assert_allclose(ours, losses.kl_k3(q, p), rtol=1e-4, atol=1e-5)


def test_crpg():
    p, ref = np.array([-1.0, -2.0, -1.0, -4.0]), np.array([-2.0, -1.0, -9.0, -4.0])
    reward, mask = np.array([0.8, 0.0, 0.9, 0.4]), np.array([True, True, True, False])
    shaped = np.maximum(1 - (p - ref) / 5, 0) * reward  # the third left the reference too far
    assert shaped[2] == 0
    weight = np.where(mask, shaped - shaped[:3].mean(), 0)
    given = [jnp.float32(np.where(mask, x, np.nan)) for x in (p, ref, reward)]
    loss = lambda x: losses.crpg(x, *given[1:], 5.0, jnp.array(mask))
    np.testing.assert_allclose(loss(given[0]), -weight * p, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: loss(x).sum())(given[0])
    np.testing.assert_allclose(gradient, -weight, rtol=1e-5, atol=1e-6)


def test_mirror_descent_has_kimis_gradient():
    rng = np.random.default_rng(0)
    p, old, reward = rng.normal(size=(3, 2, G))
    tau = 0.5
    gradient = jax.grad(
        lambda p: losses.mirror_descent_regression(p, *map(jnp.float32, (old, reward)), tau).sum()
    )(jnp.float32(p))
    centered = reward - reward.mean(-1, keepdims=True)
    np.testing.assert_allclose(gradient, -2 * tau * (centered - tau * (p - old)), rtol=1e-4)


def test_at_the_tilted_policy_all_residuals_are_equal():
    """Check that r - tau log(p / p_old) is tau log Z, which the group's mean replaces."""
    tau, old = 0.5, jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))
    reward = jnp.array([1.0, 0.3, 0.2, 0.0])
    best = jax.nn.log_softmax(old + reward / tau)
    ours = losses.mirror_descent_regression(best, old, reward, tau)
    log_z = jax.nn.logsumexp(old + reward / tau)
    np.testing.assert_allclose(ours, (tau * log_z - reward.mean()) ** 2, rtol=1e-4)
    estimated = old + (reward - reward.mean()) / tau
    ours = losses.mirror_descent_regression(estimated, old, reward, tau)
    np.testing.assert_allclose(ours, 0, atol=1e-10)


def test_hinted_answers_are_off_policy():
    p, old, hinted = jnp.log(jnp.array([[0.2, 0.2], [0.1, 0.4], [0.8, 0.8]]))
    ours = losses.guided_ratio(p, old, hinted, jnp.array([True, False]))
    np.testing.assert_allclose(ours, [0.25, 0.5], rtol=1e-5)
