"""Token policies that learn from answers: samples, masks, judges, losses and recipes.

They write G answers to each of P prompts, judge each answer once, before any gradient step, and
descend the mean loss of the tokens for some epochs over minibatches of answers; with one epoch of
one minibatch they are exactly on-policy. Prompts, and other tokens that are not decisions, are
masked out. Each algorithm's file states how answers are judged and the loss of a token:

| file | advantage of an answer | loss of a token | average |
|---|---|---|---|
| token_supervised | - | cross-entropy with a text's token | token |
| cot2_supervised | - | divergence from a distribution over tokens | token |
| dft | - | as token_supervised, times the token's probability | token |
| iw_sft | - | the same, times the clipped ratio to the reference, one for a text | - |
| raft | - | as token_supervised, of the best answer of a group | token |
| rise | - | the same, weighted by the exponential of a better attempt's return | token |
| rest_em | - | the same, of right answers | token |
| b_star | - | the same, of distinct answers above a chosen return | token |
| stp | - | the same, weighted, of right proofs and conjectures barely provable | - |
| smart | - | the same, of strategies that were right, as first tokens | token |
| nft | its prompt's weight | likelihood ratio of right or of wrong answers | token |
| token_reinforce | its return, less the divergence | policy gradient | constant |
| remax | rewards to come, less the divergence and the greedy return | policy gradient | constant |
| rloo | the same, less the mean of the group's others | policy gradient | constant |
| gpg | less the group's mean, rescaled | policy gradient, and the divergence | token |
| grpo | standardized in its group | clipped surrogate, and the divergence | sequence |
| cot2 | the same | the same, of thoughts that are mixtures of tokens | token |
| spectral_po | the same, of grades where all are wrong | the same | sequence |
| function_call_grpo | the same, and the entropy of each token | the same | sequence |
| dr_grpo | less the group's mean | the same | constant |
| critical_token_kl | the same | the same, with a weighted divergence | sequence |
| bnpo | standardized in its group | the same | token |
| dapo | the same, of groups with a signal | clipped surrogate with a higher upper clip | token |
| cispo | the same | policy gradient, weighted by the clipped ratio | token |
| sapo | the same | softly gated ratio | sequence |
| gspo_token | the same | clipped surrogate of the answer's ratio | sequence |
| gspo | the same | the same, one for an answer | - |
| gmpo | the same | geometric mean of clipped ratios, one for an answer | - |
| opo | less the group's mean by length | policy gradient | constant |
| reinforce_plus_plus | of each token, less the divergence | clipped surrogate | token |
| reinforce_plus_plus_baseline | less the group's mean, in the batch | and the divergence | token |
| spo_chain | of each segment, by branches from its ends | the same, of unlikely tokens | token |
| spo_tree | the same, by the other paths of a tree | the same | token |
| self_redteam | of each token, by its role | as reinforce_plus_plus | token |
| mae | of first utterances, standardized over their role's tokens | the same | token |
| comas | of utterances, standardized over their writer's tokens | the same | token |
| pasodoble | less the group's mean, of answers and of problems | as grpo | constant |
| ssp | as grpo; of questions their reward, or as grpo | as dapo, and the divergence | token |
| spc | what its role was paid | clipped ratio to the reference, one for a role | - |
| vision_zero | less the role's mean, of clues; as grpo, of votes | as grpo | token |
| guide_grpo | standardized in its group | clipped, or of hinted answers shaped, ratio | token |
| kimi_k1_5 | less the group's mean | regression of the log-ratio, one for an answer | - |
| rrhf | - | ranking of answers by likelihood per token, one for a group | - |
| mt_grpo | of each turn: its own and the outcome's, standardized | clipped surrogate | token |
| starpo_s | as token_ppo, of the groups whose returns vary most | as dapo | token |
| spear | less the group's mean; of promising ones, less a median | as dapo, for some tokens | - |
| archer | of an utterance said anew, by critics of utterances | policy gradient | constant |
| genius | - | DPO's with calibrated advantages, one for a pair of answers that foresight made | - |
| refuel | - | regression of two utterances' log-ratios on what follows, one for a pair | - |
| ilql, mc_returns | - | cross-entropy with a text's token; values steer what is sampled | token |
| score | of each attempt, less the group's others | as gpg | constant |
| pass_at_k | for pass@k | the same | token |
| token_ppo | of each token, by a critic, less the divergence | clipped surrogate | token |
| rlgf | the same, of what the policy wrote of an answer | the same, and the divergence | token |
| flag_trader | as token_ppo, but for the divergence | as token_ppo, and the divergence | token |
| ma_rlhf | as token_ppo, of each macro action | the same | token |
| nlpo | as token_ppo, of tokens in the nucleus of a masking policy | the same | token |
| ppo_max | the same, of rewards on a known scale, by a critic of its own | the same | token |
| rlsp | as token_ppo, of outcome and length | the same | token |
| long_cot | the same, of length and repetitions, by a critic of its own | the same | token |
| rpg | as rloo | its own, with the divergence in it | token |
| rpg_clipped | as rloo, with the divergence in it | clipped surrogate | token |

The divergence is the KL divergence from a reference; where a paper subtracts it from the reward,
the difference is judged.

Answers are sampled at a temperature and from a nucleus (`config.sampling`), and losses learn the
policy that was sampled from: its log-probabilities, its entropy and those of the reference are
those at this temperature, of the tokens that could be sampled. Cloning learns the policy itself,
at a temperature of 1.

The reference policy is the target network of the policy (`net.target`). Cloning updates it at once
(rate 1); all others keep it fixed (rate 0), so that it remains the policy with which reinforcement
learning began. The state of every algorithm has the same parts, so each can be warm-started from a
run of token_supervised or of another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxrl import losses as losses_
from jaxrl.algorithms.policy_gradient.shared.actor_critic import Sample as WindowSample
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    sample_of,
)
from jaxrl.algorithms.tokens.shared.models import check_network, token_network
from jaxrl.algorithms.tokens.shared.settings import KL_ESTIMATES, Tokens
from jaxrl.core import memory
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Transition, Tree, struct
from jaxrl.kit import SEQUENCE, STEP, Loss, LossOutput, Minibatch, Net, Part, Recipe, Unit
from jaxrl.kit.acting import check_sampling, sample_tempered, temper
from jaxrl.kit.builder import source_group
from jaxrl.kit.composing import with_rewards
from jaxrl.kit.minibatches import move, pack
from jaxrl.kit.parts import copy
from jaxrl.kit.state import State
from jaxrl.networks.heads import Categorical, log_prob_and_entropy


@struct
class Sample:
    """Data of whole episodes for a gradient step, [T, B].

    log_prob: of the action when it was chosen. reference: its log-probability by the reference
        policy.
    certainty: of the reference, a factor of the divergence.
    allowed: bool [T, B, V], the tokens that could be sampled; None for all that are legal.
    advantage: of the action. value, target: of a critic, when the answers were judged.
    """

    timestep: TimeStep
    action: Tree
    log_prob: Tree = None
    reference: Tree = None
    advantage: Tree = None
    value: Tree = None
    target: Tree = None
    certainty: Tree = None
    allowed: Tree = None


class Evaluation(NamedTuple):
    """Outputs of the current policy on a sample, [T, B]: log-probability of the actions, entropy,
    value by the same network, and the policy itself."""

    log_prob: Array
    entropy: Array
    value: Array
    policy: Any


class Judge(Protocol):
    """Function that judges answers before any gradient step."""

    def __call__(self, net: Net, batch: Batch, /) -> dict[str, Array]:
        """Return fields of the sample, [T, B]: `advantage`, `value` and `target` of a critic, and
        `certainty`.

        net: parts and hyperparameters.
        batch: whole episodes, with rewards 0 after their end; its mask marks the steps that are
            decisions.
        """
        ...


class Advantage(Protocol):
    """Function that turns the returns of a group's answers into advantages."""

    def __call__(self, returns: Array, /) -> Array:
        """Return advantages [P, G] from returns [P, G] of G answers to each of P prompts."""
        ...


