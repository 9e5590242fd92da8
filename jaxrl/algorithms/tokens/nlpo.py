"""NLPO (Ramamurthy et al., 2023, "Is reinforcement learning (not) for natural language processing:
benchmarks, baselines, and building blocks for natural language policy optimization",
arXiv:2210.01241, section 4 and algorithm 1): PPO for tokens that are sampled from the nucleus of a
masking policy, a copy of the policy that is renewed every so many updates. The policy that learns
is restricted to the tokens that could be sampled. The divergence penalty is subtracted from each
token's reward.

The authors' code never masks special tokens, such as the end, penalizes the divergence of the
unrestricted policy, and can adapt the penalty's weight to a target; here the end is a token like
others, both policies are restricted alike, and the weight is constant."""

from __future__ import annotations

import dataclasses

from jaxrl import losses
from jaxrl.algorithms.tokens import token_ppo
from jaxrl.algorithms.tokens.shared.answers import check as check_answers
from jaxrl.algorithms.tokens.shared.answers import copy_policy
from jaxrl.algorithms.tokens.shared.settings import Divergence
from jaxrl.core import trees
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, static
from jaxrl.kit.acting import sample_tempered
from jaxrl.networks.heads import check_discrete


@group
class Masking:
    """Masking policy: a copy of the policy whose nucleus tokens are sampled from."""

    top_p: float = hyper(0.9, above=0, high=1)
    """Probability of the masking policy's likeliest tokens that may be sampled."""
    period: int = static(20, low=1)
    """Number of updates between two copies of the policy (mu)."""


@group
class Config(token_ppo.Config):
    """Settings of NLPO: PPO for tokens from the nucleus of a masking policy (arXiv:2210.01241). The
    masking policy's are those of the authors' code."""

    kl: Divergence = Divergence(weight=0.1)
    masking: Masking = Masking()


def restricted_policy(net: Net, timestep: TimeStep, memory: Tree) -> tuple[Tree, Array, Tree]:
    """Return the policy, the tokens that the masking policy allows, and the memories of both."""
    own, others = memory
    policy, _, own = net.actor_critic(timestep, own)
    masking, _, others = net.masking(timestep, others)
    allowed = losses.nlpo_mask(masking.logits, net.hyper.masking.top_p)
    return policy, allowed, (own, others)


def recipe(env: Environment, config: Config) -> Recipe:
    plain = token_ppo.recipe(env, config)
    policy = plain.parts["actor_critic"]
    masking = Part(policy.network, policy.inputs, begins_as="actor_critic")

    def update(net: Net, batch: Batch) -> Net:
        due = (net.updates + 1) % config.masking.period == 0
        net = plain.update(net, batch)
        now, before = (net.parts[name].params for name in ("actor_critic", "masking"))
        return net.with_params(masking=trees.where(due, now, before))

    def memory(n: int) -> Tree:
        return plain.memory(n), plain.memory(n)

    return dataclasses.replace(
        plain,
        parts={**plain.parts, "masking": masking},
        act=sample_tempered(restricted_policy, config.sampling),
        update=update,
        memory=memory,
        adopt=copy_policy("masking"),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for actions that are not `Discrete`."""
    check_discrete(env.action_space, name)
    check_answers(env, config, name)


nlpo = AlgorithmBuilder("nlpo", Config, recipe, check=check)

TINY = token_ppo.TINY | {"masking.period": 2, "masking.top_p": 0.8}
