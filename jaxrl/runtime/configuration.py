"""The settings of a run: frozen dataclasses, filled from a YAML file and a command line.

The YAML states only what differs from the defaults; the command line overrides it. Every name and
value is checked here against the dataclasses' fields, so that a mistake is reported in one
sentence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from jaxrl.algorithms import registry as algorithms
from jaxrl.core import plugins, settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import MANY, check, static
from jaxrl.core.random import GENERATORS
from jaxrl.envs.adapters.copies import MODES
from jaxrl.evaluation.render import VIDEOS
from jaxrl.runtime import files

C = TypeVar("C")
Trust = bool | frozenset[str]  # all code outside of jaxrl, none of it, or these names
LONGEST_NAME = 255  # bytes of a file name in common file systems

PACKAGE = Path(__file__).parents[1]
# An installed package holds the configurations; in a clone they lie beside it.
CONFIGS = (PACKAGE if (PACKAGE / "configs").is_dir() else PACKAGE.parent) / "configs"
STEPS = 10**15  # more than anyone will wait for
TRACKERS = ("none", "tensorboard", "wandb")
SEEDS = 2**32  # a seed is 32 bits of a key
NODES, DEPTH = 100_000, 64  # values in a configuration file, and levels of nesting
# Errors of PyYAML for what is not YAML, or cannot be made what its tags or its form say.
NOT_YAML = (
    yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
)  # fmt: skip


def transient(default: Any) -> Any:
    """A field about this invocation rather than the run: never written to the run's folder."""
    return dataclasses.field(default=default, metadata={"saved": False})


EnvSetting = bool | int | float | tuple[int | float, ...] | str
Wrapper = str | dict[str, dict[str, EnvSetting]]


@dataclasses.dataclass(frozen=True)
class HostSettings:
    """Settings of environments on the host, such as Gymnasium's."""

    mode: str = static("sync", choices=MODES)
    """Way in which copies are stepped: sync (one after another) or processes (a process each)."""
    actors: int = static(1, low=1)
    """Number of threads that play, each with an equal part of the environments."""
    staleness: int = static(0, low=0)
    """Updates by which the policy that plays lies behind the newest one; with 1 or more the
    environments are stepped while the learner learns."""


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
    """Settings of a training run. Option names may be written with - or _ ."""

    agent: C
    """Settings of the algorithm."""

    algorithm: str = "ppo"
    """Name of a built-in algorithm, or my_package.module:build."""
    env: str = "cartpole"
    """Name of a built-in environment, of another package's such as brax/ant, or
    my_package.environments:maze."""
    env_params: dict[str, EnvSetting] = dataclasses.field(default_factory=dict)
    """Settings of the environment that differ from its defaults, such as force=20 for cartpole."""
    wrappers: tuple[Wrapper, ...] = ()
    """Wrappers around the environment, the first innermost: frame_stack, or with arguments
    [{sticky_actions: {stickiness: 0.25}}, frame_stack]. Evaluations have the same."""

    host: HostSettings = HostSettings()
    """Settings of environments on the host, such as Gymnasium's."""

    steps: int = static(500_000, low=1, high=STEPS)
    """Environment steps of each seed, rounded up to whole updates."""
    seed: int = static(0, low=0, high=SEEDS - 1)
    """First seed."""
    seeds: int = static(1, low=1, high=MANY)
    """Number of seeds trained at once, vmapped into one program: seed, seed + 1, ..."""
    generator: str = static("auto", choices=GENERATORS)
    """Random number generator: pcg (fast on a CPU), threefry2x32, or auto (pcg on a CPU only)."""
    devices: int = static(1, low=1)
    """Number of devices: they split the seeds if it divides them, and otherwise each run's
    environments, batch or population."""
    mesh: dict[str, int] = dataclasses.field(default_factory=dict)
    """Number of devices along each axis, as in seeds=2,batch=4. The axes are seeds, batch
    (environments, batches, populations), fsdp (batches and parameters) and model (parameters of
    transformers)."""
    deterministic: bool = False
    """Use deterministic operations on a GPU, so that a resumed run has the same bits there."""

    log_every: int = static(0, low=0, high=STEPS)
    """Environment steps per row of the log; 0 for a hundredth of the run."""
    evaluate_every: int = static(0, low=-1, high=STEPS)
    """Environment steps between evaluations; 0 for a tenth of the run, -1 for no evaluations."""
    evaluate_episodes: int = static(32, low=1, high=MANY)
    """Number of episodes in one evaluation, for each seed."""
    evaluate_env: str = ""
    """Environment to evaluate in; empty for the training environment."""
    evaluate_env_params: dict[str, EnvSetting] = dataclasses.field(default_factory=dict)
    """Settings of the environment to evaluate in. Without evaluate_env: changes of the training
    environment's settings."""
    evaluate_greedy: bool = True
    """Evaluate the policy's most likely action rather than a sample."""
    checkpoint_every: int = static(0, low=0, high=STEPS)
    """Environment steps between checkpoints; 0 for a tenth of the run."""
    keep: int = static(3, low=1)
    """Number of checkpoints to keep, the newest ones."""
    record_every: int = static(0, low=0, high=STEPS)
    """Environment steps between videos of one greedy episode of the first seed, in the run's
    folder `videos`; 0 for none."""
    video: str = static("gif", choices=VIDEOS)
    """Format of these videos: gif or mp4 (with jaxrl-research[video])."""

    out: str = "runs"
    """Folder in which the run's own folder is made."""
    name: str = ""
    """Name of the run's folder; empty for ALGORITHM-ENV-NUMBER."""
    track: str = static("none", choices=TRACKERS)
    """Program that shows the rows of the log during the run: tensorboard, wandb (offline unless
    WANDB_MODE says otherwise) or none."""

    resume: str = transient("")
    """Continue the run in this folder from its last undamaged checkpoint."""
    fork: str = ""
    """Continue from this run folder's last checkpoint as a new run, with changed settings."""
    warm_start: str = ""
    """Start a new run with the agent state (parameters, optimizer, statistics) of this run folder,
    or of the run that this YAML file describes.

    The run of a file is trained first, with the same seeds, unless it exists. A path in a
    configuration file is looked up beside that file, then from the current folder.
    """
    trust: bool = transient(False)
    """Import code outside of jaxrl that the run to resume, fork or start from names as its
    environment, its algorithm or a part of them; importing it runs it."""
    debug: bool = transient(False)
    """Check every number for NaN and every index for its bounds, and report failures (slow)."""
    quiet: bool = transient(False)
    """Show no progress."""
    coordinator: str = transient("")
    """Address HOST:PORT at which process 0 of a run in several processes listens; auto to let JAX
    find it. Not needed where SLURM, Open MPI or Cloud TPU start the processes."""
    processes: int = transient(0)
    """Number of processes that train together, on the devices of all of them; 0 for those that a
    launcher started, 1 to train alone whatever it started."""
    process: int = transient(-1)
    """Number of this process, from 0, which alone writes."""


