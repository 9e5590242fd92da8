"""Evaluate a trained run, each run of a sweep, or an exported policy:
`jaxrl evaluate runs/ppo-cartpole-0001`, `jaxrl evaluate pretrained/ppo-cartpole`."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.commands import command_line
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, Key, Policy
from jaxrl.runtime import configuration, files
from jaxrl.runtime.configuration import EnvSetting
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members

if TYPE_CHECKING:
    from jaxrl.runtime.continuing import Trained

MODES = ("greedy", "stochastic")
Measured = dict[str, dict[str, Any]]  # mode of acting -> metric -> [members, episodes]
Results = dict[str, dict[str, dict[str, Any]]]  # mode of acting -> metric -> mean, interval, seeds


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `jaxrl evaluate`."""

    episodes: int = 100
    """Number of complete episodes of each seed, for each mode of acting (greedy, stochastic)."""
    env: str = ""
    """Environment to evaluate in; empty for the training environment."""
    env_params: dict[str, EnvSetting] = dataclasses.field(default_factory=dict)
    """Settings of the environment to evaluate in, such as game=tic_tac_toe. Without env: changes of
    the training environment's settings."""
    max_steps: int | None = None
    """Number of steps after which to cut episodes; an environment without a time limit needs it."""
    seed: int = 0
    """Seed of the evaluation episodes."""
    member: int = 0
    """Member of the run (the first is 0) whose policy the video shows."""
    video: str = "gif"
    """Video of one greedy episode: gif, mp4, png (its last frame) or none."""
    out: str = ""
    """Folder to write the results to; empty for the run's own folder. The results of an exported
    policy are written only with it."""
    trust: bool = False
    """Import code outside of jaxrl that the run names; importing it runs it."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl evaluate RUN|FILE|pretrained/NAME [options]"
    (folder,), config = command_line.positionals_and_options(
        argv, Options, usage, command_line.is_folder
    )
    from jaxrl.evaluation import render
    from jaxrl.reporting.runs import run_folders
    from jaxrl.runtime.policy_files import is_policy

    kinds = (*render.VIDEOS, "png", "none")
    if config.video not in kinds:
        raise unknown("value of --video", config.video, kinds)
    render.check_video_format(config.video)
    for name, smallest in {"episodes": 1, "seed": 0, "member": 0}.items():
        if getattr(config, name) < smallest:
            raise UserError(f"{name} is {getattr(config, name)}; it must be at least {smallest}.")
    if config.max_steps is not None and config.max_steps < 1:
        raise UserError(f"max_steps is {config.max_steps}; it must be at least 1.")
    if is_policy(folder):
        evaluate_policy(folder, config)
        return 0
    runs = run_folders(Path(folder))
    for run in runs:
        if len(runs) > 1:
            print(f"{run}:")
        out = str(Path(config.out, run.name)) if config.out and len(runs) > 1 else config.out
        evaluate(run, dataclasses.replace(config, out=out))
    return 0


def _write(out: Path, summary: Mapping[str, Any], members: Members, measured: Measured) -> None:
    """Write the summary and the episodes to `out`, and say where. Raises `UserError` if the disk is
    full; what was there before is kept then."""
    results, episodes = out / "evaluation.json", out / "evaluation_episodes.csv"
    with files.explain_errors(out):
        files.write_text(results, json.dumps(summary, indent=2))
        _write_episodes(episodes, members, measured)
    print(f"Written to {results}; each episode: {episodes}")


def _write_episodes(path: Path, members: Members, measured: Measured) -> None:
    """Write a row for each episode: its member (from 0), the seed and other settings that set the
    member apart, the mode of acting, the episode's number, and its metrics."""
    own = list(dict.fromkeys(name for label in members.labels for name in label))
    names = list(next(iter(measured.values())))
    with files.replacing(path) as new, new.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["member", *own, "acting", "episode", *names])
        for mode, values in measured.items():
            for i, label in enumerate(members.labels):
                episodes = zip(*(values[name][i].tolist() for name in names), strict=True)
                for number, row in enumerate(episodes):
                    table.writerow([i, *(label.get(n) for n in own), mode, number, *row])


