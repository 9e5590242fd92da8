from tests.datasets.stand_in import no_training
from tests.runtime.conftest import finished_pair, finished_run

__all__ = ["finished_pair", "finished_run", "no_training"]