# ----------------------------------------------------------------------------- reading


def load(path: str | Path) -> dict[str, Any]:
    """Return the contents of a YAML file as nested dicts; an empty file leaves all defaults.

    Raises:
        UserError: if it cannot be read, is not a mapping, holds a key twice, or grows to more than
            `NODES` values by its aliases.
    """
    path = Path(path)
    try:
        files.check_plain(path)
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(
            f"There is no file '{path}'; give a YAML file, or a name such as ppo/cartpole."
        ) from None
    except (OSError, *NOT_YAML) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"'{path}' cannot be read: {said}.") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(
            f"'{path}' holds a {type(data).__name__}; it must consist of `name: value` lines."
        )
    return data


def is_file(name: str) -> bool:
    """Return whether `name` is the name of a configuration file."""
    return Path(name).suffix in (".yaml", ".yml")


@functools.cache
def shipped_files() -> dict[str, Path]:
    """Return the configurations that come with jaxrl, by names such as `ppo/cartpole`."""
    files = sorted(CONFIGS.glob("*/*.yaml"))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def is_configuration(word: str) -> bool:
    """Return whether `word` names a configuration: a file, or one that comes with jaxrl."""
    return is_file(word) or word in shipped_files()


def find(name: str) -> Path:
    """Return the file of a configuration, given by its path or by its name in jaxrl.

    Raises:
        UserError: for a name that is neither.
    """
    if not is_configuration(name):
        raise unknown("configuration", name, shipped_files())
    return shipped_files().get(name, Path(name))


def read(name: str | Path) -> dict[str, Any]:
    """Load a configuration by path or name, and locate its `warm_start`.

    The warm start is looked up beside the file, then from the current folder, then in jaxrl's own
    configurations.
    """
    path = find(str(name))
    data = load(path)
    for name in ("warm_start", "warm-start"):
        if isinstance(data.get(name), str) and data[name]:
            data[name] = _locate(data[name], path.parent)
    return data


