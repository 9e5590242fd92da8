"""MADDPG's losses in tables: gradients of single samples, and critics of old data.

The paper's game pays N agents 1 if all of them choose 1, and all policies are uniform. There the
gradients of all 2^N samples are enumerated. In random Markov games of two agents, critics are
tables, and each sweep minimizes the critics' loss exactly over all transitions, weighted as often
as the replay buffer has them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses
from jaxrl.algorithms.multi_agent.maddpg import maddpg
from jaxrl.core.settings import Values
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Transition
from jaxrl.envs import timesteps

NUMBERS = (2, 3, 5, 8)  # of agents in the paper's game
SEEN, ACTIONS, SWEEPS, CERTAIN = 3, 2, 400, 1e4
STATES = SEEN**2
NAMES = ("first", "second")
# State, action of each agent, next state: all transitions of a Markov game.
ROWS = np.array(list(itertools.product(range(STATES), range(2), range(2), range(STATES)))).T
SETTINGS = maddpg.Config()
HYPER = {"discount": SETTINGS.discount, "logit_penalty": SETTINGS.logit_penalty}
Lookup = Callable[[Array, TimeStep, dict[str, Array]], Array]  # values [B] of a critic's table


class Game(NamedTuple):
    """A Markov game of two agents, each of whom sees a part of the state, and their policies.

    transition: [S, 2, 2, S]. reward: [S, 2, 2, S, agent]. ended: bool [S, 2, 2, S].
    policy: action of each agent for each of its observations, int [agent, 3].
    behavior: joint chance of states and actions in the replay buffer, [S, 2, 2].
    """

    transition: Array
    reward: Array
    ended: Array
    policy: Array
    behavior: Array


def environment(names: tuple[str, ...]) -> Environment:
    """Return an environment with the agents `names`, of which recipes read spaces alone."""
    none = dict.fromkeys(names, jnp.zeros((), jnp.int32))
    blank = timesteps.first(none, jnp.zeros(len(names)))
    return Environment(
        name="table",
        reset=lambda key, params: ((), blank),
        step=lambda key, state, action, params: ((), blank),
        params=(),
        observation_space=dict.fromkeys(names, Discrete(SEEN)),
        action_space=dict.fromkeys(names, Discrete(ACTIONS)),
        agents=names,
    )


def make_net(key: Key, parts: Mapping[str, Any], target: Mapping[str, Any]) -> Any:
    """Return a net of functions."""
    target = SimpleNamespace(**target)  # pyright: ignore[reportAssignmentType]
    return SimpleNamespace(
        hyper=Values(HYPER), key=lambda name="": jax.random.fold_in(key, len(name)),
        target=target, **parts,
    )  # fmt: skip


@functools.cache
def losses_of(names: tuple[str, ...]) -> dict[str, Any]:
    """Return MADDPG's losses of agents, by name."""
    recipe = maddpg.recipe(environment(names), SETTINGS)
    return {loss.name: loss for loss in recipe.losses}


# ------------------------------------------------------------------------- the paper's game


def uphill(key: Key, number: int) -> tuple[Array, Array]:
    """Return the chances that a sample's gradient has a positive product with the true gradient: by
    policy gradients, and by MADDPG with exact critics."""
    names = tuple(f"agent_{i}" for i in range(number))
    actions = jnp.asarray(list(itertools.product(range(2), repeat=number)))  # [2^N, N]
    reward = (actions == 1).all(1).astype(float)
    logits = jnp.zeros((len(actions), number, 2))  # each sample's own copy of the parameters
    all_choose = lambda z: jax.nn.softmax(z)[:, 1].prod()
    true = jax.grad(all_choose)(logits[0])

    def reinforce(z):
        said = losses.at_action(jax.nn.log_softmax(z), actions).sum(1)
        return losses.policy_gradient(said, reward).sum()

    no = jnp.zeros(len(actions), bool)
    step = TimeStep(dict.fromkeys(names, 0 * actions[:, 0]), 0 * reward, no, no, no)
    played = {name: actions[:, i] for i, name in enumerate(names)}
    x = Transition(step, played, step, (), {})

    def critic(timestep, action):
        """Return the exact value, the chance that all choose 1."""
        return jnp.stack([action[name][:, 1] for name in names]).prod(0)

    def of_maddpg(z):
        parts = {name: (lambda timestep, i=i: z[:, i]) for i, name in enumerate(names)}
        total = 0.0
        for i, name in enumerate(names):
            # No agent's loss moves another one's policy.
            own = dict(parts, **{f"{name}_critic": critic})
            net = make_net(jax.random.fold_in(key, i), own, {})
            total += losses_of(names)[f"{name}_loss"](net, x).sum()
        return total

    rises = lambda loss: ((-jax.grad(loss)(logits) * true).sum((1, 2)) > 1e-12).mean(dtype=float)
    return rises(reinforce), rises(of_maddpg)


