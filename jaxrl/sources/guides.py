"""Episodes in which a guide takes turns with the policy: it writes their beginnings or their ends.

env = expert_channel(env)
source = with_guide(episodes(env, 256), expert_policy(env), longest=8)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, Source, TimeStep, Tree
from jaxrl.sources.demonstrations import played_through


def with_guide(
    source: Source, guide: Policy, longest: int, share: float = 1.0, completes: float = 0.0
) -> Source:
    """Let a guide act before, or from, a random decision of each episode of `source`.

    guide: what acts besides the policy that is learned, such as `envs.policies.expert_policy`.
    longest: the switch is before decision 0, 1 ... `longest` - 1, drawn uniformly.
    share: probability that an episode has a guide.
    completes: probability that the guide, where there is one, acts from the switch on (roll-out)
        instead of before it (roll-in).

    Both read all that is said, and both say something at each step; one of the two is heard.
    Transitions get the extra `guided` [T, B], where that was the guide; whatever else the policy
    said as it acted is there about an action that nobody took. Source: Chang et al., 2023,
    "Learning to generate better than your LLM", arXiv:2306.11816. Raises `UserError` for a switch
    that cannot be, and for a source on the host.
    """
    if longest < 1:
        raise UserError(f"longest is {longest}; the switch must be before a decision, 0 or later.")

    def change(policy: Policy) -> Policy:
        def act(
            state: Tree, timestep: TimeStep, memory: Tree, key: jax.Array, greedy: bool
        ) -> tuple[Tree, Tree, dict[str, Tree]]:
            plan, inner, other = memory
            act_key, guide_key, at_key, share_key, end_key = jax.random.split(key, 5)
            first, size = timestep.first, timestep.first.shape
            fresh = {
                "written": jnp.zeros(size, jnp.int32),
                "switch": jax.random.randint(at_key, size, 0, longest, jnp.int32),
                "has_guide": jax.random.bernoulli(share_key, share, size),
                "completes": jax.random.bernoulli(end_key, completes, size),
            }
            plan = trees.where(first, fresh, plan)
            action, inner, extras = policy.act(state, timestep, inner, act_key, greedy)
            advice, other, _ = guide.act(guide.state, timestep, other, guide_key, greedy)
            before = plan["written"] < plan["switch"]
            heard = plan["has_guide"] & (before != plan["completes"])
            action = trees.where(heard, advice, action)
            decision = True if timestep.tokens is None else timestep.tokens["decision"]
            plan = {**plan, "written": plan["written"] + decision}
            return action, (plan, inner, other), {**extras, "guided": heard}

        def blank(number: int) -> Tree:
            none = jnp.zeros(number, bool)
            count = jnp.zeros(number, jnp.int32)
            plan = {"written": count, "switch": count, "has_guide": none, "completes": none}
            return plan, policy.memory(number), guide.memory(number)

        return Policy(act, blank, policy.state)

    return played_through(source, change)
