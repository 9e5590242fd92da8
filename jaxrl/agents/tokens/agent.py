"""Token policies: a supervised warm-up, then reinforcement learning from verified answers.

One agent for GRPO and its kin (`old_methods.METHODS` says how they differ, and where from). A step
writes G answers to each of P prompts, judges each answer by its group, and descends the mean loss
of the tokens, `epochs` times over minibatches of answers; with P * G answers in one minibatch
and one epoch it is exactly on-policy. Prompts and what else is no decision do not count.

The state has the same parts whatever the method, so that a run with method `supervised`, which
clones the environment's expert, is what any other method is warm-started from. Cloning keeps the
`reference` equal to the parameters; no other method touches it: it stays what the policy was when
reinforcement learning began.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl import losses
from jaxrl.agents.tokens.methods import KL_ESTIMATES, METHODS, LogProbs
from jaxrl.core import shuffle
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hyper, hypers, select, static
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, TimeStep, Tree, struct
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel, start_key
from jaxrl.envs.wrappers.start_key import Params as Start
from jaxrl.kit import minibatches
from jaxrl.kit.optimisation import TRANSFORMS, descend, transform
from jaxrl.networks.actor_critic import ActorCritic, check_transformer, context, unroll
from jaxrl.networks.heads import check_action_space
from jaxrl.sources import episodes, played_by
from jaxrl.tasks import repeated, starts


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of token policies."""

    method: str = static("grpo", choices=METHODS)
    """supervised, reinforce, rloo, gpg, grpo, pass_at_k, ppo, rpg or rpg_clipped."""
    prompts: int = static(32, low=1, high=MANY)
    """Prompts (P) in one update, each one group."""
    answers: int = static(8, low=1, high=MANY)
    """Answers (G) to each prompt."""
    epochs: int = static(1, low=1, high=MANY)
    """Passes over the answers of each update."""
    minibatches: int = static(1, low=1, high=MANY)
    """Gradient steps in one pass."""
    k: int = static(4, low=1)
    """Of pass@k, where that is the method; at most `answers`."""
    average: str = static("sequence", choices=("sequence", "token", "constant"))
    """What counts alike: every sequence (GRPO), every token (DAPO), or a constant for every token
    (Dr. GRPO): sequence, token or constant."""
    kl_estimate: str = static("k3", choices=KL_ESTIMATES)
    """Of the KL penalty: k3 (GRPO's), or k2, whose gradient is right on average."""
    rpg_kl: str = static("reverse", choices=("forward", "reverse"))
    """RPG's divergence: forward or reverse."""
    rpg_normalized: bool = False
    """False for RPG's divergence of measures that need not sum to 1, whose estimate is k3."""
    rpg_reinforce: bool = False
    """RPG's losses in REINFORCE's style, with the same gradient."""

    width: int = static(64, low=1, high=WIDE)
    """Of the transformer's features."""
    layers: int = static(2, low=0, high=WIDE)
    """Of the transformer; 0 for a GRU of that width."""
    heads: int = static(2, low=1, high=WIDE)
    """Of its attention."""
    optimiser: str = static("adam", choices=TRANSFORMS)
    """adam, rmsprop or sgd."""

    learning_rate: float = hyper(1e-3, low=0)
    """Step size."""
    max_grad_norm: float = hyper(1.0, above=0, high=math.inf)
    """Longer gradients are scaled down to this global norm; infinite for none."""
    clip: float = hyper(0.2, above=0, high=math.inf)
    """How far the probability ratio may move from 1 before its gradient stops;
    infinite for no limit."""
    kl_weight: float = hyper(0.0, low=0)
    """Weight of the KL divergence from the reference."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the critic's loss, for ppo."""
    trace: float = hyper(1.0, low=0, high=1)
    """Lambda of the critic's advantages, for ppo; nothing is discounted."""


@struct
class State:
    params: Tree
    optimiser: Tree
    reference: Tree  # parameters of the policy that is not to be left
    hyper: Tree


@struct
class Sample:
    """What a gradient step sees, [T, B]."""

    timestep: TimeStep
    action: Tree
    acting: Array  # log-probability when it was chosen
    reference: Array  # log-probability by the reference
    advantage: Array
    target: Array  # of the critic
    mask: Array  # which steps are decisions


def decisions(timestep: TimeStep, mask: Array) -> Array:
    """Which steps [T, B] of the running episodes (`mask`) were the policy's to decide."""
    return mask if timestep.tokens is None else mask & timestep.tokens["decision"]


def group_advantages(method: str, returns: Array, answers: int, k: int) -> Array:
    """The advantage of each answer [B], from the returns [B] of groups that lie side by side."""
    judge = METHODS[method].advantage
    assert judge is not None
    return judge(returns.reshape(-1, answers), k).reshape(-1)


