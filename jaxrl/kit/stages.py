"""One algorithm after another, as one algorithm."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.learn import LearnerState, restart_source, take_over
from jaxrl.core.train import Run, train
from jaxrl.core.types import Algorithm


def stages(first: Algorithm, steps: int, second: Algorithm, name: str = "first") -> Algorithm:
    """Return `second`, whose agent begins with what it adopts of `first`'s after `steps` steps.

    That is a warm start inside one program: seeds and hyperparameters of both stages are vmapped
    together. Whatever the second stage's source plays before learning (a replay's warm-up, a
    dataset) is played by the adopted policy. Hyperparameters of the first stage are called
    `first.NAME`, and its environment steps count as those of a warm-up.

    steps: steps of the first algorithm, at least 1. name: of the first stage, before the names of
        its hyperparameters.

    Raises `UserError` for algorithms that are not an agent with a source, for agents that do not
    fit, and for a number of steps below 1.
    """
    if steps < 1:
        raise UserError(f"steps of the first stage must be at least 1, got {steps}.")
    for algorithm in (first, second):
        if algorithm.agent is None or algorithm.source is None:
            raise UserError(
                f"'{algorithm.name}' is not an agent with a source, so it cannot be a stage."
            )
    hand_over, adopt = first.agent.hand_over, second.agent.adopt  # type: ignore[union-attr]
    prefix = lambda hyper: f"{name}.{hyper}"
    if twice := sorted({prefix(n) for n in first.hyper} & set(second.hyper)):
        raise UserError(f"'{twice[0]}' is a hyperparameter of both stages; choose another name.")

    def init(key, hyper):
        first_key, run_key, second_key = jax.random.split(key, 3)
        own = {n: hyper[prefix(n)] for n in first.hyper}
        rest = {n: hyper[n] for n in second.hyper}
        run = Run(first.init(first_key, own), run_key, jnp.int32(0))
        learned, _ = train(first, run, steps)
        begun = second.init(second_key, rest)
        if not (isinstance(begun, LearnerState) and isinstance(learned.state, LearnerState)):
            raise UserError(f"'{second.name}' and '{first.name}' cannot be stages of one run.")
        adopted = adopt(begun.agent, hand_over(learned.state.agent))
        begun = take_over(begun, adopted, f"The agent of '{first.name}'")
        return restart_source(second, begun, second_key, rest)

    before = first.initial_env_steps + steps * first.env_steps
    both = dataclasses.replace(
        second,
        name=f"{second.name} after {first.name}",
        init=init,
        hyper={**second.hyper, **{prefix(n): value for n, value in first.hyper.items()}},
        initial_env_steps=before + second.initial_env_steps,
    )
    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.eval_shape(both.init, key, both.hyper)  # what does not fit is said now
    return both
