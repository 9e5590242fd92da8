"""Train a grid of hyperparameters times seeds:

python experiments/sweep.py configs/ppo/cartpole.yaml --seeds 8 --vary agent.learning-rate=1e-4,1e-3
"""

from jaxrl.commands.sweep import main
from jaxrl.runtime import command_line

if __name__ == "__main__":
    command_line.run(main)
