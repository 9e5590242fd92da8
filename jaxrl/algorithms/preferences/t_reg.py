"""T-REG (Zhou et al., 2025, "T-REG: preference optimization with token-level reward
regularization", arXiv:2412.02685): DPO whose implicit rewards of tokens, beta log(pi / pi_ref), are
pulled toward rewards of tokens that a language model says itself. These come from contrastive
prompts: a token is worth

    sigmoid(log p(y_t | better) - log p(y_t | worse)) - 1/2

by its probabilities after prompts that ask for a better and for a worse answer.

The paper prompts a pretrained model, which knows what a better answer is. A small new network does
not, so a stand-in learns it here: the part `prompted`, a network of the policy's kind that reads
beside each token which of the two is asked for, and clones the chosen answers after the prompt for
better ones and the rejected answers after the other. It sees nothing but the pairs that DPO sees,
and is trained in the same updates, just before the policy; at first all of its rewards are nearly
0. The paper's rewards are computed once, before training. Its variant of SimPO is not here. The
weight of the regularization is not the paper's, which tunes it.

In small environments `credit_correlation` is measured: how well the implicit rewards of tokens
agree with their exact advantages. With a weight of 0 this is DPO.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import (
    all_answers,
    is_small,
    measure_optimum,
)
from jaxrl.algorithms.preferences.shared.pairs import PAIR, begin_as, on_pairs
from jaxrl.algorithms.preferences.shared.segment_rewards import correlation
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, ReferencePolicy
from jaxrl.algorithms.tokens.shared.answers import decisions, unroll
from jaxrl.algorithms.tokens.shared.models import token_network
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, TimeStep
from jaxrl.exact.token_credit import is_decided, token_advantages, token_log_probs
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
from jaxrl.kit.groups import Optimizer
from jaxrl.kit.parts import with_shared
from jaxrl.kit.state import State

PART = "prompted"


@group
class Config(ReferencePolicy):
    """Settings of T-REG: DPO with rewards of tokens from contrastive prompts (arXiv:2412.02685)."""

    beta: float = hyper(0.1, above=0)
    """Strength of the pull toward the reference policy, and scale of the implicit rewards."""
    weight: float = hyper(0.25, low=0)
    """Weight of the regularization of token rewards (alpha); 0 for DPO."""
    prompted: Optimizer = Optimizer(learning_rate=1e-3, max_grad_norm=1.0)
    """Optimizer settings of the network that answers contrastive prompts."""


def prompted_space(env: Environment) -> Discrete:
    """Return the tokens that the prompted network reads: each once for better, once for worse."""
    assert isinstance(env.observation_space, Discrete)  # of `check`
    return Discrete(2 * env.observation_space.n)


def ask_for(timestep: TimeStep, worse: Array | bool, tokens: int) -> TimeStep:
    """Return the time steps of texts [T, B] as they are read after a contrastive prompt.

    worse: whether a worse answer is asked for, bool [] or [B]. tokens: size of the vocabulary.
    """
    asked = jnp.where(worse, tokens, 0).astype(timestep.observation.dtype)
    return dataclasses.replace(timestep, observation=timestep.observation + asked)


def token_rewards(net: Net, timestep: TimeStep, action: Array, tokens: int) -> Array:
    """Return the rewards of tokens by contrastive prompts, [T, B], between -1/2 and 1/2.

    timestep, action: of whole episodes. tokens: size of the vocabulary.
    """

    def log_prob(worse: bool) -> Array:
        policy, _ = unroll(net.prompted, net, ask_for(timestep, worse, tokens))
        return policy.log_prob(action)

    return jax.nn.sigmoid(log_prob(False) - log_prob(True)) - 0.5


def recipe(env: Environment, config: Config) -> Recipe:
    space = prompted_space(env)
    tokens = space.n // 2

    @loss("actor_critic", name="loss", unit=PAIR)
    def policy_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return DPO's loss of each pair and the regularization."""
        sample, mask = x.x, x.mask
        assert mask is not None
        log_prob = unroll(net.actor_critic, net, sample.timestep)[0].log_prob(sample.action)
        rewards = token_rewards(net, sample.timestep, sample.action, tokens)
        chosen, rejected = (
            [y[:, i::2] for y in (log_prob, sample.reference, rewards, mask)] for i in (0, 1)
        )
        value = losses.t_reg(
            chosen[0],
            rejected[0],
            chosen[1],
            rejected[1],
            chosen[2],
            rejected[2],
            net.hyper.beta,
            net.hyper.weight,
            chosen_mask=chosen[3],
            rejected_mask=rejected[3],
        )
        answers = [
            pairs.Answers(
                losses.sequence_log_prob(side[0], side[3]),
                losses.sequence_log_prob(side[1], side[3]),
                side[3].sum(0),
            )
            for side in (chosen, rejected)
        ]
        mean = lambda side: losses.masked_mean(side[2], side[3], 0)
        lead = mean(chosen) - mean(rejected)
        return LossOutput(value, {**pairs.pair_metrics(*answers), "token_reward_lead": lead})

    @loss(PART, name="prompted_loss", unit=PAIR)
    def prompted_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the negative log-likelihood of both answers of each pair after their prompts."""
        sample, mask = x.x, x.mask
        assert mask is not None
        worse = jnp.arange(mask.shape[1]) % 2 == 1
        policy, _ = unroll(net.prompted, net, ask_for(sample.timestep, worse, tokens))
        each = losses.sequence_log_prob(policy.log_prob(sample.action), mask)
        return LossOutput(-(each[::2] + each[1::2]) / 2)

    plain = on_pairs(env, config, policy_loss, scores=("kl_to_optimum",))

    def update(net: Net, batch: Batch) -> Net:
        t = batch.transitions
        assert batch.mask is not None  # `Recipe.needs`
        window = Minibatch(pairs.Sample(t.timestep, t.action), decisions(t.timestep, batch.mask))
        step = lambda net, some: net.descend(prompted_loss, some)
        return plain.update(net.epochs(config.passes, window, step, unit=PAIR), batch)

    def adopt(state: State, other: Any) -> Any:
        rest = {name: part for name, part in state.parts.items() if name != PART}
        begun = begin_as("actor_critic")(dataclasses.replace(state, parts=rest), other)
        if not isinstance(begun, State) or begun is other:
            return other
        return dataclasses.replace(begun, parts=begun.parts | {PART: state.parts[PART]})

    reading = dataclasses.replace(env, observation_space=space)
    network = policy_network(reading, config.torso, config.memory)
    part = Part(network, (example_timestep(env), network.initial(1)), config.prompted)
    own = {"credit_correlation": "agreement with the tokens' credit"} if is_small(env) else {}
    return dataclasses.replace(
        plain,
        parts={**plain.parts, PART: part},
        losses=(policy_loss, prompted_loss),
        update=update,
        adopt=adopt,
        scores={**plain.scores, **own},
    )


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measure_optimum` and `credit_correlation`, the correlation of the implicit rewards of
    tokens with their advantages, over all tokens that the reference writes. The advantage of a
    token is by how much it raises the expected return, if the reference writes the rest."""
    found = measure_optimum(env, config, policy, key)
    if not found:
        return {}
    answers, part, network = (
        all_answers(env),
        policy.state.parts["actor_critic"],
        token_network(env, config),
    )
    now = token_log_probs(network, part.params, answers)
    reference = token_log_probs(network, with_shared(part.target, part.params), answers)
    written = reference.sum(-1)
    weight = is_decided(answers) * jnp.exp(written)[..., None]
    credit = token_advantages(answers, written)
    return {**found, "credit_correlation": correlation(now - reference, credit, weight)}


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `pairs.check`, and for a language model as the policy."""
    if config.decoder.model:
        raise UserError(
            f"decoder.model is '{config.decoder.model}', but {name} learns what a better answer is "
            "with a small network of its own; leave it empty."
        )
    pairs.check(env, config, name)
    if not isinstance(env.observation_space, Discrete):
        raise UserError(f"{name} reads tokens one by one; '{env.name}' has no such observations.")


t_reg = AlgorithmBuilder("t_reg", Config, recipe, check=check, measure=measure)

TINY = SMALL_PAIRS
