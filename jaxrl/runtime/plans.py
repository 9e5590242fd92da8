"""Execution plans: which devices compute each call of a dataflow, and how its model is split there.

Calls differ: sampling reads all weights for each token, training computes three times as much as
scoring. So each call has a layout of its own, and where two calls of one model differ, its weights
are reallocated in between. A plan is judged by an estimate of its time, and a good one is found by
trying all or by a random walk. Source: Mei et al., 2024, "ReaL: efficient RLHF training of large
language models with parameter reallocation", arXiv:2406.14088, and its authors' code, whose
estimates are of profiled layers; here they are counts of operations and bytes.

    calls = ppo_calls()
    machine = Machine(flops=1e14, memory_speed=1e12, link=1e11, capacity=8e10)
    job = Job(architecture, texts=512, prompt=256, answer=256)
    best = search(calls, layouts(16), lambda plan: simulate(calls, plan, job, machine).cost)

There is no pipeline of layers here: a layout has replicas and parts of kernels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence

from jaxrl.core.errors import UserError, unknown
from jaxrl.networks.decoder import KERNELS, Architecture

FLOAT = 4  # bytes
KINDS = ("generate", "score", "train")
OVERFULL = 3.0  # factor of the cost of plans that do not fit, as in the authors' code


@dataclasses.dataclass(frozen=True)
class Layout:
    """A block of neighboring devices, and the parts into which kernels are split there.

    first: number of the block's first device. devices: their count. tensor: parts (t), which
        divide the devices; the rest are replicas that share the texts.

    Raises `UserError` for a number of parts that does not divide the devices.
    """

    first: int
    devices: int
    tensor: int = 1

    def __post_init__(self):
        if min(self.devices, self.tensor) < 1 or self.devices % self.tensor or self.first < 0:
            raise UserError(f"{self} is no layout: its parts must divide its devices.")

    @property
    def data(self) -> int:
        """Number of replicas (d)."""
        return self.devices // self.tensor

    @property
    def block(self) -> range:
        """The numbers of its devices."""
        return range(self.first, self.first + self.devices)

    def share(self, device: int) -> tuple[float, float]:
        """Return where a device's part of each kernel begins and ends, as shares of it."""
        part = (device - self.first) % self.tensor
        return part / self.tensor, (part + 1) / self.tensor


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a model: `kind` is one of `KINDS`; it begins when the calls `after` have ended."""

    name: str
    model: str
    kind: str
    after: tuple[str, ...] = ()

    def __post_init__(self):
        if self.kind not in KINDS:
            raise unknown("kind of call", self.kind, KINDS)


@dataclasses.dataclass(frozen=True)
class Job:
    """Size of an iteration: a number of texts with `prompt` (P) and `answer` (A) tokens, and the
    architecture of all models, with float32 weights."""

    architecture: Architecture
    texts: int
    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        """Length of a text (T)."""
        return self.prompt + self.answer

    @property
    def weights(self) -> int:
        """Number of weights in products with each token: those of kernels, and the read-out."""
        a = self.architecture
        return a.layers * sum(math.prod(a.shape(k)) for k in KERNELS) + a.vocabulary * a.width


@dataclasses.dataclass(frozen=True)
class Machine:
    """Speeds of a device, by which counts become seconds.

    flops: operations per second. memory_speed: bytes per second from its memory. link: bytes per
        second to other devices. capacity: bytes of its memory.
    """

    flops: float
    memory_speed: float
    link: float
    capacity: float = math.inf


@dataclasses.dataclass(frozen=True)
class Counts:
    """Work of a device in a call.

    flops: operations. read: bytes of weights and caches that it must read one after another.
    sent: bytes to other devices.
    """

    flops: float
    read: float
    sent: float

    def seconds(self, machine: Machine) -> float:
        """Return the time on a machine that reads while it computes, and sends before or after."""
        busy = max(self.flops / machine.flops, self.read / machine.memory_speed)
        return busy + self.sent / machine.link


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Estimate of a plan: `seconds` until its last call has ended, the bytes that the fullest
    device holds, and whether they fit."""

    seconds: float
    memory: float
    fits: bool

    @property
    def cost(self) -> float:
        """Seconds, `OVERFULL` times as many where the plan does not fit."""
        return self.seconds * (1.0 if self.fits else OVERFULL)


