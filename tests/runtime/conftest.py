from pathlib import Path

import pytest

from tests.runtime import tiny


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The tiny run, finished. Not to be written to."""
    return tiny.train(tmp_path_factory.mktemp("finished"), "run")


@pytest.fixture(scope="session")
def finished_pair(tmp_path_factory) -> Path:
    """The same with two seeds."""
    return tiny.train(tmp_path_factory.mktemp("pair"), "run", "--seeds", "2")
