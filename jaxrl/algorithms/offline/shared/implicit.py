"""Settings of implicit Q-learning, wherever its rewards come from."""

from __future__ import annotations

from jaxrl.kit import group, hyper, static
from jaxrl.kit.groups import INF, Optimizer, Target, Torso


@group
class Implicit:
    """Settings shared by algorithms that learn by implicit Q-learning."""

    torso: Torso = Torso(hidden=(256, 256))
    critic: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the value and of the critics, separately. Adam, 3e-4: authors' code."""
    actor: Optimizer = Optimizer(
        learning_rate=3e-4, learning_rate_steps=1_000_000.0, schedule="cosine"
    )
    """Optimizer settings of the policy. Adam, 3e-4, with a cosine to 0 over the authors' 1M
    gradient steps; constant where their agent continues online (authors' code)."""
    target: Target = Target(rate=0.005)
    num_critics: int = static(2, low=1)
    """Number of critics; the minimum of their values is used."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    reward_scale: float = hyper(1.0, above=0)
    """Factor on rewards; the authors divide by the range of the data's returns."""
    expectile: float = hyper(0.7, above=0, below=1)
    """Expectile of the value over the data's actions: 0.5 is their mean, near 1 their maximum."""
    temperature: float = hyper(1 / 3, above=0, high=INF, log=True)
    """Temperature of the advantage weights, 1 / beta in the paper; infinite for plain cloning."""
