"""Environments of JaxMARL (Rutherford et al., 2023, arXiv:2311.10090), by names such as
`jaxmarl/MPE_simple_spread_v3`.

Runs JaxMARL's own `step_env`, without its automatic reset. All agents act at each step:
observations, actions and legal actions are dicts by agent, and `privileged["state"]` is JaxMARL's
state of the whole where it has one (SMAX, JaxNav) and otherwise all observations side by side. Each
agent has a reward of its own, in the order of `Environment.agents`; in teams whose members always
get the same, and with `reward="sum"` or `"mean"`, there is one. In Overcooked `shaping` is the
weight of JaxMARL's rewards for preparations, which are added to each agent's; `true_reward` is then
the reward without them.

The clock truncates and the task terminates, which JaxMARL merges. Its particle environments (MPE)
take `max_steps + 1` steps, by its count. `coin_game` and the storms restart their inner episodes
themselves: these are part of one episode, in which the step that ends an inner episode observes the
next one and has no reward, as in JaxMARL. Agents that die (SMAX, and JaxNav with `evaporating`) are
marked in `alive`. Hanabi's players take turns, which is expressed by `legal_actions` alone: whoever
is not to move must choose the last action, which has no effect, and those steps are experience too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import random
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.spaces import Discrete, Space, example
from jaxrl.core.types import Array, Environment, TimeStep, Tree
from jaxrl.envs import options
from jaxrl.envs.adapters import SettingsBuilder, check_name, construct, package
from jaxrl.envs.adapters.conversions import (
    box,
    cast,
    cast_like,
    clip,
    stable_shapes,
    unbounded_space,
)
from jaxrl.envs.wrappers.time_limit import time_limit

# JaxMARL's name -> its classes whose constructor arguments are settings.
MPE = {
    "MPE_simple_v3": ("SimpleMPE",),
    "MPE_simple_tag_v3": ("SimpleTagMPE",),
    "MPE_simple_world_comm_v3": ("SimpleWorldCommMPE",),
    "MPE_simple_spread_v3": ("SimpleSpreadMPE",),
    "MPE_simple_crypto_v3": ("SimpleCryptoMPE",),
    "MPE_simple_speaker_listener_v4": ("SimpleSpeakerListenerMPE",),
    "MPE_simple_push_v3": ("SimplePushMPE",),
    "MPE_simple_adversary_v3": ("SimpleAdversaryMPE",),
    "MPE_simple_reference_v3": ("SimpleReferenceMPE",),
    "MPE_simple_facmac_v1": ("SimpleFacmacMPE",),
    "MPE_simple_facmac_3a_v1": ("SimpleFacmacMPE3a",),
    "MPE_simple_facmac_6a_v1": ("SimpleFacmacMPE6a",),
    "MPE_simple_facmac_9a_v1": ("SimpleFacmacMPE9a",),
}
MABRAX = {
    "ant_4x2": ("Ant",),
    "halfcheetah_6x1": ("HalfCheetah",),
    "hopper_3x1": ("Hopper",),
    "humanoid_9|8": ("Humanoid",),
    "walker2d_2x3": ("Walker2d",),
}
NAMES = (
    MPE
    | MABRAX
    | {
        "switch_riddle": ("SwitchRiddle",),
        "SMAX": ("SMAX",),
        "HeuristicEnemySMAX": ("HeuristicEnemySMAX", "SMAX"),
        "LearnedPolicyEnemySMAX": ("SMAX",),
        "storm": ("InTheGrid",),
        "storm_2p": ("InTheGrid_2p",),
        "storm_np": ("InTheMatrix",),
        "hanabi": ("Hanabi",),
        "overcooked": ("Overcooked",),
        "overcooked_v2": ("OvercookedV2",),
        "coin_game": ("CoinGame",),
        "jaxnav": ("JaxNav",),
    }
)
ROBOTARIUM = "JaxRobotarium_"
EXTRA = "jaxmarl"  # of jaxrl, that installs it
# Settings that JaxMARL's constructors pass on to those of their bases.
INHERITED = {"MPE": {"max_steps": 25, "dt": 0.1}, "MABRAX": {"episode_length": 1000}}
# Settings that JaxMARL lacks or takes as objects, by its name or class.
OWN_SETTINGS = {
    "SMAX": {"scenario": "none"},
    "overcooked": {"layout": "cramped_room", "shaping": 0.0},
    "overcooked_v2": {"shaping": 0.0},
}
REWARDS = ("own", "sum", "mean")
# Classes whose agents always get the same reward.
TEAMS = {
    "EnemySMAX",
    "HanabiEnv",
    "MABraxEnv",
    "Overcooked",
    "OvercookedV2",
    "SimpleSpeakerListenerMPE",
    "SwitchRiddle",
}
TELL = 2  # the action of the switch riddle that ends it
NO_LIMIT = 10_000  # steps; Hanabi ends by its own rules long before


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of JaxMARL's environment `name`, whose signature has its settings.

    Raises `UserError` if there is none, or if the package that it is built on is missing.
    """
    jaxmarl = _jaxmarl()
    check_name("jaxmarl", name, {*NAMES, *jaxmarl.registered_envs})
    if name.startswith(ROBOTARIUM):
        raise UserError(
            f"'jaxmarl/{name}' needs the package 'jaxrobotarium', which JaxMARL does not install, "
            "and is not supported."
        )
    if name in MABRAX and not jaxmarl.registration.MABRAX_AVAILABLE:
        package("brax")
    if name == "LearnedPolicyEnemySMAX":
        raise UserError(
            f"'jaxmarl/{name}' needs the enemies' policy and its parameters, which cannot be set "
            "by name; call adapt(name, jaxmarl.make(...)) of jaxrl.envs.adapters.jaxmarl."
        )

    return SettingsBuilder(functools.partial(_build, name), {"reward": "own"} | _settings(name))


