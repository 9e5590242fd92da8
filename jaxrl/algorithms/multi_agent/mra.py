"""MRA: one set of policies for games of every number of agents (Zhang et al., 2021, "Learning meta
representations for agents in multi-agent reinforcement learning", arXiv:2108.12988, and the
authors' code).

A game M is how many agents there are; slots of the others are masked (`TimeStep.alive`). Each agent
draws a latent z ~ p(z | M) for an episode. A relation g(o, z), attention with keys and queries of
that latent, weighs the other agents, and the policy pi(a | o, g(o, z)) sees its own observation and
what it sees of the others as their mean by these weights. So policies for all latents are one
network, agents share it, and it takes any number of others. Three objectives take turns:

- The policy and its critic learn from the reward, at the relations that were acted by, into which
  no gradient of theirs flows.
- Knowledge that games share: the relation maximizes a bound on the information I(a; z | o, M) that
  actions have of latents, the mean over z ~ p(z | M) and a ~ pi of

      log q(a | o, z) - log sum_z' p(z' | M) q(a | o, z')

  where q(a | o, z) = pi'(a | o, g(o, z)) is the target policy, whose posterior of z by Bayes' rule
  is the variational one; the gradient flows through q alone. pi' is the policy before the window's
  updates, so the relation leads it toward what the better policy does, and latents apart.
- Knowledge of the game: p(z | M), and a posterior q(M | o, g(o, z), z), the product over agents of
  what each one sees, descend -log q(M | ...) at latents drawn straight through (Gumbel softmax).

In a game that was not trained, p(z | M) and the relations are used as they are. To adapt is to
update some more there, from what was learned (`warm_start`, as configs/mra/pursuit_adapted.yaml
does): its gradients are of first order.

From the authors' code: the objectives, the parts that descend each and the gradients that are
stopped, one step of relation and game after the policy's, keys by latent, p(z | M) from the number
of agents, 6 latents, rates of 3e-4. The paper's equations could not be read, so the constrained
form of its objective and its own way to adapt are not confirmed. Choices made here: values, targets
and passes are those of `team_ppo`, where the authors have a soft actor-critic with a replay buffer
and a critic of all actions; the bound is computed exactly, by sums over all latents and actions,
where they draw one action and 5 latents; policy and critic see their own features beside the mean
of the others; means over agents take the place of sums; and there is no weight decay.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.multi_agent import team_ppo
from jaxrl.algorithms.multi_agent.maddpg import straight_through
from jaxrl.algorithms.multi_agent.shared import team_policies
from jaxrl.algorithms.multi_agent.shared.team_policies import Sample
from jaxrl.algorithms.multi_agent.shared.views import check_alike, stack, team_view
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.kit import (
    AlgorithmBuilder,
    Loss,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    static,
)
from jaxrl.kit.acting import choose
from jaxrl.kit.agents import agent_names
from jaxrl.kit.groups import Optimizer, Passes, Rollouts, Target
from jaxrl.kit.normalization import no_moments
from jaxrl.networks.heads import check_discrete
from jaxrl.networks.relations import (
    GamePosterior,
    LatentPrior,
    RelatedActor,
    RelatedValue,
    Relation,
    there,
)

AGENTS = "agents"  # the part that all agents are
CRITIC = team_ppo.critic_of(AGENTS)


@group
class Config(team_policies.Settings):
    """Settings of MRA (arXiv:2108.12988)."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=64)
    passes: Passes = Passes(epochs=4, minibatches=4)
    actor: Optimizer = team_ppo.ADAM
    """Optimizer of the policy that all agents share."""
    critic: Optimizer = team_ppo.ADAM
    """Optimizer of the critic that all agents share."""
    target: Target = Target(rate=1.0)
    """Target network of the policy, which the relation is learned through; a copy as of the last
    update by default, as in the authors' code."""
    relation: Optimizer = Optimizer(max_grad_norm=10.0)
    """Optimizer of the relation."""
    game: Optimizer = Optimizer()
    """Optimizer of the latents' distribution in each game and of the posterior of the game."""
    latents: int = static(6, low=1, high=WIDE)
    """Number of latents, each a way to play; 1 for a single policy, whose relation is not
    learned."""


