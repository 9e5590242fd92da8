"""Draw every environment, and write docs/environments.md with descriptions, settings and returns.

    python experiments/gallery.py                  # everything, a few minutes
    python experiments/gallery.py cartpole empty   # only these pictures; the others stay
    python experiments/gallery.py --text           # only the page, with the present pictures

Each picture shows one episode of the random policy and, below it, one of the environment's expert
if it has one. Returns are means over episodes with their 95 % interval.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.commands import command_line
from jaxrl.core import errors, random
from jaxrl.core.types import Array, Environment, Key, Policy, Tree
from jaxrl.envs import describe, registry
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.evaluation.render import join_pictures, side_by_side, write_png
from jaxrl.evaluation.statistics import rate_interval, score_interval

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "environments.md"
PICTURES = PAGE.parent / "gallery"
FIGURES = "returns.json"

FRAMES = 6  # in a row, evenly spaced over the episode
HEIGHT = 120  # pixels of a frame
EPISODES = 256
LONGEST = 1000  # steps, if an environment has no time limit or a longer one

INTRODUCTION = """# Environments

Every environment that `jaxrl.envs.make(name)` knows. Pictures: one episode of the random policy
and, below it, one of the environment's expert where it has one. Returns are means over {episodes}
episodes with their 95 % interval, cut at {longest} steps.

Settings are given by name: `envs.make("empty", size=16, penalty=0.5)`, or
`--env empty --env-params size=16 penalty=0.5` on the command line; `envs.settings("empty")`
returns them with their defaults. Those marked *builder* decide about shapes and rules, and the
text says what they do. Those marked *params* are fields of `env.params`, the last argument of
`reset` and `step`: they can differ between the copies in one program, and be randomized, swept or
differentiated with respect to.
"""
FOOTER = """---

