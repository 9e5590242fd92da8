"""DPO (Rafailov et al., 2023, "Direct preference optimization: your language model is secretly a
reward model", arXiv:2305.18290): a policy learns from a dataset of pairs of answers as the reward
model of itself (equation 7). The reference is the policy that training begins with, which also
wrote the pairs.

`loss` replaces the logistic loss by others of two answers, under the names of TRL's DPOTrainer; see
`jaxrl.losses`. TRL's `ipo` averages log-ratios over tokens, as its authors advise; `ipo_sum` is the
paper's. `cloning_weight` adds the negative mean log-likelihood of the chosen answer (Pang et al.,
2024, "Iterative reasoning preference optimization", arXiv:2404.19733, equation 1), TRL's `sft`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import measure_optimum
from jaxrl.algorithms.preferences.shared.pairs import (
    Answers,
    check_whole,
    loss_of_pairs,
    on_pairs,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, ReferencePolicy
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Values
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import Optimizer

# A loss of two answers: (hyperparameters, chosen, rejected) -> [n].
Objective = Callable[[Values, Answers, Answers], Array]


def _plain(function: Callable[..., Array]) -> Objective:
    """Return a loss that reads beta alone."""
    return lambda h, chosen, rejected: function(*_four(chosen, rejected), h.beta)


def _with_smoothing(function: Callable[..., Array]) -> Objective:
    """Return a loss that also reads how probably a label is wrong."""
    return lambda h, *both: function(*_four(*both), h.beta, h.label_smoothing)


def _per_token(objective: Objective) -> Objective:
    """Return a loss of means over tokens."""
    return lambda h, chosen, rejected: objective(h, chosen.per_token, rejected.per_token)


def _four(chosen: Answers, rejected: Answers) -> tuple[Array, Array, Array, Array]:
    return chosen.log_prob, rejected.log_prob, chosen.reference, rejected.reference


def _discopop(h: Values, chosen: Answers, rejected: Answers) -> Array:
    return losses.discopop(*_four(chosen, rejected), h.beta, h.temperature)


def _sppo_hard(h: Values, chosen: Answers, rejected: Answers) -> Array:
    """SPPO with win rates 1 and 0, and steps of 1 / beta."""
    first = losses.sppo(chosen.log_prob, chosen.reference, jnp.float32(1), 1 / h.beta)
    return first + losses.sppo(rejected.log_prob, rejected.reference, jnp.float32(0), 1 / h.beta)


def cloning(chosen: Answers) -> Array:
    """Return the negative mean log-likelihood of the chosen answers' tokens, [n]."""
    return losses.behavior_cloning(chosen.per_token.log_prob)


OBJECTIVES: dict[str, Objective] = {
    "sigmoid": _with_smoothing(losses.dpo),
    "sigmoid_norm": _per_token(_with_smoothing(losses.dpo)),
    "hinge": _plain(losses.dpo_hinge),
    "ipo": _per_token(_plain(losses.ipo)),
    "ipo_sum": _plain(losses.ipo),
    "exo_pair": _with_smoothing(losses.exo),
    "nca_pair": _plain(losses.nca),
    "robust": _with_smoothing(losses.robust_dpo),
    "bco_pair": _plain(losses.bco),
    "sppo_hard": _sppo_hard,
    "aot": _with_smoothing(losses.aot),
    "aot_unpaired": _with_smoothing(losses.aot_unpaired),
    "apo_zero": _plain(losses.apo_zero),
    "apo_down": _plain(losses.apo_down),
    "discopop": _discopop,
    "sft": lambda h, chosen, rejected: cloning(chosen),
}


@group
class Objectives(ReferencePolicy):
    """Settings shared by DPO's losses, whatever pairs they learn from."""

    optimizer: Optimizer = Optimizer("rmsprop", learning_rate=1e-6, max_grad_norm=10.0)
    """Optimizer settings. RMSProp, 1e-6: appendix B, without its warm-up of 150 steps; the gradient
    norm is that of its authors' code. (Small networks need larger steps.)"""
    loss: str = static("sigmoid", choices=OBJECTIVES)
    """Loss of a pair, by TRL's name, or ipo_sum."""
    label_smoothing: float = hyper(0.0, low=0, high=0.5)
    """Probability that a label is wrong: conservative DPO (sigmoid), robust, exo_pair, aot."""
    temperature: float = hyper(0.05, above=0)
    """Temperature of the modulation in discopop."""
    cloning_weight: float = hyper(0.0, low=0)
    """Weight of cloning the chosen answer, beside the loss of the pair."""


@group
class Config(Objectives):
    """Settings of DPO: a policy as its own reward model of a dataset of pairs (arXiv:2305.18290,
    equation 7)."""


def recipe(env: Environment, config: Objectives, **options: Any) -> Recipe:
    """Return DPO's recipe. options: of `on_pairs`."""
    objective = OBJECTIVES[config.loss]

    def pair_loss(net: Net, chosen: Answers, rejected: Answers) -> Array:
        value = objective(net.hyper, chosen, rejected)
        return value + net.hyper.cloning_weight * cloning(chosen)

    options = {"scores": ("kl_to_optimum",), **options}
    return on_pairs(env, config, loss_of_pairs(pair_loss), **options)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `pairs.check`, for an objective that is infinite with these settings,
    and for one of a whole minibatch whose gradient is computed in chunks."""
    pairs.check(env, config, name)
    smoothing = config.label_smoothing
    if config.loss == "exo_pair" and smoothing == 0:
        raise UserError("exo_pair needs label_smoothing above 0 (the paper has 0.001).")
    if config.loss == "robust" and smoothing >= 0.5:
        raise UserError(f"robust needs label_smoothing below 0.5, got {smoothing}.")
    if config.loss.startswith("aot"):
        check_whole(config, f"{config.loss}")


def check_some(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `check`, and for an objective that ranks all pairs of a minibatch, for
    algorithms that leave some of them out."""
    check(env, config, name)
    if config.loss.startswith("aot"):
        raise UserError(
            f"{config.loss} ranks all pairs of a minibatch, of which {name} leaves some out; "
            "choose another loss."
        )


dpo = AlgorithmBuilder("dpo", Config, recipe, check=check, measure=measure_optimum)

TINY = SMALL_PAIRS
