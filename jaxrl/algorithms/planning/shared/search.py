"""Monte Carlo tree search over any model, by mctx, and the environment itself as a model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mctx

from jaxrl.core import trees
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.networks.heads import ILLEGAL

SEARCHES = ("puct", "gumbel")

# What a model and its root are given as; type checkers see no fields in these.
RootOutput: Any = mctx.RootFnOutput
ModelOutput: Any = mctx.RecurrentFnOutput


@struct
class Searched:
    """What a search says of its roots [B]."""

    action: Array  # [B]
    policy: Array  # [B, actions]: what the policy is to learn
    value: Array  # [B]


def search(
    kind: str,
    model: Any,
    params: Tree,
    root: Any,
    legal_actions: Array | None,
    key: Key,
    simulations: int,
    greedy: bool,
    temperature: Array | float = 1.0,
    dirichlet_alpha: Array | float = 0.3,
    dirichlet_fraction: Array | float = 0.25,
) -> Searched:
    """`simulations` simulations from each root [B], and the action that they propose.

    kind: `puct`, MuZero's (Schrittwieser et al., 2020, appendix B): the rule of eq. 2, noise of a
        Dirichlet distribution on the root's prior, actions drawn in proportion to
        visits ** (1 / temperature); the policy is the visits' share. `gumbel`, Gumbel MuZero's
        (Danihelka et al., 2022): sequential halving over actions that are drawn without
        replacement; the policy is the improved policy of completed Q-values.
    model: `model(params, key, action [B], embedding [B, ...])` -> (ModelOutput, embedding), and
        root: a RootOutput, as mctx has them: values are those of
        the player to move, so that a discount is negative where the turn passes on.
    legal_actions: bool [B, actions]: what the root may choose (the model may do anything).
    simulations: 0 does without: the action is drawn from the root's prior, which is the policy.
    greedy: without any noise, the action that the search prefers.
    """
    illegal: Any = None if legal_actions is None else ~legal_actions
    result: Any
    if simulations == 0:
        logits = root.prior_logits
        logits = logits if illegal is None else jnp.where(illegal, ILLEGAL, logits)
        action: Any = logits.argmax(-1) if greedy else jax.random.categorical(key, logits)
        return Searched(action.astype(jnp.int32), jax.nn.softmax(logits), root.value)
    if kind == "gumbel":
        scale = 0.0 if greedy else 1.0
        result = mctx.gumbel_muzero_policy(
            params, key, root, model, simulations, illegal, gumbel_scale=scale
        )
    else:
        result = mctx.muzero_policy(
            params,
            key,
            root,
            model,
            simulations,
            illegal,
            dirichlet_fraction=0.0 if greedy else dirichlet_fraction,
            dirichlet_alpha=dirichlet_alpha,
            temperature=0.0 if greedy else temperature,
        )
    # As mctx has it: the mean of what the simulations found, the root's own value among them.
    value = result.search_tree.summary().value
    return Searched(result.action.astype(jnp.int32), result.action_weights, value)


def of_mover(timestep: TimeStep, reward: Array) -> Array:
    """`reward` [...] of a step from `timestep`; of a game's rewards [..., 2] that of whoever moved,
    `timestep.role`."""
    if reward.ndim == timestep.first.ndim:
        return reward
    role: Any = timestep.role
    return jnp.take_along_axis(reward, role[..., None], -1)[..., 0]


def simulator(env: Environment, discount: Array | float = 1.0, rollout: int = 0):
    """`env` itself as a model to search: `root(state, timestep)` [B] and `model` for `search`. No
    policy is known: priors are uniform over legal actions. A new leaf is worth what its mover gets,
    discounted, in `rollout` random steps, as in UCT (Kocsis and Szepesvari, 2006). After a
    terminated or truncated step nothing more is to be had."""
    space: Any = env.action_space
    actions = space.n
    players = jax.eval_shape(lambda key: env.reset(key, env.params)[1], jax.random.key(0)).reward
    turn = -discount if players.shape else discount

    def prior(timestep: TimeStep) -> Array:
        legal = timestep.legal_actions
        shape = (*timestep.first.shape, actions)
        return jnp.zeros(shape) if legal is None else jnp.where(legal, 0.0, ILLEGAL)

    def root(state: Tree, timestep: TimeStep) -> Any:
        logits = prior(timestep)
        return RootOutput(
            prior_logits=logits, value=jnp.zeros(logits.shape[0]), embedding=(state, timestep)
        )

    def move(params, key, action, position):
        """The mover's reward [B] and the next position; where it is over, none and the same."""
        state, timestep = position
        keys = jax.random.split(key, action.shape[0])
        after = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        reward = jnp.where(timestep.done, 0.0, of_mover(timestep, after[1].reward))
        return reward, trees.where(timestep.done, position, after)

    def value(params, key, position) -> Array:
        """What the mover gets in `rollout` random steps, [B]."""

        def step(carry, key):
            position, total, weight = carry
            action_key, key = jax.random.split(key)
            action = jax.random.categorical(action_key, prior(position[1]))
            reward, position = move(params, key, action, position)
            return (position, total + weight * reward, weight * turn), None

        start = (position, jnp.zeros(position[1].first.shape), jnp.float32(1.0))
        return jax.lax.scan(step, start, jax.random.split(key, rollout))[0][1]

    def model(params, key, action, embedding):
        key, value_key = jax.random.split(key)
        reward, position = move(params, key, action, embedding)
        output = ModelOutput(
            reward=reward,
            discount=jnp.where(position[1].done, 0.0, turn),
            prior_logits=prior(position[1]),
            value=value(params, value_key, position),
        )
        return output, position

    return root, model
