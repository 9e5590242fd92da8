"""PraX (Vaduguru, Fried and Pu, 2023, "Generating pragmatic examples to train neural program
synthesizers", arXiv:2311.05740): a listener that finds programs from examples, and a speaker that
shows examples of programs, learn from their own play, of which pragmatic inference chooses the
examples.

Both begin as literal models, trained on random examples of random programs. In each round examples
are made for new programs, one after the other: the listener proposes programs for the examples so
far, the speaker proposes next examples of the program, and of these the pragmatic speaker takes the
one by which the fewest of the proposed programs are left. That is the best by

    S(u | h) ~ L(h | u),   L(h | u) ~ 1 if h agrees with u,

the rational speech acts on the matrix of proposals alone, with the program itself among them. Then
both models are trained, from the literal ones, on the examples of all rounds: the listener on every
prefix, the speaker on every next example. No user is asked and no environment played in;
evaluation plays with users who speak as the environment's do.

As in the authors' code: proposals of the trained and of the literal models together, a nucleus of
0.9 for the listener's, and training from the literal models in each round. Choices of ours: the
models are perceptrons over all programs and strings of a small table; programs that contradict an
example are left out inside the listener's loss and not only of its samples, as strings shown
already are in the speaker's; Adam without weight decay; and a round trains on `updates` minibatches
that are drawn from all rounds instead of one pass over them. With `choice` "random" the next
example is any of the proposed ones: the same data without pragmatics.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, Policy, Tree, struct
from jaxrl.envs import timesteps
from jaxrl.envs.language import regex_by_example
from jaxrl.envs.language.regex_by_example import NONE, agree, encode
from jaxrl.kit import Direct, DirectBuilder, group, hyper, static
from jaxrl.kit.acting import choose, temper
from jaxrl.kit.groups import Torso, plain_optimizer
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.heads import ILLEGAL, Categorical


@group
class Config:
    """Settings of PraX: a listener and a speaker that learn from pragmatic examples
    (arXiv:2311.05740)."""

    torso: Torso = Torso(hidden=(128, 128))
    """Layers of the listener, and of the speaker."""
    literal_updates: int = static(1000, low=1)
    """Number of minibatches of random examples on which the literal models are trained."""
    updates: int = static(500, low=1)
    """Number of minibatches on which the models are trained in each round."""
    minibatch: int = static(128, low=1, high=MANY)
    """Number of programs in a minibatch, each with its examples. 32 examples: authors' code."""
    programs: int = static(1024, low=1, high=MANY)
    """Number of programs for which examples are made in a round."""
    rounds: int = static(10, low=1, high=MANY)
    """Number of rounds whose examples are kept; a later round takes the place of the oldest."""
    proposals: int = static(32, low=1, high=MANY)
    """Number of samples of each model: programs of two listeners, strings of two speakers (250 in
    the authors' code)."""
    choice: str = static("pragmatic", choices=("pragmatic", "random"))
    """Choice of the next example among the speakers' proposals: pragmatic, or random."""
    top_p: float = hyper(0.9, above=0, high=1)
    """Probability of the nucleus that the listeners propose from."""
    learning_rate: float = hyper(1e-3, low=0, log=True)
    """Step size of Adam (5e-5 for the pretrained models of the authors' code)."""


@struct
class Models:
    """Parameters of a listener and a speaker."""

    listener: Tree
    speaker: Tree


@struct
class State:
    """State of PraX.

    literal, models: parameters. programs: int32 [R, P], and shown: int32 [R, P, K], the examples of
    the last rounds. rounds: int32, rounds so far.
    """

    literal: Models
    models: Models
    programs: Array
    shown: Array
    rounds: Array


def pragmatic_choice(
    meanings: Array, hypotheses: Array, utterances: Array, program: Array
) -> Array:
    """Return the utterance that the pragmatic speaker of a program says, int32: the one by which
    the fewest hypotheses are left, of equal ones the first.

    meanings: bool [H, X]. hypotheses: bool [H], proposed programs, with the program itself.
    utterances: bool [X], proposed strings, at least one.
    """
    alike = meanings == meanings[program]
    left = (hypotheses[:, None] & alike).sum(0)
    return jnp.where(utterances, left, len(meanings) + 1).argmin().astype(jnp.int32)


