"""Draw docs/overview.png, the README's picture: some environments, and learning curves of PPO.

    python experiments/front_page.py

It takes a few minutes. The runs, eight seeds each, stay in runs/front_page and are not trained
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from experiments import gallery
from jaxrl import envs
from jaxrl.commands import command_line
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.evaluation.statistics import column_intervals
from jaxrl.runtime import training

PICTURE = gallery.ROOT / "docs" / "overview.png"
RUNS = Path("runs") / "front_page"

# Frames, each with its place (0 to 1) in an episode of the expert, or else of random actions.
FRAMES = (
    {"acrobot": 0.97, "cartpole": 0.5, "mountain_car": 0.75, "cheetah": 0.3, "hopper": 0.5}
    | {"reacher": 0.1, "push": 0.6, "point_maze_large": 0.5},
    {"key_corridor": 0.4, "hazards": 0.2, "goal_maze": 0.6, "one_way_doors": 0.3, "taxi": 0.4}
    | {"random_mdp": 0.5, "minatar_space_invaders": 0.02, "minatar_breakout": 0.1},
)
# The return that counts as solved.
SOLVED = {"cartpole": 475, "pendulum": -250, "acrobot": -100, "mountain_car_continuous": 90}

WIDTH, GAP = 1800, 8  # pixels
COLOR, INK, FAINT = "#0072B2", "#222222", "#888888"


def main(argv: Sequence[str]) -> int:
    if argv:
        if {"--help", "-h"} & set(argv):
            print(__doc__)
            return 0
        raise UserError(f"front_page.py has no options, got {' '.join(argv)}.")
    draw([row_of_frames(row) for row in FRAMES], {name: curves(run(name)) for name in SOLVED})
    print(PICTURE)
    return 0


def run(name: str) -> Path:
    """Return the folder of the run of `configs/ppo/NAME.yaml`, training it if needed."""
    folder = RUNS / name
    if not folder.exists():
        options = f"--seeds 8 --evaluate-every 20000 --evaluate-episodes 64 --out {RUNS}"
        argv = [f"ppo/{name}", *options.split(), "--name", name]
        training.train(command_line.experiment(argv, ""))
    return folder


def curves(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps [K] of a run's evaluations, and the greedy policies' returns [seeds, K]."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "evaluation"]
    steps = np.array([row["steps"] for row in rows])
    return steps, np.array([row["metrics"]["return"] for row in rows], float).T


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


def draw(rows: Sequence[np.ndarray], learned: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw rows of frames, uint8 [H, WIDTH, 3], above a learning curve of each task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dpi, curve = 200, 380
    top = sum(len(row) + GAP for row in rows)
    height = top + curve + 60
    figure = Figure(figsize=(WIDTH / dpi, height / dpi), dpi=dpi)
    FigureCanvasAgg(figure)
    offset = height
    for row in rows:
        offset -= len(row)
        figure.figimage(row, xo=0, yo=offset)
        offset -= GAP
    left, wide, between = 0.042, 0.195, 0.056
    for i, (name, (steps, returns)) in enumerate(learned.items()):
        box = (left + i * (wide + between), 95 / height, wide, (curve - 85) / height)
        axes = figure.add_axes(box)
        axes.plot(steps / 1000, returns.T, color=COLOR, alpha=0.35, linewidth=0.6)
        mean, low, high = column_intervals(returns)
        axes.fill_between(steps / 1000, low, high, color=COLOR, alpha=0.18, linewidth=0)
        axes.plot(steps / 1000, mean, color=COLOR, linewidth=1.6)
        axes.axhline(SOLVED[name], color=FAINT, linewidth=0.7, linestyle=(0, (4, 3)))
        axes.set_title(name, fontsize=7.5, color=INK, loc="left", pad=4)
        axes.set_xlabel("thousand environment steps", fontsize=6, color=INK, labelpad=2)
        axes.tick_params(labelsize=6, color=FAINT, labelcolor=INK, length=2, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.set_xlim(0, steps[-1] / 1000)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE)


if __name__ == "__main__":
    command_line.run(main)
