from tests.runtime.conftest import finished, finished_pair

__all__ = ["finished", "finished_pair"]
