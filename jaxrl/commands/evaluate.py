"""Evaluate a trained run, or each run of a sweep: `jaxrl evaluate runs/ppo-cartpole-0001`."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, Key, Policy
from jaxrl.runtime import command_line, configuration
from jaxrl.runtime.configuration import Setting
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members

if TYPE_CHECKING:
    from jaxrl.runtime.continuing import Trained

WAYS = ("greedy", "stochastic")
Measured = dict[str, dict[str, Any]]  # way of acting -> metric -> [members, episodes]
Results = dict[str, dict[str, dict[str, Any]]]  # way of acting -> metric -> mean, interval, seeds


@dataclasses.dataclass(frozen=True)
class Options:
    """How a run is evaluated."""

    episodes: int = 100
    """Complete episodes of each seed, for each way of acting."""
    env: str = ""
    """An environment other than the one that was trained in."""
    env_params: dict[str, Setting] = dataclasses.field(default_factory=dict)
    """Its settings, such as game=tic_tac_toe; without env, what differs from the one that was
    trained in."""
    max_steps: int | None = None
    """Where to cut episodes of an environment without a time limit."""
    seed: int = 0
    """Seed of the episodes."""
    member: int = 0
    """Which seed's policy is rendered."""
    render: str = "gif"
    """gif, png (the last frame) or none: a picture of one greedy episode."""
    out: str = ""
    """Where results are written; the run's own folder if empty."""
    trust: bool = False
    """Import the code from outside of jaxrl that the run names: importing it runs it."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl evaluate RUN [options]"
    (folder,), config = command_line.places_and_options(
        argv, Options, usage, command_line.is_folder
    )
    if config.render not in ("gif", "png", "none"):
        raise unknown("value of --render", config.render, ("gif", "png", "none"))
    for name, smallest in {"episodes": 1, "seed": 0, "member": 0}.items():
        if getattr(config, name) < smallest:
            raise UserError(f"{name} is {getattr(config, name)}; it must be at least {smallest}.")
    from jaxrl.reporting.runs import within

    runs = within(Path(folder))
    for run in runs:
        if len(runs) > 1:
            print(f"{run}:")
        out = str(Path(config.out, run.name)) if config.out and len(runs) > 1 else config.out
        evaluate(run, dataclasses.replace(config, out=out))
    return 0


def _write_episodes(path: Path, members: Members, measured: Measured) -> None:
    """A row for each episode: whose it is (`member` from 0, seed, what else sets it apart), the way
    of `acting`, its number, and what was measured."""
    own = list(dict.fromkeys(name for label in members.labels for name in label))
    names = list(next(iter(measured.values())))
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["member", *own, "acting", "episode", *names])
        for how, values in measured.items():
            for i, label in enumerate(members.labels):
                episodes = zip(*(values[name][i].tolist() for name in names), strict=True)
                for number, row in enumerate(episodes):
                    table.writerow([i, *(label.get(n) for n in own), how, number, *row])


def evaluate(folder: Path, config: Options) -> None:
    from jaxrl.core import random
    from jaxrl.evaluation import render
    from jaxrl.runtime.building import elsewhere, prepare
    from jaxrl.runtime.continuing import load_all

    typed = configuration.foreign({"env": config.env, "env_params": config.env_params})
    everyone = load_all(folder, config.trust or typed)
    if config.member >= len(everyone):
        raise UserError(f"member is {config.member}; it must be 0 to {len(everyone) - 1}.")
    trained, policies = everyone[0], [member.policy for member in everyone]
    prepare(trained.config)
    env = elsewhere(trained.config, trained.env, config.env, config.env_params)
    out = Path(config.out) if config.out else folder
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"'{out}' cannot be written: {error.strerror}.") from error
    if not os.access(out, os.W_OK):
        raise UserError(f"'{out}' cannot be written.")
    key = random.key(config.seed, trained.config.generator)
    measured, called = _played(env, policies, key, config)
    own = _own(everyone) if env is trained.env else {}
    found = {
        setting: _summary(
            {how: {k: v[some] for k, v in x.items()} for how, x in (measured | own).items()}
        )
        for setting, some in trained.members.settings().items()
    }
    for setting, summary in found.items():
        if setting:
            print(f"{setting}:")
        _say(summary, called)
    results = found.get("", found)
    record = {"env": env.name, "step": trained.step, "episodes": config.episodes, **results}
    (out / "evaluation.json").write_text(json.dumps(record, indent=2))
    _write_episodes(out / "evaluation_episodes.csv", trained.members, measured)
    seeds = len(policies) // len(found)
    over = f"{seeds} seeds" if seeds > 1 else f"{config.episodes} episodes"
    print(f"{config.episodes} episodes for each seed; intervals over {over}.")
    print(
        f"Written to {out / 'evaluation.json'}, each episode to {out / 'evaluation_episodes.csv'}"
    )
    if config.render != "none" and env.render is not None:
        episode = render.record(env, policies[config.member], key, max_steps=config.max_steps)
        path = out / f"episode.{config.render}"
        if config.render == "gif":
            render.write_gif(episode.frames, path, episode.fps)
        else:
            render.write_png(episode.frames[-1], path)
        print(f"One greedy episode: {path}")


def _played(
    env: Environment, policies: Sequence[Policy], key: Key, config: Options
) -> tuple[Measured, dict[str, str]]:
    """What was measured in the episodes of all policies; and what the returns among it are called,
    which says whose they are."""
    import jax
    import numpy as np

    from jaxrl.core import metrics as m
    from jaxrl.evaluation.evaluate import episode_limit
    from jaxrl.evaluation.evaluate import evaluate as compiled
    from jaxrl.runtime import host

    episode_limit(env, config.max_steps)  # refuses an environment that has none
    play = host.evaluate if host.on_host(env) else compiled
    measured: Measured = {}
    called: dict[str, str] = {}
    display, total = Display(), len(WAYS) * len(policies) * config.episodes
    display.say(f"Evaluating in {env.name}: {total} episodes, the first ones while compiling ...")
    with display.running(0, total, 1, "episodes"):
        for way, how in enumerate(WAYS):
            played: list[dict[str, np.ndarray]] = []
            for i, policy in enumerate(policies):
                key_i = jax.random.fold_in(key, i)
                e = play(env, policy, key_i, config.episodes, how == "greedy", config.max_steps)
                returns = m.by_agent("return", np.asarray(e.returns))
                called = {name: f"return{m.agent_suffix(name, 'return')}" for name in returns}
                rest = {"length": e.lengths, "finished": e.finished} | e.metrics
                played.append(returns | {name: np.asarray(x) for name, x in rest.items()})
                name = next(iter(returns))
                display.show(
                    {f"{how} {called[name]}": np.asarray([p[name].mean() for p in played])}
                )
                display.tick((way * len(policies) + i + 1) * config.episodes)
            measured[how] = {name: np.stack([p[name] for p in played]) for name in played[0]}
    return measured, called


def _own(trained: Sequence[Trained]) -> Measured:
    """What the algorithm measures of each member besides its episodes, where it does."""
    import numpy as np

    found = [member.algorithm.measure(member.state) for member in trained]
    names = found[0].keys()
    own = {name: np.asarray([[float(x[name])] for x in found]) for name in names}
    return {"measured": own} if own else {}


def _summary(measured: Measured) -> Results:
    """Mean and interval of what was measured by members that differ in their seeds alone. Seeds are
    independent runs, so they are what an interval is over; a single seed's is over its episodes."""
    import numpy as np

    from jaxrl.evaluation.statistics import metric_interval

    results: Results = {}
    for how, found in measured.items():
        results[how] = {}
        for name, values in found.items():
            values = np.asarray(values, float)
            runs = values.mean(1) if len(values) > 1 else values[0]
            mean, low, high = metric_interval(name, runs)
            interval = [low, high] if np.isfinite(low) else None  # of one number it is unknown
            results[how][name] = {"mean": mean, "interval": interval, "seeds": len(values)}
    return results


def _say(results: Results, called: dict[str, str]) -> None:
    width = max(12, *map(len, called.values()))
    for how, found in results.items():
        for name, value in found.items():
            line = f"{how:>10} {called.get(name, name):<{width}} {value['mean']:10.4g}"
            if value["interval"]:
                low, high = value["interval"]
                line += f"   95 % interval {low:.4g} to {high:.4g}"
            print(line)
