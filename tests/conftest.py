"""Compilation is what these tests pay for: cheap code generation, and one cache for all workers."""

import gc
import os
import pathlib
import platform
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that tests can import tests.*
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false "  # MLIR for each kernel: half of a compilation
    "--xla_force_host_platform_device_count=4"  # costs nothing where one device is used
)
if platform.machine() in ("x86_64", "AMD64"):
    # At level 0 and without the emitters, XLA of jax 0.10.2 computes NaN for some exponentials with
    # AVX (gradient descent on `sac_actor` in tests/losses/values/test_actor_critics.py shows it).
    FLAGS += " --xla_cpu_max_isa=SSE4_2"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

if not hasattr(jax, "enable_x64"):  # before jax 0.8
    from jax.experimental import enable_x64

    jax.enable_x64 = enable_x64

CACHE = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

hypothesis.settings.register_profile("jaxrl", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("jaxrl")

# Tests that compile whole algorithms, most of them large, and those that start, kill and resume
# processes: `make test-ci` has them, `make test` not.
SLOW = (
    "datasets",
    "experiments/test_sweep",
    "learning",
    "networks/test_recurrent_world",
    "networks/test_shortcut_world",
    "runtime/test_host",
    "runtime/test_resume",
    "runtime/test_stopping",
    "sweeps/test_sweeping",
    "runtime/test_tracking",
    "systems/evolution",
    "systems/games/test_populations",
    "systems/lifelong",
    "systems/meta",
)
SLOW_ENTRIES = ("dqn", "rainbow")  # of tests/contracts/algorithms.py


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        entry = item.callspec.params.get("name") if hasattr(item, "callspec") else None
        marked = item.get_closest_marker("rest") or path == "contracts/test_registry.py"
        if path.startswith(SLOW) or (entry in SLOW_ENTRIES and not marked):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Every compiled program takes memory maps, of which Linux gives a process 65,530: beyond these
    XLA crashes."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()
