"""MARLHF (Zhang, Wang, Cui, Zhou, Kakade and Du, 2024, "Multi-Agent Reinforcement Learning from
Human Feedback: Data Coverage and Algorithmic Techniques", arXiv:2409.00717): a team learns offline
from preferences alone, in data that should hold unilateral deviations from good play.

1. Each agent has a reward model of its own, r_i(o_i, a_i), learned from the agent's preferences
   between two segments. Beside the Bradley-Terry loss it pays for changes over time, which spreads
   the reward evenly over a segment:

       -log sigmoid(sum_t r_i(preferred) - sum_t r_i(other)) + lambda sum_t (r_{t+1} - r_t)^2

2. A reference policy of each agent clones the data.
3. VDN (`vdn`) learns from the data with the sum over agents of

       (r_i - mean) / std + 1 + clip(c (log pi_ref(a_i | o_i) + log |A|), -10, 1)

   whose last term is a penalty on what the data seldom do, and 0 for a uniform reference.

The first two are trained for `reward.steps` gradient steps, and VDN after that, on rewards that
change no more. Formulas are those of the authors' code, which also labels each batch anew.
Differences from it: mean and deviation are those of the batch (there of one batch of the data, once
for all); agents share no weights and have no memory; a truncated episode bootstraps; learning rates
are constant; one reward of the whole team is taken for that of each agent. Deviations are any
agent's, not only the first one's, as the theorem asks. What plays the data is the environment's
expert and random play, in place of checkpoints of VDN. Episodes should have one length, since each
step is paid 1 in the mean, for which an agent may live longer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.multi_agent import vdn as of_vdn
from jaxrl.algorithms.multi_agent.shared.team_values import Team, add, own_networks, team_recipe
from jaxrl.algorithms.multi_agent.shared.views import check_agents, own_view
from jaxrl.algorithms.preferences.shared.segment_policies import (
    HELD_OUT_PAIRS,
    accuracy_scores,
    network_of,
)
from jaxrl.algorithms.preferences.shared.segment_rewards import (
    RewardModel,
    correlation,
    model_of,
    predict_rewards,
)
from jaxrl.algorithms.preferences.shared.segments import (
    SMALL_SEGMENTS,
    accuracy,
    set_unit,
    split_sets,
)
from jaxrl.algorithms.preferences.shared.team_segments import PREFERRED, TeamSegments
from jaxrl.core import settings
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Transition, Tree
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
)
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.kit.composing import descend_where, with_rewards
from jaxrl.kit.groups import INF, ImageTorso, Optimizer, Target, Torso

LEAST, MOST = -10.0, 1.0  # of the penalty


@group
class TeamRewards(RewardModel):
    """Reward models of the agents of a team, learned from pairs of segments."""

    torso: Torso = Torso(hidden=(128, 128), initializer="orthogonal")
    """Hidden layers. Orthogonal, and 128 units above embeddings of 64: authors' code."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=0.5, weight_decay=1e-4)
    """Optimizer settings. AdamW, 1e-3, gradients of at most 0.5, decay 1e-4: authors' code."""
    steps: float = hyper(10_000.0, low=0, high=INF)
    """Number of gradient steps of the reward models and of the reference policies; VDN learns after
    these."""
    smoothness: float = hyper(1.0, low=0, high=INF)
    """Weight of the squared differences of neighboring rewards, summed over a segment. 1: authors'
    scripts, which tried 0 to 100."""


@group
class Config:
    """Settings of learning a team's play from preferences (arXiv:2409.00717)."""

    segments: TeamSegments = TeamSegments()
    reward: TeamRewards = TeamRewards()
    reference: Torso = Torso(hidden=(128, 128))
    """Hidden layers of the reference policies. 128 units: authors' code."""
    reference_optimizer: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=25.0)
    """Optimizer settings of the reference policies. 1e-3, gradients of at most 25: authors'
    code."""
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    """Hidden layers of each agent's action values. 64 units: authors' code."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=25.0, eps=1e-3)
    """Optimizer settings of the action values. Adam, 1e-3, epsilon 1e-3, gradients of at most 25:
    authors' code."""
    target: Target = Target(rate=1.0, period=3)
    """Target networks of the action values. Copied in every third update: authors' code."""
    double: bool = True
    """Let the networks that learn choose the best next actions, and the target networks evaluate
    them."""
    penalty: float = hyper(1.0, low=0, high=INF)
    """Weight (c) of the log-probability of the reference policy in the reward; 0 for none. 1 in the
    authors' scripts of spread and reference, 10 of tag."""
    discount: float = hyper(0.9, low=0, high=1)
    """Discount factor per step. 0.9: authors' code."""