def information_bound(log_prior: Array, log_policy: Array, log_target: Array) -> Array:
    """Compute a lower bound on the mutual information of latent and action, [...], in nats.

    sum_z p(z) sum_a pi(a | z) [log q(a | z) - log sum_z' p(z') q(a | z')], which is the information
    under pi minus the mean divergence of the posterior of z under pi from that under q.

    log_prior: [..., L]. log_policy: log pi, [..., L, A]. log_target: log q, [..., L, A].
    """
    joint = jnp.exp(log_prior[..., None] + log_policy)
    marginal = jax.nn.logsumexp(log_prior[..., None] + log_target, -2, keepdims=True)
    return (joint * (log_target - marginal)).sum((-2, -1))


def population(timestep: TimeStep) -> Array:
    """Return the number of agents that are there, int32 [...], of a time step of all agents."""
    return there(timestep).sum(-1)


def relate(net: Net, timestep: TimeStep, latent: Array) -> TimeStep:
    """Return the time step of all agents with their relations by one-hot latents [..., N, L]."""
    seen = timestep.observation | {"relation": net.relation(timestep, latent)}
    return dataclasses.replace(timestep, observation=seen)


def relation_loss(net: Net, x: Sample) -> LossOutput:
    """Compute minus the mean over living agents of the bound on what an action tells of the
    latent, of which the gradient flows through the relations of the target policy alone."""
    seen, log_prior = x.timestep, net.game(population(x.timestep))
    shape, size = there(seen).shape, log_prior.shape[-1]
    # Latents as one more axis of the data, [L, ...], and not by vmap: under a second vmap, over
    # members of a sweep, XLA's program for a CPU died.
    every = jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), seen)
    latent = jnp.eye(size).reshape(size, *[1] * len(shape), size)
    related = relate(net, every, jnp.broadcast_to(latent, (size, *shape, size)))
    policy, target = net.agents(related).logits, net.target.agents(related).logits
    log_policy, log_target = (jnp.moveaxis(logits, 0, -2) for logits in (policy, target))
    log_prior, log_policy = jax.lax.stop_gradient((log_prior[..., None, :], log_policy))
    bound = information_bound(log_prior, log_policy, log_target)
    bound = team_policies.mean_of_living(bound, seen, np.arange(shape[-1]))
    return LossOutput(-bound, {"information": bound})


