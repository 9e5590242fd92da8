"""EnDi: agents that read a manual and divide the entities it tells of among themselves (Ding et
al., 2022, "Entity Divider with Language Grounding in Multi-Agent Reinforcement Learning",
arXiv:2210.13942, and the authors' code for their Messenger games).

Each agent has a policy with two heads. Entities attend to the lines of the manual, and each is
masked as the agent's own or as the others', by a choice that is drawn straight through (Gumbel
softmax). The first head acts and sees only own entities; the second predicts what the other agents
do and sees only theirs. Each policy descends PPO's clipped surrogate, an entropy bonus, and
`model_weight` times the cross-entropy of the others' actions:

    L = L_PPO(pi(a | own entities)) + model_weight * mean_j -log p(a_j | the others' entities)

so that an agent which claims the entity of another can no longer explain what that one does. With
`divide` off both heads see all entities: a policy that reads, and divides nothing.

From the authors' code: the attention to the manual (keys and values are sums of words, weighted by
a softmax), the drawn masks, the two heads with separate layers, the weight 1, and a policy of each
agent's own. Choices made here: entities are a list, and not cells of pictures with convolutions and
three past frames; the manual's words are tokens with embeddings that are learned, and not BERT's;
the noise of a mask is kept with the action, so that probability ratios are of the same division;
and values, targets and passes are MAPPO's, with one critic of the state, where the authors' critics
see their own entities. Further losses of the authors on the division, which its flags leave out,
are not here.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.views import own_view, state_view
from jaxrl.algorithms.policy_gradient.shared.actor_critic import surrogate
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, LossOutput, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import INF, Rollouts
from jaxrl.kit.normalization import no_moments
from jaxrl.networks.critics import Value
from jaxrl.networks.entity_divider import EntityDivider

PARTS = ("agents", "entities", "manual")  # of an observation
LINE = 2  # words of a line of the manual: a name and a role


@group
class Config(team_policies.Settings):
    """Settings of EnDi (arXiv:2210.13942)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=32)
    width: int = static(64, low=1, high=WIDE)
    """Width of embeddings of words and entities."""
    divide: bool = True
    """Mask entities as an agent's own or the others'; off: all are both."""

    model_weight: float = hyper(1.0, low=0)
    """Weight of the prediction of the others' actions; 1 in the authors' code."""


@struct
class Sample(team_policies.Sample):
    """MAPPO's sample with the noise of each agent's masks, [T, B, E, 2]."""

    noise: Tree = ()


def policy_loss(net: Net, x: Sample, agent: str, others: tuple[str, ...]) -> LossOutput:
    """Compute an agent's clipped surrogate, minus an entropy bonus, plus the cross-entropy of the
    others' actions."""
    h, advantage = net.hyper, x.advantage["critic"]
    divided = getattr(net, agent)(own_view(x.timestep, agent), x.noise[agent])
    terms = surrogate(divided.policy, x.action[agent], x.log_prob[agent], advantage, h.clip)
    log_prob = jax.nn.log_softmax(divided.others)
    chosen = [losses.at_action(log_prob[..., i, :], x.action[n]) for i, n in enumerate(others)]
    terms["model_loss"] = -jnp.stack(chosen, -1).mean(-1)
    terms["own_share"] = divided.mask[..., 0].mean(-1)
    total = terms["policy_loss"] - h.entropy_weight * terms["entropy"]
    total = total + h.model_weight * terms["model_loss"]
    metrics = {f"{agent}_{name}": value for name, value in terms.items()}
    return LossOutput(total, metrics, drift=terms["approximate_kl"])


def count_entities(env: Environment, agent: str) -> int:
    """Return the number of entities that an agent observes."""
    return env.observation_space[agent]["entities"].shape[0]  # type: ignore[index]


def recipe(env: Environment, config: Config) -> Recipe:
    agents, example, torso = agent_names(env), example_timestep(env), config.torso
    shape = state_view(example).observation.shape[1:]
    sizes = torso.hidden, torso.activation, torso.initializer
    critic = Value(Box(-INF, INF, shape), *sizes)
    parts = {"critic": Part(critic, (state_view(example),), config.critic)}
    policy_losses = []
    for agent in agents:
        manual = env.observation_space[agent]["manual"]  # type: ignore[index]
        network = EntityDivider(
            env.action_space[agent],  # type: ignore[index]
            len(agents) - 1,
            max(manual.sizes),
            len(manual.sizes) // LINE,
            config.width,
            *sizes,
            divide=config.divide,
        )
        noise = jnp.zeros((1, count_entities(env, agent), 2))
        parts[agent] = Part(network, (own_view(example, agent), noise), config.actor)
        others = tuple(n for n in agents if n != agent)
        learn = functools.partial(policy_loss, agent=agent, others=others)
        policy_losses.append(Loss(learn, (agent,), f"{agent}_loss"))
    fit = functools.partial(team_policies.value_loss, critic="critic", view=state_view)
    value_losses = [Loss(fit, ("critic",), "critic_loss")]
    numbers = {f"{agent}_loss": np.array([i]) for i, agent in enumerate(agents)}

    def act(net, timestep, memory, key, greedy):
        action, log_prob, noises = {}, {}, {}
        for agent in agents:
            seen = own_view(timestep, agent)
            shape = (*seen.first.shape, count_entities(env, agent), 2)
            noise = jnp.zeros(shape)
            if not greedy:
                noise = jax.random.gumbel(net.key(f"{agent}_mask"), shape)
            policy = getattr(net, agent)(seen, noise).policy
            action[agent] = jax.lax.stop_gradient(choose(policy, net.key(agent), greedy))
            log_prob[agent], noises[agent] = policy.log_prob(action[agent]), noise
        return action, memory, {"log_prob": log_prob, "noise": noises}

    def update(net, batch):
        plain, moments = team_policies.estimate_advantages(net, batch, {"critic": state_view})
        plain = team_policies.standardize_living(plain, {"critic": range(len(agents))})
        fields = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
        sample = Sample(**fields, noise=batch.transitions.extras["noise"])
        return team_policies.descend_in_passes(
            net.replace(extra=moments),
            sample,
            batch,
            config.passes,
            policy_losses,
            value_losses,
            numbers,
        )

    return Recipe(
        parts=parts,
        act=act,
        losses=(*policy_losses, *value_losses),
        update=update,
        extra={"critic": no_moments(())},
        needs=("transitions.extras.log_prob", "transitions.extras.noise"),
        num_shards=config.rollouts.num_shards,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` where MAPPO does, for one agent alone, and unless every agent observes
    agents, entities and a manual, and has Discrete actions."""
    team_policies.check_central(env, config, name)
    agents, sees, acts = agent_names(env), env.observation_space, env.action_space
    for agent in agents:
        space = sees[agent]  # type: ignore[index]
        if not isinstance(space, dict) or set(space) != set(PARTS):
            raise UserError(
                f"{name} reads a manual about entities: agents of '{env.name}' must observe "
                f"{', '.join(PARTS)}, like those of manual_quest."
            )
        if not isinstance(acts[agent], Discrete):  # type: ignore[index]
            raise UserError(f"{name} predicts Discrete actions; '{env.name}' has others.")
    if len(agents) < 2:
        raise UserError(f"{name} divides entities among several agents; '{env.name}' has one.")


endi = AlgorithmBuilder("endi", Config, recipe, check=check)

TINY = {"env": "manual_quest", "env_params": {"size": 4}, "width": 6, "num_envs": 4} | {
    "num_steps": 8,
    "num_shards": 4,
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