@functools.cache
def with_team_reward(env: Environment) -> Environment:
    """Return an environment whose reward is the sum of its agents' rewards; the same where it has
    one reward."""
    if example_timestep(env, agents=True).reward.ndim < 2:
        return env

    def add(result):
        state, timestep = result
        return state, dataclasses.replace(timestep, reward=timestep.reward.sum(-1))

    return dataclasses.replace(
        env,
        reset=lambda key, params: add(env.reset(key, params)),
        step=lambda key, state, action, params: add(env.step(key, state, action, params)),
    )


def own_transition(t: Transition, agent: str) -> Transition:
    """Return transitions as an agent sees them: its own observations and actions."""
    return dataclasses.replace(
        t,
        timestep=own_view(t.timestep, agent),
        next_timestep=own_view(t.next_timestep, agent),
        action=t.action[agent],
        extras={},
    )


def standardize(reward: Array) -> Array:
    """Give rewards of any shape the mean 1 and the standard deviation 1."""
    return (reward - reward.mean()) / (reward.std() + 1e-8) + 1


def penalize(log_prob: Array, choices: Array, weight: Array | float) -> Array:
    """Return clip(c (log pi_ref(a) + log |A|), -10, 1), which is 0 for a uniform reference.

    log_prob: log pi_ref(a) of each agent, [..., N]. choices: |A| of each, [N]. weight: c.
    """
    return jnp.clip(weight * (log_prob + jnp.log(choices)), LEAST, MOST)


def predict_team_rewards(
    applies: Sequence[Callable[..., Array]], reads: str, t: Transition, agents: Sequence[str]
) -> Array:
    """Return the rewards [..., N] of transitions [...] by the mean of each agent's models.

    applies: the reward models of each agent. reads: as in `RewardModel`.
    """
    models = zip(applies, agents, strict=True)
    own = [predict_rewards(apply, reads, own_transition(t, agent)) for apply, agent in models]
    return jnp.stack([x.mean(0) for x in own], -1)


def recipe(env: Environment, config: Config) -> Recipe:
    h, others, agents = config.reward, config.segments.others, agent_names(env)
    spaces: Any = env.action_space
    choices = jnp.float32([spaces[agent].n for agent in agents])
    shared = with_team_reward(env)
    networks, values = own_networks(shared, config)
    team = team_recipe(shared, config, Team(agents, networks, values, add))
    (team_loss,) = team.losses
    parts = dict(team.parts)
    for agent in agents:
        own = seen_by(env, agent)
        network, inputs = model_of(own, h)
        parts[f"reward_{agent}"] = Part(network, inputs, h.optimizer, members=h.members)
        cloned = network_of(own, config.reference)
        parts[f"reference_{agent}"] = Part(
            cloned, (example_timestep(own),), config.reference_optimizer
        )
    rewards = tuple(f"reward_{agent}" for agent in agents)
    references = tuple(f"reference_{agent}" for agent in agents)

    @loss(*rewards, name="reward", unit=set_unit(others=others))
    def reward_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the losses of each pair, summed over agents and over the members of a model."""
        preference, change, right = [], [], []
        for i, agent in enumerate(agents):
            apply = getattr(net, f"reward_{agent}")
            paid = predict_rewards(apply, h.reads, own_transition(x.x, agent))
            first, second, _ = split_sets(paid.sum(1), others=others)
            first, second = first[..., 0], second[..., 0]
            label = split_sets(x.x.extras[PREFERRED][0, :, i], others=others)[0][..., 0]
            in_order, reverse = (
                losses.bradley_terry(*pair).sum(0) for pair in ((first, second), (second, first))
            )
            preference.append(label * in_order + (1 - label) * reverse)
            # A mean over pairs of steps, where the authors' code has a sum.
            mean = losses.reward_smoothness(jnp.moveaxis(paid, 1, 0)).sum(0)
            both = split_sets((paid.shape[1] - 1) * mean, others=others)[:2]
            change.append(0.5 * (both[0] + both[1])[..., 0])
            right.append(_accuracy(first.mean(0), second.mean(0), label))
        found = jnp.stack(preference).sum(0), jnp.stack(change).sum(0), jnp.stack(right).mean(0)
        value = found[0] + net.hyper[h].smoothness * found[1]
        names = "preference", "change", "accuracy"
        return LossOutput(value, dict(zip(names, found, strict=True)))

    def log_likelihoods(net: Net, t: Transition) -> Array:
        """Return log pi_ref of each agent's actions, [..., N]."""
        policies = [getattr(net, name) for name in references]
        views = [own_transition(t, agent) for agent in agents]
        each = zip(policies, views, strict=True)
        return jnp.stack([policy(x.timestep).log_prob(x.action) for policy, x in each], -1)

    @loss(*references, name="reference")
    def reference_loss(net: Net, x: Transition) -> Array:
        """Return -log pi_ref of each step, summed over agents."""
        return -log_likelihoods(net, x).sum(-1)

    def pay(net: Net, t: Transition) -> tuple[Array, Array]:
        """Return the agents' learned rewards and their penalties, both [T, B, N]."""
        models = [getattr(net, name) for name in rewards]
        learned = standardize(predict_team_rewards(models, h.reads, t, agents))
        log_prob = log_likelihoods(net, t)
        return learned, penalize(log_prob, choices, net.hyper.penalty)

    def act(net, timestep, memory, key, greedy):
        return team.act(net, timestep, memory, key, True)  # nothing is explored offline

    def update(net: Net, batch: Batch) -> Net:
        t, early = batch.transitions, net.updates < net.hyper[h].steps
        window = Minibatch(t, batch.mask)
        first = lambda net: net.descend(reward_loss, window).descend(reference_loss, window)
        net = descend_where(net, early, first)
        learned, penalty = pay(net, t)
        truth = t.reward.reshape(*t.first.shape, -1).sum(-1)
        net = net.report(
            reward_correlation=correlation(learned.sum(-1), truth), penalty=penalty.mean()
        )
        paid = with_rewards(batch, (learned + penalty).sum(-1))
        steps, mask = _flatten((paid.transitions, paid.mask))
        second = lambda net: net.descend(team_loss, steps, mask=mask).update_targets()
        return descend_where(net, ~early, second)

    return Recipe(
        parts=parts,
        act=act,
        losses=(reward_loss, reference_loss, team_loss),
        update=update,
        needs=("mask", f"transitions.extras.{PREFERRED}"),
        scores=accuracy_scores(config.segments),
    )


