"""Wrappers: functions from an environment to an environment.

They compose in any order, and each order has its own meaning. The usual one, from the inside out:
changes of the dynamics (`domain_randomization`, `action_repeat`, `action_noise`, `random_actions`,
`sticky_actions`, `action_delay`), of the task (`goal_conditioned`, `skills`, `reward_components`,
`cost`), of the clock (`time_limit`, `early_truncation`, `continuing`), of the observations
(`observation_noise`, `distractors`, `observation_delay`, `frame_stack`, `flat_observations`), of
the action space (`discretized_actions`, `flat_actions`), of what is said (`forced_text`,
`expert_prefix`), and `expert_channel` last. A time limit inside `action_repeat` counts the
environment's steps, outside it the agent's; inside `continuing` it restarts the environment,
outside it ends the life; `cost` or `reward_components` inside `action_repeat` are summed over its
steps.

The name of an environment stays the same. The numbers of a wrapper are in its `params`, whose
`inner` holds the params of the wrapped environment: a sweep or a randomization over them compiles
nothing, and `make` finds them by name at any depth. A wrapper without numbers of its own leaves the
params as they are. The same arguments give the same object (functions are compared by identity).
"""

from jaxrl.envs.wrappers.delays import action_delay, observation_delay
from jaxrl.envs.wrappers.discrete import discretized_actions, flat_actions
from jaxrl.envs.wrappers.distractors import distractors, image_distractors
from jaxrl.envs.wrappers.domain_randomization import domain_randomization
from jaxrl.envs.wrappers.episodes import continuing, early_truncation
from jaxrl.envs.wrappers.expert_channel import expert_channel
from jaxrl.envs.wrappers.flattening import flat_observations
from jaxrl.envs.wrappers.forced_text import expert_prefix, forced_text
from jaxrl.envs.wrappers.frame_stack import frame_stack
from jaxrl.envs.wrappers.goal_conditioned import goal_conditioned
from jaxrl.envs.wrappers.noise import action_noise, observation_noise, random_actions
from jaxrl.envs.wrappers.repeats import action_repeat, sticky_actions
from jaxrl.envs.wrappers.rewards import cost, reward_components
from jaxrl.envs.wrappers.skills import skills
from jaxrl.envs.wrappers.start_key import start_key
from jaxrl.envs.wrappers.time_limit import time_limit

__all__ = [
    "action_delay",
    "action_noise",
    "action_repeat",
    "continuing",
    "cost",
    "discretized_actions",
    "distractors",
    "domain_randomization",
    "early_truncation",
    "expert_channel",
    "expert_prefix",
    "flat_actions",
    "flat_observations",
    "forced_text",
    "frame_stack",
    "goal_conditioned",
    "image_distractors",
    "observation_delay",
    "observation_noise",
    "random_actions",
    "reward_components",
    "skills",
    "start_key",
    "sticky_actions",
    "time_limit",
]