# ------------------------------------------------------------------------- Markov games


def draw(key: Key) -> Game:
    """Draw a game, policies, and behavior that has all actions everywhere but is not theirs."""
    keys = jax.random.split(key, 5)
    shape = (STATES, ACTIONS, ACTIONS)
    transition = jax.random.dirichlet(keys[0], jnp.ones(STATES), shape)
    reward = jax.random.normal(keys[1], (*shape, STATES, 2))
    ended = jax.random.bernoulli(keys[2], 0.2, (*shape, STATES))
    policy = jax.random.randint(keys[3], (2, SEEN), 0, ACTIONS)
    behavior = jax.random.dirichlet(keys[4], jnp.ones(np.prod(shape))).reshape(shape)
    behavior = 0.9 * behavior + 0.1 / behavior.size
    return Game(transition, reward, ended, policy, behavior)


def choose(game: Game) -> tuple[Array, Array]:
    """Return what each agent's policy chooses in each state, int [S]."""
    state = np.arange(STATES)
    return game.policy[0, state // SEEN], game.policy[1, state % SEEN]


def exact_values(game: Game) -> Array:
    """Return the values [S, 2, 2, agent] of joint actions that the policies follow."""
    one, two = choose(game)
    follows = jnp.zeros((STATES, STATES, ACTIONS, ACTIONS))
    follows = follows.at[np.arange(STATES), np.arange(STATES), one, two].set(1.0)
    step = game.transition * ~game.ended * SETTINGS.discount
    matrix = jnp.einsum("sabt,tucd->sabucd", step, follows).reshape(4 * STATES, 4 * STATES)
    reward = (game.transition[..., None] * game.reward).sum(3).reshape(4 * STATES, 2)
    return jnp.linalg.solve(jnp.eye(4 * STATES) - matrix, reward).reshape(*game.behavior.shape, 2)


def state_of(timestep: TimeStep) -> Array:
    """Return the state, which all observations together tell."""
    return SEEN * timestep.observation[NAMES[0]] + timestep.observation[NAMES[1]]


def joint(table: Array, timestep: TimeStep, action: dict[str, Array]) -> Array:
    """Return the values of the state and of both actions, in a table [S, 2, 2]."""
    one, two = (action[name] for name in NAMES)
    return (table[state_of(timestep)] * one[:, :, None] * two[:, None, :]).sum((1, 2))


def blind(agent: int) -> Lookup:
    """Return the lookup of the values of the state and of an agent's own action alone, the means
    over the other's actions of a table [S, 2, 2]."""

    def look(table, timestep, action):
        own = table.mean(2 - agent)[state_of(timestep)]
        return (own * action[NAMES[agent]]).sum(1)

    return look


def learn(key: Key, game: Game, behavior: Array, agent: int, look: Lookup) -> Array:
    """Return an agent's table [S, 2, 2] after exact minimizations of the critic's loss over data of
    a behavior, with the target network renewed after each."""
    state, one, two, after = ROWS
    weight = (behavior[..., None] * game.transition)[tuple(ROWS)]
    no = np.zeros(len(state), bool)
    reward, ended = game.reward[tuple(ROWS)], game.ended[tuple(ROWS)]
    see = lambda s: dict(zip(NAMES, (jnp.asarray(s // SEEN), jnp.asarray(s % SEEN)), strict=True))
    x = Transition(
        TimeStep(see(state), 0 * reward, no, no, no),  # pyright: ignore[reportArgumentType]
        dict(zip(NAMES, (jnp.asarray(one), jnp.asarray(two)), strict=True)),
        TimeStep(see(after), reward, ended, no, no),  # pyright: ignore[reportArgumentType]
        (),
        {},
    )
    logits = CERTAIN * jax.nn.one_hot(game.policy, ACTIONS)
    name = f"{NAMES[agent]}_critic"
    act = lambda table: lambda timestep: table[timestep.observation]
    policies = {n: act(logits[i]) for i, n in enumerate(NAMES)}
    loss = losses_of(NAMES)[f"{name}_loss"]

    def total(table, target):
        value = lambda table: {name: lambda timestep, action: look(table, timestep, action)}
        net = make_net(key, value(table), policies | value(target))
        return (weight * loss(net, x).value).sum()

    def step(_, table):
        slope = jax.grad(total)
        # The loss is a sum of squares of single entries, or of pairs of them that move alike.
        here, there = slope(table, table), slope(table + 1, table)
        return table - jnp.where(there == here, 0, here / (there - here))

    return jax.lax.fori_loop(0, SWEEPS, step, jnp.zeros(game.behavior.shape))


def of_others_now(game: Game, agent: int) -> Array:
    """Return the behavior in which the other agent follows its policy."""
    other = 1 - agent
    plays = jax.nn.one_hot(choose(game)[other], ACTIONS)
    plays = plays[:, None, :] if other else plays[:, :, None]
    return jnp.broadcast_to(plays, game.behavior.shape) / (STATES * ACTIONS)


def beside_policy(game: Game, table: Array, agent: int) -> Array:
    """Return the values [S, 2] of an agent's actions where the other follows its policy."""
    other = choose(game)[1 - agent]
    return jnp.take_along_axis(
        table if agent == 0 else table.swapaxes(1, 2), other[:, None, None], 2
    )[..., 0]


def distances(key: Key, stale: bool) -> tuple[Array, Array]:
    """Return the largest errors of critics of joint actions, and of critics that are blind to the
    other's, with data of another behavior if `stale`, or where the other follows its policy."""
    draw_key, key = jax.random.split(key)
    game = draw(draw_key)
    exact, whole, own = exact_values(game), [], []
    for agent in range(2):
        found = learn(key, game, game.behavior, agent, joint)
        whole.append(jnp.abs(found - exact[..., agent]).max())
        data = game.behavior if stale else of_others_now(game, agent)
        found = learn(key, game, data, agent, blind(agent)).mean(2 - agent)
        own.append(jnp.abs(found - beside_policy(game, exact[..., agent], agent)).max())
    return jnp.stack(whole).max(), jnp.stack(own)


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of both chances and of the critics."""
    game_key, key = jax.random.split(key)
    found = jnp.asarray([uphill(key, number) for number in NUMBERS])
    number = np.asarray(NUMBERS)
    whole, own = distances(game_key, stale=False)
    return {
        "chance of a policy gradient uphill from 2^-N": jnp.abs(found[:, 0] - 0.5**number).max(),
        "chance of MADDPG's from (N + 1) 2^-N": jnp.abs(
            found[:, 1] - (number + 1) * 0.5**number
        ).max(),
        "critics of joint actions, data of any behavior, from exact values": whole,
        "critics of own actions, data of the other's policy, from exact values": own.max(),
    }


@jax.jit
def stale(key: Key) -> Mapping[str, Any]:
    """Return how far critics of an agent's own action are from exact values, with data of another
    behavior: of the agent that is nearer."""
    game_key, _ = jax.random.split(key)
    return {"critics of own actions": distances(game_key, stale=True)[1].min()}


CLAIM = Exact(
    paper=Paper(
        "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments",
        "Lowe, Wu, Tamar, Harb, Abbeel and Mordatch",
        2017,
        "1706.02275",
        "Given the actions of all agents the environment is stationary even as policies change, so "
        "critics of all actions can learn from replayed experience; the chance that a sample's "
        "policy gradient points uphill falls exponentially in the number of agents.",
    ),
    claim="In the paper's game of N agents a sample's policy gradient points uphill with chance "
    "2^-N, and MADDPG's with exact critics N + 1 times as often. In random Markov games its "
    "critics end at the exact values of the policies with data of any behavior; critics of own "
    "actions do so only where the other agent acted in the data as it does now.",
    left_out="Learning itself and its returns in the particle environments, against DDPG and other "
    "methods; inferred policies and ensembles, which are not implemented. Policies of the Markov "
    "games are all but deterministic.",
    parts=("jaxrl/algorithms/multi_agent/maddpg.py", "jaxrl/losses/policies/policy_gradients.py"),
    errors=errors,
    planted={"critics blind to the other's actions, old data": stale},
    tolerance=1e-9,
    effect=1e-2,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "agents learn from each other's rewards",
            "jaxrl.algorithms.multi_agent.maddpg:reward_of",
            lambda reward_of: lambda x, index: reward_of(x, 1 - index),
        ),
        Mutation(
            "the end of an episode is unseen",
            "jaxrl.algorithms.multi_agent.maddpg:ended_for",
            lambda ended_for: lambda timestep, index: 0 * ended_for(timestep, index),
        ),
    ),
    notes="Games have 2, 3, 5 and 8 agents; chances are over all samples, and over one draw of the "
    "Gumbel noise of MADDPG's actions, whose gradient never points downhill here. The reward is 1 "
    "where all choose 1. As the paper prints it, 1 where all choose alike, the true gradient of "
    "uniform policies is 0, so no step points uphill. MADDPG's gain is a factor of N + 1: the "
    "chance still falls exponentially, since its gradient takes the others' actions from the data. "
    "The machinery was tried on six other seeds before this was declared.",
)
