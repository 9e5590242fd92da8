"""Achievement distillation (Moon et al., 2023, "Discovering hierarchical achievements in
reinforcement learning via contrastive learning", arXiv:2307.03486).

PPO, with an auxiliary phase after every few updates that distills into its encoder phi what the
agent has achieved. An achievement is a step whose reward exceeds a threshold, and its embedding is
the direction in which the step moves the latent: g = (phi(s') - phi(s)) / |phi(s') - phi(s)|. The
embedding of the last achievement is the policy's and value's memory: both see phi(s) beside it.

The auxiliary phase goes over the complete episodes of the last `windows` windows. Two contrastive
losses, each of a positive and one negative at a temperature, alternate:

- prediction, within an episode: an achievement is told from a step that precedes it, a state and
  an action (by FiLM) and the memory, beside a random step of the same episode. Where nothing more
  is achieved, the anchor is the last state with a latent of 0 after it.
- matching, across episodes: optimal transport between the achievements of two episodes, by cosine,
  says which of them are the same (`solvers.soft_matching`, entries above 1/2). The negative is a
  random achievement of the other episode.

Both keep the policy (by a KL divergence) and the values (by their errors to PPO's targets) where
they were. Each loss has an Adam of its own, as PPO has.

The losses, the memory and the defaults are those of the authors' code. What differs: their encoder
is an IMPALA network, ours a perceptron (behind convolutions where `channels` says so); they
normalize values; their minibatches are of one episode each and all of its pairs with up to 16
others, ours are shuffled steps, and pairs of episodes drawn at random; their negatives of the
prediction are a permutation of the episode's steps, ours are drawn.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import losses, solvers
from jaxrl.algorithms.policy_gradient import ppo
from jaxrl.algorithms.policy_gradient.shared.actor_critic import report, sample_of, standardize
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Transition, Tree, struct
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.composing import descend_where
from jaxrl.kit.groups import INF, Epochs, ImageTorso, Optimizer, Passes, Rollouts
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import Distribution, PolicyHead, check_discrete
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP, image_encoder
from jaxrl.sources.recent import recent


@group
class Config:
    """Settings of achievement distillation; defaults are those of the authors' code."""

    rollouts: Rollouts = Rollouts(num_envs=8, num_steps=512)
    passes: Passes = Passes(epochs=3, minibatches=8)
    auxiliary: Epochs = Epochs(epochs=6, minibatches=64, chunk_rows=0)
    """Epochs of the auxiliary phase over the steps of all windows; each of their minibatches comes
    with one of pairs of episodes."""
    torso: ImageTorso = ImageTorso(hidden=(256, 1024), activation="relu")
    """Encoder, which policy, value and auxiliary losses share; its last width is that of latents
    and of the memory."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, flat=True)

    windows: int = static(8, low=1)
    """Number of updates between two auxiliary phases, and of windows that each of them uses."""
    pairs: int = static(16, low=1)
    """Number of pairs of episodes in a minibatch of the matching loss."""
    most: int = static(16, low=1)
    """Number of achievements of an episode that are matched; later ones are left out."""

    threshold: float = hyper(0.1, low=0)
    """Reward above which a step is an achievement."""
    temperature: float = hyper(0.1, above=0)
    """Temperature of both contrastive losses."""
    regularization: float = hyper(0.05, above=0)
    """Entropy regularization of the optimal transport that matches achievements."""
    policy_weight: float = hyper(1.0, low=0)
    """Weight of the KL divergence from the policy before the auxiliary phase."""
    old_value_weight: float = hyper(2.0, low=0)
    """Weight of half the squared error of values in the auxiliary phase (1 of the whole there)."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.65, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of the probability ratio around 1, beyond which its gradient is zero."""
    value_clip: float = hyper(INF, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero."""
    value_weight: float = hyper(1.0, low=0)
    """Weight of PPO's value loss, half the squared error (0.5 of the whole there)."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the entropy bonus."""


class Achiever(nn.Module):
    """Policy and value that share an encoder and remember an achievement, and the predictor of the
    next one."""

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    activation: str = "relu"
    initializer: str = "lecun"
    channels: tuple[int, ...] = ()

    def setup(self):
        own, width = self.initializer, self.widths[-1]
        self.convolution = image_encoder(self.observation_space, self.channels, self.activation)
        self.encoder = MLP(self.widths, self.activation, own, layer_norm=True)
        self.head = PolicyHead(self.action_space, own)
        self.value_head = dense(1, initializer(own, 1.0))
        self.film = MLP((width,), self.activation, own, layer_norm=True)
        self.film_out = dense(2 * width, initializer(own, 1.0))
        self.predictor = MLP((width,), self.activation, own, layer_norm=True)
        self.prediction = dense(width, initializer(own, 1.0))

    def __call__(
        self, timestep: TimeStep, achievement: Array, action: Array
    ) -> tuple[Distribution, Array, Array]:
        """Return the policy [...], the value [...], and the prediction [..., D]; for initial
        parameters of all layers."""
        policy, value = self.act(timestep, achievement)
        return policy, value, self.predict(timestep, achievement, action)

    def encode(self, timestep: TimeStep) -> Array:
        """Return the latents [..., D] of time steps [...]."""
        return self.encoder(encoders.features(self.observation_space, timestep, self.convolution))

    def act(self, timestep: TimeStep, achievement: Array) -> tuple[Distribution, Array]:
        """Return the policy and the value [...] with the last achievement [..., D]."""
        x = jnp.concatenate([self.encode(timestep), achievement], -1)
        return self.head(x, timestep.legal_actions), self.value_head(x)[..., 0]

    def predict(self, timestep: TimeStep, achievement: Array, action: Array) -> Array:
        """Predict the embedding of the next achievement, unit vectors [..., D]."""
        chosen = encoders.action_features(self.action_space, action)
        scale, shift = jnp.split(self.film_out(self.film(chosen)), 2, -1)
        x = (1 + scale) * self.encode(timestep) + shift
        x = self.predictor(jnp.concatenate([x, achievement], -1))
        return losses.unit_vector(self.prediction(x))


@struct
class Memory:
    """Memory of the policy: the latent of the last time step and the last achievement."""

    latent: Array  # [B, D]
    achievement: Array  # [B, D], 0 before the first one


@struct
class Trail:
    """Episodes of windows [T, B], by time."""

    unlocked: Array  # bool: an achievement, in a complete episode
    kept: Array  # bool: steps of complete episodes in which something was achieved
    start: Array  # int32: first step of the episode
    last: Array  # int32: last step of the episode
    following: Array  # int32: this step or the next one that is an achievement; -1 for none


@struct
class Prediction:
    """Elements of the prediction loss."""

    x: Transition  # steps
    other: Transition  # another step of each one's episode
    target: Array  # PPO's value targets of the steps
    other_target: Array
    achievement: Transition  # the next achievement, or the last step of the episode
    exists: Array  # bool: whether there is a next achievement


@struct
class Match:
    """Elements [n] of the matching loss: pairs of episodes."""

    own: Transition  # [n, K], achievements of the first
    other: Transition  # [n, K], of the second
    own_exists: Array  # bool [n, K]
    other_exists: Array
    negative: Array  # int32 [n, K]: a random achievement of the second
    x: Transition  # [n, K], random steps of the first
    target: Array  # [n, K], PPO's value targets of these


def find_episodes(x: Transition, mask: Array, threshold: Array | float) -> Trail:
    """Find achievements and episodes of consecutive steps [T, B]; only episodes of which every step
    is there, and in `mask`, are complete."""
    first, done = x.first & mask, x.done & mask
    time = jnp.broadcast_to(jnp.arange(len(mask))[:, None], mask.shape)
    start = jax.lax.cummax(jnp.where(first, time, -1))
    last = jax.lax.cummin(jnp.where(done, time, len(mask)), reverse=True)
    complete = (start >= 0) & (last < len(mask)) & mask
    unlocked = (x.reward > threshold) & complete
    following = jax.lax.cummin(jnp.where(unlocked, time, len(mask)), reverse=True)
    following = jnp.where(following <= last, following, -1)
    count = _count_until(unlocked)
    total = _at_time(count, last) - _at_time(count, start) + _at_time(unlocked, start)
    kept = complete & (total > 0)
    return Trail(unlocked & kept, kept, start, last, jnp.where(complete, following, -1))


def _count_until(unlocked: Array) -> Array:
    return jnp.cumsum(unlocked.astype(jnp.int32), 0)


def _at_time(values: Array, time: Array) -> Array:
    """Return the entries of `values` [T, B] at each stream's `time` [T, B], clipped."""
    return jnp.take_along_axis(values, jnp.clip(time, 0, len(values) - 1), 0)


def take(tree: Tree, time: Array, stream: Array) -> Tree:
    """Return the elements of leaves [T, B, ...] at these times and streams."""
    return jax.tree.map(lambda x: x[time, stream], tree)


def embed(latent: Array, next_latent: Array) -> Array:
    """Embed achievements by their latents [..., D] before and after, as unit vectors."""
    return losses.unit_vector(next_latent - latent)


def contrast(anchor: Array, positive: Array, negative: Array, temperature: Array) -> Array:
    """Return -log of the share of the positive, exp(a p / tau) / (exp(a p / tau) + exp(a n / tau)),
    of vectors [..., D]: [...]."""
    return jax.nn.softplus(((anchor * (negative - positive)).sum(-1)) / temperature)


def stay_close(net: Net, part: str, x: Transition, target: Array) -> tuple[Array, Array, Array]:
    """Return the weighted sum of, and each of, the KL divergence from PPO's policy and the squared
    error of the values of a part at steps [...]."""
    seen = (x.timestep, x.extras["achievement"])
    policy, value = getattr(net, part)(*seen, method="act")
    old: Any = net.actor_critic(*seen, method="act")[0]
    old_logits = jax.lax.stop_gradient(old.logits)
    drift = losses.categorical_kl(policy.logits, old_logits)
    error = losses.squared_error(value, target)
    h = net.hyper
    return h.policy_weight * drift + h.old_value_weight * error, drift, error


@loss("prediction")
def prediction_loss(net: Net, d: Prediction) -> LossOutput:
    """Contrast a step's prediction of its next achievement with that of a random step."""
    before, after = (
        net.prediction(t, method="encode")
        for t in (d.achievement.timestep, d.achievement.next_timestep)
    )
    after = jnp.where(d.exists[..., None], after, 0)
    anchor = jax.lax.stop_gradient(embed(before, after))
    predict = lambda x: net.prediction(
        x.timestep, x.extras["achievement"], x.action, method="predict"
    )
    positive, negative = predict(d.x), predict(d.other)
    own = contrast(anchor, positive, negative, net.hyper.temperature)
    kept, drift, error = stay_close(net, "prediction", d.x, d.target)
    others = stay_close(net, "prediction", d.other, d.other_target)
    right = (anchor * (positive - negative)).sum(-1) > 0
    return LossOutput(
        own + 0.5 * (kept + others[0]),
        {
            "predicted": right.astype(jnp.float32),
            "prediction_drift": 0.5 * (drift + others[1]),
            "prediction_value_error": 0.5 * (error + others[2]),
        },
    )


@loss("matching")
def matching_loss(net: Net, d: Match) -> LossOutput:
    """Tell achievements of an episode from those of another that transport does not match."""
    encode = lambda t: net.matching(t, method="encode")
    anchor = embed(encode(d.own.timestep), encode(d.own.next_timestep))
    other = jax.lax.stop_gradient(embed(encode(d.other.timestep), encode(d.other.next_timestep)))
    index, matched = match(
        jax.lax.stop_gradient(anchor),
        other,
        d.own_exists,
        d.other_exists,
        net.hyper.regularization,
    )
    pick = lambda index: jnp.take_along_axis(other, index[..., None], -2)
    own = contrast(anchor, pick(index), pick(d.negative), net.hyper.temperature)
    # Each match counts alike, however many a pair of episodes has.
    share = matched * (len(matched) / jnp.maximum(matched.sum(), 1))
    kept, drift, error = stay_close(net, "matching", d.x, d.target)
    return LossOutput(
        (own * share).sum(-1) + kept.mean(-1),
        {
            "matches": matched.sum(-1).astype(jnp.float32),
            "matching_drift": drift.mean(-1),
            "matching_value_error": error.mean(-1),
        },
    )


def match(
    own: Array, other: Array, own_exists: Array, other_exists: Array, regularization: Array
) -> tuple[Array, Array]:
    """Match unit vectors of two sets [..., K, D] by transport with a cost of 1 - cosine.

    Returns the match of each of `own`, int32 [..., K], and whether it has one, bool [..., K].
    """
    cost = 1 - jnp.einsum("...ik,...jk->...ij", own, other)
    plan = solvers.soft_matching(cost, regularization, own_exists, other_exists)
    plan = jnp.where(own_exists[..., :, None] & other_exists[..., None, :], plan, 0)
    return plan.argmax(-1), plan.max(-1) > 0.5


def draw_pairs(
    key: Array, x: Transition, target: Array, trail: Trail, number: int, most: int
) -> Minibatch:
    """Draw `number` pairs of different episodes in which something was achieved, as a minibatch of
    `Match`; its mask is false if there are fewer than two of them."""
    ends = trail.kept & (jnp.arange(len(trail.kept))[:, None] == trail.last)
    rank = jnp.cumsum(ends.reshape(-1).astype(jnp.int32))
    episodes = rank[-1]
    keys = jax.random.split(key, 4)
    first = jax.random.randint(keys[0], (number,), 0, jnp.maximum(episodes, 1))
    apart = jax.random.randint(keys[1], (number,), 1, jnp.maximum(episodes, 2))
    chosen = jnp.stack([first, (first + apart) % jnp.maximum(episodes, 1)])
    place = jnp.minimum(jnp.searchsorted(rank, chosen + 1), rank.size - 1)  # [2, n]
    last, stream = place // ends.shape[1], place % ends.shape[1]
    start = trail.start[last, stream]

    count = _count_until(trail.unlocked)
    begun = count[start, stream] - trail.unlocked[start, stream]  # achievements of earlier episodes
    number_of = count[last, stream] - begun
    wanted = begun[..., None] + 1 + jnp.arange(most)
    at = jax.vmap(jax.vmap(lambda s, w: jnp.searchsorted(count[:, s], w)))(stream, wanted)
    exists = jnp.arange(most) < number_of[..., None]
    time = jnp.where(exists, at, last[..., None])  # [2, n, K]
    found = take(x, time, stream[..., None])
    negative = jax.random.randint(
        keys[2], (number, most), 0, jnp.clip(number_of[1], 1, most)[:, None]
    )
    steps = jax.random.randint(keys[3], (number, most), start[0][:, None], last[0][:, None] + 1)
    own, other = (jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in (0, 1))
    misc, goal = take((x, target), steps, stream[0][:, None])
    pairs = Match(own, other, exists[0], exists[1], negative, misc, goal)
    return Minibatch(pairs, jnp.broadcast_to(episodes > 1, (number,)))


def recipe(env: Environment, config: Config) -> Recipe:
    torso, length = config.torso, config.rollouts.num_steps
    width, rows = torso.hidden[-1], config.windows * length
    network = Achiever(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        torso.initializer,
        torso.channels,
    )

    def remember(n: int) -> Memory:
        return Memory(jnp.zeros((n, width)), jnp.zeros((n, width)))

    def act(net: Net, timestep: TimeStep, memory: Memory, key: Array, greedy: bool):
        latent = net.actor_critic(timestep, method="encode")
        unlocked = (timestep.reward > net.hyper.threshold)[:, None]
        achievement = jnp.where(unlocked, embed(memory.latent, latent), memory.achievement)
        policy, _ = net.actor_critic(timestep, achievement, method="act")
        action = choose(policy, key, greedy)
        extras = {"log_prob": policy.log_prob(action), "achievement": achievement}
        return action, Memory(latent, achievement), extras

    @loss("actor_critic", name="loss")
    def ppo_loss(net: Net, x: Any) -> LossOutput:
        """Compute PPO's loss with the achievements that were remembered."""
        return ppo.objective(net, x, *net.actor_critic(x.timestep, x.memory, method="act"))

    def estimate(net: Net, batch: Batch) -> Any:
        x = batch.transitions
        achievement = x.extras["achievement"]
        before, after = (
            net.actor_critic(t, method="encode") for t in (x.timestep, x.next_timestep)
        )
        unlocked = (x.reward > net.hyper.threshold)[..., None]
        later = jnp.where(unlocked, embed(before, after), achievement)
        _, value = net.actor_critic(x.timestep, achievement, method="act")
        _, following = net.actor_critic(x.next_timestep, later, method="act")
        sample = sample_of(net, batch, value, following)
        return dataclasses.replace(sample, memory=achievement)

    def distill(net: Net, batch: Batch) -> Net:
        """Run the auxiliary phase on windows [windows * T, B]."""
        assert batch.mask is not None
        x, target = batch.transitions, net.extra
        trail = find_episodes(x, batch.mask, net.hyper.threshold)
        columns = jnp.broadcast_to(jnp.arange(x.reward.shape[1]), x.reward.shape)
        times = jnp.broadcast_to(jnp.arange(rows)[:, None], x.reward.shape)

        def step(net: Net, minibatch: Minibatch) -> Net:
            pairs = draw_pairs(net.key("pairs"), x, target, trail, config.pairs, config.most)
            net = net.with_params(matching=net.parts["prediction"].params)
            net = net.descend(matching_loss, pairs)
            net = net.with_params(prediction=net.parts["matching"].params)

            time, stream, here = minibatch.x
            other = jax.random.randint(net.key("other"), time.shape, here.start, here.last + 1)
            other = jnp.clip(other, 0, rows - 1)
            exists = here.following >= 0
            goal = jnp.clip(jnp.where(exists, here.following, here.last), 0, rows - 1)
            steps, own = take((x, target), time, stream)
            others, its = take((x, target), other, stream)
            data = Prediction(steps, others, own, its, take(x, goal, stream), exists)
            return net.descend(prediction_loss, data, mask=minibatch.mask)

        begun = net.parts["actor_critic"].params
        net = net.with_params(prediction=begun, matching=begun)
        window = Minibatch((times, columns, trail), trail.kept)
        net = net.epochs(config.auxiliary, window, step)
        metrics = {name: x for name, x in net.metrics.items() if name != "stopped_early"}
        return net.replace(metrics=metrics).with_params(actor_critic=net.parts["prediction"].params)

    def update(net: Net, batch: Batch) -> Net:
        newest = jax.tree.map(lambda x: x[-length:], batch.transitions)
        x = standardize(estimate(net, dataclasses.replace(batch, transitions=newest, mask=None)))
        net = net.replace(extra=jnp.concatenate([net.extra[length:], x.target]))
        net = report(net, x).epochs(
            config.passes,
            Minibatch(x),
            lambda net, minibatch: net.descend(ppo_loss, minibatch),
            max_drift=net.hyper.passes.target_kl,
        )
        due = (net.updates + 1) % config.windows == 0
        return descend_where(net, due, lambda net: distill(net, batch))

    timestep = example_timestep(env)
    inputs = (timestep, jnp.zeros((1, width)), jnp.zeros(1, jnp.int32))
    own = Part(network, inputs, config.optimizer)
    copy = Part(network, inputs, config.optimizer, begins_as="actor_critic")
    return Recipe(
        parts={"actor_critic": own, "matching": copy, "prediction": copy},
        act=act,
        losses=(ppo_loss, matching_loss, prediction_loss),
        update=update,
        extra=jnp.zeros((rows, config.rollouts.num_envs)),
        memory=remember,
        needs=("transitions.extras.log_prob", "transitions.extras.achievement", "mask"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` if `env` and `config` do not fit.

    That is actions that are not discrete, no image for convolutions, windows that do not divide
    into minibatches, or chunks of them in the auxiliary phase.
    """
    check_discrete(env.action_space, name)
    check_image(env, config.torso.channels)
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)
    if config.auxiliary.chunk_rows:
        raise UserError(
            f"auxiliary.chunk_rows is {config.auxiliary.chunk_rows}, but '{name}' computes each "
            "minibatch of its auxiliary phase at once; it must be 0."
        )
    config.auxiliary.check(x.num_envs, config.windows * x.num_steps, x.num_shards)


achievement_distillation = AlgorithmBuilder(
    "achievement_distillation",
    Config,
    recipe,
    source=lambda env, config: recent(config.rollouts.source(env), config.windows),
    check=check,
)

TINY = {
    "env": "cartpole", "num_envs": 8, "num_steps": 4, "num_shards": 4, "passes.epochs": 2,
    "passes.minibatches": 2, "early_stop": True, "auxiliary.epochs": 1, "auxiliary.minibatches": 2,
    "hidden": (8,), "windows": 2, "pairs": 2, "most": 2,
}  # fmt: skip
"""In cartpole every step is an achievement, so that short episodes have some."""