def _build(name: str, settings: dict[str, Any]) -> Environment:
    full = f"jaxmarl/{name}"
    settings = dict(settings)
    reward, shaping = settings.pop("reward", "own"), settings.pop("shaping", 0.0)
    arguments = _arguments(name, settings)
    with _quiet():
        theirs = construct(full, lambda: _jaxmarl().make(name, **arguments))
    return adapt(full, theirs, reward, shaping=shaping)


def adapt(name: str, theirs: Any, reward: str = "own", *, shaping: float = 0.0) -> Environment:
    """Convert an environment of JaxMARL.

    name: name of the result.
    theirs: the environment, for settings that are neither numbers nor names.
    reward: `own` for the reward of each agent, or one for all: their `sum` or `mean`.
    shaping: weight of the rewards for preparations (Overcooked) that are added to each agent's.

    Raises `UserError` for another `reward`, and for an environment that resets itself.
    """
    options.one_of(name, "reward", reward, REWARDS)
    if getattr(theirs, "auto_reset", False):
        raise UserError(f"'{name}' resets itself; make it with auto_reset=False.")
    family = _family(theirs)
    agents = {a: f"agent_{a}" if str(a).isdigit() else str(a) for a in theirs.agents}
    action_space = {own: _space(theirs.action_space(a)) for a, own in agents.items()}
    begin, follow = jax.jit(theirs.reset), jax.jit(theirs.step_env)  # for eager use

    def following(key: Any, state: Any, action: dict[str, Any]) -> Any:
        action = clip(action_space, action)
        each = {a: action[own] for a, own in agents.items()}
        return follow(key, state, tuple(each.values()) if family.positional else each)

    key, action = random.key(0), example(action_space)
    with _quiet():
        shapes = construct(
            name,
            lambda: stable_shapes(
                lambda: begin(key)[1], lambda state: following(key, state, action)[1]
            ),
        )
    split = functools.partial(_split, agents=agents, family=family)
    observation_space = unbounded_space(jax.eval_shape(lambda: split(begin(key)[0])))
    discrete = all(isinstance(space, Discrete) for space in action_space.values())
    legal = jax.jit(family.legal) if family.legal and discrete else None

    def timestep(
        observation: Any,
        state: Any,
        rewards: Array,
        extra: Array | None,
        ends: Array,
        alive: Array | None,
    ) -> TimeStep:
        each = split(observation)
        metrics = {"success": family.success(state)} if family.success else None
        masks = legal and legal(state)
        never = jnp.zeros((), bool)
        return TimeStep(
            cast(observation_space, each),
            total(rewards if extra is None else rewards + shaping * extra, extra is not None),
            terminated=ends,
            truncated=never,
            first=never,
            legal_actions=masks and {own: masks[a].astype(bool) for a, own in agents.items()},
            alive=alive,
            true_reward=None if extra is None else total(rewards, False),
            privileged={"state": family.state(state, observation, each)},
            metrics=metrics,
        )

    def stack(rewards: Any) -> Array:
        each = jnp.stack([jnp.asarray(_of(rewards, a, i)) for i, a in enumerate(agents)])
        return each.astype(jnp.float32).reshape(len(agents))

    def total(each: Array, shaped: bool) -> Array:
        match reward:
            case "sum":
                return each.sum()
            case "mean":
                return each.mean()
        return each[0] if (family.team and not shaped) or len(agents) == 1 else each

    def reset(key, params):
        observation, state = begin(key)
        state = cast_like(shapes, state)
        nothing = jnp.zeros(len(agents))
        alive = family.alive and jnp.ones(len(agents), bool)
        extra = nothing if shaping else None
        first = timestep(observation, state, nothing, extra, jnp.zeros((), bool), alive)
        return state, dataclasses.replace(first, first=jnp.ones((), bool))

    def step(key, state, action, params):
        observation, after, rewards, _, info = following(key, state, action)
        after = cast_like(shapes, after)
        ends = family.ends(state, [action[own] for own in agents.values()], after)
        alive = family.alive and family.alive(state, after)
        extra = stack(info["shaped_reward"]) if shaping else None
        return after, timestep(observation, after, stack(rewards), extra, ends, alive)

    # JaxMARL's jitted functions hold on to the trace in which they were compiled: to one of these,
    # for keys of either kind.
    with _quiet():
        for other in (key, jax.random.key(0)):
            state, _ = construct(name, lambda k=other: jax.eval_shape(reset, k, ()))
            construct(name, lambda k=other, s=state: jax.eval_shape(step, k, s, action, ()))
    env = Environment(
        name, reset, step, (), observation_space, action_space, agents=tuple(agents.values())
    )
    return time_limit(env, family.limit)