def _sample_set(policy: Categorical, key: Key, count: int) -> Array:
    """Return which values are among `count` samples of a policy [P, n], bool [P, n]."""
    drawn = policy.sample(seed=key, sample_shape=(count,))
    return jax.nn.one_hot(drawn, policy.num_categories, dtype=bool).any(0)


def build(env: Environment, config: Config) -> Direct:
    """Build PraX for the programs and strings of `env`; the resulting policy is the listener.

    One step is a round. Its environment steps are the examples that it makes, and those of `init`
    the examples on which the literal models are trained.
    """
    with jax.ensure_compile_time_eval():  # works while a program is being traced, too
        meanings = jnp.asarray(env.params.meanings)
    count, size = meanings.shape
    examples = env.max_steps or 0
    hidden = config.torso
    layers = hidden.hidden, hidden.activation, hidden.initializer
    listener = Actor(env.observation_space, Discrete(count), *layers)
    told = Box(-1.0, 1.0, (count + examples * size,))
    speaker = Actor(told, Discrete(size), *layers)
    optimizer = plain_optimizer("adam")
    labels_of = lambda program, shown: meanings[program[..., None], shown]

    def listen(params: Tree, program: Array, shown: Array) -> Categorical:
        """Return the listener's policy [P, H] for the examples [P, K] of programs [P]."""
        labels = labels_of(program, shown)
        possible = jax.vmap(agree, (None, 0, 0))(meanings, shown, labels)
        seen = timesteps.first(encode(shown, labels, size), legal_actions=possible)
        return listener.apply(params, seen)  # type: ignore[return-value]

    def say(params: Tree, program: Array, shown: Array) -> Categorical:
        """Return the speaker's policy [P, X] after the examples [P, K] of programs [P]."""
        context = encode(shown, labels_of(program, shown), size)
        new = ~jax.nn.one_hot(shown, size, dtype=bool).any(-2)
        seen = jnp.concatenate([jax.nn.one_hot(program, count), context], -1)
        return speaker.apply(params, timesteps.first(seen, legal_actions=new))  # type: ignore[return-value]

    def prefixes(shown: Array, longest: int) -> Array:
        """Return the first `longest` - K + 1 .. `longest` of the examples [P, K], [K * P, K]."""
        least = longest - examples + 1
        lengths = least + jnp.arange(examples)[:, None, None]
        return jnp.where(jnp.arange(examples) < lengths, shown, NONE).reshape(-1, examples)

    def errors(models: Models, program: Array, shown: Array) -> tuple[Array, Array]:
        """Return the cross-entropies of the listener and of the speaker over all prefixes."""
        each = jnp.tile(program, examples)
        heard = listen(models.listener, each, prefixes(shown, examples)).log_prob(each)
        said = say(models.speaker, each, prefixes(shown, examples - 1)).log_prob(shown.T.ravel())
        return -heard.mean(), -said.mean()

    def train(models: Models, draw: Any, updates: int, key: Key, rate: Array):
        """Return the models after minibatches that `draw` makes of a key, and their mean losses."""

        def update(carry, key):
            models, moments = carry
            program, shown = draw(key)

            def total(models):
                heard, spoken = errors(models, program, shown)
                return heard + spoken, (heard, spoken)

            gradient, found = jax.grad(total, has_aux=True)(models)
            change, moments = optimizer.update(gradient, moments)
            models = jax.tree.map(lambda x, y: x - rate * y, models, change)
            return (models, moments), found

        begin = models, optimizer.init(models)  # type: ignore[arg-type]
        (models, _), found = jax.lax.scan(update, begin, jax.random.split(key, updates))
        return models, jax.tree.map(jnp.mean, found)

    def draw_random(key: Key, number: int) -> tuple[Array, Array]:
        """Draw programs [P] and strings [P, K] of each, evenly and without repetition."""
        program_key, string_key = jax.random.split(key)
        program = jax.random.randint(program_key, (number,), 0, count, jnp.int32)
        order = jax.random.uniform(string_key, (number, size)).argsort(-1)
        return program, order[:, :examples].astype(jnp.int32)

    def make_examples(state: State, program: Array, key: Key, top_p: Array):
        """Return the examples of programs [P], int32 [P, K], and how many of the hypotheses each
        one left, float32 [P, K]."""
        known, number = jax.nn.one_hot(program, count, dtype=bool), config.proposals

        def show(shown, place):
            k, key = place
            keys = jax.random.split(key, 5)
            hypotheses, utterances = known, jnp.zeros((len(program), size), bool)
            for i, models in enumerate((state.models, state.literal)):
                heard = temper(listen(models.listener, program, shown), top_p=top_p)
                hypotheses |= _sample_set(heard, keys[i], number)
                spoken = say(models.speaker, program, shown)
                utterances |= _sample_set(spoken, keys[2 + i], number)
            if config.choice == "pragmatic":
                new = jax.vmap(pragmatic_choice, (None, 0, 0, 0))(
                    meanings, hypotheses, utterances, program
                )
            else:
                logits = jnp.where(utterances, 0.0, ILLEGAL)
                new = jax.random.categorical(keys[4], logits).astype(jnp.int32)
            alike = meanings[program, new][:, None] == meanings[:, new].T
            left = (hypotheses & alike).sum(-1)
            return shown.at[:, k].set(new), left.astype(jnp.float32)

        blank = jnp.full((len(program), examples), NONE, jnp.int32)
        places = jnp.arange(examples), jax.random.split(key, examples)
        shown, left = jax.lax.scan(show, blank, places)
        return shown, left.T

    def init(key, hyper):
        listener_key, speaker_key, train_key = jax.random.split(key, 3)
        program, shown = jnp.zeros(1, jnp.int32), jnp.full((1, examples), NONE, jnp.int32)
        possible, blank = jnp.ones((1, count), bool), encode(shown, shown > 0, size)
        heard = timesteps.first(blank, legal_actions=possible)
        seen = jnp.concatenate([jax.nn.one_hot(program, count), blank], -1)
        said = timesteps.first(seen, legal_actions=jnp.ones((1, size), bool))
        new = Models(listener.init(listener_key, heard), speaker.init(speaker_key, said))
        draw = lambda key: draw_random(key, config.minibatch)
        literal, _ = train(new, draw, config.literal_updates, train_key, hyper.learning_rate)
        kept = config.rounds, config.programs
        programs = jnp.zeros(kept, jnp.int32)
        return State(
            literal, literal, programs, jnp.zeros((*kept, examples), jnp.int32), jnp.int32(0)
        )

    def step(state, key, hyper):
        program_key, play_key, train_key = jax.random.split(key, 3)
        program = jax.random.randint(program_key, (config.programs,), 0, count, jnp.int32)
        shown, left = make_examples(state, program, play_key, hyper.top_p)
        place = state.rounds % config.rounds
        programs = state.programs.at[place].set(program)
        strings = state.shown.at[place].set(shown)
        rounds = state.rounds + 1

        def draw(key):
            filled = jnp.minimum(rounds, config.rounds) * config.programs
            chosen = jax.random.randint(key, (config.minibatch,), 0, filled)
            return programs.reshape(-1)[chosen], strings.reshape(-1, examples)[chosen]

        models, (heard, spoken) = train(
            state.literal, draw, config.updates, train_key, hyper.learning_rate
        )
        metrics = {
            "listener_loss": m.mean(heard),
            "speaker_loss": m.mean(spoken),
            "hypotheses_left": m.mean(left[:, -1]),
        }
        return State(state.literal, models, programs, strings, rounds), metrics

    def act(params, timestep, memory, key, greedy):
        action = choose(listener.apply(params, timestep), key, greedy)
        return action.astype(env.action_space.dtype), memory, {}  # type: ignore[union-attr]

    return Direct(
        init,
        step,
        policy=lambda state: Policy(act, lambda n: (), state.models.listener),
        env_steps=config.programs * examples,
        initial_env_steps=config.literal_updates * config.minibatch * examples,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment without programs and examples."""
    if not isinstance(env.params, regex_by_example.Params):
        raise UserError(
            f"{name} cannot act in '{env.name}', which has no table of programs and examples; use "
            "regex_by_example."
        )


pragmatic_synthesizer = DirectBuilder("pragmatic_synthesizer", Config, build, check)

TINY = {
    "env": "regex_by_example", "env_params": {"parts": 1, "length": 2, "examples": 2},
    "hidden": (4,), "literal_updates": 2, "updates": 2, "minibatch": 4, "programs": 8, "rounds": 2,
    "proposals": 2,
}  # fmt: skip
