"""What a paper says, as a value.

Part      parameters with their optimizer, and perhaps a copy that follows them
Loss      a value per element, of some parts
Recipe    parts, how to act, losses, and their order: `update(net, batch) -> net`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import optax

from jaxrl.core.types import Batch, Key, Tree
from jaxrl.kit.descent import each

if TYPE_CHECKING:
    from jaxrl.kit.learner import State
    from jaxrl.kit.net import Net

# Of a loss: values [...], or with up to three more: (values, reports, what is laid aside, state).
Said = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Parameters that are trained.

    network: has `init(key, *inputs)` and `apply(params, ...)`, as a flax module.
    inputs: an example of each of its inputs.
    optimizer: where the Config has its `Optimizer`; parts that share one, descending one loss, are
        bounded by `max_grad_norm` together. Empty for what no loss descends: the update puts new
        parameters in place (`Net.put`), as where they are inferred in closed form.
    target: where the Config has the `Target` of its copy; empty for none.
    transform: an optax transformation in the place of the one that the settings name.
    members: so many copies of the network, an ensemble: each with initial weights, an optimizer
        state and a bounded gradient of its own, along the first axis of every leaf. Applied to
        inputs it gives what each member says to them, [members, ...]. 0 for one network without
        that axis.
    """

    network: Any
    inputs: tuple[Tree, ...]
    optimizer: str = "optimizer"
    target: str = ""
    transform: optax.GradientTransformation | None = None
    members: int = 0

    def init(self, key: Key) -> Tree:
        keys = jax.random.split(key, self.members) if self.members else key
        return each(lambda key: self.network.init(key, *self.inputs), self.members)(keys)

    def apply(self, params: Tree, *args: Any, **options: Any) -> Any:
        def one(params):
            if state := state_of(params):
                params = {**params, **jax.lax.stop_gradient(state)}
            return self.network.apply(params, *args, **options)

        return each(one, self.members)(params)


def state_of(variables: Tree) -> dict[str, Tree]:
    """Collections of a flax network beside its parameters (`params`), such as running moments: what
    no descent changes. Of other networks none."""
    if not isinstance(variables, Mapping) or "params" not in variables:
        return {}
    return {n: x for n, x in variables.items() if n != "params"}


@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
    """function(net, x) -> values [...], one for each element of `x`, the transitions of a batch; or
    (values, reports), (values, reports, aside) or (values, reports, aside, state).

    The mean of the values, weighted and masked as the batch is, is what `parts` descend. (Where the
    mask is False they must be finite too: a gradient of 0 times infinity is NaN.) Reports,
    name -> [...], are averaged over the mask; `priority` is also what the source is told. What is
    laid aside, any tree, is in `net.aside` under the loss's name once it was descended.
    State, name of a part -> collections of its flax network beside its parameters, such as
    `batch_stats`, is kept by the part where it is descended. No gradient flows into them.
    """

    function: Callable[..., Said]
    parts: tuple[str, ...]


def in_order(net: Net, batch: Batch) -> Net:
    """Descend every loss, in the order of the recipe; then all copies follow."""
    for name in net.kit.recipe.losses:
        net = net.descend(name, batch)
    return net.follow()


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """What a paper says.

    act(net, timestep [B], memory [B], key, greedy) -> (action, memory, extras)
    update(net, batch) -> net; `in_order` unless said
    extra: what an agent holds beside its parts at first, as `net.extra`
    memory(n) -> what is remembered at an episode's start
    needs: what the update reads of a batch beyond its transitions
    num_shards, sequences: of `Net.passes`: logical shards of the environments, and whether whole
        sequences are shuffled rather than steps.
    hand_over(state) -> the state of the agent that goes on from this one in a warm start: its own
        unless said
    adopt(state, other): what is taken over of another agent; see `Agent`
    goes_on_from: what has to be trained before; see `Agent`
    scores: which of its metrics it is judged by, beside the return; see `Algorithm`
    """

    parts: Mapping[str, Part]
    act: Callable[..., tuple[Tree, Tree, dict[str, Tree]]]
    losses: Mapping[str, Loss]
    update: Callable[[Net, Batch], Net] = in_order
    extra: Tree = ()
    memory: Callable[[int], Tree] = lambda n: ()
    needs: tuple[str, ...] = ()
    num_shards: int = 1
    sequences: bool = False
    hand_over: Callable[[State], Tree] = lambda state: state
    adopt: Callable[[State, State], State] = lambda state, other: other
    goes_on_from: str = ""
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