@dataclasses.dataclass(frozen=True)
class _Family:
    """Facts that each family of JaxMARL's environments tells in a way of its own."""

    limit: int
    """Steps after which its clock ends an episode."""
    ends: Callable[[Any, list[Any], Any], Array]
    """True where the task ended, from the state before, the actions and the state after."""
    alive: Callable[[Any, Any], Array] | None = None
    """Agents that go on, from the states before and after; None where all do."""
    legal: Callable[[Any], Any] | None = None
    """Masks of the legal actions by agent; None where all actions are legal."""
    state: Callable[[Any, Any, Any], Array] = lambda state, theirs, own: _side_by_side(own)
    """State for a central critic, from the state, JaxMARL's observation and that of each agent."""
    success: Callable[[Any], Array] | None = None
    """1 where the task is solved, from the state; None where the family does not say so."""
    team: bool = False
    """True if the agents always get the same reward."""
    positional: bool = False
    """True if actions are passed by position instead of by name."""


def _family(theirs: Any) -> _Family:
    kinds = {kind.__name__ for kind in type(theirs).__mro__}
    never = lambda before, action, after: jnp.zeros((), bool)
    family = functools.partial(_Family, team=bool(kinds & TEAMS))
    if "SimpleMPE" in kinds:
        return family(theirs.max_steps + 1, never)
    if kinds & {"CoinGame", "InTheGrid", "InTheGrid_2p", "InTheMatrix"}:
        positional = "InTheGrid_2p" in kinds
        steps = theirs.num_inner_steps * theirs.num_outer_steps
        return family(steps, never, positional=positional)
    if kinds & {"SMAX", "EnemySMAX"}:
        return _smax(theirs, family)
    if "JaxNav" in kinds:
        return _jaxnav(theirs, family)
    if "SwitchRiddle" in kinds:

        def tell(before: Any, action: list[Any], after: Any) -> Array:
            return jnp.stack(action)[before.agent_in_room] == TELL

        return family(theirs.max_steps, tell)
    if "HanabiEnv" in kinds:
        return family(
            NO_LIMIT, lambda before, action, after: after.terminal, legal=theirs.get_legal_moves
        )
    if "MABraxEnv" in kinds:

        def fall(before: Any, action: list[Any], after: Any) -> Array:
            return (after.done > 0.5) & (after.info["truncation"] < 0.5)

        return family(
            theirs.episode_length, fall, state=lambda state, _, own: state.obs.astype(jnp.float32)
        )
    return family(theirs.max_steps, never)  # Overcooked