def _locate(name: str, folder: Path) -> str:
    """Return the path at which `name` exists, or `name` itself if it exists nowhere."""
    places = (folder / name, Path(name), CONFIGS.parent / name)
    return str(next((place for place in places if place.exists()), name))


def experiment(data: dict[str, Any], base: Experiment | None = None) -> Experiment:
    """Return `base` (by default, all defaults) with the settings in `data`.

    Raises:
        UserError: for a name that does not exist (it names the nearest one), a value of the wrong
            type or out of range, or a change of algorithm that would lose settings of `base`.
    """
    name = data.get("algorithm", base.algorithm if base else Experiment.algorithm)
    if base is None or base.algorithm != name:
        agent = algorithms.default_config(name)
        if base is None:
            base = Experiment(agent)
        elif type(agent) is not type(base.agent):
            if base.agent != type(base.agent)():
                raise UserError(
                    f"The settings under agent are for '{base.algorithm}', and '{name}' has other "
                    "ones; write a configuration for it."
                )
            base = dataclasses.replace(base, agent=agent)
    result = override(base, data)
    _check(result)
    return result


def to_dict(config: Any, saved_only: bool = True) -> dict[str, Any]:
    """Return the settings as nested dicts of plain values, as `experiment` and YAML read them."""
    return {
        f.name: _plain(getattr(config, f.name))
        for f in dataclasses.fields(config)
        if f.metadata.get("saved", True) or not saved_only
    }


PLACES = ("out", "name", "fork", "warm_start")


def foreign_code(data: dict[str, Any]) -> frozenset[str]:
    """Return the code outside of jaxrl that settings, as nested dicts, name, without importing it.

    It may be an environment, an algorithm, or a part that one of them is set to use.
    """
    return plugins.foreign({k: v for k, v in data.items() if k not in PLACES})