def agent(env: Environment, config: Config) -> Agent:
    """The agent for `env`; it needs batches of whole episodes, those of a group side by side."""
    _check(env, config)
    method = METHODS[config.method]
    network: Any = ActorCritic(
        env.observation_space,
        env.action_space,
        widths=(),
        recurrent=config.width,
        layers=config.layers,
        attention_heads=config.heads,
        context=context(env) if config.layers else 0,
    )
    optimiser = transform(config.optimiser)

    def init(key, hyper):
        params = network.init(key, example_timestep(env), network.initial(1))
        return State(params, optimiser.init(params), params, select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy, _, memory = network.apply(state.params, timestep, memory)
        action = policy.mode() if greedy else policy.sample(seed=key)
        return action, memory, {"log_prob": policy.log_prob(action)}

    def log_prob(params, timestep, action, memory):
        policy, _, _ = network.apply(params, timestep, memory, method="unroll")
        return policy.log_prob(action)

    def empty(mask) -> Tree:
        """The memory before the whole episodes of `mask` [T, B]; another policy may have acted, so
        it is not the batch's. Made where it is read: taken from an array of all episodes it would
        be a gather from a constant, which XLA computes, for minutes, while it compiles."""
        return network.initial(mask.shape[1])

    def judged(state, transitions, mask, memory) -> tuple[Array, Array]:
        """Advantage and the critic's target, [T, B]."""
        reward = jnp.where(mask, transitions.reward, 0.0)
        if method.supervised:
            return jnp.zeros_like(reward), reward
        if not method.critic:
            advantage = group_advantages(config.method, reward.sum(0), config.answers, config.k)
            return jnp.broadcast_to(advantage, reward.shape), reward
        before = unroll(network, state.params, transitions, memory)
        advantage = losses.gae(
            reward,
            before.value,
            before.next_value,
            transitions.terminated,
            transitions.next_timestep.done,
            1.0,
            state.hyper["trace"],
        )
        counted = decisions(transitions.timestep, mask)
        return losses.standardize(advantage, counted), advantage + before.value

    def loss(params, sample, hyper):
        memory = empty(sample.mask)
        policy, value, _ = network.apply(params, sample.timestep, memory, method="unroll")
        now = policy.log_prob(sample.action)
        log_probs = LogProbs(now, sample.acting, sample.reference)
        # What does not count is cut off before it could overflow.
        log_probs = jax.tree.map(lambda x: jnp.where(sample.mask, x, 0.0), log_probs)
        over: Any = config.average
        total = losses.aggregate_tokens(
            method.loss(log_probs, sample.advantage, hyper, config), sample.mask, over
        )
        mean = lambda x: losses.masked_mean(x, sample.mask)
        info = {"policy_loss": total, "entropy": mean(policy.entropy())}
        total -= hyper["entropy_weight"] * info["entropy"]
        if method.critic:
            info["value_loss"] = mean(losses.squared_error(value, sample.target))
            total += hyper["value_weight"] * info["value_loss"]
        if method.supervised:
            right = policy.mode() == sample.action
            info["token_accuracy"] = mean(right.astype(jnp.float32))
        else:
            info["kl_to_reference"] = mean(losses.kl_k3(log_probs.now, log_probs.reference))
        return total, info

    def update(state, batch, key):
        transitions = batch.transitions
        memory = empty(batch.mask)
        inputs = transitions.timestep, transitions.action, memory
        mask = decisions(transitions.timestep, batch.mask)
        advantage, target = judged(state, transitions, batch.mask, memory)
        nothing = jnp.zeros_like(advantage)
        sample = Sample(
            transitions.timestep,
            transitions.action,
            nothing if method.supervised else transitions.extras["log_prob"],
            nothing if method.supervised else log_prob(state.reference, *inputs),
            advantage,
            target,
            mask,
        )
        rows = minibatches.to_rows(sample, 1, sequences=True)

        def step(carry, index):
            params, optimiser_state = carry
            chosen = minibatches.from_rows(minibatches.take(rows, index), sequences=True)
            gradient, info = jax.grad(loss, has_aux=True)(params, chosen, state.hyper)
            *carry, norm = descend(
                optimiser,
                gradient,
                optimiser_state,
                params,
                state.hyper["learning_rate"],
                state.hyper["max_grad_norm"],
            )
            return tuple(carry), info | {"grad_norm": norm}

        index = minibatches.indices(
            key, config.prompts * config.answers, 1, config.epochs, config.minibatches
        )
        (params, optimiser_state), info = jax.lax.scan(step, (state.params, state.optimiser), index)
        metrics = {name: x.mean() for name, x in info.items()}
        metrics["weight_norm"] = optax.tree.norm(params)
        reference = params if method.supervised else state.reference
        return State(params, optimiser_state, reference, state.hyper), Info(metrics)

    needs = ("mask",) if method.supervised else ("mask", "transitions.extras.log_prob")
    return Agent(
        "tokens",
        init,
        act,
        update,
        memory=network.initial,
        hyper=hypers(config),
        needs=needs,
        config=config,
    )


def tokens(env: Environment, config: Config = Config()) -> Algorithm:
    """Token policies on `env`. The same arguments give the same object.

    `env` may be any with a time limit and a discrete choice or other head; what begins its episodes
    (the prompt) is drawn for a whole group. Raises `UserError` where env and config do not fit, and
    for a supervised method without an expert.
    """
    return _build(env, config)  # however the arguments are passed, one entry of the cache


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    learner = agent(env, config)
    number = config.prompts * config.answers
    if METHODS[config.method].supervised:
        advised = expert_channel(env)
        return learn(learner, played_by(episodes(advised, number), expert_policy(advised)))
    prompts = repeated(starts(env.params, Start), config.answers)
    return learn(learner, episodes(start_key(env), number, prompts))


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_action_space(env.action_space, "tokens")
    if config.method == "pass_at_k" and config.k > config.answers:
        raise UserError(f"k is {config.k}; it must be at most answers={config.answers}.")
    check_transformer(config.width, config.layers, config.heads)
    minibatches.check(config.prompts * config.answers, 1, config.minibatches, 1, sequences=True)
    order = lambda key: shuffle.permutation(key, config.prompts * config.answers, "auto")
    jax.eval_shape(order, jax.random.key(0))