def evaluate(folder: Path, config: Options) -> None:
    """Evaluate the run in `folder`, print the results and write them to its folder."""
    from jaxrl.core import random
    from jaxrl.runtime.building import configure_jax, other_environment
    from jaxrl.runtime.continuing import load_all

    typed = configuration.foreign_code({"env": config.env, "env_params": config.env_params})
    members = load_all(folder, config.trust or typed)
    if config.member >= len(members):
        raise UserError(f"member is {config.member}; it must be 0 to {len(members) - 1}.")
    trained, policies = members[0], [member.policy for member in members]
    configure_jax(trained.config)
    env = other_environment(trained.config, trained.env, config.env, config.env_params)
    out = Path(config.out) if config.out else folder
    _check_writable(out)
    key = random.key(config.seed, trained.config.generator)
    measured, names = _play(env, policies, key, config)
    own = _own_measurements(members, key) if env is trained.env else {}
    summaries = {
        setting: _summary(
            {mode: {k: v[some] for k, v in x.items()} for mode, x in (measured | own).items()}
        )
        for setting, some in trained.members.by_setting().items()
    }
    for setting, summary in summaries.items():
        if setting:
            print(f"{setting}:")
        _print_results(summary, names)
    results = summaries.get("", summaries)
    summary = {"env": env.name, "step": trained.step, "episodes": config.episodes, **results}
    _write(out, summary, trained.members, measured)
    seeds = len(policies) // len(summaries)
    over = f"{seeds} seeds" if seeds > 1 else f"{config.episodes} episodes"
    print(f"{config.episodes} episodes for each seed; intervals over {over}.")
    _record(env, policies[config.member], key, out, config)


def evaluate_policy(name: str, config: Options) -> None:
    """Evaluate an exported policy and print the results; write them only with `--out`."""
    from jaxrl.core import random
    from jaxrl.runtime import policy_files
    from jaxrl.runtime.building import configure_jax, other_environment
    from jaxrl.runtime.members import seed_members

    if config.member:
        raise UserError(f"member is {config.member}; an exported policy has one member, 0.")
    typed = configuration.foreign_code({"env": config.env, "env_params": config.env_params})
    stored = policy_files.load(name, config.trust or typed)
    configure_jax(stored.config)
    env = other_environment(stored.config, stored.env, config.env, config.env_params)
    if config.out:
        _check_writable(Path(config.out))
    key = random.key(config.seed, stored.config.generator)
    modes = MODES[:1] if stored.is_greedy else MODES
    measured, names = _play(env, [stored.policy], key, config, modes)
    results = _summary(measured)
    _print_results(results, names)
    print(f"Intervals over {config.episodes} episodes.")
    if not config.out:
        print("Nothing is written; --out FOLDER keeps the episodes and a video.")
        return
    out = Path(config.out)
    summary = {"env": env.name, "policy": name, "episodes": config.episodes, **results}
    _write(out, summary, seed_members(stored.config), measured)
    _record(env, stored.policy, key, out, config)


