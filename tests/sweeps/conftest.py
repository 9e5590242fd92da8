from tests.runtime.conftest import finished_pair, finished_run

__all__ = ["finished_pair", "finished_run"]
