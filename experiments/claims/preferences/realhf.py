"""Plans of RLHF by estimate, against plans by rule, on machines that are not quite as assumed.

A job has models of 7 or 13 billion parameters and some number and length of texts, and 16 devices.
Plans are searched on a machine as data sheets have it, and timed on one whose speeds of computing,
of reading and of sending differ from those, each by a factor of its own.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import jax
import jax.numpy as jnp
import scipy.stats

from experiments.claims.preferences._regressions import shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.core.types import Array, Key
from jaxrl.networks.decoder import Architecture
from jaxrl.runtime import plans
from jaxrl.runtime.plans import Job, Layout, Machine, Plan

CALLS = plans.ppo_calls()
DEVICES, NODE = 16, 8
CHOICES = plans.layouts(DEVICES, least=4, most_parts=NODE)
JOBS, WALKS, STEPS, DRAWN = 6, 4, 2000, 100
SPREAD = 0.2  # standard deviation of the logarithm of a true speed
WIDTHS = {32: (4096, 11008), 40: (5120, 13824)}  # of 7 and 13 billion parameters, by layers
ASSUMED = Machine(flops=1.4e14, memory_speed=1.5e12, link=5e10, capacity=8e10)  # like an A100's


def everywhere(layout: Layout) -> Plan:
    """Return the plan in which every call has the same layout."""
    return {call.name: layout for call in CALLS}


BY_RULE = everywhere(Layout(0, DEVICES, NODE))  # kernels split within a node, replicas beyond


def draw_job(rng: random.Random) -> Job:
    """Draw the size of the models and of an iteration."""
    layers, (width, inner) = rng.choice(list(WIDTHS.items()))
    heads = width // 128
    a = Architecture(32_000, width, inner, layers, heads, heads, 128, 4096, (1.0,) * 64)
    prompt, answer = rng.choices((256, 512, 1024), k=2)
    return Job(a, rng.choice((128, 256, 512)), prompt, answer)


def draw_machine(rng: random.Random) -> Machine:
    """Draw the machine on which plans are timed."""
    of = lambda speed: speed * math.exp(rng.gauss(0, SPREAD))
    m = ASSUMED
    return dataclasses.replace(
        m, flops=of(m.flops), memory_speed=of(m.memory_speed), link=of(m.link)
    )


def errors_of(key: Key, walks: int) -> dict[str, Array]:
    """Return by how much each finding is missed, over jobs.

    walks: how many searches begin from the plan of the fastest calls, of which the best counts.
    """
    rng = random.Random(int(jax.random.bits(key)))
    over_rule, over_one, ranks = [], [], []
    for _ in range(JOBS):
        job, machine = draw_job(rng), draw_machine(rng)
        estimate = lambda plan, job=job: plans.simulate(CALLS, plan, job, ASSUMED).cost
        timed = lambda plan, job=job, on=machine: plans.simulate(CALLS, plan, job, on).cost
        plan = plans.fastest_calls(CALLS, CHOICES, job, ASSUMED)
        seeds = [rng.getrandbits(32) for _ in range(WALKS)][:walks]
        found = [plans.walk(CALLS, CHOICES, estimate, plan, STEPS, seed=s) for s in seeds]
        if found:
            plan = min(found, key=lambda x: x[1])[0]
        over_rule.append(timed(BY_RULE) / timed(plan))
        over_one.append(min(timed(everywhere(x)) for x in CHOICES) / timed(plan))
        some = [{c.name: rng.choice(CHOICES) for c in CALLS} for _ in range(DRAWN)]
        two = [[cost(x) for x in some] for cost in (estimate, timed)]
        ranks.append(scipy.stats.spearmanr(two[0], two[1])[0])
    mean = statistics.geometric_mean
    return {
        "no 1.26 times as fast as by rule": shortfall(jnp.float64(mean(over_rule)), 1.26),
        "no 1.03 times as fast as the best single layout": shortfall(
            jnp.float64(mean(over_one)), 1.03
        ),
        "rank correlation of estimates below 0.8": shortfall(jnp.float64(min(ranks)), 0.8),
    }


def errors(key: Key) -> dict[str, Array]:
    """Return the errors of plans that are searched."""
    return errors_of(key, WALKS)


def without_search(key: Key) -> dict[str, Array]:
    """Return the errors of plans in which each call alone is fastest."""
    return errors_of(key, 0)


CLAIM = Exact(
    paper=Paper(
        "ReaLHF: Optimized RLHF Training for Large Language Models through Parameter Reallocation",
        "Mei, Fu, Li, Wang, Zhang and Wu",
        2024,
        "2406.14088",
        "Each call of RLHF has devices and a layout of its own, and weights are reallocated in "
        "between. A search by an estimate of time finds plans with which experiments run 2.0 to "
        "10.6 times as fast as in other systems, and 26 % faster on average than by the rules of "
        "Megatron.",
    ),
    claim="Plans that are searched by estimate are on average 1.26 times as fast as kernels split "
    "within nodes everywhere, and faster than the best single layout, also where speeds are not "
    "as assumed.",
    left_out="Measured time, which virtual devices cannot show: plans are timed by the same counts "
    "of operations and bytes, on a machine with other speeds. That counts agree with compiled "
    "programs is a test of the library, on eight devices. Pipelines of layers, CUDA graphs, and "
    "models of unlike sizes.",
    parts=("jaxrl/runtime/plans.py",),
    errors=errors,
    planted={"each call alone is fastest": without_search},
    tolerance=1e-9,
    effect=1e-2,
    seeds=5,
    minutes=5.0,
    notes="The first design asked that no plan be slower than the rule, as neither the paper nor "
    "the claim's sentence does; on 4 of 5 seeds one of six was, where speeds differ from those "
    "assumed. Means are geometric, of six jobs. The best single layout is chosen in hindsight, by "
    "its true time. A search is the best of four random walks: in a pilot with other jobs, a "
    "single walk of 10,000 steps stayed behind plans that do not fit, and was slower than the rule "
    "in 3 of 24 jobs, whereas by estimate the best of four walks of 2,500 steps was always faster "
    "than the best single layout, 1.15 times on average. Margins were set after it: the means of "
    "eight jobs were 1.5 to 2.8 times the rule's speed there.",
    mutations=(
        Mutation(
            "walks take one step",
            "jaxrl.runtime.plans:walk",
            lambda f: (
                lambda calls, choices, cost, begin, steps, seed: f(
                    calls, choices, cost, begin, 1, seed=seed
                )
            ),
        ),
    ),
)
