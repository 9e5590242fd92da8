from pathlib import Path

import pytest

from tests.datasets.stand_in import no_training
from tests.runtime import tiny

__all__ = ["finished_pair", "finished_run", "no_training"]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """Train the tiny run to its end. The folder must not be written to."""
    return tiny.train(tmp_path_factory.mktemp("finished"), "run")


@pytest.fixture(scope="session")
def finished_pair(tmp_path_factory) -> Path:
    """Train the tiny run with two seeds. The folder must not be written to."""
    return tiny.train(tmp_path_factory.mktemp("pair"), "run", "--seeds", "2")
