"""The driven loop around `jaxrl.core.train`: progress, logs, checkpoints, evaluation."""

from jaxrl.runtime.continuing import Trained, load
from jaxrl.runtime.training import train

__all__ = ["Trained", "load", "train"]
