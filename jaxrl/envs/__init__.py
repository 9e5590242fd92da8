"""Environments to act in: `make` one by its name, with the `settings` that it has, or
`check_environment` one of your own."""

from jaxrl.envs.check import EnvironmentCheckError, check_environment
from jaxrl.envs.registry import make, names, settings

__all__ = ["EnvironmentCheckError", "check_environment", "make", "names", "settings"]
