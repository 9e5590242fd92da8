"""Bytes that layouts and placements of models send and hold, on eight virtual devices.

    python experiments/bench/placements.py [--width 32] [--layers 1] [--tokens 8]

First the change of a model's weights between training and generation, then a step of PPO with four
models on one set of devices, on two and on four, then the estimates by which execution plans are
compared beside what is compiled, and plans for a larger model by estimates alone. Nothing is timed:
virtual devices share one processor, so that what they save in time cannot be seen.
"""

from __future__ import annotations

import argparse
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import optax
from scipy.stats import spearmanr

from jaxrl.networks.decoder import Architecture, LanguageModel
from jaxrl.runtime.placement import format_bytes
from jaxrl.runtime.plans import (
    Job,
    Layout,
    Machine,
    count_call,
    fastest_calls,
    layouts,
    ppo_calls,
    simulate,
    walk,
)
from jaxrl.runtime.resharding import GROUPINGS, Engine, Groups, predict_transition
from jaxrl.runtime.workers import (
    PLACEMENTS,
    Ledger,
    Model,
    TextCalls,
    Worker,
    place_models,
    ppo,
    text_steps,
)

VOCABULARY, HEADS, TEXTS = 64, 4, 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8, help="of prompts, and of answers")
    arguments = parser.parse_args()
    width, tokens = arguments.width, arguments.tokens
    head = width // HEADS
    frequencies = tuple(10_000.0 ** (-2 * i / head) for i in range(head // 2))
    sizes = Architecture(
        VOCABULARY, width, 2 * width, arguments.layers, HEADS, HEADS, head, 2 * tokens, frequencies
    )
    network = LanguageModel(sizes, length=2 * tokens)
    prompts = jax.random.randint(jax.random.key(5), (tokens, TEXTS), 0, VOCABULARY)
    step = jax.tree.map(lambda x: x[0], text_steps(prompts))
    init = jax.jit(lambda key: network.init(key, step, network.initial(TEXTS)))
    models = {
        name: Model(init(key), optax.adam(1e-3) if name in ("actor", "critic") else None)
        for name, key in zip(
            PLACEMENTS["colocated"], jax.random.split(jax.random.key(0), 4), strict=True
        )
    }
    print_transitions(models["actor"].params)
    print("\n| placement | held by a device | sent by a device in calls | moved between models |")
    print("| --- | --- | --- | --- |")
    calls = TextCalls(network, tokens, tokens)
    for name, placement in PLACEMENTS.items():
        print_step(name, placement, models, calls, prompts)
    print_estimates(models["actor"], calls, Job(sizes, TEXTS, tokens, tokens))
    print_plans()


def print_transitions(params: object) -> None:
    """Print the costs of changes of layout, measured and by the paper's table."""
    groups = Groups(data=2, tensor=4, generation=2)
    print("| grouping | sent by each device | predicted | redundant | predicted |")
    print("| --- | --- | --- | --- | --- |")
    for grouping in GROUPINGS:
        engine = Engine(groups, groups.mesh(jax.devices(), grouping), grouping)
        found = engine.measure(params)
        expected = predict_transition(grouping, groups, engine.split_bytes(params))
        row = found.sent, expected.sent, found.redundant, expected.redundant
        print(f"| `{grouping}` | {' | '.join(format_bytes(x) for x in row)} |")


def print_step(name: str, placement, models, calls: TextCalls, prompts: jax.Array) -> None:
    """Print what a step of PPO sends and holds."""
    ledger = Ledger()
    workers = place_models(models, placement, jax.devices(), ledger)
    ppo(workers, calls, prompts, jax.random.key(1))
    held: dict[int, int] = {}
    for model, number in placement.items():
        held[number] = held.get(number, 0) + workers[model].count_held()
    sent: dict[int, float] = {}
    for call, size in ledger.sent.items():
        number = placement[call.partition(".")[0]]
        sent[number] = sent.get(number, 0) + size
    row = max(held.values()), max(sent.values()), sum(ledger.moved.values())
    print(f"| {name} | {' | '.join(format_bytes(x) for x in row)} |", flush=True)


def print_estimates(model: Model, calls: TextCalls, job: Job) -> None:
    """Print what the estimates of plans say of a training call, beside what is compiled."""
    text = jnp.zeros((job.tokens, TEXTS), jnp.int32)
    zeros = jnp.zeros((job.answer, TEXTS))
    print("\n| devices, parts | operations | estimated | sent | estimated |")
    print("| --- | --- | --- | --- | --- |")
    found, expected = [], []
    for count, parts in ((8, 1), (8, 2), (8, 4), (4, 1), (4, 4), (2, 2)):
        groups, ledger = Groups(count // parts, parts, parts), Ledger()
        worker = Worker("actor", model, Engine(groups, groups.mesh(jax.devices())), ledger)
        worker.train(calls.update_actor, text, zeros, zeros)
        (flops,), (sent,) = ledger.flops.values(), ledger.sent.values()
        counts = count_call("train", Layout(0, count, parts), job)
        found.append((flops, sent))
        expected.append((counts.flops, counts.sent))
        row = f"{flops / 1e6:.3g} M | {counts.flops / 1e6:.3g} M"
        row += f" | {format_bytes(sent)} | {format_bytes(counts.sent)}"
        print(f"| {count}, {parts} | {row} |", flush=True)
    for name, ours, theirs in zip(
        ("operations", "bytes"),
        zip(*found, strict=True),
        zip(*expected, strict=True),
        strict=True,
    ):
        print(f"Rank correlation of {name}: {spearmanr(ours, theirs)[0]:.2f}")


def print_plans() -> None:
    """Print the estimates of plans for four models of seven billion weights on 16 devices."""
    job = Job(Architecture(32_000, 4_096, 11_008, 32, 32, 32, 128, 1_024, ()), 512, 512, 512)
    machine = Machine(flops=4e14, memory_speed=3e12, link=2e11, capacity=8e10)
    calls, choices = ppo_calls(), layouts(16)
    cost = lambda plan: simulate(calls, plan, job, machine).cost
    alike = min(cost(dict.fromkeys((call.name for call in calls), x)) for x in choices)
    begin = fastest_calls(calls, choices, job, machine)
    plan, best = walk(calls, choices, cost, begin, steps=30_000)
    print(
        f"\nOne layout for all calls: {alike:.3g} s. Each call's own fastest: {cost(begin):.3g} s."
    )
    print(f"The best that a walk of 30,000 steps meets: {best:.3g} s, estimated.")
    for name, layout in plan.items():
        print(f"  {name}: {layout}")


if __name__ == "__main__":
    main()
