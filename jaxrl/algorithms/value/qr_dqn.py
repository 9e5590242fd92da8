"""QR-DQN (Dabney, Rowland, Bellemare and Munos, 2018, "Distributional reinforcement learning with
quantile regression", arXiv:1710.10044): DQN that predicts quantiles of the return, by equation 10
with the fractions of lemma 2."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.value.shared.heads import Head
from jaxrl.algorithms.value.shared.q_learning import (
    TINY_Q_LEARNING,
    QLearning,
    check_q_learning,
    q_learning_recipe,
)
from jaxrl.algorithms.value.shared.quantiles import ADAM, midpoints, quantile_target
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, hyper, static
from jaxrl.kit.acting import mask_illegal
from jaxrl.kit.groups import EpsilonGreedy, Optimizer


@group
class Config(QLearning):
    """Settings of QR-DQN."""

    optimizer: Optimizer = ADAM
    """Adam, 5e-5, epsilon 0.01 over the batch size 32: as in DQN Zoo and Coach."""
    exploration: EpsilonGreedy = EpsilonGreedy()
    huber: float = hyper(1.0, above=0)
    """Kappa, the size from which errors count linearly: 1, as in QR-DQN-1."""
    num_quantiles: int = static(200, low=1)
    """Number of quantiles of a return: 200, as in Dopamine (201 in DQN Zoo)."""


def quantile_head(num_quantiles: int) -> Head:
    """Return a head that predicts quantiles at the midpoints of equal parts of [0, 1] (algorithm
    1). The loss, quantile regression, is the priority too."""
    tau = midpoints(num_quantiles)

    def values(net, quantiles, timestep):
        return mask_illegal(quantiles.mean(-1), timestep)

    def target(net, x, *, discount, evaluated, selector):
        best = values(net, selector, x.next_timestep).argmax(-1)
        return quantile_target(x, discount, evaluated, best)

    def error(net, quantiles, target):
        kappa = net.hyper.huber
        loss = kappa * losses.quantile_huber(quantiles, tau, target, kappa)
        return loss, loss

    return Head(num_quantiles, values, target, error)


def recipe(env: Environment, config: Config) -> Recipe:
    return q_learning_recipe(
        env,
        config.torso,
        quantile_head(config.num_quantiles),
        optimizer=config.optimizer,
        target=config.target,
        exploration=config.exploration,
    )


qr_dqn = AlgorithmBuilder("qr_dqn", Config, recipe, check=check_q_learning)

TINY = TINY_Q_LEARNING | {"num_quantiles": 5}
