"""Implicit quantile networks (Dabney, Ostrovski, Silver and Munos, 2018, "Implicit quantile
networks for distributional reinforcement learning", arXiv:1806.06923): DQN whose network is asked
for the return's quantiles at fractions that are drawn. Drawn from a distorted distribution they
make a policy that is averse to risk, or seeks it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.value import dqn as dqn_
from jaxrl.algorithms.value.qr_dqn import ADAM
from jaxrl.algorithms.value.shared.heads import of_action, quantile_target
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Transition
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import epsilon_greedy, mask_illegal
from jaxrl.kit.groups import Optimizer
from jaxrl.networks.q_network import ImplicitQuantiles

# What fractions tau, uniform in [0, 1], become by which actions are chosen.
DISTORTIONS = {
    "neutral": lambda tau, risk: tau,
    "cvar": losses.cvar_distortion,
    "wang": losses.wang_distortion,
    "cpw": losses.cpw_distortion,
    "power": losses.power_distortion,
    "norm": lambda tau, risk: tau,
}


@group
class Implicit(dqn_.Config):
    """Settings of who asks a network for quantiles. `huber` is kappa, 1 as theirs."""

    optimizer: Optimizer = ADAM
    """Adam, 5e-5, epsilon 0.01 over the batch size 32: as QR-DQN's, and as in Dopamine's and DQN
    Zoo's IQN and the authors' FQF."""
    num_cosines: int = static(64, low=1)
    """Cosines that a fraction is embedded by (n of equation 4): 64, as in DQN Zoo."""


@group
class Config(Implicit):
    """Settings of IQN."""

    num_fractions: int = static(64, low=1)
    """N of equation 3, fractions of the prediction: 64, as in Dopamine's settings of the paper
    (`implicit_quantile_icml.gin`)."""
    num_target_fractions: int = static(64, low=1)
    """N' of equation 3, fractions of the target, likewise."""
    num_action_fractions: int = static(32, low=1)
    """K, fractions by whose mean actions are chosen, likewise 32."""
    distortion: str = static("neutral", choices=DISTORTIONS)
    """Which outcomes count when an action is chosen: all (neutral), the worst (cvar), all on a
    shifted normal scale (wang), the rare more (cpw), a power's (power), the middle more (norm)."""
    risk: float = hyper(1.0)
    """Eta of the distortion. Neutral are cvar 1, wang 0, cpw 1, power 0; negative ones of wang and
    power are averse to risk."""
    norm_draws: int = static(3, low=1)
    """Of so many uniform numbers each fraction of `norm` is the mean: theirs; 1 is neutral."""


def implicit_quantiles(env: Environment, config: Any) -> Part:
    """The network of IQN and FQF, with its copy."""
    cosines = config.num_cosines
    network = dqn_.q_network(env, config.torso, ImplicitQuantiles, num_cosines=cosines)
    return Part(network, (example_timestep(env), jnp.zeros((1, 1))), target="target")


def drawn(net: Net, name: str, timestep: TimeStep, *sizes: int) -> Array:
    """Uniform numbers [..., *sizes] for time steps [...]."""
    return jax.random.uniform(net.key(name), (*timestep.reward.shape, *sizes))


def regression(net: Net, x: Transition, best: Array, predicted: int, followed: int) -> Array:
    """Equation 3 [B]: all pairs of so many predicted quantiles and quantiles of the target, which
    follows the actions `best` [B]."""
    following = drawn(net, "evaluate", x.next_timestep, followed)
    goal = quantile_target(x, net.hyper.discount, net.target.q(x.next_timestep, following), best)
    tau = drawn(net, "predict", x.timestep, predicted)
    quantiles = of_action(net.q(x.timestep, tau), x.action)
    return losses.quantile_huber(quantiles, tau, goal, net.hyper.huber)


def recipe(env: Environment, config: Config) -> Recipe:
    distort = DISTORTIONS[config.distortion]
    draws = config.norm_draws if config.distortion == "norm" else 1

    def values(net: Net, timestep: TimeStep, q: Any = None) -> Array:
        """Means over K quantiles at distorted fractions."""
        tau = drawn(net, "choose", timestep, config.num_action_fractions, draws).mean(-1)
        quantiles = (q or net.q)(timestep, distort(tau, net.hyper.risk))
        return mask_illegal(quantiles.mean(-1), timestep)

    def q_loss(net, x):
        """Equation 3, following what is best for the copy."""
        best = values(net, x.next_timestep, net.target.q).argmax(-1)
        loss = regression(net, x, best, config.num_fractions, config.num_target_fractions)
        return loss, {"priority": loss}

    return Recipe(
        parts={"q": implicit_quantiles(env, config)},
        act=epsilon_greedy(values, env.action_space, config.exploration),
        losses={"q_loss": Loss(q_loss, ("q",))},
        update=dqn_.explorer_in_order,
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as DQN does, and for a share of outcomes that is none."""
    dqn_.check(env, config, name)
    if config.distortion in ("cvar", "cpw") and not 0 < config.risk <= 1:
        raise UserError(
            f"risk is {config.risk}; the distortion {config.distortion} takes one above 0 and at "
            "most 1."
        )


iqn = AlgorithmBuilder("iqn", Config, recipe, check=check)

TINY = dqn_.TINY | {
    "num_cosines": 3,
    "num_fractions": 4,
    "num_target_fractions": 3,
    "num_action_fractions": 2,
    "distortion": "norm",
}