Plan = Mapping[str, Layout]


def ppo_calls() -> tuple[Call, ...]:
    """Return the six calls of a step of PPO with four models."""
    said = ("generate",)
    judged = ("score_reference", "score_reward", "score_value")
    return (
        Call("generate", "actor", "generate"),
        Call("score_reference", "reference", "score", said),
        Call("score_reward", "reward", "score", said),
        Call("score_value", "critic", "score", said),
        Call("train_actor", "actor", "train", judged),
        Call("train_critic", "critic", "train", judged),
    )


def layouts(devices: int, least: int = 1, most_parts: int | None = None) -> list[Layout]:
    """Return the layouts of blocks of 2^k devices, at least `least`, that begin at multiples of
    their size, with every number of parts 2^j up to `most_parts`."""
    found = []
    size = 1
    while size <= devices:
        for first in range(0, devices - size + 1, size) if size >= least else ():
            parts = [2**j for j in range(size.bit_length())]
            found += [Layout(first, size, t) for t in parts if t <= (most_parts or size)]
        size *= 2
    return found


def count_call(kind: str, layout: Layout, job: Job) -> Counts:
    """Count what a device does in a call.

    Products with weights take two operations for each weight and token, attention four for each
    pair of tokens and unit of width; gradients take twice as much again. Parts are summed after the
    embedding, after each attention and after each perceptron, and as often in the backward pass
    (Shoeybi et al., 2019, "Megatron-LM", arXiv:1909.08053); replicas sum their gradients. Sampling
    reads the weights and the cache for each of its tokens.
    """
    a, t, d = job.architecture, layout.tensor, layout.data
    texts = job.texts / d
    width = a.heads * a.head_width
    flops = 2 * job.weights * job.tokens + 4 * a.layers * width * job.tokens**2
    flops *= texts / t
    ring = lambda size, n: 2 * size * (n - 1) / n
    activations = FLOAT * texts * job.tokens * a.width
    sent = (2 * a.layers + 1) * ring(activations, t)
    read = FLOAT * job.weights / t
    if kind == "generate":
        cache = 2 * a.layers * a.key_heads * a.head_width * job.tokens * FLOAT * texts / t
        read = job.answer * (read + cache / 2)  # which grows from nothing to this
    if kind == "train":
        flops, sent, read = 3 * flops, 2 * sent, 3 * read
        sent += ring(FLOAT * job.weights / t, d)
    return Counts(flops, read, sent)


def count_reallocated(before: Layout, after: Layout, size: float) -> float:
    """Return the bytes that the device which receives most receives, where weights of `size` bytes
    change their layout: what it needs and does not hold."""
    most = 0.0
    for device in after.block:
        begin, end = after.share(device)
        kept = 0.0
        if device in before.block:
            low, high = before.share(device)
            kept = max(0.0, min(end, high) - max(begin, low))
        most = max(most, end - begin - kept)
    return most * size


