"""Write a trained policy to a file: `jaxrl export runs/ppo-cartpole-0001 --format numpy`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxrl
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError, unknown

if TYPE_CHECKING:
    from jaxrl.runtime.continuing import Trained

FORMATS = {
    "stablehlo": "policy.stablehlo",
    "onnx": "policy.onnx",
    "numpy": "policy.npz",
    "weights": "policy.zip",
    "safetensors": "model",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `jaxrl export`."""

    format: str = "stablehlo"
    """Format: stablehlo (for JAX), onnx (by jax2onnx), numpy (for a reader that needs NumPy
    alone), weights (for jaxrl alone) or safetensors (for language models). StableHLO runs on CPU,
    GPU and TPU; safetensors is a folder like the one that --model named, adapters merged."""
    member: int = 0
    """Member of the run (the first is 0) whose policy is exported."""
    out: str = ""
    """File to write; empty for policy.stablehlo, policy.onnx, policy.npz, policy.zip or the folder
    model in the run's folder."""
    trust: bool = False
    """Import code outside of jaxrl that the run names; importing it runs it."""


def main(argv: Sequence[str]) -> int:
    usage = "jaxrl export RUN [options]"
    (folder,), options = command_line.positionals_and_options(
        argv, Options, usage, command_line.is_folder
    )
    if options.format not in FORMATS:
        raise unknown("value of --format", options.format, FORMATS)
    path = Path(options.out) if options.out else Path(folder) / FORMATS[options.format]
    try:
        export(Path(folder), path, options)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written: {error.strerror}.") from error
    return 0


def export(folder: Path, path: Path, options: Options) -> None:
    """Write the policy of the run in `folder` to `path`, and print what was written."""
    from jaxrl.export import compiled, numpy_program, numpy_reader
    from jaxrl.export.acting import acting
    from jaxrl.runtime import configuration, policy_files
    from jaxrl.runtime.building import configure_jax
    from jaxrl.runtime.continuing import load

    trained = load(folder, options.member, options.trust)
    configure_jax(trained.config)
    config = trained.config
    about = {
        "env": config.env,
        "env_params": config.env_params,
        "wrappers": config.wrappers,
        "algorithm": config.algorithm,
        "step": trained.step,
        "jaxrl": jaxrl.__version__,
    }
    if options.format == "weights":
        about["settings"] = configuration.to_dict(config)
        policy_files.write(trained.env, trained.policy, path, about)
        print(f"Written to {path}")
        return
    if options.format == "safetensors":
        _write_model(folder, trained, path)
        print(f"Written to {path}")
        return
    function = acting(trained.env, trained.policy)
    if options.format == "stablehlo":
        compiled.write_stablehlo(function, path, about)
    elif options.format == "onnx":
        compiled.write_onnx(function, path, about)
    else:
        numpy_program.write(function, path, about)
        shutil.copyfile(numpy_reader.__file__, path.with_name("numpy_reader.py"))
        print(f"Read it with {path.with_name('numpy_reader.py')}, which needs NumPy alone.")
    memory = f", memory: {', '.join(sorted(function.memory))}" if function.memory else ""
    print(f"Inputs: {', '.join(sorted(function.inputs))}{memory}. Greedy actions.")
    print(f"Written to {path}")


def _write_model(folder: Path, trained: Trained, path: Path) -> None:
    """Write the language model that the run in `folder` trained. Raises `UserError` if it trained
    none."""
    from jaxrl.algorithms.tokens.shared.models import token_network
    from jaxrl.kit.wrapping import params_of
    from jaxrl.networks import decoder_files

    settings = trained.config.agent
    if not getattr(getattr(settings, "decoder", None), "model", ""):
        raise UserError(
            f"The policy in '{folder}' did not begin as a language model (--model FOLDER), so it "
            "cannot be written as safetensors; choose another --format."
        )
    network: Any = token_network(trained.env, settings)
    decoder_files.write(network, params_of(trained.policy.state)["actor_critic"], path)
