"""HCSP: hierarchical co-self-play (Zhang et al., 2025, "Mastering multi-drone volleyball through
hierarchical co-self-play reinforcement learning", arXiv:2505.04317, and the authors' code).

A team is led from above: a high level sees the whole team and gives each player a skill, which
holds until the next event of the game. The low level is each player's own: it acts by what the
player sees and by its skill. Both are trained by PPO, in three stages:

1. skills: the low level learns all skills, each by a shaped reward of its own. Skills are drawn at
   random.
2. strategy: the low level is frozen. The high level learns from the game's reward, summed from one
   of its decisions to the next, against a mixture of its past selves, an equilibrium of the games
   between them; when it beats the mixture, it joins them.
3. both: both levels learn together against past selves with both levels, beginning with the last
   one. The low level is paid the game's reward and its skill's, less a penalty for leaving the
   policy of the first stage,

       skill_weight * r_skill + game_weight * r_game - anchor_weight * KL(pi || pi_first)

A window holds decisions of the high level at some of its steps. Its advantages are generalized ones
over decisions: discount and lambda take effect where the next step is a decision and are 1 on the
way there, where values cancel. What a window cuts off is bootstrapped. A skill's return is cut, and
bootstrapped with the same skill, where the player is given another.

From the authors' code are decisions at events, undiscounted sums of rewards between them, PPO's
settings, the equilibrium and the rules by which a new member joins, and the penalty as a part of
the low level's reward. It differs in this: the game is another (an environment tells events and the
rewards of skills, as soccer does; the high level also decides after `patience` steps without an
event); all skills are one network that is told the skill, where theirs are eleven that learn one
after the other, later ones beside earlier ones (policy chaining); in the third stage all skills
learn, theirs lets one skill do so and then trains another high level that has it as a further
choice; answers go on from one another, and payoffs are estimated from the games of training; values
are not normalized; a member joins by the mean of its wins alone (there the deviation of the last
ten shares must be small too); critics have squared errors (there Huber's), and networks no layer
normalization. In the first stage opponents are past selves that draw their skills too.

Each evaluation also plays the first team against the environment's expert, if it has one.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.games.shared.team_play import blank_team, both_teams, team_self_play
from jaxrl.algorithms.multi_agent.shared.views import stack, team_view
from jaxrl.algorithms.multi_agent.team_ppo import among_experts
from jaxrl.algorithms.policy_gradient.shared.actor_critic import surrogate
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, hypers
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Box, MultiDiscrete
from jaxrl.core.types import Agent, Algorithm, Array, Environment, TimeStep, Tree, struct
from jaxrl.envs.wrappers.expert_channel import expert_channel
from jaxrl.envs.wrappers.one_team import check_teams, group_by_team
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.exact.meta_games import META
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
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts, Torso
from jaxrl.kit.parts import copy
from jaxrl.kit.stages import stages
from jaxrl.kit.state import State
from jaxrl.networks import encoders
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space
from jaxrl.tasks.answers import past_answers

STAGES = ("skills", "strategy", "both")
ACTING = ("chooser", "worker")  # parts by which a team plays
LEVELS = {"chooser": "chooser_critic", "worker": "worker_critic"}
FIRST, SECOND = "first_stage", "second_stage"  # before the names of their hyperparameters
AMONG_EXPERTS = "won_among_experts"


def _adam(learning_rate: float) -> Optimizer:
    return Optimizer(learning_rate=learning_rate, max_grad_norm=10.0, eps=1e-5, flat=True)


@group
class Config:
    """Settings of HCSP: three stages of a high level that gives players skills, and a low level
    that has them (arXiv:2505.04317)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=16)
    torso: Torso = Torso(hidden=(256, 128, 128), activation="elu")
    """Torsos of both levels' policies and critics; none is shared."""
    skills: Optimizer = _adam(5e-4)
    """Optimizer of the low level's policy and critic in the first stage."""
    strategy: Optimizer = _adam(1e-4)
    """Optimizer of the high level's policy and critic in the second stage."""
    both: Optimizer = _adam(1e-5)
    """Optimizer of both levels' policies and critics in the third stage."""

    skill_windows: int = static(1000, low=1, high=MANY)
    """Number of windows of the first stage."""
    strategy_windows: int = static(1000, low=1, high=MANY)
    """Number of windows of the second stage."""
    patience: int = static(20, low=1)
    """Number of steps after which the high level decides again, if there was no event by then."""
    sight: int = static(0, low=0)
    """Number of leading entries of an observation that the low level sees; 0 for all."""
    pool: int = static(10, low=1, high=MANY)
    """Largest number of past selves."""
    solver: str = static("nash", choices=("nash", "uniform", "projected_replicator"))
    """Mixture over past selves that is played against in the second and third stage: nash, an
    equilibrium of the games between them; uniform; or projected_replicator."""
    enough: float = static(0.9, low=0.5, high=1)
    """Share of games won against the mixture, a draw counting as half a game, at which the agent
    joins its past selves."""
    shortest: int = static(50, low=1)
    """Least number of windows until the agent joins its past selves."""
    longest: int = static(5000, low=1)
    """Number of windows after which the agent joins its past selves in any case."""
    scripted: int = static(64, low=0)
    """Number of games against the environment's expert in an evaluation; 0 for none."""

    discount: float = hyper(0.995, low=0, high=1)
    """Discount factor of the high level per decision."""
    low_discount: float = hyper(0.995, low=0, high=1)
    """Discount factor of the low level per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of both levels' generalized advantage estimation."""
    clip: float = hyper(0.1, above=0, high=INF)
    """Clipping range of a probability ratio around 1, beyond which its gradient is zero."""
    entropy_weight: float = hyper(0.001, low=0, log=True)
    """Weight of the entropy bonus of both levels."""
    skill_weight: float = hyper(1.0, low=0)
    """Weight of the skill's reward in the low level's reward of the third stage."""
    game_weight: float = hyper(1.0, low=0)
    """Weight of the game's reward in the low level's reward of the third stage."""
    anchor_weight: float = hyper(0.01, low=0)
    """Weight of the penalty for leaving the policy of the first stage, in the low level's reward of
    the third stage."""