def simulate(calls: Sequence[Call], plan: Plan, job: Job, machine: Machine) -> Outcome:
    """Estimate what a plan comes to.

    A call begins as soon as those before it have ended, its model has its layout, and all of its
    devices are free; of those that could begin, the one that is ready first does, as in the
    authors' code. A model begins an iteration in the layout of its last call.
    """
    size = FLOAT * job.weights
    free: dict[int, float] = {}  # when each device has ended what it does
    busy = lambda block: max(free.get(device, 0.0) for device in block)
    where = {call.model: plan[call.name] for call in calls}  # of each model's last call
    ended: dict[str, float] = {}
    moved: dict[str, float] = {}  # when each model's last call ended
    waiting = list(calls)
    while waiting:
        ready = [
            (max((ended[name] for name in call.after), default=0.0), i)
            for i, call in enumerate(waiting)
            if all(name in ended for name in call.after)
        ]
        if not ready:
            raise UserError(f"The calls {[c.name for c in waiting]} wait for each other.")
        since, i = min(ready)
        call = waiting.pop(i)
        layout, before = plan[call.name], where[call.model]
        begin = max(moved.get(call.model, 0.0), busy(layout.block))
        if layout != before:
            begin = max(begin, busy(before.block))
            begin += count_reallocated(before, layout, size) / machine.link
            free.update(dict.fromkeys(before.block, begin))
        end = max(begin, since) + count_call(call.kind, layout, job).seconds(machine)
        free.update(dict.fromkeys(layout.block, end))
        ended[call.name] = moved[call.model] = end
        where[call.model] = layout
    memory = _memory(calls, plan, job)
    return Outcome(max(ended.values()), memory, memory <= machine.capacity)


def search(
    calls: Sequence[Call], choices: Sequence[Layout], cost: Callable[[Plan], float]
) -> tuple[dict[str, Layout], float]:
    """Return the best of all plans, and its cost: of len(choices) ** len(calls) plans."""
    names = [call.name for call in calls]
    plans = (
        dict(zip(names, x, strict=True)) for x in itertools.product(choices, repeat=len(calls))
    )
    best = min(plans, key=cost)
    return best, cost(best)


def walk(
    calls: Sequence[Call],
    choices: Sequence[Layout],
    cost: Callable[[Plan], float],
    begin: Plan,
    steps: int,
    beta: float = 10.0,
    seed: int = 0,
) -> tuple[dict[str, Layout], float]:
    """Return the best plan that a random walk meets, and its cost.

    Each step proposes another layout for one call, all alike, and goes there with the probability
    min(1, exp(-beta (cost' - cost) / cost_0)), by Metropolis and Hastings.

    begin: where it begins, of cost_0; `fastest_calls` in the authors' code. beta: 0 for a walk that
        goes anywhere; large for one that only gets better.
    """
    rng = random.Random(seed)
    here, unit = dict(begin), cost(begin)
    now, best, least = unit, dict(begin), unit
    for _ in range(steps):
        name = rng.choice(calls).name
        other = here | {name: rng.choice([x for x in choices if x != here[name]])}
        found = cost(other)
        if found <= now or rng.random() < math.exp(-beta * (found - now) / unit):
            here, now = other, found
        if now < least:
            best, least = dict(here), now
    return best, least


def fastest_calls(
    calls: Sequence[Call], choices: Sequence[Layout], job: Job, machine: Machine
) -> dict[str, Layout]:
    """Return the plan in which each call alone is fastest, whatever it costs to get there."""

    def fastest(kind: str) -> Layout:
        return min(choices, key=lambda layout: count_call(kind, layout, job).seconds(machine))

    return {call.name: fastest(call.kind) for call in calls}


def _memory(calls: Sequence[Call], plan: Plan, job: Job) -> float:
    """Return the bytes that the fullest device holds: weights in each of their layouts, gradients
    and two moments in training, and the largest of the caches."""
    a, size = job.architecture, FLOAT * job.weights
    held: dict[int, float] = {}
    caches: dict[int, float] = {}
    seen = set()
    for call in calls:
        layout = plan[call.name]
        for device in layout.block:
            if (call.model, layout) not in seen:
                held[device] = held.get(device, 0.0) + size / layout.tensor
            if call.kind == "train":
                held[device] += 3 * size / layout.tensor
            if call.kind == "generate":
                cache = 2 * a.layers * a.key_heads * a.head_width * job.tokens * FLOAT
                cache *= job.texts / layout.devices
                caches[device] = max(caches.get(device, 0.0), cache)
        seen.add((call.model, layout))
    return max(size + caches.get(device, 0.0) for device, size in held.items())