def _flatten(x: Tree) -> Tree:
    """Return leaves [T, B, ...] as [B T, ...], the steps of a segment side by side."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), x)


def _accuracy(first: Array, second: Array, label: Array) -> Array:
    """Return 1 where the preferred segment is ahead, 0 where it is behind, 1/2 in a tie of either
    the rewards or the labels."""
    ahead = accuracy(first, second)
    return jnp.where(label == 0.5, 0.5, jnp.where(label > 0.5, ahead, 1 - ahead))


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return how often the reward of the preferred segment is the larger one, in pairs of episodes
    that were not learned from, over all agents; nothing if there are none."""
    if not config.segments.held_out:
        return {}
    batch = config.segments.held_out_batch(env, key, policy, HELD_OUT_PAIRS)
    assert batch.mask is not None
    agents, applies = agent_names(env), []
    for agent in agents:
        network, _ = model_of(seen_by(env, agent), config.reward)
        params = policy.state.parts[f"reward_{agent}"].params
        applies.append(
            lambda *inputs, network=network, params=params: jax.vmap(
                lambda own: network.apply(own, *inputs)
            )(params)
        )
    t = batch.transitions
    total = predict_team_rewards(applies, config.reward.reads, t, agents).sum(0)
    label = t.extras[PREFERRED][0, ::2]
    known = batch.mask[0, ::2, None] & (label != 0.5)
    right = jnp.where(known, _accuracy(total[::2], total[1::2], label), 0).sum()
    return {"held_out_accuracy": right / jnp.maximum(known.sum(), 1)}


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has several agents with Discrete actions and an expert, and
    for data or a teacher that teams do not have."""
    check_agents(env, name)
    of_vdn.check(with_team_reward(env), config, name)
    if env.expert is None:
        raise UserError(
            f"{name} plays its data by the expert of the environment, which '{env.name}' lacks."
        )
    h = config.segments
    if h.teacher.score != "reward":
        raise UserError(
            f"segments.teacher.score is '{h.teacher.score}'; it must be 'reward', since each agent "
            "of a team has one of its own."
        )
    why = "a tie for one agent is none for another, so no pair can be left out"
    settings.refuse(config, ("segments.teacher.skip_ties",), why)
    h.data(env)


marlhf = AlgorithmBuilder("marlhf", Config, recipe, check=check, measure=measure)

TINY = SMALL_SEGMENTS | {
    "env": "simple_spread",
    "env_params": {"agents": 2, "actions": "discrete", "reward": "each"},
    "torso.hidden": (5,),
    "reference.hidden": (5,),
    "reward.torso.hidden": (5,),
    "reward.optimizer.eps": 0.01,
    "reward.steps": 2.0,
    "others": 1,
}
