"""QR-DQN (Dabney, Rowland, Bellemare and Munos, 2018, "Distributional reinforcement learning with
quantile regression", arXiv:1710.10044): DQN that predicts quantiles of the return, by equation 10
with the fractions of lemma 2."""

from __future__ import annotations

import dataclasses

from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.shared.heads import quantile
from jaxrl.kit import group, static
from jaxrl.kit.groups import Optimizer

ADAM = Optimizer(learning_rate=5e-5, eps=0.01 / 32)


@group
class Config(dqn_.Config):
    """Settings of QR-DQN. `huber` is kappa, 1 as theirs (QR-DQN-1)."""

    optimizer: Optimizer = ADAM
    """Adam, 5e-5, epsilon 0.01 over the batch size 32: as in DQN Zoo and Coach."""
    num_quantiles: int = static(200, low=1)
    """Quantiles of a return: 200, as in Dopamine (201 in DQN Zoo)."""


qr_dqn = dataclasses.replace(
    dqn_.dqn,
    name="qr_dqn",
    Config=Config,
    recipe=lambda env, config: dqn_.recipe(env, config, head=quantile(config.num_quantiles)),
)

TINY = dqn_.TINY | {"num_quantiles": 5}