def write(config: Experiment, path: Path) -> None:
    """Write all settings, defaults included, as YAML."""
    files.write_text(path, yaml.safe_dump(to_dict(config), sort_keys=False))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, old, new) for each difference between two results of `to_dict`."""
    found = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += [(f"{name}.{n}", *values) for n, *values in differences(old, new)]
        elif old != new:
            found.append((name, old, new))
    return found


def leaves(config: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return (type, value) of every setting by its dotted name."""
    found: dict[str, tuple[Any, Any]] = {}
    hints = _hints(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= leaves(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = (hints[field.name], value)
    return found


def override(
    config: Any, data: dict[str, Any], prefix: str = "", given: set[str] | None = None
) -> Any:
    """Return `config` with the values of nested dicts.

    Names may be shortened within their group (`settings.find_name`).

    given: full names of settings that other parts of the data have given already.

    Raises:
        UserError: as `experiment` does, and for a setting given twice.
    """
    hints = _hints(config)
    given = set() if given is None else given
    changes: dict[str, Any] = {}
    for name, value in _items(data, hints):
        if name not in hints:
            name, value = _in_full(config, name, value, prefix)
        current = changes.get(name, getattr(config, name))
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise UserError(f"'{prefix}{name}' is {value!r}; it must be a group of settings.")
            changes[name] = override(current, value, f"{prefix}{name}.", given)
        elif prefix + name in given:
            raise UserError(f"'{prefix}{name}' is given twice.")
        else:
            given.add(prefix + name)
            changes[name] = convert(prefix + name, value, hints[name])
    return dataclasses.replace(config, **changes)


def _items(data: dict[str, Any], hints: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; a group that is not in `hints` as its settings, by dotted names."""
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name not in hints and isinstance(value, dict) and value:
            for inner, part in settings.flatten(value, f"{name}."):
                yield inner.replace("-", "_"), part
        else:
            yield name, value


def _in_full(config: Any, name: str, value: Any, prefix: str) -> tuple[str, Any]:
    """Return the first group of a shortened name, and the value nested in it. Raises `UserError`
    for a name that stands for no setting of `config`, or for several."""
    known = [prefix + n for n in leaves(config)]
    found = settings.find_name(prefix + name, known, root=prefix.rstrip("."))
    if found is None:
        raise unknown("setting", prefix + name, {*known, *(prefix + n for n in _hints(config))})
    first, *rest = found.removeprefix(prefix).split(".")
    for part in reversed(rest):
        value = {part: value}
    return first, value


def convert(name: str, value: Any, kind: Any) -> Any:
    """Convert `value`, from YAML or a command line, to the type `kind`. Raises `UserError`."""
    wrong = UserError(f"{name} is {value!r}; it must be {_describe_type(kind)}.")
    options = typing.get_args(kind)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        if type(None) in options and (value is None or str(value).lower() in ("none", "null")):
            return None
        for kind in (k for k in options if k is not type(None)):
            with contextlib.suppress(UserError):
                return convert(name, value, kind)
        raise wrong
    if kind is Any or (dataclasses.is_dataclass(kind) and isinstance(value, kind)):  # type: ignore[arg-type]
        return value
    origin = typing.get_origin(kind) or kind
    if origin is list:
        if not isinstance(value, list):
            raise wrong
        return [convert(name, part, options[0]) for part in value]
    if origin is tuple:
        parts = _parts(value) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise wrong
        return tuple(convert(name, part, options[0]) for part in parts)
    if origin is dict:
        if not isinstance(value, dict):
            raise wrong
        return {str(k): convert(f"{name}.{k}", v, options[1]) for k, v in value.items()}
    if kind is bool:
        if isinstance(value, bool) or str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise wrong
    if kind in (int, float):
        if isinstance(value, bool):
            raise wrong
        if kind is int and isinstance(value, int | str):
            with contextlib.suppress(ValueError):
                return int(value)  # exact, however large
        try:  # a command line may write infinity as YAML does
            number = float(value.lower().replace(".inf", "inf") if type(value) is str else value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None
        if math.isnan(number) or (kind is int and not number.is_integer()):
            raise wrong
        return kind(number)
    if kind is str and isinstance(value, str):
        return value
    raise wrong


def _check(config: Experiment) -> None:
    check(config)
    if config.seed + config.seeds > SEEDS:
        raise UserError(f"seed is {config.seed}; seeds must stay below 2**32.")
    check_name(config.name)


def check_name(name: str) -> None:
    """Raise `UserError` unless `name` is empty or can be the name of a folder in `out`."""
    if not name:
        return
    apart = set(name) & {"/", "\\"} or not name.isprintable()
    if apart or not name.strip() or name.startswith(".") or len(name.encode()) > LONGEST_NAME:
        raise UserError(
            f"name is {name!r}; it must be the name of a folder in out: without / or \\, not "
            f"starting with a dot, not blank, and at most {LONGEST_NAME} bytes long."
        )


def _hints(config: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(type(config))
    return {f.name: hints[f.name] for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _parts(text: str) -> Any:
    """Return the entries of a list on a command line: words, or YAML in brackets. Text in brackets
    that is not YAML is returned as it is."""
    if not text.lstrip().startswith("["):
        return text.replace(",", " ").split()
    try:
        return yaml.load(text, Loader=_Loader)
    except NOT_YAML:
        return text


def _describe_type(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if kind in names:
        return names[kind]
    if kind is Any or dataclasses.is_dataclass(kind):
        return "a value"
    options = typing.get_args(kind)
    if (typing.get_origin(kind) or kind) in (tuple, list):
        return f"a list, each entry {_describe_type(options[0])}"
    if (typing.get_origin(kind) or kind) is dict:
        return f"a mapping, each value {_describe_type(options[1])}"
    return " or ".join("none" if k is type(None) else _describe_type(k) for k in options)


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses a key given twice, of which YAML would silently keep the last, and
    aliases that make a small file a large tree."""

    def get_single_node(self):
        node = super().get_single_node()
        if node is not None and _size(node, {}, DEPTH) > NODES:
            raise yaml.YAMLError(f"with its aliases it is more than {NODES:,} values")
        return node

    def construct_mapping(self, node, deep=False):
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                key = self.construct_object(key, deep=deep)
                if not isinstance(key, Hashable):
                    raise yaml.YAMLError("a key is a list or a mapping")
                if key in seen:
                    raise yaml.YAMLError(f"the key '{key}' is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """Return the number of values of a node with its aliases written out; `sizes` are those known.

    Raises `yaml.YAMLError` for a node that is more than `depth` deep, such as one within itself.
    """
    if depth == 0:
        raise yaml.YAMLError(f"it is nested more than {DEPTH} deep")
    if id(node) not in sizes:
        inner = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [x for part in inner for x in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_size(part, sizes, depth - 1) for part in parts)
    return sizes[id(node)]
