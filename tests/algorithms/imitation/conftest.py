"""Datasets are a few random steps."""

from tests.datasets.stand_in import no_training

__all__ = ["no_training"]
