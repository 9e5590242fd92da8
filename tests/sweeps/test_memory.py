"""The number of members that fit the memory."""

import math

import jax
import pytest

from jaxrl.runtime.building import build, program
from jaxrl.runtime.driver import Program
from jaxrl.runtime.members import seed_members
from jaxrl.sweeps import memory
from tests.runtime import tiny


@pytest.mark.parametrize("members", range(1, 30))
def test_chunks_fit_are_even_and_as_few_as_can_be(members):
    for most in range(1, members + 2):
        chunk = memory.even_chunk(members, 100 * members, math.ceil(100 * most / memory.USED))
        assert 1 <= chunk <= min(most, members)
        chunks = math.ceil(members / chunk)
        assert chunks == math.ceil(members / min(most, members))
        assert chunk == math.ceil(members / chunks)
    assert memory.even_chunk(members, 10**9, 1) == 1


def test_what_the_host_has_free(tmp_path):
    meminfo = tmp_path / "meminfo"
    assert memory.host_bytes(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal:       9000 kB\nMemAvailable:    5000 kB\nHugePages_Total:  0\n")
    assert memory.host_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.host_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("31000\n")
    assert memory.host_bytes(meminfo, tmp_path) == 30000


def test_a_program_is_cut_where_its_members_do_not_fit(monkeypatch):
    config = tiny.config(seeds=4)
    _, algorithm = build(config)
    members = seed_members(config)
    prog = program(config, algorithm, members)
    assert isinstance(prog, Program)
    shapes = prog.shapes(members.keys(config.generator))
    needed = prog.bytes(shapes)
    assert memory.size(shapes) < needed < 1000 * memory.size(shapes)
    free = lambda count: monkeypatch.setattr(memory, "available", lambda: count)
    copy = memory.size(shapes) if jax.devices()[0].platform == "cpu" else 0
    said: list[str] = []
    for count, width in ((None, 4), (2**60, 4), ((needed + copy) / memory.USED / 1.9, 2), (1, 1)):
        free(count and int(count))
        assert memory.width(config, algorithm, members, said.append) == width
    assert said == ["Measuring the memory of 4 members ..."] * 2
