"""All rooms of functions together: all tested, none shadowed, pages up to date."""

import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from experiments import document_losses
from jaxrl import losses
from tests.losses.contract import ROOMS

MODULES = {
    m.__name__.removeprefix("jaxrl."): m
    for room in ROOMS.values()
    for m in document_losses.modules(room)
}
HERE = pathlib.Path(__file__).parents[1]
TESTS = sorted(path for room in ROOMS for path in (HERE / room).rglob("test_*.py"))
PUBLIC = [(m, function) for m in MODULES.values() for function in m.__all__]


def test_every_public_function_has_a_case_under_the_contract():
    tested = set()
    for path in TESTS:
        if path.stem != "test_index":
            name = ".".join(path.relative_to(HERE).with_suffix("").parts)
            module = importlib.import_module(f"tests.{name}")
            tested |= {case.function.__name__ for case in module.CASES}
    functions = {name for m, name in PUBLIC if inspect.isfunction(getattr(m, name))}
    assert functions - tested == set()


def test_names_are_unique_and_shadow_no_file():
    names = [function for _, function in PUBLIC]
    assert sorted(names) == sorted(set(names))
    assert not set(names) & {part for name in MODULES for part in name.split(".")[:2]}


@pytest.mark.parametrize("name", MODULES)
def test_all_functions_of_a_file_are_exported(name):
    module = MODULES[name]
    own = {
        n
        for n, x in vars(module).items()
        if inspect.isfunction(x) and x.__module__ == module.__name__ and not n.startswith("_")
    }
    assert own <= set(module.__all__)
    group = importlib.import_module(module.__name__.rsplit(".", 1)[0])
    for function in module.__all__:
        assert getattr(ROOMS[name.split(".")[0]], function) is getattr(module, function)
        assert getattr(group, function) is getattr(module, function)


@pytest.mark.parametrize("page", document_losses.PAGES, ids=lambda page: page.stem)
def test_a_page_is_up_to_date_with_the_docstrings(page):
    assert page.read_text() == document_losses.page_text(page), "run experiments/document_losses.py"


def example(page):
    """Run the longest example on a page, which imports only jaxrl, and return what it defines."""
    code = max(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), key=len)
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    assert set(re.findall(r"^(?:from|import) (jaxrl\S*)", code, re.MULTILINE)) == {"jaxrl"}
    found = {}
    exec(code, found)
    return found


def test_the_example_on_the_losses_page_learns():
    found = example(document_losses.LOSSES)
    np.testing.assert_allclose(found["quantiles"], [-1.28, 0, 1.28], atol=0.1)
    assert found["policy"][0] < 0.05
    np.testing.assert_allclose(found["corridor"], 0.9 ** np.arange(4, -1, -1), atol=1e-3)


def test_the_example_on_the_parts_page_samples_projects_and_solves():
    found = example(document_losses.PARTS)
    np.testing.assert_allclose(found["x"], [3], rtol=1e-6)
    np.testing.assert_allclose(found["update"], [1, 0])
    np.testing.assert_allclose(found["policy"], [1 / 3] * 3, atol=0.05)


@pytest.mark.slow
def test_importing_the_functions_imports_no_other_room():
    code = (
        f"import sys; from jaxrl import {', '.join(ROOMS)}; "
        "print([m for m in sys.modules if m.startswith(('flax', 'optax', 'distrax', 'orbax', "
        "'jaxrl.networks', 'jaxrl.algorithms', 'jaxrl.envs', 'jaxrl.runtime'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_alias_leads_to_a_function():
    """Check the page written by `python experiments/document_losses.py`."""
    assert (
        document_losses.BY_NAME.read_text() == document_losses.by_name()
    )  # raises if an alias leads nowhere
    everything = {function.lower() for _, function in PUBLIC}
    for alias, here in document_losses.aliases().items():
        if isinstance(here, str):
            assert "not here" in here.lower(), alias
            assert re.sub(r"\W+", "_", alias).lower() not in everything, alias
    wanted = {
        "UPGO",
        "SAC",
        "CISPO",
        "SimPO",
        "DPO",
        "PPO clip",
        "GAE",
        "V-trace",
        "Retrace",
        "C51",
    }
    assert wanted <= set(document_losses.aliases())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ppo", "what people call so is here: clipped_surrogate"),
        ("barlow_twins", "Not here; info_nce"),
        ("squared_eror", "did you mean 'squared_error'"),
        ("zzz", "jaxrl.losses has no 'zzz'."),
    ],
)
def test_a_name_that_is_not_here_leads_to_what_is_meant(name, said):
    with pytest.raises(AttributeError) as error:
        getattr(losses, name)
    assert said in str(error.value)
