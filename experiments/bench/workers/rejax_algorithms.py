"""DQN, SAC of either kind of actions and PQN with rejax 0.1.3."""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring
import rejax_side


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax.numpy as jnp
    import rejax
    from flax import linen as nn
    from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

    shared = arguments.config
    name, hidden = shared["algorithm"], tuple(shared["hidden"])
    env_steps = arguments.envs * shared["num_steps"]

    def create(updates, points):
        steps = points * updates * env_steps
        settings = {
            "env": shared["peer_environment"],
            "num_envs": arguments.envs,
            "total_timesteps": steps,
            "eval_freq": updates * env_steps,
            "learning_rate": shared["learning_rate"],
            "gamma": shared["discount"],
        }
        if "epsilon_steps" in shared:
            settings["exploration_fraction"] = shared["epsilon_steps"] / steps
        if name == "pqn":
            return rejax.PQN.create(
                num_steps=shared["num_steps"],
                num_epochs=shared["epochs"],
                num_minibatches=shared["minibatches"],
                td_lambda=shared["q_lambda"],
                **settings,
            ).replace(agent=EpsilonGreedyPolicy(Convolutional)(hidden, normalize, 3))
        settings |= {
            "buffer_size": shared["capacity"],
            # It learns in the window that begins with more steps than these.
            "fill_buffer": shared["warmup"] - 1,
            "batch_size": shared["batch_size"],
            "num_epochs": shared["updates"],
            "polyak": 1 - shared["rate"],
            "agent_kwargs": {"activation": shared["activation"]},
        }
        if name in ("sac", "discrete_sac"):
            if "target_entropy" in shared:
                settings["target_entropy_ratio"] = shared["target_entropy"]
            return rejax.SAC.create(hidden_layer_sizes=hidden, **settings)
        assert hidden == (64, 64), "rejax's DQN has no other widths."
        return rejax.DQN.create(ddqn=False, **settings)

    def normalize(x):
        return nn.relu(nn.LayerNorm()(x))

    class Convolutional(DiscreteQNetwork):
        """The network of PQN's authors for MinAtar; rejax's own flattens images."""

        @nn.compact
        def __call__(self, obs):
            x = obs
            for channels in shared["channels"]:
                x = self.activation(nn.Conv(channels, (3, 3), padding="VALID")(x))
            x = x.reshape(x.shape[0], -1)
            for width in self.hidden_layer_sizes:
                x = self.activation(nn.Dense(width)(x))
            return nn.Dense(self.action_dim)(x)

    def greedy(algorithm, state):
        """Act greedily: its own `make_act` explores, or samples."""

        def act(observation, key):
            if name in ("dqn", "pqn"):
                return algorithm.agent.apply(state.q_ts.params, observation[None]).argmax(-1)[0]
            actor, params = algorithm.actor, state.actor_ts.params
            policy = actor.apply(params, observation[None], method="_action_dist")
            if name == "discrete_sac":
                return policy.mode()[0]
            return jnp.squeeze(actor.action_loc + jnp.tanh(policy.loc) * actor.action_scale)

        return act

    return rejax_side.work(arguments, create, greedy)


if __name__ == "__main__":
    measuring.main(rejax_side.load, work)
