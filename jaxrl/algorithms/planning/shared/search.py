"""Monte Carlo tree search over any model (mctx), and the environment itself as such a model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mctx

from jaxrl.core import trees
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.networks.heads import ILLEGAL

SEARCHES = ("puct", "gumbel")

# Outputs of a model and of its root; `Any`, since type checkers see no fields in these.
RootOutput: Any = mctx.RootFnOutput
ModelOutput: Any = mctx.RecurrentFnOutput


@struct
class SearchResult:
    """Result of a search at its roots [B]."""

    action: Array  # [B]
    policy: Array  # [B, actions]: the target of the policy
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
) -> SearchResult:
    """Run `simulations` simulations from each root [B] and choose an action.

    kind: `puct`, MuZero's (Schrittwieser et al., 2020, appendix B): the rule of equation 2,
        Dirichlet noise on the root's prior, actions drawn in proportion to
        visits ** (1 / temperature); the policy is the fraction of visits. `gumbel`, Gumbel
        MuZero's (Danihelka et al., 2022): sequential halving over actions drawn without
        replacement; the policy is the improved policy of completed Q-values.
    model: `model(params, key, action [B], embedding [B, ...])` -> (ModelOutput, embedding), as in
        mctx. Values are those of the player to move, so the discount is negative where players
        alternate.
    root: RootOutput, as in mctx.
    legal_actions: bool [B, actions]: actions allowed at the root (the model may take any).
    simulations: with 0, the action is drawn from the root's prior, which is then the policy.
    greedy: choose the action that the search prefers, without any noise.
    """
    illegal: Any = None if legal_actions is None else ~legal_actions
    result: Any
    if simulations == 0:
        logits = root.prior_logits
        logits = logits if illegal is None else jnp.where(illegal, ILLEGAL, logits)
        action: Any = logits.argmax(-1) if greedy else jax.random.categorical(key, logits)
        return SearchResult(action.astype(jnp.int32), jax.nn.softmax(logits), root.value)
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
    # As in mctx: the mean of the simulated values, the root's own value included.
    value = result.search_tree.summary().value
    return SearchResult(result.action.astype(jnp.int32), result.action_weights, value)


def mover_reward(timestep: TimeStep, reward: Array) -> Array:
    """Return the reward [...] of a step from `timestep`: in a game with rewards [..., 2], that of
    the player who moved, `timestep.role`."""
    if reward.ndim == timestep.first.ndim:
        return reward
    role: Any = timestep.role
    return jnp.take_along_axis(reward, role[..., None], -1)[..., 0]


def simulator(env: Environment, discount: Array | float = 1.0, rollout: int = 0):
    """Return `env` itself as a model to search: functions `root(state, timestep)` [B] and `model`.

    Priors are uniform over legal actions. The value of a new leaf is the discounted return of its
    mover over `rollout` random steps, as in UCT (Kocsis and Szepesvari, 2006). Rewards and values
    after a terminated or truncated step are 0.
    """
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
        """Return the mover's reward [B] and the next position; 0 and the same position if over."""
        state, timestep = position
        keys = jax.random.split(key, action.shape[0])
        after = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
        reward = jnp.where(timestep.done, 0.0, mover_reward(timestep, after[1].reward))
        return reward, trees.where(timestep.done, position, after)

    def value(params, key, position) -> Array:
        """Return the mover's discounted return over `rollout` random steps, [B]."""

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
