"""REFUEL (Gao et al., 2024, "Regressing the relative future: efficient policy optimization for
multi-turn RLHF", arXiv:2410.04612, algorithm 1): two conversations that are alike up to an
utterance, drawn uniformly, and go their own ways from there. The policy regresses the difference of
the log-ratios of these two utterances on the difference of the rewards from there on:

    (1 / eta (log p(y | s) / p_old(y | s) - log p(y' | s) / p_old(y' | s)) - (R - R'))^2

Its minimizer is a step of mirror descent by the values Q(s, y) of the old policy, for all turns at
once and without a critic: p(y | s) ~ p_old(y | s) exp(eta Q(s, y)). Each update is an iteration:
the policy at its beginning writes the conversations, and what they are regressed on is fixed for
`passes`. As in the authors' code, one of the two is a whole conversation and the other branches off
it, and only tokens of the two utterances are learned from. There pairs with equal utterances are
dropped; they have no gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import turns
from jaxrl.algorithms.tokens.shared.answers import on_episodes, restrict, unroll
from jaxrl.algorithms.tokens.shared.models import check_network
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.algorithms.tokens.shared.turns import PAIR
from jaxrl.core import settings
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source, TimeStep, Tree, struct
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Recipe,
    group,
    hyper,
    loss,
    static,
)
from jaxrl.kit.acting import check_sampling
from jaxrl.kit.groups import Episodes, Optimizer, Passes
from jaxrl.sources import branch_at_turns, episodes


@group
class Branched(Episodes):
    """Whole conversations, each with another that branches off it."""

    num_envs: int = static(128, low=1, high=MANY)
    """Number of conversations in an update; each has a branch."""

    def source(self, env: Environment) -> Source:  # type: ignore[override]
        """Return a source of conversations and branches."""
        played = episodes(env, self.num_envs, None, self.num_shards, keep_states=True)
        return branch_at_turns(played, env)


@group
class Config(Tokens):
    """Settings of REFUEL: regression of two utterances' log-ratios on the difference of what
    follows (arXiv:2410.04612)."""

    conversations: Branched = Branched()
    passes: Passes = Passes(epochs=4, minibatches=4, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=3e-7, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings. 3e-7 and Adam's betas: authors' code, without its warm-up and decay."""
    eta: float = hyper(1.0, above=0)
    """Size of a step of mirror descent. (The authors' code has 1000.)"""


@struct
class Branches:
    """Pairs of conversations for a gradient step, [T, 2 n].

    old: log-probability of each action by the policy that wrote it. reward: of each step.
    said: whether a step is of the utterance that is compared. allowed: see `answers.Sample`.
    """

    timestep: TimeStep
    action: Tree
    old: Array
    reward: Array
    said: Array
    allowed: Tree = None


@loss("actor_critic", name="loss", unit=PAIR)
def branches_loss(net: Net, minibatch: Minibatch) -> LossOutput:
    """Compute the squared error of each pair (algorithm 1)."""
    x = minibatch.x
    policy, _ = unroll(net.actor_critic, net, x.timestep)
    now = restrict(net, policy, x.allowed).log_prob(x.action)
    total = lambda y: losses.sequence_log_prob(y, x.said)
    later = jnp.cumsum(x.said, 0) > 0  # rewards from the utterance on; before, both are alike
    pair = lambda y: (y[..., ::2], y[..., 1::2])
    both = (*pair(total(now)), *pair(total(x.old)), *pair(x.reward))
    error = losses.refuel(*both, net.hyper.eta, *pair(later))
    ratio = total(now) - total(x.old)
    entropy = losses.sequence_log_prob(policy.entropy(), x.said, normalize=True)
    metrics = {"log_ratio": jnp.abs(ratio), "entropy": entropy}
    return LossOutput(error, {n: y.reshape(-1, 2).mean(-1) for n, y in metrics.items()})


def recipe(env: Environment, config: Any) -> Recipe:
    whole = on_episodes(env, config, (branches_loss,))

    def learn(net: Net, minibatch: Minibatch) -> Net:
        return net.descend(branches_loss, minibatch)

    def update(net: Net, batch: Batch) -> Net:
        t, mask = batch.transitions, batch.mask
        assert mask is not None  # `Recipe.needs`
        extras, reward = t.extras, jnp.where(mask, t.reward, 0.0)
        old, said = extras["log_prob"], extras["anew"]
        x = Branches(t.timestep, t.action, old, reward, said, extras.get("allowed"))
        net = net.epochs(config.passes, Minibatch(x, mask), learn, unit=PAIR)
        return net.update_targets()

    needs = (*whole.needs, "transitions.extras.log_prob", "transitions.extras.anew")
    return dataclasses.replace(whole, update=update, needs=needs)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` if no policy of these settings can act in `env`, if its tokens have no
    turns, if the pairs of an update do not divide into the minibatches, and for an entropy
    bonus."""
    settings.refuse(config, ("entropy_weight",), f"{name} has no entropy bonus")
    check_network(env, config, name)
    check_sampling(env.action_space, config, name)
    turns.check_turns(env, name)
    turns.check_pairs(config.passes, config.conversations.num_envs, env, name)


refuel = AlgorithmBuilder("refuel", Config, recipe, check=check)

TINY = SMALL | {"env": "guess_letter", "env_params": {"letters": 2, "turns": 2}}
TINY |= {"num_envs": 8, "num_shards": 4}
