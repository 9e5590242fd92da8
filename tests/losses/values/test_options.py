import itertools

import jax
import jax.numpy as jnp
import numpy as np

from tests.losses import tabular
from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def target(rng):
    return {
        "reward": rng.normal(size=5),
        "terminated": np.arange(5) % 2 == 0,
        "discount": 0.9,
        "option": rng.integers(0, 3, 5),
        "termination_prob": rng.uniform(size=5),
        "next_q_values": rng.normal(size=(5, 3)),
    }


def termination(rng):
    return {
        "termination_prob": rng.uniform(size=5),
        "option": rng.integers(0, 3, 5),
        "q_values": rng.normal(size=(5, 3)),
        "cost": 0.1,
    }


def belief_inputs(rng):
    return {
        "log_prob": -rng.exponential(size=(4, 2, 3)),
        "transition": rng.dirichlet(np.ones(3), (4, 2, 3)),
        "initial": rng.dirichlet(np.ones(3)),
        "done": np.array([[0, 0], [0, 1], [0, 0], [1, 0]], bool),
    }


ENDED = {"next_q_values": np.full((5, 3), np.nan), "terminated": np.ones(5, bool)}
CASES = [
    Case(
        losses.option_target,
        target,
        stopped=("reward", "termination_prob", "next_q_values"),
        time=("reward", "terminated", "option", "termination_prob", "next_q_values"),
        extremes=lambda rng: [ENDED],
    ),
    Case(
        losses.option_target,
        lambda rng: {**target(rng), "option_prob": rng.dirichlet(np.ones(3), 5)},
        stopped=("reward", "termination_prob", "next_q_values", "option_prob"),
        extremes=lambda rng: [ENDED],
        name="option_target-policy",
    ),
    Case(
        losses.option_termination,
        termination,
        gradient=("termination_prob",),
        stopped=("q_values",),
        time=("termination_prob", "option", "q_values"),
        extremes=lambda rng: [{"q_values": 1e15 * np.eye(5, 3)}],
    ),
    Case(
        losses.option_termination,
        lambda rng: {**termination(rng), "option_prob": rng.dirichlet(np.ones(3), 5)},
        gradient=("termination_prob",),
        stopped=("q_values", "option_prob"),
        name="option_termination-policy",
    ),
    Case(
        losses.option_belief,
        belief_inputs,
        gradient=("log_prob", "transition", "initial"),
        time=("log_prob", "transition", "done"),
        extremes=lambda rng: [
            {"log_prob": np.full((4, 2, 3), -500.0)},
            {"log_prob": np.tile([-np.inf, -1.0, -500.0], (4, 2, 1))},
            {"initial": np.eye(3)[0], "transition": np.tile(np.eye(3), (4, 2, 1, 1))},
        ],
        diverging=lambda rng: [{"log_prob": np.full((4, 2, 3), -np.inf)}],
    ),
]
test_contract = contract(CASES)


def test_beliefs_are_the_posterior_over_option_sequences():
    """Compare with brute force over all sequences of options, each episode separately."""
    with jax.enable_x64(True):
        x = belief_inputs(np.random.default_rng(0))
        log_prob, belief = losses.option_belief(**x)
    steps = len(x["log_prob"])
    for b in range(2):
        for t in range(steps):
            ends = np.flatnonzero(x["done"][:t, b])
            start = ends[-1] + 1 if ends.size else 0
            joint = np.zeros((3, 2))  # probability of option t, without and with action t
            for options in itertools.product(range(3), repeat=t - start + 1):
                chance = x["initial"][options[0]]
                for k, (o, following) in enumerate(itertools.pairwise(options), start):
                    chance *= np.exp(x["log_prob"][k, b, o]) * x["transition"][k, b, o, following]
                joint[options[-1]] += chance, chance * np.exp(x["log_prob"][t, b, options[-1]])
            past, now = joint.sum(0)
            np.testing.assert_allclose(belief[t, b], joint[:, 0] / past, rtol=1e-9)
            np.testing.assert_allclose(log_prob[t, b], np.log(now / past), rtol=1e-9)


