"""The page of environments: complete, drawn, and what the docstrings say."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import gallery
from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation.evaluate import Episodes
from jaxrl.evaluation.statistics import mean_interval, rate_interval


def test_the_page_is_what_the_registry_and_the_docstrings_say():
    written = gallery.PAGE.read_text()
    assert written == gallery.page(gallery.PICTURES), "run python experiments/gallery.py"
    figures = json.loads((gallery.PICTURES / gallery.FIGURES).read_text())
    assert sorted(figures) == list(envs.names())
    for name in envs.names():
        assert f"### {name}\n" in written
        assert (gallery.PICTURES / f"{name}.png").exists(), f"python experiments/gallery.py {name}"
        assert ("expert" in figures[name]) == (envs.make(name).expert is not None)


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
        ([0.0, 0.0, 0.5, 0.9], [0.0, 0.0, 0.0, 1.0], mean_interval),  # something else is rewarded
        ([-1.0, -1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 1.0], mean_interval),
        ([0.0, 0.0, 0.0, 1.0], None, mean_interval),
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
    assert (found[1] < 0) == (interval is mean_interval)


def test_an_unknown_name_is_one_sentence():
    with pytest.raises(UserError, match="did you mean 'cartpole'"):
        gallery.main(["cartpol"])