def decisions(timestep: TimeStep, mask: Array) -> Array:
    """Return which steps [T, B] within the episodes (`mask`) were decisions of the policy."""
    return mask if timestep.tokens is None else mask & timestep.tokens["decision"]


def returns_of(batch: Batch) -> Array:
    """Return the returns of whole episodes [T, B] by their rewards, [B]."""
    assert batch.mask is not None  # `Recipe.needs`
    return jnp.where(batch.mask, batch.transitions.reward, 0).sum(0)


def unroll(
    part: Callable[..., Any], net: Net, timestep: TimeStep, network: str = "actor_critic"
) -> tuple[Any, Array]:
    """Apply an actor-critic part to whole episodes [T, B]; return policy and value.

    network: name of a part with the same network.
    """
    return part(timestep, blank_memory(net, timestep, network), method="unroll")[:2]


def whole_text(t: Transition) -> TimeStep:
    """Return all that was read in whole episodes [T, B] as one text of T + 1: the first time step
    and all successors."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x[:1], y]), t.timestep, t.next_timestep)


def blank_memory(net: Net, timestep: TimeStep, part: str = "actor_critic") -> Tree:
    """Return the memory [B] of a part before whole episodes [T, B], without room for earlier steps.

    Another policy may have acted, so the batch's memory is not used. It is created where it is
    read: a minibatch of it would be a gather from a constant, which XLA would evaluate for minutes
    while compiling.
    """
    return memory.shrink(net.network(part).initial(timestep.first.shape[1]))


def evaluate(net: Net, x: Sample, as_sampled: bool = True) -> Evaluation:
    """Evaluate the policy on a sample.

    as_sampled: at the temperature of `config.sampling` and restricted to `x.allowed`, as answers
        are sampled; False for the policy itself, which learns from texts of others.
    """
    policy, value = unroll(net.actor_critic, net, x.timestep)
    policy = restrict(net, policy, x.allowed) if as_sampled else policy
    return Evaluation(*log_prob_and_entropy(policy, x.action), value, policy)


def restrict(net: Net, policy: Any, allowed: Array | None) -> Any:
    """Return a policy [T, B] as answers are sampled from it: at the temperature of
    `config.sampling`, and of the `allowed` tokens [T, B, V] alone (None for all)."""
    if not isinstance(policy, Categorical):
        return policy  # `check_sampling` refuses another temperature
    return temper(policy, net.hyper.sampling.temperature, mask=allowed)


def divergence(estimate: str, now: Evaluation, x: Sample) -> Array:
    """Estimate the KL divergence from the reference policy, of each token [T, B]."""
    return KL_ESTIMATES[estimate](now.log_prob, x.reference)


def estimate_advantages(net: Net, batch: Batch, part: str = "actor_critic") -> WindowSample:
    """Estimate generalized advantages of the tokens of whole episodes by the actor-critic `part`.
    What follows an episode's end is masked out."""
    return sample_of(net, batch, *estimate_values(net, batch, part))


