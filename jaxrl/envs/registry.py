"""Environments by name and settings, as a command line gives them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.core import errors, plugins
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment

# Imported on demand: one name must not cost the import of every other environment.
BUILT_IN = {
    # classic control
    "acrobot": "jaxrl.envs.classic.acrobot:acrobot",
    "cartpole": "jaxrl.envs.classic.cartpole:cartpole",
    "mountain_car": "jaxrl.envs.classic.mountain_car:mountain_car",
    "mountain_car_continuous": "jaxrl.envs.classic.mountain_car_continuous:mountain_car_continuous",
    "pendulum": "jaxrl.envs.classic.pendulum:pendulum",
    # processes
    "double_mass": "jaxrl.envs.process.double_mass:double_mass",
    "pipeline": "jaxrl.envs.process.pipeline:pipeline",
    # tables
    "baird": "jaxrl.envs.tables.linear:baird",
    "boyan_chain": "jaxrl.envs.tables.linear:boyan_chain",
    "chain": "jaxrl.envs.tables.chain:chain",
    "cliff_walking": "jaxrl.envs.tables.cliff_walking:cliff_walking",
    "combination_lock": "jaxrl.envs.tables.combination_lock:combination_lock",
    "corridors": "jaxrl.envs.tables.corridors:corridors",
    "deep_sea": "jaxrl.envs.tables.deep_sea:deep_sea",
    "diabolical_lock": "jaxrl.envs.tables.combination_lock:diabolical_lock",
    "factored_mdp": "jaxrl.envs.tables.factored_mdp:factored_mdp",
    "four_rooms": "jaxrl.envs.tables.four_rooms:four_rooms",
    "frozen_lake": "jaxrl.envs.tables.frozen_lake:frozen_lake",
    "random_mdp": "jaxrl.envs.tables.random_mdp:random_mdp",
    "river_swim": "jaxrl.envs.tables.chain:river_swim",
    "sysadmin": "jaxrl.envs.tables.factored_mdp:sysadmin",
    "taxi": "jaxrl.envs.tables.taxi:taxi",
    # bandits
    "bandit": "jaxrl.envs.bandits.bandit:bandit",
    "contextual_bandit": "jaxrl.envs.bandits.contextual_bandit:contextual_bandit",
    "mixture": "jaxrl.envs.bandits.mixture:mixture",
    "selective_labels": "jaxrl.envs.bandits.selective_labels:selective_labels",
    "signals": "jaxrl.envs.bandits.signals:signals",
    "strings": "jaxrl.envs.bandits.strings:strings",
    "two_sides": "jaxrl.envs.bandits.two_sides:two_sides",
    # markets
    "pairs_trading": "jaxrl.envs.markets.pairs_trading:pairs_trading",
    "portfolio": "jaxrl.envs.markets.portfolio:portfolio",
    "sealed_auction": "jaxrl.envs.markets.sealed_auction:sealed_auction",
    "tax_economy": "jaxrl.envs.markets.tax_economy:tax_economy",
    # games
    "deal_or_no_deal": "jaxrl.envs.games.deal_or_no_deal:deal_or_no_deal",
    "duel": "jaxrl.envs.games.duel:duel",
    "goofspiel": "jaxrl.envs.games.goofspiel:goofspiel",
    "governed_dilemma": "jaxrl.envs.games.governed_dilemma:governed_dilemma",
    "kuhn_poker": "jaxrl.envs.games.kuhn_poker:kuhn_poker",
    "leduc_poker": "jaxrl.envs.games.leduc_poker:leduc_poker",
    "liars_dice": "jaxrl.envs.games.liars_dice:liars_dice",
    "negotiation": "jaxrl.envs.games.negotiation:negotiation",
    "repeated_rock_paper_scissors": "jaxrl.envs.games.repeated_matrix_game"
    ":repeated_rock_paper_scissors",
    "rock_paper_scissors": "jaxrl.envs.games.matrix_game:rock_paper_scissors",
    "three_games": "jaxrl.envs.games.medley:three_games",
    "team_battle": "jaxrl.envs.games.team_battle:team_battle",
    "tic_tac_toe": "jaxrl.envs.games.tic_tac_toe:tic_tac_toe",
    # grids
    "corners": "jaxrl.envs.grids.corners:corners",
    "crafting": "jaxrl.envs.grids.crafting:crafting",
    "door_key": "jaxrl.envs.grids.door_key:door_key",
    "empty": "jaxrl.envs.grids.empty:empty",
    "foraging": "jaxrl.envs.grids.foraging:foraging",
    "fruit_collection": "jaxrl.envs.grids.fruit_collection:fruit_collection",
    "goal_maze": "jaxrl.envs.grids.goal_maze:goal_maze",
    "goal_swap": "jaxrl.envs.grids.goal_swap:goal_swap",
    "hazards": "jaxrl.envs.grids.hazards:hazards",
    "hide_and_seek": "jaxrl.envs.grids.hide_and_seek:hide_and_seek",
    "instructed_room": "jaxrl.envs.grids.instructed_room:instructed_room",
    "key_corridor": "jaxrl.envs.grids.key_corridor:key_corridor",
    "kitchen": "jaxrl.envs.grids.kitchen:kitchen",
    "lava_crossing": "jaxrl.envs.grids.lava_crossing:lava_crossing",
    "lava_gap": "jaxrl.envs.grids.lava_gap:lava_gap",
    "manual_quest": "jaxrl.envs.grids.manual_quest:manual_quest",
    "memory": "jaxrl.envs.grids.memory:memory",
    "multi_room": "jaxrl.envs.grids.multi_room:multi_room",
    "one_way_doors": "jaxrl.envs.grids.one_way_doors:one_way_doors",
    "playtest": "jaxrl.envs.grids.playtest:playtest",
    "pursuit": "jaxrl.envs.grids.pursuit:pursuit",
    "skirmish": "jaxrl.envs.grids.skirmish:skirmish",
    "speaker_listener": "jaxrl.envs.grids.speaker_listener:speaker_listener",
    "t_maze": "jaxrl.envs.grids.t_maze:t_maze",
    "trash_grid": "jaxrl.envs.grids.trash_grid:trash_grid",
    # language
    "addition": "jaxrl.envs.language.arithmetic:addition",
    "countdown": "jaxrl.envs.language.countdown:countdown",
    "discussed_sums": "jaxrl.envs.language.discussed_sums:discussed_sums",
    "edited_steps": "jaxrl.envs.language.edited_steps:edited_steps",
    "guarded_requests": "jaxrl.envs.language.guarded_requests:guarded_requests",
    "guess_letter": "jaxrl.envs.language.guess_letter:guess_letter",
    "hinted_addition": "jaxrl.envs.language.arithmetic:hinted_addition",
    "instructed_words": "jaxrl.envs.language.instructed_words:instructed_words",
    "judged_sums": "jaxrl.envs.language.judged_sums:judged_sums",
    "judged_words": "jaxrl.envs.language.judged_words:judged_words",
    "lookup": "jaxrl.envs.language.lookup:lookup",
    "planned_maze": "jaxrl.envs.language.planned_maze:planned_maze",
    "posed_lookups": "jaxrl.envs.language.posed_lookups:posed_lookups",
    "posed_sums": "jaxrl.envs.language.posed_sums:posed_sums",
    "posed_theorems": "jaxrl.envs.language.posed_theorems:posed_theorems",
    "price_text": "jaxrl.envs.language.price_text:price_text",
    "regex_by_example": "jaxrl.envs.language.regex_by_example:regex_by_example",
    "ruled_words": "jaxrl.envs.language.ruled_words:ruled_words",
    "second_try": "jaxrl.envs.language.second_try:second_try",
    "shorter_programs": "jaxrl.envs.language.shorter_programs:shorter_programs",
    "signed_sums": "jaxrl.envs.language.signed_sums:signed_sums",
    "splitting": "jaxrl.envs.language.arithmetic:splitting",
    "spy_game": "jaxrl.envs.language.spy_game:spy_game",
    "strategies": "jaxrl.envs.language.strategies:strategies",
    "text_maze": "jaxrl.envs.language.text_maze:text_maze",
    "werewolf": "jaxrl.envs.language.werewolf:werewolf",
    # pixels
    "catch": "jaxrl.envs.pixels.catch:catch",
    "minatar_asterix": "jaxrl.envs.pixels.minatar_asterix:minatar_asterix",
    "minatar_breakout": "jaxrl.envs.pixels.minatar_breakout:minatar_breakout",
    "minatar_freeway": "jaxrl.envs.pixels.minatar_freeway:minatar_freeway",
    "minatar_seaquest": "jaxrl.envs.pixels.minatar_seaquest:minatar_seaquest",
    "minatar_space_invaders": "jaxrl.envs.pixels.minatar_space_invaders:minatar_space_invaders",
    # bodies: articulated
    "cartpole_swingup": "jaxrl.envs.planar.cartpole_swingup:cartpole_swingup",
    "cheetah": "jaxrl.envs.planar.cheetah:cheetah",
    "double_pendulum": "jaxrl.envs.planar.double_pendulum:double_pendulum",
    "hopper": "jaxrl.envs.planar.hopper:hopper",
    "reacher": "jaxrl.envs.planar.reacher:reacher",
    "safe_cheetah": "jaxrl.envs.planar.safe_cheetah:safe_cheetah",
    "walker": "jaxrl.envs.planar.walker:walker",
    # bodies: free
    "maze_scenes": "jaxrl.envs.planar.maze_scenes:maze_scenes",
    "ogbench_pointmaze": "jaxrl.envs.planar.ogbench_pointmaze:ogbench_pointmaze",
    "point_mass": "jaxrl.envs.planar.point_mass:point_mass",
    "point_maze": "jaxrl.envs.planar.point_maze:point_maze",
    "point_maze_deceptive": "jaxrl.envs.planar.point_maze:point_maze_deceptive",
    "point_maze_large": "jaxrl.envs.planar.point_maze:point_maze_large",
    "point_maze_medium": "jaxrl.envs.planar.point_maze:point_maze_medium",
    "point_maze_open": "jaxrl.envs.planar.point_maze:point_maze_open",
    "push": "jaxrl.envs.planar.push:push",
    "push_buttons": "jaxrl.envs.planar.push_buttons:push_buttons",
    "push_play": "jaxrl.envs.planar.push_play:push_play",
    "push_skills": "jaxrl.envs.planar.push_skills:push_skills",
    # particles
    "crossing": "jaxrl.envs.particles.crossing:crossing",
    "simple_adversary": "jaxrl.envs.particles.adversary:simple_adversary",
    "simple_speaker_listener": "jaxrl.envs.particles.speaker_listener:simple_speaker_listener",
    "simple_spread": "jaxrl.envs.particles.spread:simple_spread",
    "simple_tag": "jaxrl.envs.particles.tag:simple_tag",
    "soccer": "jaxrl.envs.particles.soccer:soccer",
}

INNER = "inner"  # field of a wrapper's params that holds the params of what it wraps


def names() -> tuple[str, ...]:
    """Return the names of the built-in environments, sorted."""
    return tuple(sorted(BUILT_IN))


def make(name: str, /, **settings: Any) -> Environment:
    """Build the environment called `name`, changed by `settings`.

    name: one of `names()`; or `brax/ant`, an environment of another package (`envs.adapters`); or
        `my_package.environments:maze`: an `Environment` in a module of your own, or a function
        annotated to return one (`def maze() -> Environment`) that needs no arguments.
    settings: keyword arguments of the builder, which determine shapes (the size of a grid), and
        fields of the environment's `params`, at any depth below the wrappers' `inner`: numbers, or
        arrays of the default's shape. The spaces stay those of the default parameters.

    The same arguments give the same object (without settings, the builder's own), so that `jax.jit`
    finds what it compiled; a reloaded module gives its new environment.

    Raises `UserError` for an unknown name or setting, a value of the wrong type, a module that
    cannot be imported or holds no such environment, and for a function that is not annotated to
    return an environment, which is not called.
    """
    value = _find(name)
    options = _options(name, value)
    chosen = {k: _validate(name, k, options[k], v) for k, v in settings.items() if k in options}
    if _takes_any(value):  # another package knows its own settings
        chosen |= {k: _hashable(v) for k, v in settings.items() if k not in options}
        settings = {}
    env = _build(name, value, tuple(sorted(chosen.items())))
    params = {k: v for k, v in settings.items() if k not in options}
    if not params:
        return env
    overrides = tuple(
        (field, _param(env, field, params[field], options)) for field in sorted(params)
    )
    return _override(env, overrides)


def settings(name: str) -> dict[str, Any]:
    """Return what `make(name, **settings)` accepts, with the defaults: keyword arguments of the
    builder, then the fields of the environment's `params`, including those that a wrapper holds as
    `inner`.

    Leaves out what cannot be set by name: values that are not numbers, names or arrays, and fields
    that several parts of the environment have. Raises `UserError` as `make` does.
    """
    value = _find(name)
    options = _options(name, value)
    fields = _fields(_build(name, value, ()))
    others = {k: v for k, v in fields.items() if k not in options}
    return {k: v for k, v in {**options, **others}.items() if _is_settable(v)}


def variants(env: Environment, field: str, values: Sequence[Any]) -> tuple[Environment, ...]:
    """Return `env` with each of `values` for the parameter called `field`.

    Raises `UserError` for an unknown parameter, a value of the wrong type, and no values.
    """
    if not values:
        raise UserError(
            f"There are no values of '{field}' to vary '{env.name}' by; there must be at least one."
        )
    return tuple(_override(env, ((field, _param(env, field, value, {})),)) for value in values)


def vary(env: Environment, field: str, values: Sequence[Any]) -> Any:
    """Stack the params of `env` with each of `values` for the parameter called `field` along a
    leading axis [values]: the tasks of a life, or the points of a grid. Raises `UserError` as
    `variants` does.
    """
    several = (environment.params for environment in variants(env, field, values))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *several)


def _find(name: str) -> Environment | Callable[..., Environment]:
    """Find an `Environment`, or a function annotated to return one."""
    suite, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    if slash and ":" not in suite:
        from jaxrl.envs import adapters

        return adapters.builder(name)
    value = plugins.find("environment", name, BUILT_IN, lambda x: isinstance(x, Environment))
    if isinstance(value, Environment) or plugins.type_hints(value).get("return") is Environment:
        return value
    what = f"'{name}' is {_a(value)}"
    if callable(value):
        what += " that is not declared to return an Environment, so it is not called"
    raise UserError(
        f"{what}; it must be an Environment, or a function annotated to return one, such as "
        f"`def {name.partition(':')[2]}() -> Environment` (from jaxrl.core.types)."
    )


def _options(name: str, value: Environment | Callable[..., Environment]) -> dict[str, Any]:
    """Return the keyword arguments of a builder with their defaults."""
    if isinstance(value, Environment):
        return {}
    signature = inspect.signature(value)
    try:
        signature.bind()
    except TypeError as error:
        raise UserError(
            f"The builder '{name}' needs arguments ({error}); it must be callable without any."
        ) from error
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {k: p.default for k, p in signature.parameters.items() if p.kind in named}


def _takes_any(value: Environment | Callable[..., Environment]) -> bool:
    """Return whether a builder has keyword arguments of any name."""
    if isinstance(value, Environment):
        return False
    kinds = {p.kind for p in inspect.signature(value).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _build(
    name: str,
    value: Environment | Callable[..., Environment],
    options: tuple[tuple[str, Any], ...],
) -> Environment:
    env = value if isinstance(value, Environment) else _call(value, options)
    if not isinstance(env, Environment):
        raise UserError(f"'{name}' returns {_a(env)}; it must return an Environment.")
    return env


@functools.cache
def _call(builder: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Any:
    return builder(**dict(options))


@dataclasses.dataclass(frozen=True)
class _ArrayValue:
    """Array that can be the key of a cache."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


def _param(env: Environment, field: str, value: Any, options: dict[str, Any]) -> Any:
    """Convert `value` to the type of the parameter that it overrides, hashable."""
    fields = _fields(env)
    if not fields and not options:
        raise UserError(f"'{env.name}' has no parameters, so '{field}' cannot be set.")
    if field not in fields:
        raise errors.unknown(f"parameter of '{env.name}'", field, [*fields, *options])
    if isinstance(fields[field], _Several):
        raise UserError(
            f"{len(fields[field])} parts of '{env.name}' have a parameter '{field}'; only a "
            "unique one can be set by name, so use dataclasses.replace on the environment's params."
        )
    return _validate(env.name, field, fields[field], value)


def _validate(name: str, field: str, default: Any, value: Any) -> Any:
    """Convert `value` to the type of `default`, hashable. Raises `UserError` if it does not fit."""
    label = f"The parameter '{field}' of '{name}' is {reprlib.repr(value)}"
    if not _is_settable(default):
        raise UserError(
            f"{label}, but it holds {_a(default)}; only numbers, names and arrays can be set by "
            "name, so call the builder, or use dataclasses.replace on the environment's params."
        )
    if isinstance(default, bool):
        if not isinstance(value, bool | np.bool_):
            raise UserError(f"{label}; it must be true or false.")
        return bool(value)
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise UserError(f"{label}; it must be an integer, such as {default}.")
        return int(value)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value:
            raise UserError(f"{label}; it must be a number, such as {default:g}.")
        if not _is_representable(value, default):
            raise UserError(f"{label}; it must be a finite 32-bit number, such as {default:g}.")
        return float(value)
    if isinstance(default, str):
        if not isinstance(value, str):
            raise UserError(f"{label}; it must be a name, such as '{default}'.")
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.shape != default.shape:
        raise UserError(f"{label}; it must be an array of numbers of shape {default.shape}.")
    if not _is_representable(array, default):
        raise UserError(f"{label}; it must hold finite 32-bit numbers.")
    array = array.astype(default.dtype)
    return _ArrayValue(array.tobytes(), array.shape, array.dtype.str)


def _is_settable(default: Any) -> bool:
    """Return whether a setting with this default can be given by name."""
    is_array = hasattr(default, "dtype") and hasattr(default, "shape")
    return is_array or isinstance(default, bool | int | float | str)


def _is_representable(value: Any, default: Any) -> bool:
    """Return whether `value` is finite in 32 bits, in which environments compute, or `default` is
    not."""
    return _finite(value) or not _finite(default)


def _finite(value: Any) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.asarray(value, np.float32)).all())
    except OverflowError:  # an integer that is too large even for 64 bits
        return False


