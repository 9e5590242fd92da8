"""Conservative Q-learning of discrete actions (Kumar, Zhou, Tucker and Levine, 2020, "Conservative
Q-learning for offline reinforcement learning", arXiv:2006.04779): double Q-learning from a dataset,
whose loss also lowers a soft maximum of the values over all actions and raises that of the data's
action (equation 4, whose sum over actions is exact here).

The paper's agent for Atari learns quantiles (QR-DQN); this one learns means.
"""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.offline.shared import discrete_values
from jaxrl.algorithms.offline.shared.discrete_values import outputs, q_error, value_part
from jaxrl.algorithms.value.shared.q_learning import check_q_learning
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss


@group
class Config(discrete_values.DiscreteValues):
    """Settings of discrete CQL: Q-learning whose values are lowered where they are high and raised
    on the data (arXiv:2006.04779)."""

    alpha: float = hyper(1.0, low=0)
    """Weight of the conservative term."""


@loss("q")
def q_loss(net, x):
    """Regress Q(s, a) on its target, and lower log sum_b exp Q(s, b) - Q(s, a) (equation 4)."""
    error, q = q_error(net, x)
    gap = losses.cql(q, x.action)
    value = losses.at_action(q, x.action)
    return LossOutput(error + net.hyper.alpha * gap, {"value": value, "gap": gap})


def recipe(env: Environment, config: Config) -> Recipe:
    def act(net, timestep, memory, key, greedy):
        best = outputs(net.q, timestep).argmax(-1)
        return best.astype(env.action_space.dtype), memory, {}

    return Recipe(parts={"q": value_part(env, config)}, act=act, losses=(q_loss,))


discrete_cql = AlgorithmBuilder("discrete_cql", Config, recipe, check=check_q_learning)

TINY = discrete_values.TINY