@struct
class Kept:
    """Memory of a team: the players' skills, int32 [B, N], and for how many steps they were kept,
    int32 [B]."""

    skill: Array
    age: Array


@struct
class Sample:
    """Fields of each transition that a gradient step reads, [T, B] or rows of it.

    action, skill, and everything in `advantage["worker"]`, `target["worker"]` and
    `log_prob["worker"]` has a further axis of the players.
    """

    timestep: TimeStep
    action: Tree
    skill: Array
    decides: Array
    log_prob: Tree  # by level, like advantage and target
    advantage: Tree
    target: Tree


def is_decision(timestep: TimeStep, age: Array, patience: int) -> Array:
    """Return at which time steps the high level decides, after `age` steps with one choice."""
    return timestep.first | timestep.privileged["event"] | (age >= patience)


def discounts_of_decisions(
    decides: Array, discount: Array | float, lambda_: Array | float
) -> tuple[Array, Array]:
    """Return discount and lambda [T, B] by which generalized advantages of steps are those of the
    decisions among them, `decides` bool [T, B]: both are 1 where the next step is none. After the
    last step, values are bootstrapped as after a decision."""
    following = jnp.concatenate([decides[1:], jnp.ones_like(decides[:1])])
    return jnp.where(following, discount, 1.0), jnp.where(following, lambda_, 1.0)


def ends_of_skills(skill: Array, done: Array) -> Array:
    """Return after which steps [T, B, N] a player's skill is another than at the next step, or the
    episode `done` [T, B] has ended."""
    changed = jnp.concatenate([skill[1:] != skill[:-1], jnp.zeros_like(skill[:1], bool)])
    return changed | done[..., None]


def standardize_groups(advantage: Array, groups: Array, number: int) -> Array:
    """Standardize advantages within each of `number` groups, which are numbers shaped as they."""
    member = groups[..., None] == jnp.arange(number)
    axes = tuple(range(groups.ndim))
    count = jnp.maximum(member.sum(axes), 1)
    mean = (advantage[..., None] * member).sum(axes) / count
    apart = advantage - mean[groups]
    deviation = jnp.sqrt((jnp.square(apart)[..., None] * member).sum(axes) / count)
    return apart / (deviation[groups] + 1e-8)


