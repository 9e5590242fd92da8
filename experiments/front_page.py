"""Write what the README shows from the records of suites: its picture and its table of results.

    python experiments/front_page.py

The picture, docs/overview.png, has frames of some environments and the learning curves of the
records. The table lies in the README between two comments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments import gallery
from jaxrl import envs
from jaxrl.commands import command_line
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import column_intervals
from jaxrl.suites import page
from jaxrl.suites.suite import Published, Suite, read

README, PICTURE = gallery.ROOT / "README.md", gallery.ROOT / "docs" / "overview.png"
RECORDS = gallery.ROOT / "docs" / "suites"
BEGIN, END = "<!-- results: experiments/front_page.py -->", "<!-- end of results -->"

# Frames, each with its place (0 to 1) in an episode of the expert, or else of random actions.
FRAMES = (
    {"acrobot": 0.97, "cartpole": 0.5, "mountain_car": 0.75, "cheetah": 0.3, "hopper": 0.5}
    | {"key_corridor": 0.4, "minatar_space_invaders": 0.02, "minatar_breakout": 0.1},
)


class Panel(NamedTuple):
    """An environment of a suite, whose curves are drawn."""

    suite: str
    environment: str
    title: str


PANELS = (
    Panel("gymnasium_classic", "acrobot", "Acrobot-v1"),
    Panel("gymnasium_classic", "pendulum", "Pendulum-v1"),
    Panel("minatar", "asterix", "MinAtar Asterix"),
    Panel("minatar", "space_invaders", "MinAtar Space Invaders"),
)


class Row(NamedTuple):
    """A result of the table: an algorithm in an environment of a suite."""

    suite: str
    environment: str
    title: str
    algorithm: str


ROWS = (
    Row("gymnasium_classic", "cartpole", "CartPole-v1", "PPO"),
    Row("gymnasium_classic", "mountain_car", "MountainCar-v0", "PPO"),
    Row("gymnasium_classic", "pendulum", "Pendulum-v1", "SAC"),
    Row("gymnasium_classic", "lunar_lander", "LunarLander-v3", "PPO"),
    Row("mujoco", "hopper", "Hopper-v5 (published: v4)", "PPO"),
    Row("mujoco", "walker2d", "Walker2d-v5 (published: v4)", "PPO"),
    Row("minatar", "asterix", "MinAtar Asterix", "PPO"),
    Row("minatar", "breakout", "MinAtar Breakout", "PPO"),
    Row("minatar", "space_invaders", "MinAtar Space Invaders", "PPO"),
)

WIDTH, GAP = 1800, 8  # pixels
INK, FAINT = "#222222", "#888888"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#000000")


def main(argv: Sequence[str]) -> int:
    if argv:
        if {"--help", "-h"} & set(argv):
            print(__doc__)
            return 0
        raise UserError(f"front_page.py has no options, got {' '.join(argv)}.")
    panels = {panel.title: curves(panel.suite, panel.environment) for panel in PANELS}
    draw([row_of_frames(row) for row in FRAMES], panels)
    text = README.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(f"{text[:start]}\n{table()}\n{text[end:]}")
    print(f"{PICTURE}\n{README}")
    return 0


def records(suite: str) -> dict[tuple[str, str], page.Record]:
    """Return the records of a suite: (algorithm, environment) -> record."""
    found = json.loads((RECORDS / f"{suite}.json").read_text())
    return {(x["algorithm"], x["environment"]): x for x in found}


def curves(suite: str, environment: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what was recorded in an environment.

    Returns algorithm -> environment steps [K], and the greedy policies' returns [seeds, K].
    """
    return {
        algorithm: (np.asarray(found["steps"]), page.curve(found))
        for (algorithm, where), found in records(suite).items()
        if where == environment
    }