def estimate_values(net: Net, batch: Batch, part: str = "actor_critic") -> tuple[Array, Array]:
    """Return the values of the steps of whole episodes [T, B] and of their successors.

    The critic reads `whole_text`, so that it keeps no memory after each step.
    """
    _, value = unroll(getattr(net, part), net, whole_text(batch.transitions))
    return value[:-1], value[1:]


def token_output(net: Net, x: Sample, now: Evaluation, token_loss: Array) -> LossOutput:
    """Return the loss of tokens [T, B], less an entropy bonus, with the metrics of a policy that
    learns from its own answers."""
    value = token_loss - net.hyper.entropy_weight * now.entropy
    metrics = {"policy_loss": token_loss, **_metrics(x, now)}
    return LossOutput(value, metrics, drift=metrics["approximate_kl"])


def answer_output(net: Net, x: Minibatch, now: Evaluation, answer_loss: Array) -> LossOutput:
    """Return the same for a loss of whole answers [B]; `x` holds a `Sample` and its mask."""
    of_answers = lambda y: losses_.sequence_log_prob(y, x.mask, normalize=True)  # means of tokens
    metrics = {name: of_answers(y) for name, y in _metrics(x.x, now).items()}
    value = answer_loss - net.hyper.entropy_weight * metrics["entropy"]
    metrics["policy_loss"] = answer_loss
    return LossOutput(value, metrics, drift=metrics["approximate_kl"])


def _metrics(x: Sample, now: Evaluation) -> dict[str, Array]:
    """Return entropy and divergences of tokens [T, B]."""
    return {
        "entropy": now.entropy,
        "kl_to_reference": losses_.kl_k3(now.log_prob, x.reference),
        "approximate_kl": losses_.kl_k3(x.log_prob, now.log_prob),
    }


