"""Functional losses and estimators: plain functions of arrays, importable on their own.

Axes: time, if there is any, is axis 0; the axis that a function reduces (actions, atoms, members
of an ensemble or a group) is the last; everything else broadcasts. Functions return one value per
element: the caller averages, with `masked_mean` where elements are masked. Losses are minimized.

Arguments are checked against the shapes that docstrings state (`jaxrl.core.checks`): [B] beside
[B, 1] is an error, not [B, B]. Integers and booleans, such as rewards 0 and 1, count as floats.
"""

from jaxrl.losses.advantages.credit import *  # noqa: F403
from jaxrl.losses.advantages.group_filters import *  # noqa: F403
from jaxrl.losses.advantages.groups import *  # noqa: F403
from jaxrl.losses.advantages.off_policy_returns import *  # noqa: F403
from jaxrl.losses.advantages.recurrences import *  # noqa: F403
from jaxrl.losses.advantages.returns import *  # noqa: F403
from jaxrl.losses.advantages.segments import *  # noqa: F403
from jaxrl.losses.continual import *  # noqa: F403
from jaxrl.losses.distances import *  # noqa: F403
from jaxrl.losses.distributions.distortions import *  # noqa: F403
from jaxrl.losses.distributions.distributional import *  # noqa: F403
from jaxrl.losses.distributions.risk import *  # noqa: F403
from jaxrl.losses.distributions.transforms import *  # noqa: F403
from jaxrl.losses.divergences.entropy_and_kl import *  # noqa: F403
from jaxrl.losses.divergences.f_divergences import *  # noqa: F403
from jaxrl.losses.divergences.tsallis import *  # noqa: F403
from jaxrl.losses.exploration.bonuses import *  # noqa: F403
from jaxrl.losses.exploration.diversity import *  # noqa: F403
from jaxrl.losses.exploration.evolution import *  # noqa: F403
from jaxrl.losses.exploration.information import *  # noqa: F403
from jaxrl.losses.exploration.shaping import *  # noqa: F403
from jaxrl.losses.games.equilibria import *  # noqa: F403
from jaxrl.losses.games.self_play import *  # noqa: F403
from jaxrl.losses.generative.denoising import *  # noqa: F403
from jaxrl.losses.generative.diffusion_policies import *  # noqa: F403
from jaxrl.losses.generative.discrete_diffusion import *  # noqa: F403
from jaxrl.losses.generative.flows import *  # noqa: F403
from jaxrl.losses.imitation.adversarial import *  # noqa: F403
from jaxrl.losses.imitation.inverse_rl import *  # noqa: F403
from jaxrl.losses.imitation.transport import *  # noqa: F403
from jaxrl.losses.models.planning import *  # noqa: F403
from jaxrl.losses.models.world_models import *  # noqa: F403
from jaxrl.losses.offline.cloning import *  # noqa: F403
from jaxrl.losses.offline.conservative import *  # noqa: F403
from jaxrl.losses.offline.hybrid import *  # noqa: F403
from jaxrl.losses.offline.model_penalties import *  # noqa: F403
from jaxrl.losses.policies.off_policy import *  # noqa: F403
from jaxrl.losses.policies.policy_gradients import *  # noqa: F403
from jaxrl.losses.policies.trust_regions import *  # noqa: F403
from jaxrl.losses.policies.weighted_regression import *  # noqa: F403
from jaxrl.losses.preferences.absolute_rewards import *  # noqa: F403
from jaxrl.losses.preferences.direct_alignment import *  # noqa: F403
from jaxrl.losses.preferences.pairs import *  # noqa: F403
from jaxrl.losses.preferences.preference_games import *  # noqa: F403
from jaxrl.losses.preferences.reference_free import *  # noqa: F403
from jaxrl.losses.preferences.relative_rewards import *  # noqa: F403
from jaxrl.losses.preferences.reward_models import *  # noqa: F403
from jaxrl.losses.preferences.segments import *  # noqa: F403
from jaxrl.losses.reductions import *  # noqa: F403
from jaxrl.losses.representations.goals import *  # noqa: F403
from jaxrl.losses.representations.operators import *  # noqa: F403
from jaxrl.losses.representations.quasimetrics import *  # noqa: F403
from jaxrl.losses.representations.self_supervised import *  # noqa: F403
from jaxrl.losses.tokens.bounded_ratios import *  # noqa: F403
from jaxrl.losses.tokens.fine_tuning import *  # noqa: F403
from jaxrl.losses.tokens.masks import *  # noqa: F403
from jaxrl.losses.tokens.policies import *  # noqa: F403
from jaxrl.losses.tokens.rewards import *  # noqa: F403
from jaxrl.losses.values.actor_critics import *  # noqa: F403
from jaxrl.losses.values.bellman_errors import *  # noqa: F403
from jaxrl.losses.values.decomposition import *  # noqa: F403
from jaxrl.losses.values.ensembles import *  # noqa: F403
from jaxrl.losses.values.errors_and_targets import *  # noqa: F403
from jaxrl.losses.values.options import *  # noqa: F403
from jaxrl.losses.values.q_learning import *  # noqa: F403
from jaxrl.losses.values.reward_channels import *  # noqa: F403
from jaxrl.losses.values.soft_q import *  # noqa: F403


def __getattr__(name: str):
    from jaxrl.core.aliases import explain_absence

    raise AttributeError(explain_absence(name, list(globals())))
