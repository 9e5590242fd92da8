"""What stands between `Agent` and a paper: shared settings, and parts that descend their losses."""

from jaxrl.core.hyper import hyper, static
from jaxrl.core.settings import group
from jaxrl.kit.net import Net
from jaxrl.kit.recipe import Loss, Part, Recipe, in_order
from jaxrl.kit.system import System

__all__ = ["Loss", "Net", "Part", "Recipe", "System", "group", "hyper", "in_order", "static"]
