"""The driven loop around `jaxrl.core.train`: progress, logs, checkpoints, evaluation."""

from jaxrl.runtime.training import Trained, load, train

__all__ = ["Trained", "load", "train"]
