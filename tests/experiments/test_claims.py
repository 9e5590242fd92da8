"""Every declared claim: its settings fit its algorithms, and it runs to its end."""

import pytest

from experiments.evidence import listing, measure, mutate, run, sides
from experiments.evidence.declare import Claim
from tests import rota

CLAIMS = listing.discover(run.ROOT)


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=getattr(pytest.mark, rota.mark(id, 3))) for id in CLAIMS]
)
def test_sides_can_be_built_and_tuned(id):
    claim = CLAIMS[id].load()
    assert all((run.ROOT / part).is_file() for part in claim.parts)
    tried = sides.trials(claim, "full").values() if isinstance(claim, Claim) else ()
    if tried and claim.measure is None:
        measure.check(tried)
    for trial in tried:
        measure.build(trial)  # raises if settings do not fit


@pytest.mark.parametrize("id", CLAIMS)
def test_mutations_are_of_attributes_that_exist(id):
    for mutation in CLAIMS[id].load().mutations:
        with mutate.apply(mutation):
            pass


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=getattr(pytest.mark, rota.mark(id, 8))) for id in CLAIMS]
)
def test_a_tiny_attempt_runs_to_its_end(id, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "STORE", tmp_path)
    assert run.attempt_claim(CLAIMS[id], "tiny").startswith(
        "inconclusive: A tiny attempt only tests"
    )
