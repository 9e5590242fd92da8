"""Environments by name: `make` builds one, `settings` lists what can be set, `check_environment`
tests one of your own."""

from jaxrl.envs.check import EnvironmentCheckError, check_environment
from jaxrl.envs.registry import make, names, settings

__all__ = ["EnvironmentCheckError", "check_environment", "make", "names", "settings"]
