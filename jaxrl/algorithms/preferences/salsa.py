"""SALSA (Chegini et al., 2024, "SALSA: Soup-based Alignment Learning for Stronger Adaptation in
RLHF", arXiv:2411.01798): PPO whose divergence penalty pulls toward a soup, the policy with the mean
of the parameters of two independently fine-tuned policies,

    theta_reference = share theta_1 + (1 - share) theta_2

Warm-start it from a run of `salsa_supervised`, which fine-tunes both. Training begins at the first
policy, which is the target network; the second one is frozen. With a `share` of 1 it is
`token_ppo`. That training begins at the first policy and not at the soup, and that equal shares are
the paper's default, is not confirmed. The rewards are the environment's; the paper has those of a
reward model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl.algorithms.preferences.rewarded_soups import soup
from jaxrl.algorithms.preferences.salsa_supervised import SECOND
from jaxrl.algorithms.tokens import token_ppo as of_ppo
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Divergence
from jaxrl.algorithms.tokens.token_ppo import Config as PPOConfig
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import Net, Part, Recipe, group, hyper
from jaxrl.kit.parts import trainable
from jaxrl.kit.state import State


@group
class Config(PPOConfig):
    """Settings of SALSA: PPO near the mean of the parameters of two fine-tuned policies
    (arXiv:2411.01798)."""

    kl: Divergence = Divergence(weight=0.02)
    """Penalty on the KL divergence from the soup. (The paper's weight is not confirmed.)"""
    share: float = hyper(0.5, low=0, high=1)
    """Coefficient of the policy that training begins with in the soup; the second one has the
    rest."""


def with_soup(net: Net) -> Net:
    """Return a net whose reference policy is the soup of the target network and the second
    policy."""
    own = net.parts["actor_critic"]
    mixed = soup((own.target, trainable(net.parts[SECOND].params)), net.hyper.share)
    return net.replace(parts=net.parts | {"actor_critic": dataclasses.replace(own, target=mixed)})


def adopt(state: State, other: Any) -> Any:
    """Go on from a policy with a second one, which stays as it is."""
    if not isinstance(other, State) or SECOND not in other.parts:
        return other  # which will not fit
    second = dataclasses.replace(state.parts[SECOND], params=other.parts[SECOND].params)
    return dataclasses.replace(other, parts=other.parts | {SECOND: second})


def recipe(env: Environment, config: Config) -> Recipe:
    plain = of_ppo.recipe(env, config)
    policy = plain.parts["actor_critic"]
    second = Part(policy.network, policy.inputs, begins_as="actor_critic")

    def update(net: Net, batch: Batch) -> Net:
        first = net.parts["actor_critic"].target
        net = plain.update(with_soup(net), batch)
        own = dataclasses.replace(net.parts["actor_critic"], target=first)
        return net.replace(parts=net.parts | {"actor_critic": own}).update_targets()

    parts = {**plain.parts, SECOND: second}
    return dataclasses.replace(plain, parts=parts, update=update, adopt=adopt)


salsa = of_ppo.token_ppo.variant(
    "salsa", Config=Config, recipe=recipe, goes_on_from="salsa_supervised"
)

TINY = SMALL_GROUPS
