"""Policy-guided diffusion (Jackson, Matthews, Lu, Ellis, Whiteson and Foerster, 2024,
"Policy-guided diffusion", arXiv:2404.06356): trajectories of a diffusion model of the data, whose
actions are moved toward those of the policy that learns from them, so that the data are nearly
on-policy and stay near the behavior policy's.

Before each denoising step but the last, the noisy actions of a trajectory move along the gradient
of the policy's log-probability, divided by its length, with a weight that falls from step to step
and has a bump in the middle. The policy is TD3+BC's, with unit variance around its actions, as in
the authors' code. The model of trajectories is `experience_model`'s, which is trained first
(`--warm-start`); trajectories are generated anew before every `data.updates` gradient steps.

With `normalize` off the gradient is used as it is. The authors generate tanh^-1 of actions, with a
U-Net and 256 denoising steps with added noise.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.algorithms.diffusion.shared import experience
from jaxrl.algorithms.diffusion.shared.experience import (
    FromGenerated,
    Generated,
    Generator,
    Layout,
    ask_for_experience,
    generated_source,
    learn_from_generated,
    measure_experience,
    observation_scale,
)
from jaxrl.algorithms.diffusion.shared.policies import to_units
from jaxrl.algorithms.offline import td3_bc
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.diffusion import Hooks
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static
from jaxrl.kit.groups import Normalization

POINTS = ("denoised", "noisy")


@group
class Config(FromGenerated, td3_bc.Config):
    """Settings of policy-guided diffusion: TD3+BC on generated trajectories that are guided toward
    its own policy (arXiv:2404.06356)."""

    generator: Generator = Generator(horizon=16)
    generated: Generated = Generated(samples=64, real_share=1 / 16)
    normalization: Normalization = Normalization()

    guidance: float = hyper(1.0, low=0)
    """Strength of the guidance toward the policy; 0 for none."""
    bump: float = hyper(0.3, low=0)
    """Weight of the bump of the guidance in the middle of denoising. 0.3: authors' code."""
    at: str = static("denoised", choices=POINTS)
    """Trajectory at which the policy's gradient is taken: the clean one that is predicted
    (denoised), or the noisy one itself."""
    normalize: bool = True
    """Divide the gradient of a trajectory's actions by its length."""


def action_score(net: Net, env: Environment, layout: Layout, samples: Array) -> Array:
    """Return the gradient [B, T, A] of the log-probability of the actions of samples under unit
    variance around the policy's, in half-widths, with respect to the standardized actions."""
    place = slice(layout.seen_size, layout.seen_size + layout.moves)
    scale = net.extra
    seen = layout.observations_of(samples)
    # The policy is shown what it learned from: standardized observations, clipped.
    bound = observation_scale(env, scale).clip
    shape = env.observation_space.shape  # type: ignore[union-attr]
    flat = jnp.clip(seen, -bound, bound).reshape(-1, *shape)
    example = example_timestep(env)
    wide = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(flat), *x.shape[1:])), example)
    target = net.actor(dataclasses.replace(wide, observation=flat))
    target = to_units(env.action_space, target).reshape(*seen.shape[:-1], -1)
    own = scale.mean[place] + scale.deviation[place] * layout.actions_of(samples)
    return scale.deviation[place] * (target - own)


def recipe(env: Environment, config: Config) -> Recipe:
    layout, steps = Layout(env, config.generator.horizon), config.generator.steps

    def hooks(net: Net) -> Hooks:
        def shift(noisy, denoise, number):
            h = net.hyper
            found = denoise(noisy) if config.at == "denoised" else noisy
            score = action_score(net, env, layout, found)
            weight = diffusion.policy_guidance_weight(number, steps, h.guidance, h.bump)
            action = layout.actions_of(noisy)
            if config.normalize:
                action = diffusion.policy_guidance(action, score, weight, axis=(-2, -1))
            else:
                action = action + weight * score
            return layout.replace_actions(noisy, action)

        return Hooks(shift=shift)

    plain = learn_from_generated(td3_bc.recipe(env, config), env, config, hooks)
    scores = {**plain.scores, "policy_distance": "distance of actions from the policy's"}
    return dataclasses.replace(plain, scores=scores)


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Measure generated steps as `measure_experience` does, and `policy_distance`, the mean squared
    distance of generated actions from the policy's greedy ones, in half-widths."""
    x = ask_for_experience(env, policy, 64, key)
    x = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), x)
    count = len(x.reward)
    own = policy.act(policy.state, x.timestep, policy.memory(count), key, True)[0]
    gap = to_units(env.action_space, x.action) - to_units(env.action_space, own)
    found = measure_experience(env, config, policy, key)
    return {**found, "policy_distance": jnp.square(gap).mean()}


pgd = AlgorithmBuilder(
    "pgd",
    Config,
    recipe,
    generated_source,
    check=experience.check,
    measure=measure,
    goes_on_from="experience_model",
)

# A full step along a normalized gradient multiplies rounding beyond what is compared over devices.
TINY = experience.TINY | {"generator.horizon": 3, "guidance": 0.1}