def _fields(env: Environment) -> dict[str, Any]:
    """Map the names of parameters to values, including those of wrapped environments; a list of
    values if several parts have a parameter of that name."""
    values: dict[str, list[Any]] = {}
    for name, value in _iterate_fields(env.params):
        values.setdefault(name, []).append(value)
    return {k: v[0] if len(v) == 1 else _Several(v) for k, v in values.items()}


class _Several(list):
    """Values of a parameter that more than one part of an environment has."""


def _iterate_fields(params: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of `params`, then of those that a wrapper's params hold as `inner`."""
    if not dataclasses.is_dataclass(params):
        return
    for f in dataclasses.fields(params):
        value = getattr(params, f.name)
        if f.name == INNER and dataclasses.is_dataclass(value):
            yield from _iterate_fields(value)
        else:
            yield f.name, value


@functools.cache
def _override(env: Environment, overrides: tuple[tuple[str, Any], ...]) -> Environment:
    changes = {k: v.array() if isinstance(v, _ArrayValue) else v for k, v in overrides}
    return dataclasses.replace(env, params=_replace_fields(env.params, changes))


def _replace_fields(params: Any, changes: dict[str, Any]) -> Any:
    """Apply `changes` to `params`, each at the depth where its name is."""
    own = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    new = {k: v for k, v in changes.items() if k in own}
    if dataclasses.is_dataclass(own.get(INNER)):
        new[INNER] = _replace_fields(own[INNER], changes)
    return dataclasses.replace(params, **new)


def _a(value: Any) -> str:
    """Name the type of `value` with its article, as in `an int` or `a dict`."""
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
