"""VPT: the inverse dynamics model's labels, from which alone the policy learns."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import vpt
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from tests.algorithms.offline.labels import Labels
from tests.datasets.stand_in import no_training

__all__ = ["no_training"]

ENV = envs.make("cartpole")
SETTINGS = {
    "data.name": "random",
    "data.batch_size": 64,
    "torso.hidden": (8,),
    "inverse.torso.hidden": (32,),
    "inverse.optimizer.learning_rate": 0.02,
    "labeled": 0.3,
}


@pytest.mark.slow
def test_the_policy_learns_from_labels_alone(no_training):
    """Only the change of velocity after a step tells the action of random play."""
    labels = Labels(
        vpt,
        vpt.vpt,
        ENV,
        replace(vpt.Config(), SETTINGS | {"inverse.steps": 200.0}),
        lambda action: 1 - action,
    )
    errors = labels.check_phases(200, ("actor",))
    assert errors[0] > 0.6 and errors[-1] < 0.35  # log 2 is what one who cannot tell would have
    assert np.isfinite(errors).all()


def test_an_environment_beside_the_data_is_refused():
    with pytest.raises(UserError, match=r"^vpt learns from a dataset alone"):
        vpt.vpt.agent(ENV, replace(vpt.Config(), SETTINGS | {"num_envs": 2}))