def co_play_reward(h: Any, shaped: Array, game: Array, apart: Array) -> Array:
    """Return the low level's reward [..., N] in the third stage.

    h: hyperparameters. shaped: the skills' rewards, [..., N]. game: the team's reward, [...].
    apart: KL divergence of the players' policies from those of the first stage, [..., N].
    """
    return h.skill_weight * shaped + h.game_weight * game[..., None] - h.anchor_weight * apart


def count_skills(env: Environment) -> int:
    """Return the number of skills whose rewards an environment tells; 0 without them or events."""
    told = example_timestep(env, agents=True).privileged or {}
    return told["skills"].shape[-1] if {"skills", "event"} <= set(told) else 0


def recipe(env: Environment, config: Config, stage: str = "both") -> Recipe:
    """Return the recipe of a stage, in `env` as one team sees it."""
    agents, example, number = env.agents, example_timestep(env), count_skills(env)
    sees: Any = env.observation_space[agents[0]]  # type: ignore[index]
    acts: Any = env.action_space[agents[0]]  # type: ignore[index]
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer

    def view(timestep: TimeStep) -> TimeStep:
        """Return the observations of all players as vectors, [..., N, D]."""
        seen = team_view(timestep, agents)
        return dataclasses.replace(seen, observation=encoders.flatten(sees, seen.observation))

    def low_view(timestep: TimeStep, skill: Array) -> TimeStep:
        seen = view(timestep)
        part = seen.observation[..., : config.sight] if config.sight else seen.observation
        return dataclasses.replace(seen, observation=part, goal=jax.nn.one_hot(skill, number))

    def high_view(timestep: TimeStep) -> TimeStep:
        seen = view(timestep)
        whole = seen.observation.reshape(*seen.observation.shape[:-2], -1)
        return dataclasses.replace(seen, observation=whole, legal_actions=None)

    none = jnp.zeros((1, len(agents)), jnp.int32)
    low, high = low_view(example, none), high_view(example)
    space = lambda timestep: Box(-INF, INF, timestep.observation.shape[-1:])
    skills = MultiDiscrete((number,) * len(agents))
    networks = {
        "worker": (Actor(space(low), acts, *torso), low),
        "worker_critic": (Value(space(low), *torso), low),
        "chooser": (Actor(space(high), skills, *torso), high),
        "chooser_critic": (Value(space(high), *torso), high),
    }
    learning = {"skills": ("worker",), "strategy": ("chooser",), "both": ("chooser", "worker")}[
        stage
    ]
    learned = {part for level in learning for part in (level, LEVELS[level])}
    optimizer = getattr(config, stage)
    parts = {
        name: Part(network, (seen,), optimizer if name in learned else None)
        for name, (network, seen) in networks.items()
    }
    parts["anchor"] = Part(networks["worker"][0], (low,), begins_as="worker")

    def policy_loss(net: Net, x: Sample, level: str) -> LossOutput:
        """Compute the clipped surrogate of a level minus an entropy bonus."""
        if level == "worker":
            policy, action = net.worker(low_view(x.timestep, x.skill)), x.action
        else:
            policy, action = net.chooser(high_view(x.timestep)), x.skill
        old, gain = x.log_prob[level], x.advantage[level]
        terms = surrogate(policy, action, old, gain, net.hyper.clip)
        terms = {n: y.mean(-1) if level == "worker" else y for n, y in terms.items()}
        total = terms["policy_loss"] - net.hyper.entropy_weight * terms["entropy"]
        metrics = {f"{level}_{name}": value for name, value in terms.items()}
        return LossOutput(total, metrics, drift=terms["approximate_kl"])

    @loss("worker")
    def worker_loss(net: Net, x: Sample) -> LossOutput:
        return policy_loss(net, x, "worker")

    @loss("chooser")
    def chooser_loss(net: Net, x: Sample) -> LossOutput:
        return policy_loss(net, x, "chooser")

    @loss("worker_critic")
    def worker_critic_loss(net: Net, x: Sample) -> Array:
        value = net.worker_critic(low_view(x.timestep, x.skill))
        return losses.squared_error(value, x.target["worker"]).mean(-1)

    @loss("chooser_critic")
    def chooser_critic_loss(net: Net, x: Sample) -> Array:
        return losses.squared_error(net.chooser_critic(high_view(x.timestep)), x.target["chooser"])

    level_losses = {
        "worker": (worker_loss, worker_critic_loss),
        "chooser": (chooser_loss, chooser_critic_loss),
    }

    def act(net, timestep, memory: Kept, key, greedy):
        del key
        decides = is_decision(timestep, memory.age, config.patience)
        if stage == "skills":
            shape = memory.skill.shape
            chosen = jax.random.randint(net.key("skills"), shape, 0, number)
            choice_log_prob = jnp.zeros(shape[0])
        else:
            policy = net.chooser(high_view(timestep))
            chosen = choose(policy, net.key("skills"), greedy).astype(jnp.int32)
            choice_log_prob = policy.log_prob(chosen)
        skill = jnp.where(decides[:, None], chosen, memory.skill)
        age = jnp.where(decides, 0, memory.age)
        policy = net.worker(low_view(timestep, skill))
        action = jax.lax.stop_gradient(choose(policy, net.key("actions"), greedy))
        extras = {
            "skill": skill,
            "decides": decides,
            "log_prob": {"worker": policy.log_prob(action), "chooser": choice_log_prob},
        }
        by_name = {n: jax.tree.map(lambda x, i=i: x[:, i], action) for i, n in enumerate(agents)}
        return by_name, Kept(skill, age + 1), extras

    def rewards_of_skills(net: Net, x: Any, skill: Array) -> tuple[Array, dict[str, Array]]:
        """Return the low level's rewards [T, B, N], and what is reported of them."""
        told = x.next_timestep.privileged["skills"]
        shaped = jnp.take_along_axis(told, skill[..., None], -1)[..., 0]
        if stage == "skills":
            return shaped, {"skill_reward": shaped.mean()}
        seen, h = low_view(x.timestep, skill), net.hyper
        apart = net.worker(seen).kl_divergence(net.anchor(seen))
        return co_play_reward(h, shaped, x.reward, apart), {
            "skill_reward": shaped.mean(),
            "anchor_kl": apart.mean(),
        }

    def sample_of(net: Net, batch: Any) -> tuple[Sample, Net]:
        x, h = batch.transitions, net.hyper
        skill, decides = x.extras["skill"], x.extras["decides"]
        advantage, target, ends = {}, {}, x.terminated
        if "worker" in learning:
            reward, reports = rewards_of_skills(net, x, skill)
            value, following = (
                net.worker_critic(low_view(t, skill)) for t in (x.timestep, x.next_timestep)
            )
            over = jnp.broadcast_to(ends[..., None], reward.shape)
            cut = ends_of_skills(skill, x.done)
            gain = losses.gae(reward, value, following, over, cut, h.low_discount, h.gae_lambda)
            target["worker"] = gain + value
            advantage["worker"] = standardize_groups(gain, skill, number)
            net = net.report(**reports)
        if "chooser" in learning:
            value, following = (
                net.chooser_critic(high_view(t)) for t in (x.timestep, x.next_timestep)
            )
            discount, lambda_ = discounts_of_decisions(decides, h.discount, h.gae_lambda)
            gain = losses.gae(x.reward, value, following, ends, x.done, discount, lambda_)
            target["chooser"] = gain + value
            # Other steps, group 0, are masked.
            advantage["chooser"] = standardize_groups(gain, decides.astype(jnp.int32), 2)
            net = net.report(decisions=decides.mean(dtype=jnp.float32))
        action = stack(x.action, agents, x.terminated.ndim)
        log_prob = {level: x.extras["log_prob"][level] for level in learning}
        return Sample(x.timestep, action, skill, decides, log_prob, advantage, target), net

    def update(net: Net, batch: Any) -> Net:
        sample, net = sample_of(net, batch)

        def step(net: Net, minibatch: Minibatch) -> Net:
            drifts = []
            for level in learning:
                mask = minibatch.x.decides if level == "chooser" else None
                policy, critic = level_losses[level]
                net = net.descend(policy, minibatch, mask=mask)
                drifts.append(net.drift)
                net = net.descend(critic, minibatch, mask=mask)
            return net.replace(drift=jnp.stack(drifts).max())

        return net.epochs(config.passes, sample, step, max_drift=net.hyper.passes.target_kl)

    def adopt(state: State, other: Tree) -> Tree:
        """Begin with another stage's parameters, its low level the anchor, and new optimizers."""
        if not isinstance(other, State) or other.parts.keys() != state.parts.keys():
            return other  # which will not fit
        source = {name: name for name in state.parts} | {"anchor": "worker"}
        begun = {
            name: dataclasses.replace(own, params=copy(other.parts[source[name]].params))
            for name, own in state.parts.items()
        }
        return dataclasses.replace(state, parts=begun)

    def memory(n: int) -> Kept:
        return Kept(jnp.zeros((n, len(agents)), jnp.int32), jnp.zeros(n, jnp.int32))

    return Recipe(
        parts=parts,
        act=act,
        losses=tuple(part for level in learning for part in level_losses[level]),
        update=update,
        memory=memory,
        needs=("transitions.extras.skill", "transitions.extras.decides"),
        num_shards=config.rollouts.num_shards,
        adopt=adopt,
    )


