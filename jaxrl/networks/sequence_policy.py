"""A causal policy over the returns-to-go, observations and actions of the last steps (Chen et al.,
2021, "Decision transformer: reinforcement learning via sequence modeling", arXiv:2106.01345)."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Space, bounds
from jaxrl.core.types import Array, struct
from jaxrl.networks.compute import module_again
from jaxrl.networks.dense import dense, hidden_dense
from jaxrl.networks.heads import Distribution, PolicyHead
from jaxrl.networks.transformer import Block, attend


@struct
class Steps:
    """Steps of an episode in the form that a sequence policy reads, [T, B]; in a policy's memory
    [B, T]."""

    to_go: Array
    """Return from the step on, in the network's units: float32."""
    features: Array
    """Features of the observations: float32 [..., F]."""
    action: Array
    """Features of the actions (`encoders.action_features`): float32 [..., A]. The newest action may
    be unknown."""
    time: Array
    """Steps since the episode began: int32."""
    exists: Array
    """False where there was no such step: bool."""


@struct
class Predictions:
    """Outputs of a sequence policy, [T, B]."""

    policy: Distribution
    """Policy at each step, from all before the step's action."""
    features: Array | None
    """Features of the next observation [T, B, F], from the step's action too; None unless asked
    for."""
    to_go: Array | None
    """Return from the next step on, likewise."""


def is_bounded_box(space: Space) -> bool:
    """Return whether `space` is one box with bounds everywhere."""
    return isinstance(space, Box) and bool(np.isfinite(bounds(space)).all())


class SequencePolicy(nn.Module):
    """A transformer over three tokens a step (its return-to-go, observation and action), of which
    the observation's tells the policy.

    A token sees those before it, as far as their steps exist, and has no position but the time of
    its step in the episode, whose embedding is added to all three. So windows may begin anywhere in
    an episode, and the window that acts slides. The policy of a bounded box has its mean within
    the bounds, and a fixed deviation.

    longest: number of steps in the longest episode. predicts: number of features F of the next
    observation, if that and the next return-to-go are to be predicted from the action's token.

    Unlike the authors' network, blocks have the activation of GPT-2 instead of relu, and there is
    no dropout.
    """

    action_space: Space
    longest: int
    width: int = 128
    layers: int = 3
    heads: int = 1
    predicts: int = 0

    @nn.compact
    def __call__(self, steps: Steps, legal_actions: Array | None = None) -> Predictions:
        init = nn.initializers.lecun_normal()
        time = nn.Embed(self.longest, self.width)(jnp.minimum(steps.time, self.longest - 1))
        inputs = steps.to_go[..., None], steps.features, steps.action
        tokens = jnp.stack([hidden_dense(self.width, init)(x) + time for x in inputs], 1)
        length, kinds, batch, _ = tokens.shape
        x = nn.LayerNorm()(tokens.reshape(length * kinds, batch, self.width))
        place = jnp.arange(length * kinds)
        exists = jnp.repeat(steps.exists, kinds, 0).T[:, None]
        visible = exists & (place[:, None] >= place)  # [B, query, key]
        nothing = jnp.zeros((batch, self.heads, 0, self.width // self.heads))
        slots = jnp.broadcast_to(place[:, None], x.shape[:2])
        attend_again = module_again(attend)
        for _ in range(self.layers):
            block = Block(self.width, self.heads)
            x, _, _ = attend_again(block, x, slots, nothing, nothing, visible)
        x = nn.LayerNorm()(x).reshape(tokens.shape)
        policy = self._head()(x[:, 1], legal_actions)
        if not self.predicts:
            return Predictions(policy, None, None)
        features = dense(self.predicts, init, name="features")(x[:, 2])
        to_go = dense(1, init, name="to_go")(x[:, 2])[..., 0]
        return Predictions(policy, features, to_go)

    def _head(self) -> PolicyHead:
        bounded = is_bounded_box(self.action_space)
        return PolicyHead(self.action_space, bounded_mean=bounded, deviation="fixed", name="policy")
