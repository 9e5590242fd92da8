"""Losses of diffusion models, flows and their policies; sampling is in `jaxrl.diffusion`."""

from jaxrl.losses.generative.denoising import *  # noqa: F403
from jaxrl.losses.generative.diffusion_policies import *  # noqa: F403
from jaxrl.losses.generative.discrete_diffusion import *  # noqa: F403
from jaxrl.losses.generative.flows import *  # noqa: F403