levels = AlgorithmBuilder("hcsp", Config, recipe)


def agent_of(env: Environment, config: Config, stage: str) -> Agent:
    """Return the agent of a stage, in `env`, a game of two teams."""
    return levels.variant("hcsp", stage=stage).agent(blank_team(env), config)


def hcsp(env: Environment, config: Config = Config()) -> Algorithm:
    """Build HCSP in `env`, a game of two teams. The same arguments give the same object.

    The first two stages are part of `init`, as is told by `initial_env_steps`. The policy plays
    both teams. Raises `UserError` for another environment, one that tells no skills, and for a
    window that does not divide into the minibatches.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    own = hypers(config)
    check_teams(env, "hcsp")
    if not count_skills(env):
        raise UserError(
            f"hcsp needs events and rewards of skills, privileged['event'] and "
            f"privileged['skills'], which '{env.name}' does not tell; soccer does."
        )
    for name, space in env.action_space.items():
        check_action_space(space, f"hcsp's agent '{name}'")
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)

    def stage_of(stage: str) -> Algorithm:
        agent = agent_of(env, config, stage)
        environment, snapshot = team_self_play(env, agent, ACTING)
        solver = "uniform" if stage == "skills" else config.solver
        tasks = past_answers(
            lambda opponent: dataclasses.replace(environment.params, opponent=opponent),
            snapshot,
            lambda payoff, mask: META[solver](payoff, mask, 0.0),
            config.pool,
            shortest=min(config.shortest, config.longest),
            longest=config.longest,
            enough=config.enough,
        )
        return learn(agent, config.rollouts.source(environment, tasks))

    trained = stages(stage_of("skills"), config.skill_windows, stage_of("strategy"), FIRST)
    built = stages(trained, config.strategy_windows, stage_of("both"), SECOND)

    def init(key, hyper):
        """All stages have the same hyperparameters."""
        plain = lambda name: name.removeprefix(f"{SECOND}.").removeprefix(f"{FIRST}.")
        return built.init(key, {n: hyper[plain(n)] for n in built.hyper})

    def measure(state, key):
        if not is_judged(env, config):
            return {}
        first = next(iter(group_by_team(env.agents).values()))
        policy = among_experts(both_teams(env, built.policy(state)), first)
        played = evaluate(expert_channel(env), policy, key, config.scripted)
        return {AMONG_EXPERTS: played.metrics["won"].mean()}

    scores = {"won": "won"} | (
        {AMONG_EXPERTS: "won among experts"} if is_judged(env, config) else {}
    )
    return dataclasses.replace(
        built,
        name=f"hcsp on {env.name}",
        init=init,
        hyper={n: built.hyper[n] for n in own},
        policy=lambda state: both_teams(env, built.policy(state)),
        config=config,
        num_shards=x.num_shards,
        scores=scores,
        measure=measure,
    )


def is_judged(env: Environment, config: Config) -> bool:
    """Return whether evaluations play a team against the environment's expert."""
    return env.expert is not None and config.scripted > 0


TINY = {
    "env": "soccer", "env_params": {"actions": "discrete"}, "num_envs": 4, "num_steps": 4,
    "num_shards": 4, "passes.epochs": 2, "passes.minibatches": 2, "torso.hidden": (4,),
    "skill_windows": 1, "strategy_windows": 1, "patience": 2, "sight": 8, "pool": 2,
    "shortest": 1, "longest": 1, "scripted": 2,
}  # fmt: skip
