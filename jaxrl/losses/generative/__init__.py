"""Training diffusion models and flows, and policies made of them; sampling is `jaxrl.diffusion`."""

from jaxrl.losses.generative.denoising import *  # noqa: F403
from jaxrl.losses.generative.diffusion_policies import *  # noqa: F403
from jaxrl.losses.generative.discrete_diffusion import *  # noqa: F403
from jaxrl.losses.generative.flows import *  # noqa: F403
