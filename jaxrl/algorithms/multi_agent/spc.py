"""SPC (Chen et al., 2025, "SPC: evolving self-play critic via adversarial games for LLM reasoning",
arXiv:2504.19162): two policies that begin alike, an editor (the "sneaky generator") and a critic.
The editor rewrites a right step of a solution into a wrong one, and the critic says of steps, right
ones and edited ones, whether they are right. A round plays games; the winner of each is paid 1 and
the loser -1. Then both policies are trained anew, from the reference that the first round began
with, on the games of all of the last `rounds` rounds and on shown texts, by the offline loss

    -min(s A, clip(s, 1 - clip, 1 + clip) A)   for what a role wrote in a game, A what it was paid,
    -imitation_weight mean_t log p             for what it wrote in a shown text,

where s = exp(mean_t(log p - log reference)), one ratio for all that a role wrote.

The loss, its coefficients, the epochs, rounds and the beginning of each round are those of the
authors' code, which trains the critic; its divergence penalty is computed there and not used. Here
the editor is trained by the same loss. By the paper's figure 2 the winner gets 1 and the loser -1;
that an edit which spoils nothing is paid -1, that half of the critic's steps are right ones, and
that the games of a round are played by both policies of the last one are choices of ours. Shown
texts are those of the environment's expert, in place of texts by other language models. Search
that is guided by the critic is left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import proposing
from jaxrl.algorithms.tokens.shared.answers import evaluate, on_answers
from jaxrl.algorithms.tokens.shared.outcomes import component_at_end
from jaxrl.algorithms.tokens.shared.settings import SMALL, Tokens
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, TimeStep, Tree
from jaxrl.envs.wrappers import expert_channel
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from jaxrl.kit import (
    SEQUENCE,
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
from jaxrl.kit.groups import INF, Optimizer, Passes
from jaxrl.sources import episodes, played_through, recent
from jaxrl.sources.rollouts import check_shards

ROLES = ("editor", "critic")  # readers of a text, and the components of its reward


@group
class Games:
    """Games of a round, and texts that are shown beside them."""

    games: int = static(512, low=1, high=MANY)
    """Number of games in a round."""
    shown: int = static(128, low=0, high=MANY)
    """Number of texts of the environment's expert in a round. (They count in the returns that
    training reports.)"""
    num_shards: int = static(1, low=1)
    """Number of logical shards of the games and of the shown texts: the most devices that can share
    a run."""

    @property
    def num_envs(self) -> int:
        """Number of episodes in a round."""
        return self.games + self.shown

    def source(self, env: Environment) -> Source:
        """Return a source of games and shown texts, which the extra `shown` [T, B] marks."""
        check_shards(self.num_shards, games=self.games, shown=self.shown)
        played = episodes(expert_channel(env), self.num_envs, None, self.num_shards)
        games, shard = self.games // self.num_shards, self.num_envs // self.num_shards

        def show(policy: Policy) -> Policy:
            def act(
                state: Tree, timestep: TimeStep, memory: Tree, key: Key, greedy: bool
            ) -> tuple[Tree, Tree, dict[str, Tree]]:
                action, memory, extras = policy.act(state, timestep, memory, key, greedy)
                assert timestep.privileged is not None
                shown = jnp.arange(len(action)) % shard >= games
                action = jnp.where(shown, timestep.privileged[EXPERT_ACTION], action)
                return action, memory, {**extras, "shown": shown}

            return Policy(act, policy.memory, policy.state)

        return played_through(played, show)


@group
class Config(Tokens):
    """Settings of SPC: an editor and a critic that learn offline from the games they played
    (arXiv:2504.19162). Learning rate, minibatches of 64 texts, epochs, clip, weight and rounds are
    those of the authors' code."""

    groups: Games = Games()
    passes: Passes = Passes(epochs=3, minibatches=20, chunk_rows=0)
    optimizer: Optimizer = Optimizer(learning_rate=2e-6, max_grad_norm=1.0)
    clip: float = hyper(0.2, above=0, high=INF)
    """Clip range around 1 of the ratio to the reference, one for all that a role wrote."""
    imitation_weight: float = hyper(0.15, low=0)
    """Weight of the likelihood of shown texts."""
    rounds: int = static(2, low=1, high=MANY)
    """Number of rounds whose games are learned from, the last ones."""
    from_reference: bool = True
    """Begin every round at the reference policy, the one that training began with; if not, at the
    policy of the last round."""


@loss("actor_critic", name="loss", unit=SEQUENCE)
def offline_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the loss of each text: of what both roles wrote."""
    sample, h = x.x, net.hyper
    assert x.mask is not None
    now, shown = evaluate(net, sample), sample.target[0] > 0
    reader, total = sample.timestep.tokens["reader"], jnp.zeros(x.mask.shape[1])
    for role in range(len(ROLES)):
        mask = x.mask & (reader == role)
        paid = jnp.where(mask, sample.advantage, 0).sum(0) / jnp.maximum(mask.sum(0), 1)
        games = losses.gspo(now.log_prob, sample.reference, paid, h.clip, h.clip, mask)
        likelihood = losses.sequence_log_prob(now.log_prob, mask, normalize=True)
        total += jnp.where(shown, -h.imitation_weight * likelihood, games)
    mean = lambda y: losses.sequence_log_prob(y, x.mask, normalize=True)
    divergence = losses.kl_k3(now.log_prob, sample.reference)
    metrics = {"entropy": mean(now.entropy), "kl_to_reference": mean(divergence)}
    return LossOutput(total - h.entropy_weight * metrics["entropy"], metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    def judge(net: Net, batch: Batch) -> dict[str, Array]:
        t = batch.transitions
        editor, critic = (component_at_end(batch, role) for role in ROLES)
        advantage = jnp.where(t.timestep.tokens["reader"] == 0, editor, critic)
        return {"advantage": advantage, "target": t.extras["shown"].astype(jnp.float32)}

    both = proposing.own_policies(env, config, "spc")
    plain = on_answers(env, config, judge, (offline_loss,), network=both)

    def update(net: Net, batch: Batch) -> Net:
        batch = proposing.join_windows(batch, config.rounds)
        reference = net.parts["actor_critic"].target
        net = net.restart(actor_critic=reference) if config.from_reference else net
        return plain.update(net, batch)

    return dataclasses.replace(plain, update=update, adopt=proposing.begin_all)


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `proposing.check`, if `env` does not say what both roles are paid or has
    no expert, for an early stop and for a nucleus, since shown texts may be outside of it."""
    proposing.check(env, config, name)
    missing = set(ROLES) - set(example_timestep(env).reward_components or {})
    if missing or env.expert is None:
        lacks = "an expert" if not missing else f"TimeStep.reward_components['{min(missing)}']"
        raise UserError(f"{name} needs {lacks}; see envs.language.edited_steps.")
    if config.passes.early_stop or config.sampling.nucleus:
        raise UserError(
            f"{name} learns from shown texts too: leave passes.early_stop and sampling.nucleus off."
        )


spc = AlgorithmBuilder(
    "spc",
    Config,
    recipe,
    source=lambda env, config: recent(config.groups.source(env), config.rounds),
    check=check,
)

TINY = SMALL | {"env": "edited_steps", "env_params": {"steps": 1, "base": 3}}
TINY |= {"games": 12, "shown": 4, "num_shards": 4, "rounds": 2}