def test_a_belief_continues_in_the_next_segment():
    x = belief_inputs(np.random.default_rng(1))
    initial = x.pop("initial")
    log_prob, belief = losses.option_belief(**x, initial=initial)
    first, second = ({k: v[part] for k, v in x.items()} for part in (slice(2), slice(2, None)))
    carried = losses.option_belief(**first, initial=initial)[1][-1]
    later = losses.option_belief(**second, initial=initial, belief=carried)
    np.testing.assert_allclose(later[0], log_prob[2:], rtol=1e-5)
    np.testing.assert_allclose(later[1], belief[2:], rtol=1e-5)


def test_an_action_that_no_option_allows_leaves_the_belief_unchanged():
    log_prob = np.array([[-np.inf, -np.inf], [-1.0, -2.0]])
    stay = np.tile(np.eye(2), (2, 1, 1))
    ours, belief = losses.option_belief(log_prob, stay, np.array([0.3, 0.7]), np.zeros(2, bool))
    np.testing.assert_allclose(ours, [-np.inf, np.log(0.3 * np.exp(-1) + 0.7 * np.exp(-2))], 1e-6)
    np.testing.assert_allclose(belief[1], [0.3, 0.7], rtol=1e-6)


def test_an_option_that_always_or_never_ends():
    x = target(np.random.default_rng(0))
    x["terminated"] = np.zeros(5, bool)
    ours = losses.option_target(**{**x, "termination_prob": np.zeros(5)})
    stay = x["next_q_values"][np.arange(5), x["option"]]
    np.testing.assert_allclose(ours, x["reward"] + 0.9 * stay, rtol=1e-5, atol=1e-6)
    ours = losses.option_target(**{**x, "termination_prob": np.ones(5)})
    best = x["next_q_values"].max(-1)
    np.testing.assert_allclose(ours, x["reward"] + 0.9 * best, rtol=1e-5, atol=1e-6)
    policy = np.full((5, 3), 1 / 3)
    ours = losses.option_target(**{**x, "termination_prob": np.ones(5), "option_prob": policy})
    mean = x["next_q_values"].mean(-1)
    np.testing.assert_allclose(ours, x["reward"] + 0.9 * mean, rtol=1e-5, atol=1e-6)


def test_options_that_repeat_an_action_converge_to_their_values():
    """Option o takes action o until it ends (probability 0.3); the best option follows."""
    environment = tabular.random_environment(9)
    best = np.zeros((5, 3))
    for _ in range(300):
        choice = best.max(-1)
        best = np.stack(
            [
                tabular.backup(environment, 0.7 * best[:, option] + 0.3 * choice)[:, option]
                for option in range(3)
            ],
            -1,
        )

    def step(_, reward, terminated, discount, next_q):
        option = jnp.broadcast_to(jnp.arange(3)[:, None], reward.shape)
        return losses.option_target(reward, terminated, discount, option, 0.3, next_q)

    np.testing.assert_allclose(tabular.converge(environment, step), best, rtol=1e-4, atol=1e-4)


def test_an_option_ends_less_where_it_is_good_and_the_cost_keeps_it():
    q_values = jnp.array([[1.0, 3.0], [1.0, 3.0]])
    option = jnp.array([0, 1])

    def slope(**more):
        loss = lambda prob: losses.option_termination(prob, option, q_values, **more).sum()
        return jax.grad(loss)(jnp.full(2, 0.5))

    np.testing.assert_allclose(slope(), [-2, 0])
    np.testing.assert_allclose(slope(cost=0.5), [-1.5, 0.5])
    np.testing.assert_allclose(slope(option_prob=jnp.full((2, 2), 0.5)), [-1, 1])
