"""Messages about a name that does not exist."""

import pytest

from jaxrl.algorithms import registry as algorithms
from jaxrl.core import errors
from jaxrl.envs import registry as envs
from jaxrl.runtime import configuration

FLAGS = ("--agent.clip", "--agent.learning-rate", "--env", "--evaluate-every", "--seed", "--steps")
SUITE = ("suite/CartPole-v1", "suite/Acrobot-v1", "suite/Pong-v1")


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("pqo", algorithms.names(), "ppo"),  # another letter
        ("pop", algorithms.names(), "ppo"),  # in another order
        ("pppo", algorithms.names(), "ppo"),  # one too many
        ("pp", algorithms.names(), "ppo"),  # one missing
        ("PPO", algorithms.names(), "ppo"),
        ("reinforced", algorithms.names(), "reinforce"),
        ("cartpool", envs.names(), "cartpole"),
        ("CartPole-v1", envs.names(), "cartpole"),
        ("tic-tac-toe", envs.names(), "tic_tac_toe"),
        ("--learning-rate", FLAGS, "--agent.learning-rate"),
        ("--clip", FLAGS, "--agent.clip"),
        ("--agent.lerning_rate", FLAGS, "--agent.learning-rate"),
        ("--sede", FLAGS, "--seed"),
        ("suite/CartPole-v2", SUITE, "suite/CartPole-v1"),
        ("suite/cartpole", SUITE, "suite/CartPole-v1"),
        ("dyna", algorithms.names(), None),
        ("acktr", algorithms.names(), None),
        ("alphazero", algorithms.names(), None),
        ("impala", algorithms.names(), None),
        ("ant", envs.names(), None),
        ("humanoid", envs.names(), None),
        ("pong", envs.names(), None),
        ("lunar_lander", envs.names(), None),
        ("--lr", FLAGS, "--agent.learning-rate"),
        ("--gamma", ("--agent.discount", "--seed"), "--agent.discount"),
        (
            "--agent.n-steps",
            ("--steps", "--agent.rollouts.num-steps"),
            "--agent.rollouts.num-steps",
        ),
        ("--total-timesteps", ("--agent.rollouts.num-steps", "--steps"), "--steps"),
        ("--vf-coef", FLAGS, None),
        ("--gpu", FLAGS, None),
        ("suite/Doom-v1", SUITE, None),  # similar to all of them, except in the part that matters
        ("agent.gamma", ("agent.clip", "agent.trace"), None),
        ("", FLAGS, None),
    ],
)
def test_only_near_names_are_suggested(name, known, near):
    assert errors.nearest(name, known) == near
    said = str(errors.unknown("thing", name, known))
    assert (f"did you mean '{near}'?" in said) if near else ("did you mean" not in said)


def test_the_names_of_other_libraries_stand_for_settings_here():
    known = set(configuration.leaves(configuration.experiment({})))
    for name in algorithms.names():
        known |= set(configuration.leaves(algorithms.builder(name)[1]()))
    for name, meant in errors.SYNONYMS.items():
        assert any(f".{x}".endswith(f".{meant}") for x in known), (name, meant)


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("abc", "abd", True),
        ("abc", "ab", True),
        ("abc", "xabc", True),
        ("abc", "axc", True),
        ("abcd", "ab", False),
        ("ab", "abcd", False),
        ("sac", "a2c", False),
        ("abc", "axx", False),
    ],
)
def test_one_slip(a, b, one):
    assert errors._one_slip(a, b) is errors._one_slip(b, a) is one


def test_all_names_are_listed_unless_they_are_too_many_to_read():
    few, many = [f"name{i}" for i in range(20)], [f"name{i}" for i in range(537)]
    assert str(errors.unknown("thing", "zzz", few)).endswith(
        f"it may be one of: {', '.join(sorted(few))}."
    )
    said = str(errors.unknown("thing", "zzz", many))
    assert said == "Unknown thing 'zzz'; none of the 537 existing names is near it."
    assert str(errors.unknown("thing", "zzz", [])) == "Unknown thing 'zzz'; there are none."