Written by `python experiments/gallery.py` from the registry, the docstrings and the pictures."""


def main(argv: Sequence[str]) -> int:
    if {"--help", "-h"} & set(argv):
        print(__doc__)
        return 0
    chosen = [word for word in argv if word != "--text"]
    for name in chosen:
        if name not in envs.names():
            raise errors.unknown("environment", name, envs.names())
    if chosen or "--text" not in argv:
        draw(chosen or envs.names(), PICTURES)
    PAGE.write_text(page(PICTURES))
    print(f"{PAGE}: {len(envs.names())} environments")
    return 0


def draw(names: Sequence[str], folder: Path, episodes: int = EPISODES) -> None:
    """Draw a picture of each environment into `folder`, and record its returns there."""
    file = folder / FIGURES
    figures = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        strips, figures[name] = [], {}
        for player, (env, policy) in players(envs.make(name)).items():
            strips.append(strip(env, policy))
            figures[name][player] = returns(env, policy, episodes)
        write_png(join_pictures(strips, axis=0), folder / f"{name}.png")
        print(f"{name}: " + ", ".join(f"{k} {format_returns(v)}" for k, v in figures[name].items()))
    figures = {name: figures[name] for name in envs.names() if name in figures}
    file.write_text(json.dumps(figures, indent=1) + "\n")


def players(env: Environment) -> dict[str, tuple[Environment, Policy]]:
    """Return the random policy and, if there is one, the expert, each with its environment."""
    found = {"random": (env, random_policy(env))}
    if env.expert is not None:
        advised = expert_channel(env)
        found["expert"] = (advised, expert_policy(advised))
    return found


def limit(env: Environment) -> int:
    return min(env.max_steps or LONGEST, LONGEST)


def strip(env: Environment, policy: Policy) -> np.ndarray:
    """Return `FRAMES` frames of one episode side by side, with its first and its last."""
    render = env.render
    assert render is not None
    states, length = jax.device_get(episode(env, policy, random.key(0)))
    at = lambda step: render(jax.tree.map(lambda x: x[step], states), env.params)
    steps = np.linspace(0, length, FRAMES).round().astype(int)
    return side_by_side([at(step) for step in steps], HEIGHT)


@functools.partial(jax.jit, static_argnums=0)
def episode(env: Environment, policy: Policy, key: Key) -> tuple[Tree, Array]:
    """Return the states of one episode, leading axis [`limit` + 1], and its length."""
    start, key = jax.random.split(key)
    state, timestep = env.reset(start, env.params)
    memory = policy.memory(1)

    def body(carry, key):
        state, timestep, memory = carry
        act_key, step_key = jax.random.split(key)
        batch = jax.tree.map(lambda x: x[None], timestep)
        action, memory, _ = policy.act(policy.state, batch, memory, act_key, False)
        action = jax.tree.map(lambda x: x[0], action)
        state, timestep = env.step(step_key, state, action, env.params)
        return (state, timestep, memory), (state, timestep.done)

    keys = jax.random.split(key, limit(env))
    _, (states, done) = jax.lax.scan(body, (state, timestep, memory), keys)
    length = jnp.where(done.any(), jnp.argmax(done) + 1, limit(env))
    return jax.tree.map(lambda x, rest: jnp.concatenate([x[None], rest]), state, states), length


def returns(env: Environment, policy: Policy, episodes: int) -> list[float]:
    """Return the mean return and the ends of its interval, to three digits.

    If only a success is rewarded, by at most 1, the interval stays between 0 and 1.
    """
    played = evaluate(env, policy, random.key(1), episodes, False, limit(env))
    total = np.asarray(played.returns, np.float64)
    total = total if total.ndim == 1 else total[:, 0]  # the first player's
    success = played.metrics.get("success")
    rate = success is not None and np.all((total >= 0) & (total <= np.asarray(success)))
    interval = (rate_interval if rate else score_interval)(total)
    return [float(f"{x:.3g}") for x in (interval.estimate, interval.low, interval.high)]


def format_returns(figure: Sequence[float]) -> str:
    mean, low, high = (f"{x:g}" for x in figure)
    return f"{mean} [{low}, {high}]"


def page(folder: Path) -> str:
    """Return the page, from the registry, the docstrings and the files of `draw` in `folder`."""
    figures = json.loads((folder / FIGURES).read_text())
    contents, sections = [], []
    packages, said = set(), set()
    for name, path in registry.BUILT_IN.items():
        package = importlib.import_module(path.partition(":")[0].rpartition(".")[0])
        if package not in packages:
            packages.add(package)
            title, *rest = inspect.cleandoc(package.__doc__ or "").split("\n\n")
            sections += [f"## {title}", *rest]
            contents.append(f"- {title.partition(':')[0].rstrip('.')}:")
        contents[-1] += f" [{name}](#{name}),"
        # A paragraph shared by several environments is shown with the first of them.
        own, *shared = describe.texts(name)
        texts = [own, *(text for text in shared if text not in said)]
        said.update(texts)
        sections += section(envs.make(name), name, texts, figures.get(name, {}))
    introduction = INTRODUCTION.format(episodes=EPISODES, longest=LONGEST)
    index = "\n".join(line.rstrip(",") for line in contents)
    return "\n\n".join([introduction.strip(), index, *sections, FOOTER]) + "\n"


def section(
    env: Environment, name: str, texts: Sequence[str], figures: dict[str, Sequence[float]]
) -> list[str]:
    """Return the paragraphs about one environment."""
    most = env.max_steps
    returned = ", ".join(f"{player} {format_returns(figure)}" for player, figure in figures.items())
    facts = [
        f"Actions: {describe.space(env.action_space)}",
        f"Time limit: {most} step{'s' * (most != 1)}" if most else "No time limit",
        f"Return: {returned}",
    ]
    return [
        f"### {name}",
        *(add_links(text) for text in texts),
        ". ".join(facts) + ".",
        settings_table(name),
        f"![{name}](gallery/{name}.png)",
    ]


def add_links(text: str) -> str:
    """Return `text` with a link for each module of this package that it names in full."""

    def link(name: re.Match) -> str:
        file = Path(*name[1].split(".")).with_suffix(".py")
        return f"[{name[0]}](../{file})" if (ROOT / file).exists() else name[0]

    return re.sub(r"`(jaxrl(?:\.\w+)+)`", link, text)


def settings_table(name: str) -> str:
    """Return the table of settings for `envs.make(name)`, folded under their names."""
    rows = describe.settings(name)
    if not rows:
        return "No settings."
    lines = [f"<details><summary>Settings: {', '.join(x.name for x in rows)}</summary>", ""]
    lines += ["| setting | default | of | meaning |", "|---|---|---|---|"]
    for x in rows:
        text = x.meaning.replace("|", "\\|")
        lines.append(f"| `{x.name}` | {x.default} | {x.of} | {text} |")
    return "\n".join([*lines, "", "</details>"])


if __name__ == "__main__":
    command_line.run(main)
