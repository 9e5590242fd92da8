"""Sampling with diffusion models and flows: schedules, conversions, denoising steps, guidance.

Plain functions of arrays; network outputs and noise are arguments. Features are the last axis;
levels and times have one axis fewer; everything else broadcasts. The values `VariancePreserving`,
`EDM` and `Flow` are whole processes: training examples, and the sampling loop with its hooks. The
training losses are in `jaxrl.losses`.
"""

from jaxrl.diffusion.discrete import *  # noqa: F403
from jaxrl.diffusion.edm import *  # noqa: F403
from jaxrl.diffusion.flows import *  # noqa: F403
from jaxrl.diffusion.guidance import *  # noqa: F403
from jaxrl.diffusion.processes import *  # noqa: F403
from jaxrl.diffusion.sampling import *  # noqa: F403
from jaxrl.diffusion.variance_preserving import *  # noqa: F403
