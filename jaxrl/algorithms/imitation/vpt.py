"""VPT (Baker et al., 2022, "Video PreTraining (VPT): learning to act by watching unlabeled online
videos", arXiv:2206.11795): an inverse dynamics model, learned from few episodes with actions,
labels many without, and a policy clones them all.

The inverse dynamics model may look ahead: it tells an action from observations before and after its
step, which is easier than to choose an action, as a policy must, from those before it alone. Here
it sees a few steps of each side through a multilayer perceptron, where the paper has 128 frames and
a network with attention; the policy is that of `bc`, without memory. These are the paper's first
two phases, whose policy it calls the foundation model. The third, fine-tuning by cloning or by PPO
with a penalty on the distance to this policy, is not done.
"""

from __future__ import annotations

from jaxrl.algorithms.offline import bc
from jaxrl.algorithms.offline.shared import inverse_dynamics
from jaxrl.algorithms.offline.shared.data import TINY_DATA, Data
from jaxrl.algorithms.offline.shared.inverse_dynamics import Inverse
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(bc.Config):
    """Settings of VPT: cloning of episodes labeled by an inverse dynamics model that looks ahead
    (arXiv:2206.11795)."""

    data: Data = Data(name="expert")
    inverse: Inverse = Inverse(past=2, future=2, labeled_below=1.0)


def recipe(env: Environment, config: Config) -> Recipe:
    steps = lambda net: net.hyper.inverse.steps
    return inverse_dynamics.learn_from_labels(bc.recipe(env, config), env, config.inverse, steps)


def source(env: Environment, config: Config) -> Source:
    """Return steps of the dataset with those around them, of which some are labeled."""
    return inverse_dynamics.source(env, config.data, config.inverse)


vpt = AlgorithmBuilder("vpt", Config, recipe, source, check=bc.check)

TINY = TINY_DATA | {
    "env": "cartpole",
    "torso.hidden": (8,),
    "inverse.torso.hidden": (8,),
    "inverse.past": 1,
    "inverse.future": 1,
    "inverse.steps": 2.0,
    "normalization.observation": True,
}