def _check_writable(out: Path) -> None:
    """Make the folder `out`. Raises `UserError` unless files can be written to it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"'{out}' cannot be written: {error.strerror}.") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"'{out}' cannot be written.")


def _record(env: Environment, policy: Policy, key: Key, out: Path, config: Options) -> None:
    """Write the video of a greedy episode to `out`, if one is asked for and can be made."""
    from jaxrl.evaluation import render
    from jaxrl.runtime import host

    if config.video == "none" or not (env.render or env.host):
        return
    record = host.record if env.host else render.record
    try:
        episode = record(env, policy, key, max_steps=config.max_steps)
    except (host.EnvironmentFailed, UserError) as failed:  # the rest is written
        print(f"No video of an episode: {failed}")
        return
    path = out / f"episode.{config.video}"
    with files.explain_errors(path), files.replacing(path) as new:
        if config.video == "png":
            render.write_png(episode.frames[-1], new)
        else:
            render.write_video(episode, new)
    print(f"One greedy episode: {path}")


def _play(
    env: Environment,
    policies: Sequence[Policy],
    key: Key,
    config: Options,
    modes: Sequence[str] = MODES,
) -> tuple[Measured, dict[str, str]]:
    """Return the metrics of the episodes of all policies, and the label of each return among them.

    A label says whose return it is where there are several agents.
    """
    import jax
    import numpy as np

    from jaxrl.core import metrics as m
    from jaxrl.evaluation.evaluate import episode_limit
    from jaxrl.evaluation.evaluate import evaluate as play_on_device
    from jaxrl.runtime import host

    episode_limit(env, config.max_steps)  # refuses an environment that has none
    play = host.evaluate if env.host else play_on_device
    measured: Measured = {}
    labels: dict[str, str] = {}
    display, total = Display(), len(modes) * len(policies) * config.episodes
    display.say(f"Evaluating in {env.name}: {total} episodes; the first ones wait for compilation.")
    with display.progress(0, total, 1, "episodes"):
        for number, mode in enumerate(modes):
            played: list[dict[str, np.ndarray]] = []
            for i, policy in enumerate(policies):
                key_i = jax.random.fold_in(key, i)
                e = play(env, policy, key_i, config.episodes, mode == "greedy", config.max_steps)
                returns = m.by_agent("return", np.asarray(e.returns))
                labels = {name: f"return{m.agent_suffix(name, 'return')}" for name in returns}
                rest = {"length": e.lengths, "finished": e.finished} | e.metrics
                played.append(returns | {name: np.asarray(x) for name, x in rest.items()})
                name = next(iter(returns))
                display.show(
                    {f"{mode} {labels[name]}": np.asarray([p[name].mean() for p in played])}
                )
                display.advance((number * len(policies) + i + 1) * config.episodes)
            measured[mode] = {name: np.stack([p[name] for p in played]) for name in played[0]}
    return measured, labels


def _own_measurements(members: Sequence[Trained], key: Key) -> Measured:
    """Return what the algorithm itself measures of each member, if anything."""
    import jax
    import numpy as np

    key = jax.random.fold_in(key, np.uint32(2**32 - 1))  # episodes of member i have fold_in(key, i)
    found = [
        member.algorithm.measure(member.state, jax.random.fold_in(key, i))
        for i, member in enumerate(members)
    ]
    names = found[0].keys()
    own = {name: np.asarray([[float(x[name])] for x in found]) for name in names}
    return {"measured": own} if own else {}


def _summary(measured: Measured) -> Results:
    """Return mean and interval of each metric, for members that differ in their seeds alone.

    Seeds are independent runs, so an interval is over seeds; that of a single seed is over its
    episodes.
    """
    import numpy as np

    from jaxrl.evaluation.statistics import metric_interval

    results: Results = {}
    for mode, metrics in measured.items():
        results[mode] = {}
        for name, values in metrics.items():
            values = np.asarray(values, float)
            runs = values.mean(1) if len(values) > 1 else values[0]
            mean, low, high = metric_interval(name, runs)
            interval = [low, high] if np.isfinite(low) else None  # unknown for a single number
            counts = {"seeds": len(values), "runs": len(runs)}
            results[mode][name] = {"mean": mean, "interval": interval} | counts
    return results


def _print_results(results: Results, labels: dict[str, str]) -> None:
    from jaxrl.evaluation.statistics import confidence_text

    width = max(12, *map(len, labels.values()))
    for mode, metrics in results.items():
        for name, value in metrics.items():
            line = f"{mode:>10} {labels.get(name, name):<{width}} {value['mean']:10.4g}"
            if value["interval"]:
                low, high = value["interval"]
                confidence = confidence_text(value["runs"], name)
                line += f"   {confidence} interval {low:.4g} to {high:.4g}"
            print(line)
