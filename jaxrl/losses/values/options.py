"""Options, policies that last several steps: values, terminations, beliefs about latent ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import at_action
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.q_learning import expected_value

__all__ = ["option_belief", "option_target", "option_termination"]


def _choice_value(q_values: Array, option_prob: Array | None) -> Array:
    """Return the value of choosing a new option: the best, or under a policy over options."""
    return q_values.max(-1) if option_prob is None else expected_value(q_values, option_prob)


@check_arguments
def option_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    option: Array,
    termination_prob: Array,
    next_q_values: Array,
    option_prob: Array | None = None,
) -> Array:
    """Target of an option's value after one step: it continues, or ends and another is chosen.

    reward + discount * ((1 - termination_prob) next_q_values[option] + termination_prob V),
    V = max_o next_q_values[o], or its mean under option_prob

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      option: [...], integers, the option that acted.
      termination_prob: [...], the probability that the option ends in the next state.
      next_q_values: [..., O], the options' values in the next state.
      option_prob: [..., O], the policy over options there; None: the best one.
    Returns: [...].
    Gradients: none.
    Source: Bacon et al., 2017, "The option-critic architecture", eq. 3 and algorithm 1
      (intra-option Q-learning).
    Example: `losses.option_target(reward, terminated, discount, option, termination_prob,
      next_q_values)`
    """
    stay, leave = at_action(next_q_values, option), _choice_value(next_q_values, option_prob)
    next_value = (1 - termination_prob) * stay + termination_prob * leave
    return td_target(reward, terminated, discount, next_value)


@check_arguments
def option_termination(
    termination_prob: Array,
    option: Array,
    q_values: Array,
    option_prob: Array | None = None,
    cost: Array | float = 0.0,
) -> Array:
    """Loss of an option's termination: end it less often where it is better than choosing anew.

    termination_prob * (q_values[option] - V + cost), V as in `option_target`

    Args:
      termination_prob: [...], the probability that the option ends in the state it has led to.
      option: [...], integers.
      q_values: [..., O], the options' values in that state.
      option_prob: [..., O], the policy over options there; None: the best one.
      cost: the minimum gain of a switch, broadcasts to [...].
    Returns: [...]; meaningless where the episode has ended, so mask it there.
    Gradients: flow only into `termination_prob`.
    Source: Bacon et al., 2017, "The option-critic architecture", theorem 2; Harb et al., 2018,
      "When waiting is not an option: learning options with a deliberation cost".
    Example: `losses.option_termination(termination_prob, option, q_values, cost=0.01).mean()`
    """
    advantage = at_action(q_values, option) - _choice_value(q_values, option_prob)
    return termination_prob * jax.lax.stop_gradient(advantage + cost)


@check_arguments
def option_belief(
    log_prob: Array, transition: Array, initial: Array, done: Array, belief: Array | None = None
) -> tuple[Array, Array]:
    """Beliefs about the acting latent option, from the past alone, and the actions' likelihoods.

    log_prob_t = log sum_o b_t(o) pi(a_t | s_t, o),
    b_(t+1)(o') = sum_o b_t(o) pi(a_t | s_t, o) transition_t(o, o') / exp(log_prob_t)

    This is the forward algorithm (filter) of hidden Markov models. SOAP's idea is to use the belief
    b as the state of a recurrent policy, trained by the policy gradient of the first result.

    Args:
      log_prob: [T, ..., O], log pi(a_t | s_t, o) of the action taken, under each option.
      transition: [T, ..., O, O], row o: probabilities of the next step's option after o, given
        the information available (s_t and a_t in SOAP, s_(t+1) in the options framework).
      initial: [..., O], probabilities of the first option of an episode.
      done: [T, ...], true where the episode ends with the step.
      belief: [..., O], before the first step, if it continues an episode; None: `initial`.
    Returns: the actions' log-probabilities [T, ...], -inf for an action that no option allows
      (which leaves the belief unchanged), and beliefs [T + 1, ..., O]: b_t before the action, for
      acting; the last one is the next segment's `belief`.
    Gradients: none are stopped: they flow back through time, within an episode.
    Source: Ishida and Henriques, 2024, "SOAP-RL: sequential option advantage propagation for
      reinforcement learning in POMDP environments"; Rabiner, 1989, "A tutorial on hidden Markov
      models and selected applications in speech recognition" (the forward algorithm).
    Example: `losses.option_belief(log_prob, transition, initial, done)[0]`
    """
    initial = jnp.broadcast_to(initial, log_prob.shape[1:]).astype(log_prob.dtype)
    start = initial if belief is None else jnp.broadcast_to(belief, initial.shape)
    start = start.astype(initial.dtype)

    def step(belief, now):
        log_prob, transition, done = now
        possible = (belief > 0) & (log_prob > -jnp.inf)
        highest = jax.lax.stop_gradient(jnp.where(possible, log_prob, -jnp.inf).max(-1))
        some = highest > -jnp.inf
        highest = jnp.where(some, highest, 0)
        relative = jnp.where(possible, log_prob - highest[..., None], 0)
        joint = jnp.where(possible, belief * jnp.exp(relative), 0)
        total = jnp.where(some, joint.sum(-1), 1)
        posterior = jnp.where(some[..., None], joint / total[..., None], belief)
        following = (posterior[..., None] * transition).sum(-2)
        following = jnp.where(done[..., None], initial, following)
        return following, (jnp.where(some, highest + jnp.log(total), -jnp.inf), following)

    _, (marginal, after) = jax.lax.scan(step, start, (log_prob, transition, done))
    return marginal, jnp.concatenate([start[None], after])
