"""Every check that is declared: its settings fit its systems, and it runs to its end."""

import pytest

from experiments.evidence import listing, measure, run, sides
from experiments.evidence.declare import Claim
from tests import rota

CHECKS = listing.discover(run.ROOT)


@pytest.mark.parametrize("id", CHECKS)
def test_sides_can_be_built_and_tuned(id):
    check = CHECKS[id].load()
    assert all((run.ROOT / part).is_file() for part in check.parts)
    tried = sides.trials(check, "full").values() if isinstance(check, Claim) else ()
    if tried and check.measure is None:
        measure.check(tried)
    for trial in tried:
        measure.built(trial)  # raises what does not fit


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=getattr(pytest.mark, rota.mark(id, 8))) for id in CHECKS]
)
def test_a_tiny_attempt_runs_to_its_end(id, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "STORE", tmp_path)
    assert run.attempted(CHECKS[id], "tiny").startswith("inconclusive: A tiny attempt only tests")