def _smax(theirs: Any, family: Callable[..., _Family]) -> _Family:
    units = lambda state: getattr(state, "state", state).unit_alive
    allies = lambda state: units(state)[: theirs.num_allies].any()
    enemies = lambda state: units(state)[theirs.num_allies :].any()
    return family(
        theirs.max_steps,
        lambda before, action, after: ~(allies(after) & enemies(after)),
        alive=lambda before, after: units(after)[: len(theirs.agents)],
        legal=theirs.get_avail_actions,
        state=lambda state, observation, own: observation["world_state"],
        success=lambda state: (allies(state) & ~enemies(state)).astype(jnp.float32),
    )


def _jaxnav(theirs: Any, family: Callable[..., _Family]) -> _Family:
    over = lambda before, after: before.done | after.move_term | after.goal_reached

    def everything(state: Any, observation: Any, own: Any) -> Array:
        # JaxMARL's rows are [agent, shared, observation]; the shared part is in each of them.
        rows = operator.methodcaller("get_world_state", state)(theirs)
        size = observation[theirs.agents[0]].shape[-1]
        shared = rows[0, theirs.num_agents : rows.shape[1] - size]
        return jnp.concatenate([shared, _side_by_side(own)]).astype(jnp.float32)

    return family(
        theirs.max_steps,
        lambda before, action, after: over(before, after).all(),
        alive=(lambda before, after: ~over(before, after)) if theirs.evaporating else None,
        state=everything,
    )


def _split(observation: Any, agents: Mapping[Any, str], family: _Family) -> dict[str, Tree]:
    """Return the observation of each agent."""
    if isinstance(observation, Mapping) and "inventory" in observation:  # of `storm`, batched
        grids, inventories = observation["observations"], observation["inventory"]
        return {
            own: {"inventory": inventories[:, i], "observation": _of(grids, a, i)}
            for i, (a, own) in enumerate(agents.items())
        }
    return {own: _of(observation, a, i) for i, (a, own) in enumerate(agents.items())}


def _of(values: Any, agent: Any, index: int) -> Any:
    """Return the entry of an agent, which JaxMARL finds by name or by position."""
    return values[agent] if isinstance(values, Mapping) else values[index]


def _side_by_side(observations: Tree) -> Array:
    """Return all leaves as one float32 vector, agent by agent."""
    leaves = [x for own in observations.values() for x in jax.tree.leaves(own)]
    return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in leaves])


def _space(theirs: Any) -> Space:
    if hasattr(theirs, "n"):
        return Discrete(int(theirs.n))
    return box(theirs.low, theirs.high, theirs.shape, theirs.dtype)


def _settings(name: str) -> dict[str, Any]:
    """Return the settings of JaxMARL's environment `name` that are numbers or names, with their
    defaults."""
    registration = _jaxmarl().registration
    found: dict[str, Any] = {}
    for part in NAMES[name]:
        constructor = getattr(registration, part)
        parameters = inspect.signature(constructor).parameters.values()
        found |= {p.name: p.default for p in parameters}
    found = {k: v for k, v in found.items() if type(v) in (bool, int, float, str)}
    if name in MPE and inspect.isclass(getattr(registration, NAMES[name][0])):
        found = INHERITED["MPE"] | found
    if name in MABRAX:
        found |= INHERITED["MABRAX"] | {"backend": "positional"}
    for part, setting in OWN_SETTINGS.items():
        if name == part or part in NAMES[name]:
            found |= setting
    return found


def _arguments(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of JaxMARL's constructor: maps are given by name. Raises `UserError` for
    a map that does not exist."""
    found = dict(settings)
    if name in MABRAX:
        found["auto_reset"] = False
    if found.get("scenario") == "none":
        del found["scenario"]
    maps = {
        "scenario": ("smax.smax_env", "MAP_NAME_TO_SCENARIO"),
        "layout": (f"{name}.layouts", f"{name}_layouts"),
    }
    for setting in maps.keys() & found.keys():
        module, table = maps[setting]
        known = getattr(package(f"jaxmarl.environments.{module}", EXTRA), table)
        if found[setting] not in known:
            raise unknown(f"{setting} of 'jaxmarl/{name}'", found[setting], known)
        found[setting] = known[found[setting]]
    return found


def _jaxmarl() -> Any:
    with _quiet():
        return package("jaxmarl", EXTRA)


@contextlib.contextmanager
def _quiet():
    """Drop what JaxMARL prints while it is imported and traced."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
