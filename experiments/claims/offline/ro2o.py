"""RO2O's terms with linear critics and policies, whose descent can be told before, in float64."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import distrax
import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.offline import ro2o
from jaxrl.core.settings import Values, replace
from jaxrl.core.types import Array, Key, TimeStep, Transition

SIZE, ROWS, CRITICS, NEIGHBORS, STEPS, RATE = 3, 40, 4, 20, 300, 0.05
RADIUS, WEIGHT = 1.5, 0.1  # of offsets; of the policy's largest change
START, END, DURATION = 1.0, 0.1, 200.0  # doubt, and the steps over which it changes
LEFT, COST = 0.75, 0.35  # share of the loss with noise; cost without it, in squared gains, at most
ENV = envs.make("pendulum")  # for its spaces alone: three numbers are seen, one is done
CONFIG = replace(ro2o.Config(), {"num_critics": CRITICS, "num_neighbors": NEIGHBORS})
CRITIC, ACTOR = ro2o.recipe(ENV, CONFIG).losses[:2]


def net_of(key: Key, actor: Any, critic: Any, weights: dict[str, Any], steps: Array) -> Any:
    """Return a net of an actor and critics, which are functions of time steps and actions."""
    hyper = {"discount": 0.0, "reward_scale": 1.0, "radius": RADIUS, "q_weight": 0.0}
    hyper |= {"policy_weight": 0.0, "ood_weight": 0.0, "doubt": START, "doubt_end": END}
    return SimpleNamespace(
        actor=actor,
        critic=critic,
        target=SimpleNamespace(critic=critic),
        temperature=lambda: 0.0,
        env_steps=steps,
        key=lambda name="": jax.random.fold_in(key, zlib.crc32(name.encode())),
        hyper=Values(hyper | {"doubt_steps": DURATION} | weights),
    )


def normal(mean: Array) -> Any:
    """Return a normal policy [..., 1] of scale 1, whose sample is its mean."""
    inside = distrax.Independent(distrax.Normal(mean, jnp.ones_like(mean)), 1)
    return SimpleNamespace(
        distribution=inside, sample_and_log_prob=lambda seed: (mean, jnp.zeros(mean.shape[:-1]))
    )


def batch(seen: Array, action: Array, reward: Array) -> Transition:
    none = jnp.zeros(len(seen))
    step = lambda reward: TimeStep(seen, reward, none > 0, none > 0, none > 0)
    return Transition(step(none), action, step(reward), (), {})


def descend(loss: Any, params: Array, key: Key, net: Any, x: Transition) -> Array:
    """Return parameters after `STEPS` gradient steps of a loss."""

    def step(params: Array, i: Array) -> tuple[Array, None]:
        def total(params: Array) -> Array:
            output: Any = loss(net(params, jax.random.fold_in(key, i), 1.0 * i), x)
            return output.value.mean()

        return params - RATE * jax.grad(total)(params), None

    return jax.lax.scan(step, params, jnp.arange(STEPS))[0]


@jax.jit
def errors_of(key: Key, weight: Array | float, still: Array | bool) -> dict[str, Array]:
    """Return the errors of descending RO2O's losses.

    "lowered": of the critics' weights of the action, which the data lack, beside a fall of each by
    what their disagreement and the schedule of doubt say. "agreed": of their change where they
    agree. "noise": by how much the policy's loss with noisy observations exceeds `LEFT` of that of
    SAC-N's policy. "cost": by how much that without noise exceeds `COST`, in squared gains.
    weight: of the policy's change. still: the doubt does not change.
    """
    keys = jax.random.split(key, 6)
    seen = jax.random.normal(keys[0], (ROWS, SIZE))
    gain = jax.random.normal(keys[1], (SIZE,))
    never = jnp.zeros((ROWS, 1))
    x = batch(seen, never, seen @ gain)
    ood = {"ood_weight": 1.0, "doubt_steps": jnp.where(still, jnp.inf, DURATION)}

    def critics(params: Array, key: Key, steps: Array) -> Any:
        """Return a net of linear critics with weights [SIZE + 1, CRITICS]."""
        critic = lambda timestep, action: (
            jnp.concatenate([timestep.observation, action], -1) @ params
        )
        act = lambda timestep: normal(jnp.ones((*timestep.observation.shape[:-1], 1)))
        return net_of(key, act, critic, ood, steps)

    fitted = jnp.broadcast_to(gain[:, None], (SIZE, CRITICS))
    own = jax.random.normal(keys[2], (1, CRITICS))
    fall = {}
    for name, last in (("apart", own), ("agreed", jnp.broadcast_to(own[:, :1], own.shape))):
        end = descend(CRITIC, jnp.concatenate([fitted, last]), keys[3], critics, x)
        fall[name] = last[0] - end[-1]
    share = jnp.clip(jnp.arange(STEPS) / DURATION, 0, 1)
    doubt = (START + share * (END - START)).sum()
    # The loss is a mean over critics, and its slope a deviation for each.
    expected = RATE * doubt * own.std() / CRITICS

    def policy(weight: Array | float) -> Any:
        def net(params: Array, key: Key, steps: Array) -> Any:
            act = lambda timestep: normal((timestep.observation @ params)[..., None])

            def critic(timestep: TimeStep, action: Array) -> Array:
                gap = action[..., 0] - timestep.observation @ gain
                return jnp.broadcast_to(-jnp.square(gap)[..., None] / 2, (*gap.shape, CRITICS))

            return net_of(key, act, critic, {"policy_weight": weight}, steps)

        return descend(ACTOR, jnp.zeros(SIZE), keys[4], net, x)

    def loss(gains: Array, radius: float) -> Array:
        """Return the mean squared error of actions where states and offsets are independent."""
        return jnp.square(gains - gain).sum() + radius**2 / 3 * jnp.square(gains).sum()

    plain, smooth = policy(0.0), policy(weight)
    return {
        "lowered": jnp.abs(fall["apart"] - expected).max(),
        "agreed": jnp.abs(fall["agreed"]).max(),
        "noise": jnp.maximum(loss(smooth, RADIUS) - LEFT * loss(plain, RADIUS), 0.0),
        "cost": jnp.maximum(loss(smooth, 0.0) - COST * jnp.square(gain).sum(), 0.0),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of the terms as they are."""
    return errors_of(key, WEIGHT, False)


