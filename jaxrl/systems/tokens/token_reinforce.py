"""REINFORCE (Williams, 1992) for tokens: the policy gradient by the returns of whole answers,
without a baseline."""

from __future__ import annotations

from jaxrl.core.settings import group
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import TINY_GROUPS, Grouped, by_groups, check, policy_gradient


@group
class Config(Grouped):
    """Settings of REINFORCE for tokens."""


token_reinforce = System(
    "token_reinforce", Config, by_groups(lambda returns: returns, policy_gradient), check=check
)

TINY = TINY_GROUPS
