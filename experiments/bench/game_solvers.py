"""Time counterfactual regret minimization in Kuhn and Leduc poker, beside OpenSpiel and LiteEFG.

    python experiments/bench/game_solvers.py
    python experiments/bench/game_solvers.py --peer-python .venv-games/bin/python

Prints seconds per 10,000 iterations of CFR with alternating updates on one thread, without
compilation, and the NashConv of the average afterwards. Peers are measured if `--peer-python` is an
interpreter that has `open_spiel` or `LiteEFG` (with `open_spiel` for its games), on fewer
iterations where they are slow, and skipped otherwise. OpenSpiel and LiteEFG tell suits in Leduc
poker apart (936 information sets); here they are alike (288), which changes no value. LiteEFG's
time includes its average, as here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time

ITERATIONS = 10_000
GAMES = ("kuhn_poker", "leduc_poker")
PEERS = {
    "OpenSpiel (C++)": """
import sys, time, pyspiel
game, count = pyspiel.load_game(sys.argv[1]), int(sys.argv[2])
solver = pyspiel.CFRSolver(game)
begin = time.perf_counter()
for _ in range(count):
    solver.evaluate_and_update_policy()
took = time.perf_counter() - begin
print(took, pyspiel.nash_conv(game, solver.average_policy()))
""",
    "LiteEFG (C++)": """
import sys, time, pyspiel, LiteEFG
from LiteEFG.baselines import CFR
game, count = pyspiel.load_game(sys.argv[1]), int(sys.argv[2])
if hasattr(LiteEFG, "set_threads"):
    LiteEFG.set_threads(1)
env = LiteEFG.OpenSpielEnv(game, traverse_type="Enumerate", regenerate=False)
graph = CFR.graph()
env.set_graph(graph)
begin = time.perf_counter()
for _ in range(count):
    graph.update_graph(env)
    env.update_strategy(graph.current_strategy(), update_best=False)
took = time.perf_counter() - begin
print(took, sum(env.exploitability(graph.current_strategy(), "avg-iterate")))
""",
}
COUNTS = {("OpenSpiel (C++)", "leduc_poker"): 100, ("LiteEFG (C++)", "leduc_poker"): 500}


def time_ours(name: str, repeats: int) -> tuple[float, float]:
    """Return the fewest seconds of `repeats` runs, and the NashConv of the average."""
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    import jax

    from jaxrl import envs
    from jaxrl.exact import games, regret, trees

    env = envs.make(name)
    assert env.rules is not None
    forest = trees.grow(games.enumerate_game(env.rules, env.params))
    solve = jax.jit(lambda: regret.counterfactual_regret(forest, ITERATIONS))
    program = solve.lower().compile()
    best, gap = float("inf"), 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        gap = float(jax.block_until_ready(program()).curve[-1].sum())
        best = min(best, time.perf_counter() - begin)
    return best, gap


def time_peer(python: str, peer: str, name: str) -> tuple[float, float] | None:
    """Return seconds per `ITERATIONS` and NashConv; None if the peer is not installed."""
    count = COUNTS.get((peer, name), ITERATIONS)
    command = [python, "-c", PEERS[peer], name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    took, gap = map(float, done.stdout.strip().splitlines()[-1].split())
    return took * ITERATIONS / count, gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer-python", default="", help="interpreter with open_spiel or LiteEFG")
    parser.add_argument("--repeats", type=int, default=3, help="runs of our side")
    options = parser.parse_args()
    for name in GAMES:
        ours, gap = time_ours(name, options.repeats)
        print(f"{name}: jaxrl {ours:.3g} s, NashConv {gap:.3g}", flush=True)
        for peer in PEERS if options.peer_python else ():
            found = time_peer(options.peer_python, peer, name)
            if found is None:
                print(f"{name}: {peer} is not installed", flush=True)
                continue
            theirs, gap = found
            ratio = f"{theirs / ours:.2g} times ours"
            print(f"{name}: {peer} {theirs:.3g} s, {ratio}, NashConv {gap:.3g}", flush=True)


if __name__ == "__main__":
    main()