def game_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the cross-entropy of the game, by latents that are drawn straight through."""
    seen, count = x.timestep, population(x.timestep)
    log_prior = net.game(count)
    every = jnp.broadcast_to(log_prior[..., None, :], (*there(seen).shape, log_prior.shape[-1]))
    latent = straight_through(every, net.key())
    log_prob = jax.nn.log_softmax(net.posterior(relate(net, seen, latent), latent))
    label = jax.nn.one_hot(count - 1, log_prob.shape[-1])
    right = log_prob.argmax(-1) == count - 1
    entropy = -(jnp.exp(log_prior) * log_prior).sum(-1)
    return LossOutput(
        -(label * log_prob).sum(-1), {"game_accuracy": right, "latent_entropy": entropy}
    )


def recipe(env: Environment, config: Config) -> Recipe:
    names, torso = agent_names(env), config.torso
    numbers, count = np.arange(len(names)), len(names)
    acts = env.action_space[names[0]]  # type: ignore[index]
    sizes = torso.hidden, torso.activation, torso.initializer
    view = functools.partial(team_view, names=names)
    plain = view(example_timestep(env))
    latent = jnp.zeros((1, count, config.latents))
    zeros = {"relation": jnp.zeros((1, count, count - 1))}
    example = dataclasses.replace(plain, observation=plain.observation | zeros)
    posterior = GamePosterior(count, *sizes)
    parts = {
        AGENTS: Part(RelatedActor(acts, *sizes), (example,), config.actor, config.target),
        CRITIC: Part(RelatedValue(*sizes), (example,), config.critic),
        "relation": Part(Relation(config.latents), (plain, latent), config.relation),
        "game": Part(LatentPrior(config.latents), (population(plain),), config.game),
        "posterior": Part(posterior, (example, latent), config.game),
    }
    alike = {"view": lambda timestep: timestep, "numbers": numbers}
    improve = functools.partial(team_policies.policy_loss, policy=AGENTS, critic=CRITIC, **alike)
    fit = functools.partial(team_policies.value_loss, critic=CRITIC, **alike)
    policy = Loss(improve, (AGENTS,), f"{AGENTS}_loss")
    value = Loss(fit, (CRITIC,), f"{CRITIC}_loss")
    relation = Loss(relation_loss, ("relation",), "relation_loss")
    game = Loss(game_loss, ("game", "posterior"), "game_loss")
    owners = {CRITIC: numbers}

    def act(net, timestep, memory, key, greedy):
        seen = view(timestep)
        log_prior = net.game(population(seen))[:, None]
        drawn = jax.random.categorical(net.key("latent"), log_prior, shape=memory.shape)
        memory = jnp.where(timestep.restarts[:, None], drawn.astype(jnp.int32), memory)
        policy = net.agents(relate(net, seen, jax.nn.one_hot(memory, config.latents)))
        chosen = jax.lax.stop_gradient(choose(policy, net.key(AGENTS), greedy))
        action = {name: chosen[:, i] for i, name in enumerate(names)}
        extras = {"log_prob": {AGENTS: policy.log_prob(chosen)}, "latent": memory}
        return action, memory, extras

    def update(net, batch):
        x = batch.transitions
        latent = jax.nn.one_hot(x.extras["latent"], config.latents)
        see = lambda timestep: relate(net, view(timestep), latent)
        reward = x.reward if x.reward.ndim > x.terminated.ndim else x.reward[..., None]
        reward = {CRITIC: jnp.broadcast_to(reward, latent.shape[:-1])}
        sample, moments = team_policies.estimate_advantages(
            net, batch, {CRITIC: see}, reward, owners
        )
        action = {AGENTS: stack(x.action, names, x.terminated.ndim)}
        sample = dataclasses.replace(sample, timestep=see(x.timestep), action=action)
        sample = team_policies.standardize_living(sample, owners)
        net = team_policies.descend_in_passes(
            net.replace(extra=moments),
            sample,
            batch,
            config.passes,
            [policy],
            [value],
            {policy.name: numbers, value.name: numbers},
        )
        window = team_policies.living(Minibatch(sample, batch.mask, batch.weight), numbers)
        if config.latents > 1:
            net = net.descend(relation, window)
        return net.descend(game, Minibatch(sample, batch.mask, batch.weight)).update_targets()

    return Recipe(
        parts=parts,
        act=act,
        losses=(policy, value, relation, game),
        update=update,
        extra={CRITIC: no_moments(())},
        memory=lambda n: jnp.zeros((n, count), jnp.int32),
        needs=("transitions.extras.log_prob", "transitions.extras.latent"),
        num_shards=config.rollouts.num_shards,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for a window that does not divide into the minibatches, and unless agents
    are alike, have Discrete actions, may be absent, and list what they see of the others."""
    team_policies.check_windows(env, config, name)
    names = agent_names(env)
    check_alike(env, names, name)
    check_discrete(env.action_space[names[0]], f"{name}'s agent '{names[0]}'")  # type: ignore[index]
    sees = env.observation_space[names[0]]  # type: ignore[index]
    listed = isinstance(sees, dict) and set(sees) == {"own", "others"}
    if not listed or sees["others"].shape[:-1] != (len(names) - 1,) or len(sees["own"].shape) != 1:
        raise UserError(
            f"{name} relates each agent to the others: agents of '{env.name}' must observe a dict "
            "of 'own' [D] and 'others' [N - 1, F], like those of pursuit that are listed."
        )
    example = example_timestep(env, agents=True)
    if example.alive is None:
        raise UserError(
            f"{name} plays games of more and fewer agents, but all of '{env.name}' are always "
            "there; it has no `alive`."
        )
    if example.goal is not None:
        raise UserError(f"{name} does not see goals; '{env.name}' has some.")


mra = AlgorithmBuilder("mra", Config, recipe, check=check)

TINY = {"env": "pursuit", "env_params": {"size": 4, "agents": 3, "evaders": 1, "listed": True}} | {
    "num_envs": 4,
    "num_steps": 4,
    "num_shards": 4,
    "hidden": (8,),
    "latents": 2,
    "epochs": 2,
    "minibatches": 2,
}