def copy_policy(part: str) -> Callable[[State, State], State]:
    """Return an `adopt` by which `part` begins as the network of a policy that lacks it."""

    def adopt(own: State, other: State) -> State:
        policy = getattr(other, "parts", {}).get("actor_critic")
        if policy is None or part in other.parts:
            return other
        params = copy(policy.params)  # a donated buffer can be donated only once
        new = dataclasses.replace(own.parts[part], params=params)
        return dataclasses.replace(other, parts=other.parts | {part: new}, extra=own.extra)

    return adopt


def keep_missing(own: State, other: State) -> State:
    """Go on from another policy with own parts where it has none: an `adopt`."""
    if own.parts.keys() <= getattr(other, "parts", {}).keys():
        return other
    return dataclasses.replace(other, parts={**own.parts, **other.parts}, extra=own.extra)


def check_groups(answers: int) -> None:
    """Raise `UserError` for groups of one answer, which has no other to be compared with."""
    if answers < 2:
        raise UserError(
            f"groups.answers is {answers}, but an answer is compared with the others of its group; "
            "choose at least 2."
        )


def judge_by_groups(advantage: Advantage, answers: int) -> Judge:
    """Return a function that judges answers by the returns of their group of `answers`. Raises
    `UserError` for groups of one answer."""
    check_groups(answers)

    def judge(net, batch):
        reward = batch.transitions.reward
        each = advantage(reward.sum(0).reshape(-1, answers)).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, reward.shape)}

    return judge


def on_answers(
    env: Environment,
    config: Tokens,
    judge: Judge,
    losses: Sequence[Loss],
    kl_in_reward: bool = False,
    score: Callable[[Net, Batch], Array] | None = None,
    learned: Callable[[Sample], Array] | None = None,
    network: Any = None,
) -> Recipe:
    """Return the recipe of a token policy that learns from its own answers.

    losses: of the actor-critic, and of other parts that are added to the recipe; minibatches keep
        their units whole.
    learned: which decisions [T, B] losses see, from the whole sample; None: all.
    kl_in_reward: add -beta log(p / reference) to each token's reward, p when it was chosen: the
        objective of RLHF (Ouyang et al., 2022, equation 2).
    score: (net, batch) -> reward of each answer [B] at its last token, which replaces its rewards;
        the batch is as in `Judge`. Needs `kl_in_reward`.
    network: the policy's, with the methods of `ActorCritic`; None for that of `config`.
    """

    def prepare(net, batch, x):
        t, mask = batch.transitions, decisions(x.timestep, batch.mask)
        policy, _ = unroll(net.target.actor_critic, net, x.timestep)
        allowed = t.extras.get("allowed")
        reference = restrict(net, policy, allowed).log_prob(x.action)
        log_prob = t.extras["log_prob"]
        reward = jnp.where(batch.mask, t.reward, 0.0)
        batch = dataclasses.replace(batch, memory=None, mask=mask)
        if kl_in_reward:
            end, beta = jnp.zeros(reward.shape[1]), net.hyper.kl.weight
            if score is not None:
                end, reward = score(net, with_rewards(batch, reward)), jnp.zeros_like(reward)
            reward += losses_.kl_penalized_reward(end, log_prob, reference, beta, mask)
        judged = judge(net, with_rewards(batch, reward))
        return Sample(x.timestep, x.action, log_prob, reference, allowed=allowed, **judged)

    needs = ("mask", "transitions.extras.log_prob")
    return on_episodes(env, config, losses, prepare, needs, learned, network)


class Prepare(Protocol):
    """Function that adds to a sample what the losses read."""

    def __call__(self, net: Net, batch: Batch, x: Sample, /) -> Sample:
        """Return the sample with everything that the losses read.

        net: before any gradient step. batch: whole episodes. x: their time steps and actions.
        """
        ...


def keep_sample(net: Net, batch: Batch, x: Sample) -> Sample:
    """Return a sample as it is."""
    return x


