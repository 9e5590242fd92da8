"""Sampling by diffusion and flows: noise schedules, conversions, denoising steps, guidance.

Plain functions of arrays; what networks predict and noise are arguments. Features are the last
axis, levels and times have one fewer; everything else broadcasts. The losses that train what is
sampled from are in `jaxrl.losses`.
"""

from jaxrl.diffusion.discrete import *  # noqa: F403
from jaxrl.diffusion.edm import *  # noqa: F403
from jaxrl.diffusion.flows import *  # noqa: F403
from jaxrl.diffusion.guidance import *  # noqa: F403
from jaxrl.diffusion.variance_preserving import *  # noqa: F403
