"""Multi-agent marginal Q-learning from demonstrations (MAMQL; Haynam, Khoja, Kumar, Myers and
Biyik, 2025, "Multi-agent inverse Q-learning from demonstrations", arXiv:2503.04679): each of
several experts has a reward of its own, and is imitated by a critic of its own actions alone.

A critic is marginal: its values are those of joint actions, averaged over what the others do
(`losses.marginal_q`),

    Q_i(s, a_i) = sum_o pi(o | s) Q_i(s, a_i, o)

so the agent's policy is Boltzmann's, softmax(Q_i(s, .) / temperature) (the paper's lambda is
1 / temperature), and to each agent the others are a part of the environment. So the objective of
IQ-Learn applies to each as to a single agent, and Q_i(s, a_i) - discount V_i(s') is the reward that
its expert is best for, of the others' actions on average. The critics are networks of s and a_i;
that they are marginal comes from steps in which the others act as they do: the demonstrated ones
act as the experts, those of the replay buffer as the policies of late.

Each critic sees what its agent observes, where the paper's see the state. That the paper fits the
rewards of joint actions by a regression on its critics is not done here. Its equations could not
be read; the objective is that of `iq_learn`, as its abstract says. The experts are those of the
environment, played anew by each run.
"""

from __future__ import annotations

import distrax

from jaxrl import losses
from jaxrl.algorithms.imitation.shared.adversarial import Beside, compare
from jaxrl.algorithms.imitation.shared.soft_q import inverse_objective
from jaxrl.algorithms.multi_agent.shared.views import check_agents, own_view
from jaxrl.algorithms.value.shared.heads import legal_values
from jaxrl.algorithms.value.shared.q_learning import q_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.wrappers.expert_channel import expert_channel
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names, seen_by
from jaxrl.kit.groups import ImageTorso, Optimizer, Replay
from jaxrl.networks.encoders import check_image
from jaxrl.networks.heads import check_discrete
from jaxrl.sources.beside import beside
from jaxrl.sources.played import played_dataset


@group
class Experts:
    """Steps that the environment's experts play before learning."""

    size: int = static(2_000, low=1)
    """Number of steps that are played."""
    streams: int = static(4, low=1, high=MANY)
    """Number of streams of episodes that are played side by side."""
    skill: float = static(1.0, low=0, high=1)
    """Probability that the actions of a step are the experts'; others are uniformly random."""


@group
class Config:
    """Settings of MAMQL: a marginal soft Q-function for each agent, learned from experts' steps and
    the policies' (arXiv:2503.04679)."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256)
    """Replay buffer of the policies' own steps."""
    experts: Experts = Experts()
    torso: ImageTorso = ImageTorso(hidden=(64, 64))
    """Hidden layers of each agent's Q-function."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of all Q-functions, separately."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    temperature: float = hyper(0.01, above=0, log=True)
    """Temperature of the soft values and of the policies."""
    alpha: float = hyper(0.5, above=0)
    """Scale of the chi-squared regularizer; larger values allow larger rewards."""


def marginal_values(net: Net, timestep: TimeStep, agent: str) -> tuple[Array, Array]:
    """Return Q [..., A] of an agent's legal actions, and its soft value V [...]."""
    seen = own_view(timestep, agent)
    q = legal_values(getattr(net, agent)(seen), seen)
    return q, losses.soft_value(q, net.hyper.temperature)


def marginal_loss(agent: str) -> Loss:
    """Return the loss of an agent's Q-function: IQ-Learn's objective for its own actions."""

    def function(net: Net, x: Beside) -> LossOutput:
        values = lambda timestep: marginal_values(net, timestep, agent)
        h = net.hyper
        output = inverse_objective(values, x, lambda x: x.action[agent], h.discount, h.alpha)
        return LossOutput(output.value, {f"{agent}_{k}": v for k, v in output.metrics.items()})

    return Loss(function, (agent,), f"{agent}_loss")


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example = agent_names(env), example_timestep(env, agents=True)
    each = {agent: marginal_loss(agent) for agent in agents}

    def part(agent: str) -> Part:
        network = q_network(seen_by(env, agent), config.torso)
        return Part(network, (own_view(example, agent),), config.optimizer)

    def act(net, timestep, memory, key, greedy):
        action = {}
        for agent in agents:
            q, _ = marginal_values(net, timestep, agent)
            policy = distrax.Categorical(logits=q / net.hyper.temperature)
            chosen = choose(policy, net.key(agent), greedy)
            action[agent] = chosen.astype(env.action_space[agent].dtype)  # type: ignore[index]
        return action, memory, {}

    def update(net: Net, batch: Batch) -> Net:
        steps = Minibatch(compare(net, env, batch), batch.mask, batch.weight)
        for loss in each.values():
            net = net.descend(loss, steps)
        return net

    return Recipe(
        parts={agent: part(agent) for agent in agents},
        act=act,
        losses=tuple(each.values()),
        update=update,
        needs=("transitions.extras.expert",),
    )


def source(env: Environment, config: Config) -> Source:
    """Return replayed steps of the policies, each with a step of the experts beside it."""
    x, experts = config.replay, config.experts
    watched = expert_channel(env)
    shown = played_dataset(
        watched,
        mixed_skill(watched, (experts.skill,)),
        experts.size,
        x.batch_size,
        streams=experts.streams,
        num_shards=x.num_shards,
    )
    return beside(x.source(env), shown)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` has several agents with Discrete actions, and experts, and for
    convolutions without images."""
    check_agents(env, name)
    for agent in agent_names(env):
        check_discrete(env.action_space[agent], f"{name}'s agent '{agent}'")  # type: ignore[index]
        check_image(seen_by(env, agent), config.torso.channels)
    if env.expert is None:
        raise UserError(f"{name} imitates the experts of an environment; '{env.name}' has none.")


mamql = AlgorithmBuilder("mamql", Config, recipe, source, check=check)

TINY = {
    "env": "speaker_listener",
    "env_params": {"size": 3},
    "experts.size": 64,
    "experts.skill": 0.5,
    "num_envs": 4,
    "num_steps": 2,
    "updates": 2,
    "batch_size": 8,
    "capacity": 64,
    "warmup": 16,
    "num_shards": 4,
    "hidden": (5,),
}
