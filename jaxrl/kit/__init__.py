"""What stands between `Agent` and a paper: shared settings, and parts that descend their losses."""

from jaxrl.core.hyper import hyper, static
from jaxrl.core.settings import group
from jaxrl.kit.builder import AlgorithmBuilder
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Loss, Part, Recipe, in_order

__all__ = [
    "AlgorithmBuilder",
    "Loss",
    "Net",
    "Part",
    "Recipe",
    "group",
    "hyper",
    "in_order",
    "static",
]
