"""The learned policy gradient (LPG; Oh et al., 2020, arXiv:2007.08794), optionally temporally aware
(TA-LPG; Jackson et al., 2024, arXiv:2402.05828).

The learner has a policy pi and a prediction y, a categorical distribution over m entries with no
predefined meaning. A rule with parameters eta reads a window backwards and outputs for each step
how much more likely to make the action, pi_hat, and a target for the prediction, y_hat. The learner
follows

    E[pi_hat grad log pi(a | s) - prediction_weight grad KL(y(s) || y_hat)]

(LPG, equation 1), where pi_hat and y_hat are constants of this gradient. They are not constants of
the gradient with respect to eta, which flows through them and through the whole history of the
learner's parameters, so nothing here stops a gradient.

The rule reads (TA-LPG, equation 9) r, d, gamma, pi(a | s), phi(y(s)), phi(y(s')), n / N and log N,
where n of the N steps of the learner's lifetime are over. Here N in log N counts updates, not
environment steps, so that it is of order one; d tells whether the step terminated, and s' is the
true successor of a truncated step, which the papers' environments do not distinguish.

eta is part of the agent's state, `rule`: `ta_lpg` learns it; an ordinary run loads it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zipfile
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.hyper import MANY, WIDE, check, hypers, select
from jaxrl.core.learn import learn
from jaxrl.core.spaces import Space
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Info, TimeStep, Tree, struct
from jaxrl.kit import hyper, static
from jaxrl.kit.groups import TRANSFORMATIONS, plain_optimizer
from jaxrl.kit.optimization import descend
from jaxrl.networks import encoders
from jaxrl.networks.dense import dense
from jaxrl.networks.heads import Distribution, PolicyHead, check_discrete
from jaxrl.networks.initializers import initializer
from jaxrl.networks.learned_rules import BackwardRule
from jaxrl.networks.torsos import ACTIVATIONS, MLP
from jaxrl.sources.rollouts import rollouts


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of LPG."""

    rule: str = ""
    """File of the rule (.npz), as written by `experiments/export_rule.py`; `bootstrap` and
    `rule_width` must match it."""
    num_envs: int = static(16, low=1, high=MANY)
    """Number of parallel environments."""
    num_steps: int = static(16, low=1, high=MANY)
    """Steps of each environment between two updates."""

    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers of the policy, and of those of the prediction; none for a
    table."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """Activation function of the hidden layers."""
    optimizer: str = static("sgd", choices=TRANSFORMATIONS)
    """Optimizer of the learner."""
    bootstrap: int = static(8, low=1, high=WIDE)
    """Number of entries of the learner's prediction (m)."""
    rule_width: int = static(16, low=1, high=WIDE)
    """Width of the rule's LSTM."""

    learning_rate: float = hyper(1.0, low=0, log=True)
    """Step size of the learner."""
    max_grad_norm: float = hyper(math.inf, above=0, high=math.inf)
    """Maximum global norm of the learner's gradients; longer ones are scaled down. Infinite for no
    limit."""
    prediction_weight: float = hyper(0.5, low=0)
    """Weight of the prediction's loss (alpha_y)."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per step, an input of the rule."""
    lifetime: float = hyper(65_536.0, above=0)
    """Environment steps of the learner's whole lifetime, an input of the rule."""
    clock: float = hyper(1.0, low=0, high=1)
    """Factor of the rule's time inputs: 1 for TA-LPG, 0 for LPG."""


class Learner(nn.Module):
    """Policy and prediction, each with its own torso; tables if there are no widths."""

    observation_space: Space
    action_space: Space
    widths: tuple[int, ...]
    activation: str
    bootstrap: int

    def setup(self):
        self.actor = MLP(self.widths, self.activation)
        self.predictor = MLP(self.widths, self.activation)
        self.head = PolicyHead(self.action_space)
        self.prediction = dense(self.bootstrap, initializer("lecun", 1.0))

    def __call__(self, timestep: TimeStep) -> tuple[Distribution, Array]:
        """Return the policy [...] and the prediction's logits [..., m] at a time step [...]."""
        x = encoders.features(self.observation_space, timestep)
        policy = self.head(self.actor(x), timestep.legal_actions)
        return policy, self.prediction(self.predictor(x))


@struct
class State:
    """State of the LPG agent."""

    rule: Tree  # eta
    params: Tree
    optimizer: Tree
    hyper: Tree


def network(env: Environment, config: Config) -> Any:
    """Return the learner's network."""
    return Learner(
        env.observation_space, env.action_space, config.hidden, config.activation, config.bootstrap
    )


def clock(env_steps: Array, window: int, hyper: Any) -> Array:
    """Return the rule's time inputs [2]: n / N, starting from 0 at the first update, and the log of
    N in updates. `env_steps` environment steps were taken, the last `window` of which are learned
    from now."""
    age = jnp.clip((env_steps - window) / hyper["lifetime"], 0.0, 1.0)
    return hyper["clock"] * jnp.stack([age, jnp.log(hyper["lifetime"] / window)])


