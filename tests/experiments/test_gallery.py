"""The page of environments: complete, drawn, and what the docstrings say."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import gallery
from jaxrl import envs
from jaxrl.core.describe import value_text
from jaxrl.core.errors import UserError
from jaxrl.envs import registry
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import Episodes
from jaxrl.evaluation.statistics import rate_interval, score_interval


def test_the_page_is_what_the_registry_and_the_docstrings_say():
    written = gallery.PAGE.read_text()
    assert written == gallery.page(gallery.PICTURES), "python experiments/gallery.py --text"
    figures = json.loads((gallery.PICTURES / gallery.FIGURES).read_text())
    assert sorted(figures) == list(envs.names())
    for name in envs.names():
        assert f"### {name}\n" in written
        assert (gallery.PICTURES / f"{name}.png").exists(), f"python experiments/gallery.py {name}"
        assert ("expert" in figures[name]) == (envs.make(name).expert is not None)


@pytest.mark.parametrize("name", envs.names())
def test_the_page_lists_exactly_the_settings_that_make_accepts(name):
    module, _, attribute = registry.BUILT_IN[name].partition(":")
    builder = getattr(importlib.import_module(module), attribute)
    arguments = {k: p.default for k, p in inspect.signature(builder).parameters.items()}
    candidates = {**dict(fields(envs.make(name).params)), **arguments}
    accepted = {k: v for k, v in candidates.items() if accepts(name, k, v)}
    assert listing(name) == {k: value_text(v) for k, v in accepted.items()}


@pytest.mark.parametrize("name", envs.names())
def test_the_text_says_what_every_argument_of_a_builder_does(name):
    path, _, attribute = registry.BUILT_IN[name].partition(":")
    package, module = (importlib.import_module(x) for x in (path.rpartition(".")[0], path))
    builder = getattr(module, attribute)
    texts = "\n".join(str(x.__doc__) for x in (package, module, builder))
    # As `code`, in a shape [rows, columns], or as a "name:" of its own.
    mentioned = re.findall(r"`[^`]*`|\[[^]]*\]|\b\w+:", texts)
    words = set(re.findall(r"\w+", " ".join(mentioned)))
    assert set(inspect.signature(builder).parameters) - words == set()


def listing(name: str) -> dict[str, str]:
    """Setting -> default, from the page's table of the environment called `name`."""
    section = gallery.PAGE.read_text().partition(f"### {name}\n")[2].partition("\n### ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def fields(params: Any) -> Iterator[tuple[str, Any]]:
    """Every field of `params`, and of those that they hold."""
    if dataclasses.is_dataclass(params):
        for field in dataclasses.fields(params):
            value = getattr(params, field.name)
            yield field.name, value
            yield from fields(value)


def accepts(name: str, setting: str, value: Any) -> bool:
    try:
        envs.make(name, **{setting: value})
    except UserError:
        return False
    return True


def test_the_text_alone_can_be_written_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "draw", lambda *_: pytest.fail("nothing is to be drawn"))
    committed, page = gallery.PAGE.read_text(), tmp_path / "environments.md"
    monkeypatch.setattr(gallery, "PAGE", page)
    assert gallery.main(["--text"]) == 0
    assert page.read_text() == committed


@pytest.mark.slow
def test_a_picture_has_a_row_for_each_player(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "LONGEST", 20)
    gallery.draw(["cartpole"], tmp_path, episodes=4)
    picture = np.asarray(Image.open(tmp_path / "cartpole.png"))
    assert picture.shape == (2 * 120 + 4, 6 * 160 + 5 * 4, 3)
    upper, lower = picture[:120], picture[124:]
    assert np.any(upper != lower)  # the pole falls in one of them only
    figures = json.loads((tmp_path / "returns.json").read_text())["cartpole"]
    assert figures["expert"] == [20, 20, 20] and 5 < figures["random"][0] <= 20


@pytest.mark.parametrize(
    ("returns", "success", "interval"),
    [
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], rate_interval),
        ([0.0, 0.0, 0.0, 0.9], [0.0, 0.0, 0.0, 1.0], rate_interval),  # less if it takes long
        ([0.0, 0.0, 0.5, 0.9], [0.0, 0.0, 0.0, 1.0], score_interval),  # something else is rewarded
        ([-1.0, -1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 1.0], score_interval),
        ([0.0, 0.0, 0.0, 1.0], None, score_interval),
    ],
)
def test_returns_that_are_rates_have_intervals_between_0_and_1(
    monkeypatch, returns, success, interval
):
    metrics = {} if success is None else {"success": jnp.array(success)}
    played = Episodes(jnp.array(returns), jnp.ones(4, int), jnp.ones(4, bool), metrics)
    monkeypatch.setattr(gallery, "evaluate", lambda *_: played)
    env = envs.make("cartpole")
    found = gallery.returns(env, random_policy(env), 4)
    np.testing.assert_allclose(found, interval(np.float32(returns)), rtol=0.01)
    assert min(returns) <= found[1] or interval is rate_interval
    assert min(0.0, *returns) <= found[1] <= found[0] <= found[2] <= 1


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(UserError, match="did you mean 'cartpole'"):
        gallery.main(["cartpol"])
