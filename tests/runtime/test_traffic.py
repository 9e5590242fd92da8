"""Traffic between devices: counts against sums by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrl.runtime.traffic import count_traffic

FLOAT = 4


def compile_text(function, *given, out=None, shape=(2, 2)):
    """The text of a function of arrays, each with its PartitionSpec, on a mesh of axes a and b."""
    devices = jax.devices()[: shape[0] * shape[1]]
    mesh = jax.make_mesh(shape, ("a", "b"), (AxisType.Auto,) * 2, devices=devices)
    place = lambda spec: NamedSharding(mesh, PartitionSpec(*spec))
    arrays = [jax.device_put(x, place(spec)) for x, spec in given]
    return jax.jit(function, out_shardings=place(out or ())).lower(*arrays).compile().as_text()


X = jnp.ones((8, 16)), ("a", None)


def test_sums_and_gathers_send_what_a_ring_does():
    whole = count_traffic(compile_text(lambda x: x.sum(0), X))
    assert whole.bytes == {"all-reduce": 2 * 16 * FLOAT / 2} and whole.open_loops == 0
    assert count_traffic(compile_text(lambda x: x + 1, X)).bytes == {
        "all-gather": 8 * 16 * FLOAT / 2
    }
    four = count_traffic(compile_text(lambda x: x + 1, X, shape=(4, 1)))
    assert four.total == 8 * 16 * FLOAT * 3 / 4
    assert count_traffic(compile_text(lambda x: x + 1, X, out=("a", None))).total == 0


def test_loops_count_as_often_as_they_run():
    def body(x):
        return jnp.tanh(x) + jnp.tanh(x).sum()

    known = lambda x: jax.lax.fori_loop(0, 5, lambda i, x: body(x), x)
    once = 2 * FLOAT / 2
    found = count_traffic(compile_text(known, X, out=("a", None)))
    assert found.bytes == {"all-reduce": 5 * once} and found.open_loops == 0

    def unknown(x, n):
        again = lambda i, x: jax.lax.fori_loop(0, n, lambda i, x: body(x), x)
        return jax.lax.fori_loop(0, n, again, x)

    found = count_traffic(compile_text(unknown, X, (jnp.int32(3), ()), out=("a", None)))
    assert found.bytes == {"all-reduce": once} and found.open_loops == 2


HLO = """HloModule made_up, num_partitions=8

%most (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
}

%least (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %r.1 = f32[8]{0} collective-permute(%q), source_target_pairs={{0,1},{1,0}}
}

ENTRY %main (a: f32[8], i: s32[]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %c = f32[8]{0} conditional(%i, %a, %a), branch_computations={%least, %most}
  %o = f32[6]{0} all-reduce(%a), replica_groups=ORDERED {'a'}, to_apply=%add
  %s = (bf16[4,2]{1,0:T(8,128)}, bf16[2]{0}, bf16[16,2]{1,0}, bf16[8]{0}) GATHER
  %d = (bf16[16,2]{1,0}, bf16[8]{0}) all-gather-done(%s)
  %e = f32[16]{0} all-reduce(%a), replica_groups={}, to_apply=%add
  %w = (pred[6]{0}, s32[2]{0}) reduce-scatter(%a, %c), replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %t = f32[8]{0} all-to-all(%a), replica_groups=mesh['x'=2,'y'=4] {'x','y'}, dimensions={0}
}
"""
GATHER = "all-gather-start(%x, %y), replica_groups={{0,1},{2,3}}, dimensions={0}"
ORDERED = "mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0))"
HLO = HLO.replace("GATHER", GATHER).replace("ORDERED", ORDERED)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        # The larger branch, all, and four in an order of their own.
        ("all-reduce", 2 * 32 * 3 / 4 + 2 * 64 * 7 / 8 + 2 * 24 * 3 / 4),
        ("all-gather", (16 * 2 + 8) * 2 / 2),  # of the pair of results, not of operands
        ("reduce-scatter", (6 + 8) * 3),
        ("all-to-all", 32 * 7 / 8),
        ("collective-permute", None),
    ],
)
def test_every_kind_of_text(kind, size):
    assert count_traffic(HLO).bytes.get(kind) == size