def on_episodes(
    env: Environment,
    config: Tokens,
    losses: Sequence[Loss],
    prepare: Prepare = keep_sample,
    needs: tuple[str, ...] = ("mask",),
    learned: Callable[[Sample], Array] | None = None,
    network: Any = None,
) -> Recipe:
    """Return the recipe of a token policy that learns `losses` from whole episodes.

    prepare: adds to each sample what the losses read. needs: as in `Recipe`. learned, network: as
    in `on_answers`.
    """
    network = token_network(env, config) if network is None else network
    unit = Unit(sequences=True, columns=max(loss.unit.columns for loss in losses))
    if all(loss.unit != STEP for loss in losses):
        check_average(config)
    if config.packed:
        check_packing(config, losses)

    def step(net, minibatch):
        x, mask, used = minibatch.x, minibatch.mask, None
        weight = losses_.token_weights(mask, config.average)  # from the minibatch's own lengths
        if config.packed:
            origin, used = pack(x[1])
            (x, _), mask, weight = move((x, mask, weight), origin)
            mask &= origin >= 0
            net = net.report(packed_into=used / mask.shape[1])
        for loss in losses:
            own = weight if loss.unit == STEP else None  # answers count alike
            net = net.descend(loss, x, mask=mask, weight=own, used=used)
        return net

    def update(net, batch):
        x = Sample(batch.transitions.timestep, batch.transitions.action)
        mask, x = decisions(x.timestep, batch.mask), prepare(net, batch, x)
        if learned is not None:
            mask &= learned(x)
        window = Minibatch((x, batch.mask) if config.packed else x, mask, batch.weight)
        limit = net.hyper.passes.target_kl
        net = net.epochs(config.passes, window, step, unit=unit, max_drift=limit)
        return net.update_targets("actor_critic")  # no other part's, which moves its own

    inputs = example_timestep(env), network.initial(1)
    return Recipe(
        parts={"actor_critic": Part(network, inputs, config.optimizer, config.reference)},
        act=sample_tempered(speak, config.sampling, read),
        losses=losses,
        update=update,
        memory=network.initial,
        needs=needs,
        scores=token_scores(env),
        in_evaluation={f"sampling.{n}": f"evaluation.{n}" for n in ("temperature", "top_p")},
    )


def check_packing(config: Tokens, losses: Sequence[Loss]) -> None:
    """Raise `UserError` where the episodes of a minibatch cannot share rows, or where that would
    save nothing."""
    for loss in losses:
        if loss.unit != STEP:
            raise UserError(
                f"The loss '{loss.name}' is of {loss.unit}, so episodes cannot share rows; set "
                "packed to false."
            )
    if config.passes.chunk_rows < 1:
        raise UserError(
            "packed skips chunks of a minibatch that stay empty; set passes.chunk_rows to their "
            f"number of steps, such as an eighth of a minibatch's, not {config.passes.chunk_rows}."
        )
    shards = source_group(config).num_shards
    if shards > 1:
        raise UserError(f"packed moves episodes between shards; set num_shards to 1, not {shards}.")


def speak(net: Net, timestep: TimeStep, memory: Tree) -> tuple[Any, Array | None, Tree]:
    """Return the policy [B] of the actor-critic, which may say any legal token, and its memory."""
    policy, _, memory = net.actor_critic(timestep, memory)
    return policy, None, memory


def read(net: Net, timestep: TimeStep, memory: Tree) -> tuple[Any, Array | None, Tree]:
    """Return the same of the beginnings of texts [T, B], read at once, and the memory [B] after
    them."""
    policy, _, memory = net.actor_critic(timestep, memory, method="read")
    return policy, None, memory


def token_scores(env: Environment) -> Mapping[str, str]:
    """Return what a token policy is judged by besides its return: how many of its answers are
    right, where the environment says which are."""
    return {"success": "pass@1"} if "success" in (example_timestep(env).metrics or {}) else {}


def check_average(config: Any) -> None:
    """Raise `UserError` if settings say how to average token losses where answers have losses."""
    if config.average != "token":
        raise UserError(
            f"average is '{config.average}', but losses are of whole answers, which count alike; "
            "leave it out."
        )


def check(env: Environment, config: Any, name: str, unit: Unit = SEQUENCE) -> None:
    """Raise `UserError` if no policy of these settings can act in `env`, or the episodes of an
    update do not divide into the minibatches, in units of `unit`."""
    check_network(env, config, name)
    check_sampling(env.action_space, config, name)
    group = source_group(config)
    config.passes.check(group.num_envs, env.max_steps or 1, group.num_shards, unit)
