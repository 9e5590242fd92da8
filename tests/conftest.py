"""Compilation is what these tests pay for: cheap code generation, and one cache for all workers."""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import os
import pathlib
import platform
import sys
import tempfile
from importlib import metadata

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that tests can import tests.*
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false "  # MLIR for each kernel: half of a compilation
    "--xla_force_host_platform_device_count=8"  # costs nothing where one device is used
)
if platform.machine() in ("x86_64", "AMD64"):
    # At level 0 and without the emitters, XLA of jax 0.10.2 computes NaN for some exponentials with
    # AVX (gradient descent on `sac_actor` in tests/losses/values/test_actor_critics.py shows it).
    FLAGS += " --xla_cpu_max_isa=SSE4_2"
# The last of two equal flags counts: those of the environment prevail (tests/suites.py has some).
flags = f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}".split()
if tuple(int(part) for part in metadata.version("jaxlib").split(".")[:2]) >= (0, 11):
    # It has the emitters always, and aborts where it meets a flag that it does not know.
    flags = [flag for flag in flags if not flag.startswith("--xla_cpu_use_fusion_emitters")]
os.environ["XLA_FLAGS"] = " ".join(flags)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

from tests import rota  # noqa: E402

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
    "algorithms/evolution",
    "algorithms/games/test_populations",
    "algorithms/lifelong",
    "algorithms/meta",
    "datasets",
    "experiments/test_sweep",
    "learning",
    "networks/test_recurrent_world",
    "networks/test_shortcut_world",
    "runtime/test_host",
    "runtime/test_resume",
    "runtime/test_stopping",
    "runtime/test_tracking",
    "sweeps/test_sweeping",
)
SLOW_ENTRIES = ("dqn", "rainbow")  # of tests/contracts/algorithms.py


def pytest_configure(config):
    """Plan the run once, for all workers, which inherit the environment."""
    if rota.PLAN in os.environ:
        return
    by_name = config.args_source is config.ArgsSource.ARGS or bool(config.option.keyword)
    plan = dataclasses.replace(rota.plan(), everything=by_name)
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        file.write(plan.dump())
    os.environ[rota.PLAN] = file.name
    rota.plan.cache_clear()
    config.add_cleanup(functools.partial(os.remove, file.name))
    config.add_cleanup(functools.partial(os.environ.pop, rota.PLAN))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"rota: {rota.plan()}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        params = item.callspec.params if hasattr(item, "callspec") else {}
        marked = item.get_closest_marker("rest") or path == "contracts/test_registry.py"
        if path.startswith(SLOW) or (params.get("name") in SLOW_ENTRIES and not marked):
            item.add_marker(pytest.mark.slow)
        name = getattr(item, "originalname", item.name)
        if rota.plan().rests(f"tests/{path}", name, rota.label(params.get("case"))):
            item.add_marker(pytest.mark.rest)


class Memory:
    """Memory of this process, which compiled programs fill: about 2 MB each.

    They take memory maps too, of which Linux gives a process 65,530; beyond these XLA crashes. The
    maps grow with the memory (about 3,500 at 1.3 GB), which is cheaper to read.
    """

    LIMIT, STEP = 1_300, 400  # MB
    statm = pathlib.Path("/proc/self/statm")

    def __init__(self) -> None:
        self.limit = self.LIMIT

    def megabytes(self) -> float:
        """Return the resident memory, 0 if it is unknown."""
        if not self.statm.exists():
            return 0
        return int(self.statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def limit_use(self) -> None:
        """Drop compiled programs if memory exceeds the limit, which is raised if dropping them
        does not get far below it."""
        if self.megabytes() > self.limit:
            jax.clear_caches()
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):  # another libc
                ctypes.CDLL("libc.so.6").malloc_trim(0)
            self.limit = max(self.LIMIT, self.megabytes() + self.STEP)


MEMORY = Memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    MEMORY.limit_use()
