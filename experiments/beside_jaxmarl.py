"""Train JaxMARL's own MAPPO in a cell of the suite `mpe`, as a figure that stands beside ours.

python experiments/beside_jaxmarl.py CLONE [--seeds N]

CLONE is a folder with JaxMARL's repository at `COMMIT`. Its `baselines/MAPPO/mappo_rnn_mpe.py` is
trained with the settings of its `config/mappo_homogenous_rnn_mpe.yaml`, but for the 128
environments and the 2M steps of the suite (there 16 and 10M). A seed's return is the mean over its
last 10 updates, of the actions that it learned from. The returns are written into
docs/suites/published/jaxmarl.yaml, from which `jaxrl suite mpe --pages` takes them.

It needs jaxmarl beside jaxrl's packages, and none of the others that its script imports to read its
settings and to log.
"""

# It imports a script of another repository, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import sys
import time
import types
from pathlib import Path
from typing import Any

COMMIT = "c793d095618c6d3edfb5632802348f57b70a4b94"
FILE = Path(__file__).resolve().parents[1] / "docs" / "suites" / "published" / "jaxmarl.yaml"
STEPS, LAST = 2_000_000, 10
SETTINGS = {
    "LR": 2e-3,
    "NUM_ENVS": 128,
    "NUM_STEPS": 128,
    "TOTAL_TIMESTEPS": STEPS,
    "FC_DIM_SIZE": 128,
    "GRU_HIDDEN_DIM": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "SCALE_CLIP_EPS": False,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ENV_NAME": "MPE_simple_spread_v3",
    "ENV_KWARGS": {},
    "ANNEAL_LR": True,
}


def load(clone: Path) -> tuple[Any, list[dict[str, Any]]]:
    """Return the module of JaxMARL's script, and the list that it logs into."""
    logged: list[dict[str, Any]] = []
    stand_ins: dict[str, Any] = {
        "hydra": types.SimpleNamespace(main=lambda **_: lambda function: function),
        "omegaconf": types.SimpleNamespace(OmegaConf=object),
        "wandb": types.SimpleNamespace(log=logged.append),
    }
    sys.modules.update(stand_ins)
    sys.path.insert(0, str(clone / "baselines" / "MAPPO"))
    import mappo_rnn_mpe

    return mappo_rnn_mpe, logged


def train(script: Any, logged: list[dict[str, Any]], seed: int) -> float:
    """Train one seed, and return the mean return of its last updates."""
    import jax

    logged.clear()
    jax.block_until_ready(jax.jit(script.make_train(dict(SETTINGS)))(jax.random.PRNGKey(seed)))
    jax.effects_barrier()
    returns = [float(x["returns"]) for x in sorted(logged, key=lambda x: int(x["env_step"]))]
    return sum(returns[-LAST:]) / LAST


def write(returns: list[float]) -> None:
    """Write the file of published figures."""
    import yaml

    source = (
        "`python experiments/beside_jaxmarl.py`: `baselines/MAPPO/mappo_rnn_mpe.py` of "
        "[JaxMARL](https://github.com/FLAIROx/JaxMARL), one policy of a GRU of 128 units for all "
        "agents, each learning from its own reward, and a critic with a GRU, with 128 environments "
        "and 2M steps; the mean of the last 10 updates, of sampled actions. Its repository has "
        "curves as pictures only."
    )
    result = {
        "suite": "mpe",
        "algorithm": "MAPPO, shared GRU",
        "seeds": len(returns),
        "steps": STEPS,
        "returns": {"simple_spread": [round(x, 2) for x in returns]},
        "versions": {"simple_spread": "MPE_simple_spread_v3"},
    }
    data = {
        "who": "JaxMARL's code, run here",
        "source": source,
        "commit": COMMIT,
        "licence": "Apache 2.0",
        "results": [result],
    }
    FILE.write_text(yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("clone", type=Path, metavar="CLONE")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    script, logged = load(arguments.clone)
    returns = []
    for seed in range(arguments.seeds):
        began = time.perf_counter()
        returns.append(train(script, logged, seed))
        print(
            f"seed {seed}: {returns[-1]:.1f} after {time.perf_counter() - began:.0f} s", flush=True
        )
    write(returns)


if __name__ == "__main__":
    main()