def table() -> str:
    """Return the README's table of results beside published figures."""
    lines = [
        "| environment | algorithm, steps | jaxrl | published |",
        "| --- | --- | ---: | ---: |",
    ]
    for row in ROWS:
        suite, found = read(row.suite), records(row.suite)[row.algorithm, row.environment]
        steps, values = found["steps"][-1], page.finals(found)
        cells = [
            row.title,
            f"{row.algorithm}, {_thousands(steps)}",
            f"{page.estimate(values, '')}, {len(values)} seeds",
            _published_figure(suite, row, steps),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _published_figure(suite: Suite, row: Row, steps: int) -> str:
    """Return the published figure of the same algorithm whose number of steps is the nearest."""

    def budget(one: Published) -> int:
        return one.steps[row.environment] if isinstance(one.steps, dict) else one.steps

    same = [
        one
        for one in suite.published
        if one.algorithm == row.algorithm and row.environment in one.returns
    ]
    if not same:
        return ""
    one = min(same, key=lambda one: abs(budget(one) - steps))
    figure = page.published_cell(one, row.environment)
    return f"{figure} ({one.who}, {_thousands(budget(one))})"


def _thousands(steps: int) -> str:
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def frame(name: str, part: float) -> np.ndarray:
    """Return the frame at `part` (0 to 1) of one episode, uint8 [H, W, 3]."""
    env, policy = list(gallery.players(envs.make(name)).values())[-1]
    states, length = jax.device_get(gallery.episode(env, policy, random.key(0)))
    assert env.render is not None
    return env.render(jax.tree.map(lambda x: x[round(part * length)], states), env.params)


def row_of_frames(row: Mapping[str, float]) -> np.ndarray:
    """Return frames of one height side by side, `WIDTH` pixels in all."""
    from PIL import Image

    frames = [frame(name, part) for name, part in row.items()]
    shapes = np.array([x.shape[1] / x.shape[0] for x in frames])
    height = (WIDTH - GAP * (len(frames) - 1)) / shapes.sum()
    edges = np.cumsum([0, *(shapes * height + GAP)]).round().astype(int)
    out = np.full((round(height), WIDTH, 3), 255, np.uint8)
    for x, left, right in zip(frames, edges[:-1], edges[1:] - GAP, strict=True):
        resized = Image.fromarray(x).resize((right - left, out.shape[0]), Image.Resampling.LANCZOS)
        out[:, left:right] = np.asarray(resized)
    return out


def draw(
    rows: Sequence[np.ndarray],
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]],
) -> None:
    """Draw rows of frames, uint8 [H, WIDTH, 3], above panels of learning curves.

    panels: title -> algorithm -> steps [K], returns [seeds, K]. Algorithms have one color in all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dpi, curve = 200, 430
    height = sum(len(row) + GAP for row in rows) + curve
    figure = Figure(figsize=(WIDTH / dpi, height / dpi), dpi=dpi)
    FigureCanvasAgg(figure)
    offset = height
    for row in rows:
        offset -= len(row)
        figure.figimage(row, xo=0, yo=offset)
        offset -= GAP
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    color = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    lines = {}
    left, wide, between = 0.042, 0.195, 0.056
    for i, (title, panel) in enumerate(panels.items()):
        box = (left + i * (wide + between), 120 / height, wide, (curve - 170) / height)
        axes = figure.add_axes(box)
        for name, (steps, returns) in panel.items():
            mean, low, high = column_intervals(returns)
            axes.fill_between(steps, low, high, color=color[name], alpha=0.18, linewidth=0)
            (lines[name],) = axes.plot(steps, mean, color=color[name], linewidth=1.4)
        axes.set_title(title, fontsize=7.5, color=INK, loc="left", pad=4)
        axes.set_xscale("log")
        axes.set_xlabel("environment steps", fontsize=6, color=INK, labelpad=2)
        axes.tick_params(which="both", labelsize=6, color=FAINT, labelcolor=INK, length=2, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
    figure.legend(
        lines.values(), lines, loc="lower center", ncols=len(lines), fontsize=6.5, frameon=False
    )
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE)


if __name__ == "__main__":
    command_line.run(main)
