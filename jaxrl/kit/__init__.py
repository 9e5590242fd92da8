"""Parts, losses and recipes: how an algorithm is written as a short composition."""

from jaxrl.core.hyper import hyper, static
from jaxrl.core.settings import group
from jaxrl.kit.builder import AlgorithmBuilder
from jaxrl.kit.direct import Direct, DirectBuilder
from jaxrl.kit.minibatches import SEQUENCE, STEP, Minibatch, Unit
from jaxrl.kit.net import Net
from jaxrl.kit.parts import Loss, LossOutput, Part, loss
from jaxrl.kit.recipe import Act, Recipe, Update, in_order

__all__ = [
    "SEQUENCE",
    "STEP",
    "Act",
    "AlgorithmBuilder",
    "Direct",
    "DirectBuilder",
    "Loss",
    "LossOutput",
    "Minibatch",
    "Net",
    "Part",
    "Recipe",
    "Unit",
    "Update",
    "group",
    "hyper",
    "in_order",
    "loss",
    "static",
]
