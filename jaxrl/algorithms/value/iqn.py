"""Implicit quantile networks (Dabney, Ostrovski, Silver and Munos, 2018, "Implicit quantile
networks for distributional reinforcement learning", arXiv:1806.06923): DQN whose network is asked
for the return's quantiles at random fractions. Fractions from a distorted distribution give a
policy that avoids risk, or seeks it."""

from __future__ import annotations

from typing import Any, Protocol

from jaxrl import losses
from jaxrl.algorithms.value.shared.q_learning import TINY_Q_LEARNING, check_q_learning
from jaxrl.algorithms.value.shared.quantiles import (
    ImplicitQLearning,
    draw_fractions,
    implicit_quantile_loss,
    implicit_quantiles,
)
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, hyper, loss, static
from jaxrl.kit.acting import epsilon, epsilon_greedy, mask_illegal


class Distortion(Protocol):
    """A distortion of fractions by which actions are chosen."""

    def __call__(self, tau: Array, risk: Array, /) -> Array:
        """Return distorted fractions [...].

        tau: uniform fractions in [0, 1], [...].
        risk: parameter eta of the distortion, a scalar.
        """
        ...


DISTORTIONS: dict[str, Distortion] = {
    "neutral": lambda tau, risk: tau,
    "cvar": losses.cvar_distortion,
    "wang": losses.wang_distortion,
    "cpw": losses.cpw_distortion,
    "power": losses.power_distortion,
    "norm": lambda tau, risk: tau,
}


@group
class Config(ImplicitQLearning):
    """Settings of IQN."""

    num_fractions: int = static(64, low=1)
    """Number of fractions of the prediction (N of equation 3): 64, as in Dopamine's settings of the
    paper (`implicit_quantile_icml.gin`)."""
    num_target_fractions: int = static(64, low=1)
    """Number of fractions of the target (N' of equation 3): 64, as in Dopamine's settings of the
    paper."""
    num_action_fractions: int = static(32, low=1)
    """Number of fractions by whose mean actions are chosen (K): 32, as in Dopamine's settings of
    the paper."""
    distortion: str = static("neutral", choices=DISTORTIONS)
    """Weighting of outcomes when actions are chosen: neutral, cvar, wang, cpw, power or norm. All
    count alike (neutral), only the worst count (cvar), all on a shifted normal scale (wang), rare
    ones more (cpw), all on the scale of a power (power), those in the middle more (norm)."""
    risk: float = hyper(1.0)
    """Parameter eta of the distortion. Neutral are cvar 1, wang 0, cpw 1 and power 0; negative
    values of wang and power avoid risk."""
    norm_draws: int = static(3, low=1)
    """Number of uniform draws whose mean is a fraction of the distortion `norm`: 3, as in the
    paper; 1 is neutral."""


def recipe(env: Environment, config: Config) -> Recipe:
    distort = DISTORTIONS[config.distortion]
    draws = config.norm_draws if config.distortion == "norm" else 1

    def values(net: Net, timestep: TimeStep, q: Any = None) -> Array:
        """Return means over K quantiles at distorted fractions, by the network `q`."""
        shape = (config.num_action_fractions, draws)
        tau = draw_fractions(net, "choose", timestep, shape).mean(-1)
        quantiles = (q or net.q)(timestep, distort(tau, net.hyper.risk))
        return mask_illegal(quantiles.mean(-1), timestep)

    @loss("q")
    def q_loss(net, x):
        """Equation 3, where the target follows the best action of the target network."""
        best = values(net, x.next_timestep, net.target.q).argmax(-1)
        error = implicit_quantile_loss(
            net,
            x,
            best,
            num_fractions=config.num_fractions,
            num_target_fractions=config.num_target_fractions,
        )
        return LossOutput(error, priority=error)

    def update(net, batch):
        net = net.descend(q_loss, batch).update_targets()
        return net.report(epsilon=epsilon(net, config.exploration))

    q = implicit_quantiles(
        env,
        config.torso,
        config.num_cosines,
        optimizer=config.optimizer,
        target=config.target,
    )
    act = epsilon_greedy(values, env.action_space, config.exploration)
    return Recipe(parts={"q": q}, act=act, losses=(q_loss,), update=update)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` where Q-learning does not fit, and for a risk outside of (0, 1] where the
    distortion needs one inside."""
    check_q_learning(env, config, name)
    if config.distortion in ("cvar", "cpw") and not 0 < config.risk <= 1:
        raise UserError(
            f"risk is {config.risk}; the distortion {config.distortion} takes one above 0 and at "
            "most 1."
        )


iqn = AlgorithmBuilder("iqn", Config, recipe, check=check)

TINY = TINY_Q_LEARNING | {
    "num_cosines": 3,
    "num_fractions": 4,
    "num_target_fractions": 3,
    "num_action_fractions": 2,
    "distortion": "norm",
}
