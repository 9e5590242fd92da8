"""A worker in a process of its own: fresh imports, fresh compilation, its own peak of memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def environment(ours: bool) -> dict[str, str]:
    """This process's, without a persistent compilation cache; our package is found from here,
    and the peer sees nothing of it."""
    found = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    path = found.pop("PYTHONPATH", None)
    if ours:
        found["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *([path] if path else [])])
    return found | {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def run(
    python: str, script: Path, options: Mapping[str, Any], ours: bool, timeout: float
) -> dict[str, Any]:
    """The worker's result, or `{"failure": one sentence}` where it crashed or hung; and
    `process_s`, `first_result_s`: seconds from the spawn to its end and to its first result."""
    command = [python, str(script), *flags(options)]
    spawned, clock = time.time(), time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(ours),
        cwd=REPOSITORY,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end(process)
        return {"failure": f"no result within {timeout:.0f} s, so it was ended", "hung": True}
    except BaseException:
        end(process)
        raise
    result = parse(out)
    if result is None:
        lines = (err or out).strip().splitlines() or ["nothing was printed"]
        return {"failure": f"exit status {process.returncode}: {lines[-1][:300]}"}
    if "first_result_at" in result:
        result["first_result_s"] = result.pop("first_result_at") - spawned
    return result | {"process_s": time.perf_counter() - clock}


def flags(options: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in options.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        found += ["--" + name.replace("_", "-"), text]
    return found


def parse(out: str) -> dict[str, Any] | None:
    """The last line that is a result; libraries may print what they like before and after it."""
    for line in reversed(out.splitlines()):
        if line.startswith('{"bench":'):
            try:
                return json.loads(line)["bench"]
            except ValueError:
                continue
    return None


def end(process: subprocess.Popen[str]) -> None:
    """Ends the worker and what it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()
