"""The driven loop around `jaxrl.core.train`: progress, logs, checkpoints, evaluation."""

from jaxrl.runtime.continuing import Trained, load
from jaxrl.runtime.table import read
from jaxrl.runtime.training import train

__all__ = ["Trained", "load", "read", "train"]
