"""Exact looks at policies of answers, by the sum over all answers that there are."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from experiments.evidence.course import Course
from experiments.evidence.declare import Measured, Trial
from experiments.evidence.moments import Moment
from experiments.evidence.trials import build
from jaxrl import losses, solvers
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.types import Array, Environment, Key
from jaxrl.exact.answers import Answers, answer_log_probs, enumerate_answers, optimal_answers

NETWORK = {"recurrent": 32, "transformer": 0}


@dataclasses.dataclass(frozen=True)
class Enumerated:
    """Look at one number of a policy, the mean over prompts; its reference is a target network.

    name: "divergence", KL(policy || optimum of return - beta KL to the reference); "gap", the
        duality gap of the preference game with that beta; "return", the expected return.
    """

    name: str
    beta: float = 0.0

    def __call__(self, moment: Moment) -> Array:
        now, reference = moment.once(_log_probs)
        answers = _answers(moment.env)
        if self.name == "return":
            found = (jnp.exp(now) * answers.reward).sum(-1)
        elif self.name == "divergence":
            best = optimal_answers(answers.reward, reference, self.beta)
            found = losses.categorical_kl(now, best)
        else:
            assert answers.preference is not None
            found = solvers.preference_gap(answers.preference, now, reference, self.beta)
        return found.mean()


@functools.cache
def _answers(env: Environment) -> Answers:
    with jax.ensure_compile_time_eval():
        return enumerate_answers(env)


def _log_probs(moment: Moment) -> tuple[Array, Array]:
    """Return the log-probabilities of all answers by the policy and by its reference."""
    config = moment.algorithm.config
    network = policy_network(moment.env, config.torso, config.memory)
    part = moment.run.state.agent.parts["actor_critic"]
    answers = _answers(moment.env)
    now, reference = (answer_log_probs(network, x, answers) for x in (part.params, part.target))
    return now, reference


def in_updates(course: Course, trial: Trial, keys: Key, hyper, updates: int) -> Measured:
    """Measure as many updates of each side, whatever environment steps these are.

    Datasets are written once, and count no environment steps afterwards.
    """
    _, algorithm = build(trial)
    steps = algorithm.initial_env_steps + updates * algorithm.env_steps
    found = dict(course(dataclasses.replace(trial, env_steps=steps), keys, hyper))
    del found["env_steps"]
    return found | {"updates": jnp.full(len(keys), 1 if trial.tiny else updates)}
