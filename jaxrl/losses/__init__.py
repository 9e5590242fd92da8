"""Functional losses and estimators: plain functions of arrays, importable on their own."""

from jaxrl.losses.advantages import discounted_returns, gae
from jaxrl.losses.policy_gradient import approximate_kl, clipped_surrogate, policy_gradient
from jaxrl.losses.value import clipped_squared_error, explained_variance, squared_error

__all__ = [
    "approximate_kl",
    "clipped_squared_error",
    "clipped_surrogate",
    "discounted_returns",
    "explained_variance",
    "gae",
    "policy_gradient",
    "squared_error",
]