CLAIM = Exact(
    paper=Paper(
        "Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty and Smoothness",
        "Wen, Yu, Yang, Chen, Bai and Wang",
        2024,
        "2309.16973",
        "Values that are lowered by an ensemble's uncertainty, and policies and values that are "
        "smooth around the data, go on from offline to online learning without a drop.",
    ),
    claim="Linear critics fall alike at actions that the data lack, by what their disagreement "
    "there and the schedule of doubt say, and not where they agree; a linear policy that is smooth "
    "loses at most 0.75 of what SAC-N's does with noisy observations, and at most 0.35 of the best "
    "gain's square without noise.",
    left_out="Networks, bootstrapped values, the critics' smoothness (its weight is 0), and the "
    "continuation online, with which the paper is mainly concerned: in the configuration it was "
    "run on one seed. Offsets are up to 1.5 times as large as states vary, where the authors have "
    "0.01, since the values are exact and have no other need of them.",
    notes="It was tried on other seeds before it was declared.",
    parts=("jaxrl/algorithms/offline/ro2o.py",),
    errors=errors,
    planted={
        "a doubt that does not change": lambda key: errors_of(key, WEIGHT, True),
        "a policy that is not smooth": lambda key: errors_of(key, 0.0, False),
    },
    tolerance=1e-6,
    effect=1e-3,
    seeds=20,
    minutes=2.0,
    mutations=(
        Mutation(
            "the deviation is that of a sample",
            "jaxrl.losses.values.ensembles:q_deviation",
            lambda deviation: lambda q: deviation(q) * (q.shape[-1] / (q.shape[-1] - 1)) ** 0.5,
        ),
        Mutation(
            "the policy's change counts for a tenth",
            "jaxrl.losses:policy_smoothness",
            lambda smoothness: lambda *policies: 0.1 * smoothness(*policies),
        ),
    ),
)
