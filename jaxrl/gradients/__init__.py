"""Gradient estimators, surgery on several tasks' gradients, and update steps.

Plain functions of arrays. A gradient is a vector [..., P] (a flattened tree); several are
[..., K, P].
"""

from jaxrl.gradients.estimators import *  # noqa: F403
from jaxrl.gradients.steps import *  # noqa: F403
from jaxrl.gradients.surgery import *  # noqa: F403
