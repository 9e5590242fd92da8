"""Learning from feedback as a dataflow of models, each on devices of its own or on shared ones.

A controller in plain Python says what is called on which model, in the order of the algorithm
(`ppo`, `remax`). A call is one compiled program on all devices of its model; how the model is
split there, and how texts reach it from the devices of another, is no concern of the controller. So
a placement changes where the numbers are computed, and not what they are. Source: Sheng et al.,
2024, "HybridFlow: a flexible and efficient RLHF framework", arXiv:2409.19256, sections 2 and 4.

    ledger = Ledger()
    workers = place_models(models, PLACEMENTS["split"], jax.devices(), ledger)
    calls = TextCalls(network, prompt=8, answer=8)
    ppo(workers, calls, prompts, key)
    ledger.moved  # bytes that went from the devices of one model to those of another

Calls of models on different devices may run at the same time, since the controller does not wait
for them. How much time that saves can only be measured on devices that are not virtual.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, Tree
from jaxrl.envs.timesteps import text_steps
from jaxrl.runtime.resharding import Engine, Groups, count_moved, held_bytes
from jaxrl.runtime.traffic import count_traffic

PLACEMENTS: Mapping[str, Mapping[str, int]] = {
    "colocated": {"actor": 0, "reference": 0, "critic": 0, "reward": 0},
    "split": {"actor": 0, "reference": 0, "critic": 1, "reward": 1},
    "standalone": {"actor": 0, "reference": 1, "critic": 2, "reward": 3},
}
"""Number of the set of devices that each model is on, as compared in section 8.3 of the paper: all
on one, models that are trained apart from each other, and each model alone."""


@dataclasses.dataclass
class Ledger:
    """Bytes that calls have sent and operations that they took, by names such as `actor.generate`.

    sent: by each device within a call's program. moved: received by all devices together, of data
        that lay elsewhere before the call. flops: operations of each device, the body of a loop
        counted once.
    """

    sent: dict[str, float] = dataclasses.field(default_factory=dict)
    moved: dict[str, float] = dataclasses.field(default_factory=dict)
    flops: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, name: str, sent: float, moved: float = 0, flops: float = 0.0) -> None:
        """Add what one call has sent and computed."""
        for counts, count in ((self.sent, sent), (self.moved, moved), (self.flops, flops)):
            counts[name] = counts.get(name, 0) + count


@dataclasses.dataclass(frozen=True)
class Model:
    """Parameters of a model, and its optimizer where it is trained."""

    params: Tree
    optimizer: optax.GradientTransformation | None = None


class Worker:
    """A model on its devices, whose calls are compiled for them and written into a ledger."""

    def __init__(self, name: str, model: Model, engine: Engine, ledger: Ledger):
        self.name, self.engine, self.ledger = name, engine, ledger
        self.optimizer, self.generating = model.optimizer, False
        self.params = engine.place(model.params)
        self.moments = None
        if model.optimizer is not None:
            self.moments = engine.place(model.optimizer.init(model.params))
        self._programs: dict[Any, tuple[Any, float, float]] = {}

    def reshard(self, generation: bool) -> None:
        """Bring the weights into their layout in generation, or back into that in training. The
        other layout is dropped, so weights are never held twice between calls."""
        change = self.engine.to_generation if generation else self.engine.to_training
        compiled = self.engine.compile_change(self.params, generation)
        self.params, self.generating = change(self.params), generation
        sent = count_traffic(compiled.as_text()).total
        self.ledger.add(f"{self.name}.to_{'generation' if generation else 'training'}", sent)

    def call(self, program: Callable[..., Tree], *inputs: Tree) -> Tree:
        """Return `program(params, *inputs)`; texts and what is of them are split over replicas.

        program: a pure function, compiled once for inputs of the same shapes. The last
            axis of its inputs and results is that of texts, but for keys.
        """
        return self._run(program, (self.params,), inputs, lambda out: self._split(out))

    def train(self, program: Callable[..., Tree], *inputs: Tree) -> None:
        """Replace the model by `program(optimizer, params, moments, *inputs)`."""
        state = self.params, self.moments
        where = self.engine.shardings(self.params), self.engine.shardings(self.moments)
        update = lambda params, moments, *rest: program(self.optimizer, params, moments, *rest)
        found = self._run(update, state, inputs, lambda out: where, key=program)
        self.params, self.moments = found

    def count_held(self) -> int:
        """Return the bytes of weights and optimizer state on the device that holds most."""
        return max(held_bytes((self.params, self.moments)).values())

    def _run(self, program: Any, state: Any, inputs: Any, out: Any, key: Any = None) -> Tree:
        places = self._split(inputs)
        moved = sum(map(_count_moved, jax.tree.leaves(inputs), jax.tree.leaves(places)))
        inputs = jax.device_put(inputs, places)
        shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves(inputs))
        key = key or program, self.generating, shapes
        if key not in self._programs:
            results = out(jax.eval_shape(program, *state, *inputs))
            compiled = jax.jit(program, out_shardings=results).lower(*state, *inputs).compile()
            flops = (compiled.cost_analysis() or {}).get("flops", 0.0)
            sent = count_traffic(compiled.as_text() or "").total
            self._programs[key] = compiled, sent, flops
        compiled, sent, flops = self._programs[key]
        name = getattr(key[0], "__name__", "call")
        self.ledger.add(f"{self.name}.{name}", sent, moved, flops)
        return compiled(*state, *inputs)

    def _split(self, tree: Tree) -> Tree:
        """Return the sharding of each array of texts, over the replicas that there are now."""
        texts = self.engine.batch_sharding(self.generating).spec[-1]

        def of(x: Any) -> NamedSharding:
            whole = jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or not x.ndim
            spec = [] if whole else [None] * (x.ndim - 1) + [texts]
            return NamedSharding(self.engine.mesh, PartitionSpec(*spec))

        return jax.tree.map(of, tree)


def place_models(
    models: Mapping[str, Model],
    placement: Mapping[str, int],
    devices: Sequence[Any],
    ledger: Ledger,
    tensor: int = 4,
) -> dict[str, Worker]:
    """Return a worker for each model.

    placement: the set of devices of each model, numbered from 0; the devices are divided evenly
        among the sets. tensor: parts of a kernel in training, as far as there are devices, of which
        generation has half as many.

    Raises `UserError` where the sets do not divide the devices, and for a model without a place.
    """
    sets = 1 + max(placement.values())
    if len(devices) % sets:
        raise UserError(f"{sets} sets of devices cannot share {len(devices)} devices evenly.")
    if set(models) != set(placement):
        names = ", ".join(sorted(set(models) ^ set(placement)))
        raise UserError(f"Models and their places differ: {names}; each model needs one place.")
    size = len(devices) // sets
    parts = min(tensor, size)
    groups = Groups(size // parts, parts, max(1, parts // 2))
    meshes = [groups.mesh(devices[i * size : (i + 1) * size]) for i in range(sets)]
    engines = {name: Engine(groups, meshes[i]) for name, i in placement.items()}
    return {name: Worker(name, model, engines[name], ledger) for name, model in models.items()}


# --------------------------------------------------------------------------------- the controllers


def ppo(workers: Mapping[str, Worker], calls: TextCalls, prompts: Array, key: Key) -> None:
    """Take a step of PPO on answers to prompts [P, B], with the divergence in the reward."""
    actor, critic = workers["actor"], workers["critic"]
    actor.reshard(generation=True)
    text, log_prob = actor.call(calls.generate, prompts, key)
    actor.reshard(generation=False)
    reference = workers["reference"].call(calls.score, text)
    paid = workers["reward"].call(calls.grade, text)
    value = critic.call(calls.value, text)
    advantage, target = critic.call(calls.estimate, log_prob, reference, value, paid)
    critic.train(calls.update_critic, text, target)
    actor.train(calls.update_actor, text, log_prob, advantage)


def remax(workers: Mapping[str, Worker], calls: TextCalls, prompts: Array, key: Key) -> None:
    """Take a step of ReMax: what greedy answers are paid takes the place of a critic (Li et al.,
    2023, arXiv:2310.10505)."""
    actor, reward = workers["actor"], workers["reward"]
    actor.reshard(generation=True)
    text, log_prob = actor.call(calls.generate, prompts, key)
    greedy, _ = actor.call(calls.generate_greedily, prompts)
    actor.reshard(generation=False)
    reference = workers["reference"].call(calls.score, text)
    paid, baseline = reward.call(calls.grade, text), reward.call(calls.grade, greedy)
    advantage = reward.call(calls.compare, log_prob, reference, paid, baseline)
    actor.train(calls.update_actor, text, log_prob, advantage)


class TextCalls:
    """Pure programs of a language model on texts of `prompt` (P) and `answer` (A) tokens.

    Every answer has A tokens: what ends texts is of no concern to where they are computed.
    """

    def __init__(
        self, network: Any, prompt: int, answer: int, beta: float = 0.1, clip: float = 0.2
    ):
        """network: a `networks.decoder.LanguageModel`. beta: weight of the divergence."""
        self.network, self.prompt, self.answer = network, prompt, answer
        self.beta, self.clip = beta, clip

    def generate(self, params: Tree, prompts: Array, key: Key) -> tuple[Array, Array]:
        """Return texts [P + A, B], and the log-probabilities of their answers [A, B]."""
        return self._write(
            params, prompts, jax.random.split(key, self.answer), jax.random.categorical
        )

    def generate_greedily(self, params: Tree, prompts: Array) -> tuple[Array, Array]:
        """Return the same with the likeliest tokens."""
        keys = jax.random.split(jax.random.key(0), self.answer)
        return self._write(params, prompts, keys, lambda key, logits: logits.argmax(-1))

    def score(self, params: Tree, text: Array) -> Array:
        """Return the log-probabilities of answers [A, B]."""
        logits = self.network.apply(params, text, method="logits")[self.prompt - 1 : -1]
        each = jax.nn.log_softmax(logits)
        return jnp.take_along_axis(each, text[self.prompt :, :, None], -1)[..., 0]

    def value(self, params: Tree, text: Array) -> Array:
        """Return the values before each token of answers [A, B]."""
        return self._values(params, text)[self.prompt - 1 : -1]

    def grade(self, params: Tree, text: Array) -> Array:
        """Return the reward of each text [B]: the value of its last token."""
        return self._values(params, text)[-1]

    def estimate(
        self, params: Tree, log_prob: Array, reference: Array, value: Array, paid: Array
    ) -> tuple[Array, Array]:
        """Return advantages of tokens and targets of their values [A, B]."""
        reward = losses.kl_penalized_reward(paid, log_prob, reference, self.beta)
        end = jnp.zeros(value.shape, bool).at[-1].set(True)
        following = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
        advantage = losses.gae(reward, value, following, end, end, 1.0, 0.95)
        return advantage, advantage + value

    def compare(
        self, params: Tree, log_prob: Array, reference: Array, paid: Array, baseline: Array
    ) -> Array:
        """Return what is paid from each token on, less the divergence and the baseline [A, B]."""
        reward = losses.kl_penalized_reward(paid, log_prob, reference, self.beta)
        return jnp.cumsum(reward[::-1], 0)[::-1] - baseline

    def update_actor(
        self, optimizer: Any, params: Tree, moments: Tree, text: Array, old: Array, advantage: Array
    ) -> tuple[Tree, Tree]:
        """Return parameters and moments after a step on the clipped surrogate."""

        def loss(params):
            now = self.score(params, text)
            return losses.clipped_surrogate(now, old, advantage, self.clip).mean()

        return _descend(optimizer, loss, params, moments)

    def update_critic(
        self, optimizer: Any, params: Tree, moments: Tree, text: Array, target: Array
    ) -> tuple[Tree, Tree]:
        """Return parameters and moments after a step on the squared error of values."""
        loss = lambda params: jnp.square(self.value(params, text) - target).mean()
        return _descend(optimizer, loss, params, moments)

    def _values(self, params: Tree, text: Array) -> Array:
        blank = self.network.initial(text.shape[1]).shrink()
        return self.network.apply(params, text_steps(text), blank, method="unroll")[1]

    def _write(self, params: Tree, prompts: Array, keys: Key, choose: Any) -> tuple[Array, Array]:
        apply, count = self.network.apply, prompts.shape[1]
        policy, _, memory = apply(
            params, text_steps(prompts), self.network.initial(count), method="read"
        )

        def step(carry, key):
            logits, memory = carry
            token = choose(key, logits)
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], 1)[:, 0]
            now = jax.tree.map(lambda x: x[-1], text_steps(token[None]))
            policy, _, memory = apply(params, now, memory)
            return (policy.logits, memory), (token.astype(prompts.dtype), log_prob)

        answer, log_prob = jax.lax.scan(step, (policy.logits[-1], memory), keys)[1]
        return jnp.concatenate([prompts, answer]), log_prob


def _descend(optimizer: Any, loss: Any, params: Tree, moments: Tree) -> tuple[Tree, Tree]:
    updates, moments = optimizer.update(jax.grad(loss)(params), moments, params)
    return optax.apply_updates(params, updates), moments


def _count_moved(x: Any, sharding: Any) -> int:
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return 0 if is_key else count_moved(jnp.asarray(x), sharding)