def agent(env: Environment, config: Config) -> Agent:
    """Return the LPG agent for `env`. Its rule is random unless `config.rule` names a file."""
    _check(env, config)
    learner = network(env, config)
    rule_network: Any = BackwardRule(config.bootstrap, config.rule_width)
    optimizer = plain_optimizer(config.optimizer)
    window = config.num_envs * config.num_steps

    def init(key, hyper):
        rule_key, key = jax.random.split(key)
        params = learner.init(key, example_timestep(env))
        number, flag = jnp.zeros((1, 1)), jnp.zeros((1, 1), bool)
        y = jnp.zeros((1, 1, config.bootstrap))
        numbers = (number, flag, flag, jnp.zeros(()), number, y, y, jnp.zeros(2))
        rule = rule_network.init(rule_key, *numbers)
        if config.rule:
            rule = load_rule(config.rule, rule)
        return State(rule, params, optimizer.init(params), select(config, hyper))

    def act(state, timestep, memory, key, greedy):
        policy, _ = learner.apply(state.params, timestep)
        return (policy.mode() if greedy else policy.sample(seed=key)), memory, {}

    def update(state, batch, key):
        hyper, transitions = state.hyper, batch.transitions
        policy, y = learner.apply(state.params, transitions.timestep)
        _, next_y = learner.apply(state.params, transitions.next_timestep)
        signal, target = rule_network.apply(
            state.rule,
            transitions.reward,
            transitions.terminated,
            transitions.done,
            hyper["discount"],
            jnp.exp(policy.log_prob(transitions.action)),
            jax.nn.softmax(y),
            jax.nn.softmax(next_y),
            clock(batch.env_steps, window, hyper),
        )

        def loss(params):
            # Not `losses.policy_gradient`: it stops the gradient of its advantage, which would cut
            # the gradient with respect to the rule. Here signal and target are constants only of
            # this gradient.
            policy, y = learner.apply(params, transitions.timestep)
            divergence = losses.categorical_kl(y, target).mean()
            policy_loss = -(signal * policy.log_prob(transitions.action)).mean()
            info = {"policy_loss": policy_loss, "prediction_kl": divergence}
            return policy_loss + hyper["prediction_weight"] * divergence, info

        gradient, info = jax.grad(loss, has_aux=True)(state.params)
        params, optimizer_state, norm = descend(
            optimizer,
            gradient,
            state.optimizer,
            state.params,
            hyper["learning_rate"],
            hyper["max_grad_norm"],
        )
        info |= {
            "entropy": policy.entropy().mean(),
            "signal_square": (signal**2).mean(),
            "target_square": (jax.nn.softmax(target) ** 2).sum(-1).mean(),
            "grad_norm": norm,
            "weight_norm": optax.tree.norm(params),
        }
        return State(state.rule, params, optimizer_state, hyper), Info(info)

    return Agent("lpg", init, act, update, hyper=hypers(config), config=config)


def lpg(env: Environment, config: Config = Config()) -> Algorithm:
    """Build LPG with the rule in `config.rule`, learning from rollouts of `env`. The same arguments
    give the same object. Raises `UserError` if there is no rule, if its sizes differ from
    `config`'s, or if the actions of `env` are not discrete."""
    return _build(env, config)  # one cache entry however the arguments are passed


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    if not config.rule:
        raise UserError("lpg needs a rule, the file that experiments/export_rule.py writes.")
    return on_rollouts(env, config)


def on_rollouts(env: Environment, config: Config, tasks: Any = None) -> Algorithm:
    """Build LPG on rollouts of `env`, with a random rule if `config` names none."""
    algorithm = learn(agent(env, config), rollouts(env, config.num_envs, config.num_steps, tasks))
    # Each update is of the whole window, so the environments may be split in any way.
    return dataclasses.replace(algorithm, num_shards=config.num_envs)


def save_rule(path: str | Path, rule: Tree) -> None:
    """Write `rule`, the `State.rule` of an LPG agent, as a .npz file of its arrays by their
    path."""
    leaves = jax.tree_util.tree_leaves_with_path(rule)
    with Path(path).open("wb") as file:
        arrays: Any = {jax.tree_util.keystr(name): np.asarray(x) for name, x in leaves}
        np.savez(file, **arrays)


def load_rule(path: str | Path, like: Tree) -> Tree:
    """Load a rule that `save_rule` wrote. Raises `UserError` if there is none, and if its arrays do
    not match those of `like`."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is not a readable rule: {error}") from error
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(name): x.shape for name, x in leaves}
    if {name: x.shape for name, x in arrays.items()} != wanted:
        raise UserError(
            f"The rule in '{path}' has other sizes than this agent's; bootstrap and rule_width "
            "must be those it was learned with."
        )
    found = [jnp.asarray(arrays[name], jnp.float32) for name in wanted]
    return jax.tree_util.tree_unflatten(structure, found)


def _check(env: Environment, config: Config) -> None:
    check(config)
    check_discrete(env.action_space, "lpg")  # it reads the probability of an action


# The rule is missing, since it is a file that `save_rule` writes.
TINY = {
    "env": "random_mdp", "env_params": {"num_states": 4, "num_actions": 3}, "num_envs": 4,
    "num_steps": 4, "bootstrap": 3, "rule_width": 4,
}  # fmt: skip
