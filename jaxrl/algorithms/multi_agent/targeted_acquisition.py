"""Targeted data acquisition (Kwon, Karamcheti, Cuellar and Sadigh, 2021, "Targeted Data Acquisition
for Evolving Negotiation Agents", arXiv:2106.07728): an agent learns to negotiate by reinforcement
learning against a partner who was cloned from a fixed dataset of dialogues. Where the agent says
what the partner has not learned to answer, an expert is asked for the answer.

The agent begins as the partner. A round has three phases:

1. reinforcement: the agent learns by REINFORCE from dialogues with the partner, who stays the same.
   Its act x_t is reinforced by gamma^(T - t) (r - mean r), where T - t counts its later acts and r
   is its utility.
2. acquisition: of new dialogues, those with the smallest novelty score

       s = min over the agent's acts x_t of log p(x_t | context)

   by the partner's model p are flagged. In each, the expert is asked what the partner should say
   after the act of that minimum, and the answer joins the dataset: a flagged dialogue is a query.
3. retraining: the partner's model is trained on the dataset.

Sources: the paper's abstract; a public summary that quotes its formulas, the returns and the
minimum above; and the first author's later public code for the same game, which clones a partner
and freezes it, has an expert in the partner's place, trains the partner anew "after human
annotation", takes minima, and also has the scores by entropy and by margin. The paper's own text
and code were not at hand, so these are not confirmed: that one act of a dialogue is annotated and
not all that follow, that the agent goes on from where it was (`begin_anew`), that retraining goes
on from the partner's weights, and all sizes.

It differs in this: dialogues are those of scripted players, and the expert is a script that sees
both players' values (`envs.deal_or_no_deal`), where the paper has people; models are perceptrons
that see the whole dialogue, not recurrent networks; what players take after the talk is one more
action of the same policy; returns are compared with the mean of an update's dialogues, not of all
so far; optimizers are Adam; and there may be an entropy bonus. Dialogues flagged at random
(`acquisition` random) are a control.

Each evaluation also plays the agent against the first partner, and against the expert.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, TimeStep, Tree, struct
from jaxrl.envs import timesteps
from jaxrl.envs.games.deal_or_no_deal import NAME
from jaxrl.envs.games.deal_or_no_deal_players import self_interested
from jaxrl.envs.games.opponents import against
from jaxrl.envs.policies import expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.kit import Direct, DirectBuilder, group, hyper, static
from jaxrl.kit.acting import choose
from jaxrl.kit.groups import Torso, plain_optimizer
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.heads import Categorical
from jaxrl.sources import episodes

# What an evaluation measures, and how it is called.
FIGURES = {
    "outcome": "utility",
    "joint_utility": "utility of both",
    "agreement": "agreement",
    "pareto": "Pareto-optimal deals",
}
OTHERS = {"partner": "first partner", "expert": "expert"}
JUDGED = {
    f"{figure}_with_{other}": f"{label} with the {whom}"
    for other, whom in OTHERS.items()
    for figure, label in FIGURES.items()
}
SCORES = ("likelihood", "entropy", "margin", "random")


@group
class Config:
    """Settings of targeted data acquisition: a negotiator whose partner learns from an expert
    (arXiv:2106.07728)."""

    torso: Torso = Torso(hidden=(128, 128))
    """Layers of the agent, and of its partner."""
    dialogues: int = static(1000, low=1, high=MANY)
    """Number of scripted dialogues in the dataset at the start."""
    cloning_updates: int = static(2000, low=1)
    """Number of minibatches on which the first partner is trained."""
    minibatch: int = static(256, low=1, high=MANY)
    """Number of acts in a minibatch of supervised training."""
    num_envs: int = static(128, low=2, high=MANY)
    """Number of dialogues in an update of the agent, and of those that may be flagged in a
    round."""
    updates: int = static(20, low=1)
    """Number of updates of the agent in a round."""
    annotations: int = static(32, low=0, high=MANY)
    """Number of dialogues that are flagged in a round, each of which is a query to the expert; 0
    for reinforcement learning alone."""
    rounds: int = static(10, low=1, high=MANY)
    """Number of rounds in which the expert is asked; later ones only reinforce."""
    retraining_updates: int = static(500, low=1)
    """Number of minibatches on which the partner is trained after each acquisition."""
    acquisition: str = static("likelihood", choices=SCORES)
    """Score of the agent's acts by which dialogues are flagged: likelihood, entropy, margin, or
    random. By the partner's model it is log p of the act, minus the entropy, or 1 minus how much
    likelier the likeliest act is."""
    reduction: str = static("minimum", choices=("minimum", "mean"))
    """Score of a dialogue from those of its acts: minimum (the paper's), or mean."""
    begin_anew: bool = False
    """Begin every round with an agent that is a copy of the retrained partner; if not, the agent
    goes on."""
    judged: int = static(256, low=0)
    """Number of dialogues with the first partner, and with the expert, in an evaluation; 0 for
    none."""
    learning_rate: float = hyper(1e-3, low=0, log=True)
    """Step size of Adam in supervised training."""
    agent_learning_rate: float = hyper(1e-3, low=0, log=True)
    """Step size of Adam in reinforcement learning."""
    discount: float = hyper(0.95, low=0, high=1)
    """Discount factor per act of the agent."""
    entropy_weight: float = hyper(0.01, low=0, log=True)
    """Weight of the agent's entropy bonus."""


@struct
class Examples:
    """Contexts and what was said in them, rows [N]; the first `filled` are the dataset.

    observation: float32 [N, F]. legal: bool [N, A]. action: int32 [N]. filled: int32 [].
    """

    observation: Array
    legal: Array
    action: Array
    filled: Array


@struct
class Learner:
    """Parameters of a model, and its optimizer's state."""

    params: Tree
    moments: Tree


@struct
class State:
    """State of targeted data acquisition.

    agent, partner: what learns. first: parameters of the first partner. examples: the dataset.
    rounds: int32, rounds so far.
    """

    agent: Learner
    partner: Learner
    first: Tree
    examples: Examples
    rounds: Array


def act_scores(model: Categorical, action: Array, name: str) -> Array:
    """Return the score of each act by a model, [...]: the smaller, the more novel.

    model: the model's policies [...]. action: the acts, int32 [...]. name: likelihood, entropy or
        margin.
    """
    if name == "likelihood":
        return model.log_prob(action)
    if name == "entropy":
        return -model.entropy()
    likeliest = jnp.exp(model.log_prob(model.mode()))
    return 1 - (likeliest - jnp.exp(model.log_prob(action)))


def dialogue_scores(scores: Array, counted: Array, reduction: str) -> tuple[Array, Array]:
    """Return the score of each dialogue, [B], and the place of its most novel act, int32 [B].

    scores: of each act [T, B]. counted: bool [T, B], which acts are the agent's and have an answer;
        a dialogue without any has an infinite score.
    reduction: minimum, or mean.
    """
    shown = jnp.where(counted, scores, jnp.inf)
    number = counted.sum(0)
    mean = jnp.where(counted, scores, 0.0).sum(0) / jnp.maximum(number, 1)
    reduced = shown.min(0) if reduction == "minimum" else jnp.where(number > 0, mean, jnp.inf)
    return reduced, shown.argmin(0).astype(jnp.int32)


def flag(scores: Array, counted: Array, number: int, reduction: str) -> tuple[Array, ...]:
    """Return the `number` most novel dialogues, the most novel first: their columns, int32 [n], the
    steps at which the expert is asked, int32 [n], those after their most novel acts, and whether
    there is anything to ask, bool [n], which comes before what there is not.

    scores, counted, reduction: see `dialogue_scores`.
    """
    reduced, place = dialogue_scores(scores, counted, reduction)
    _, column = jax.lax.top_k(-reduced, number)
    return column, place[column] + 1, jnp.isfinite(reduced[column])


def is_agents(role: Array) -> Array:
    """Return at which steps the agent has the turn, bool [..., B], of roles of the mover: it is
    player 0 in dialogues of even numbers, and player 1 in the others."""
    return role == jnp.arange(role.shape[-1]) % 2


def later_acts(mine: Array) -> Array:
    """Return how many of the steps after each one are the agent's, int32 [T, B]."""
    return mine.sum(0) - jnp.cumsum(mine, 0)


def random_scores(key: Key, counted: Array) -> Array:
    """Return scores [T, B] whose minima are random in each dialogue, wherever they are, so that
    dialogues are flagged with equal chances, whatever their lengths. counted: bool [T, B]."""
    keys = jax.random.split(key)
    each, whole = (jax.random.uniform(k, counted.shape[i:]) for i, k in enumerate(keys))
    least = jnp.where(counted, each, jnp.inf).min(0)
    return jnp.where(each == least, whole, 1 + each)


def is_answered(batch: Batch) -> Array:
    """Return which steps are the agent's acts in a talk that goes on, bool [T, B]. What is named
    after the talk is no act."""
    assert batch.mask is not None
    seen = batch.transitions.timestep
    follows = jnp.concatenate([batch.mask[1:], jnp.zeros_like(batch.mask[:1])])
    talking = seen.privileged["talking"]  # type: ignore[index]
    return is_agents(jnp.asarray(seen.role)) & batch.mask & follows & talking


def outcomes(batch: Batch) -> dict[str, Array]:
    """Return what came of each dialogue, float32 [B]: the environment's metrics, and the agent's
    `utility`."""
    x, mask = batch.transitions, batch.mask
    assert mask is not None
    paid = jnp.where(mask[..., None], x.reward, 0.0).sum(0)
    player = jnp.arange(len(paid)) % 2
    metrics = x.next_timestep.metrics or {}
    found = {name: jnp.where(mask, value, 0.0).sum(0) for name, value in metrics.items()}
    return found | {"utility": jnp.take_along_axis(paid, player[:, None], 1)[:, 0]}


def append(examples: Examples, new: Examples) -> Examples:
    """Return `examples` with the first `new.filled` of the rows [n] of `new`."""
    write = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, examples.filled, 0)
    return Examples(
        write(examples.observation, new.observation),
        write(examples.legal, new.legal),
        write(examples.action, new.action),
        examples.filled + new.filled,
    )


def build(env: Environment, config: Config) -> Direct:
    """Build targeted data acquisition in `env`; the resulting policy is the agent.

    One step is a round. Environment steps of `init` are those of the scripted dialogues.
    """
    assert env.max_steps is not None and env.expert is not None
    expert, torso, length = env.expert, config.torso, env.max_steps
    network = Actor(
        env.observation_space, env.action_space, torso.hidden, torso.activation, torso.initializer
    )
    optimizer = plain_optimizer("adam")
    recorded = episodes(env, config.dialogues)
    played = episodes(env, config.num_envs)
    kept = episodes(env, config.num_envs, keep_states=True)
    capacity = config.dialogues * length + config.rounds * config.annotations
    reduction = "minimum" if config.acquisition == "random" else config.reduction
    no_memory = lambda n: ()

    def model(params: Tree, observation: Array, legal: Array) -> Categorical:
        seen = timesteps.first(observation, legal_actions=legal)
        return network.apply(params, seen)  # type: ignore[return-value]

    def of(params: Tree, timestep: TimeStep) -> Categorical:
        return model(params, timestep.observation, timestep.legal_actions)

    def act(params, timestep, memory, key, greedy):
        return choose(of(params, timestep), key, greedy).astype(jnp.int32), memory, {}

    def act_in_pair(params, timestep, memory, key, greedy):
        mine, theirs = (
            act(p, timestep, memory, k, greedy)[0]
            for p, k in zip(params, jax.random.split(key), strict=True)
        )
        return jnp.where(is_agents(timestep.role), mine, theirs), memory, {}

    def play(source: Any, policy: Policy, key: Key) -> Batch:
        keys = jax.random.split(key)
        return source.collect(source.init(keys[0], {}, policy), policy, keys[1])[1]

    def play_pair(source: Any, agent: Tree, partner: Tree, key: Key) -> Batch:
        return play(source, Policy(act_in_pair, no_memory, (agent, partner)), key)

    def descend(learner: Learner, gradient: Tree, rate: Array) -> Learner:
        change, moments = optimizer.update(gradient, learner.moments)
        params = jax.tree.map(lambda x, y: x - rate * y, learner.params, change)
        return Learner(params, moments)

    def clone(learner: Learner, data: Examples, updates: int, key: Key, rate: Array):
        """Return the learner after minibatches of the dataset, and the mean cross-entropy."""

        def update(learner, key):
            row = jax.random.randint(key, (config.minibatch,), 0, data.filled)
            observation, legal = data.observation[row], data.legal[row]

            def error(params):
                return -model(params, observation, legal).log_prob(data.action[row]).mean()

            value, gradient = jax.value_and_grad(error)(learner.params)
            return descend(learner, gradient, rate), value

        learner, values = jax.lax.scan(update, learner, jax.random.split(key, updates))
        return learner, values.mean()

    def record(key: Key) -> Examples:
        """Return a dataset of scripted dialogues, with room for annotations."""
        batch = play(recorded, self_interested(env), key)
        x, rows = batch.transitions, config.dialogues * length
        assert batch.mask is not None
        order = jnp.argsort(~batch.mask.reshape(-1), stable=True)

        def pack(y: Array) -> Array:
            shown = y.reshape(rows, *y.shape[2:])[order]
            return jnp.zeros((capacity, *shown.shape[1:]), y.dtype).at[:rows].set(shown)

        seen, filled = x.timestep, batch.mask.sum(dtype=jnp.int32)
        return Examples(pack(seen.observation), pack(seen.legal_actions), pack(x.action), filled)

    def init(key, hyper):
        network_key, data_key, train_key = jax.random.split(key, 3)
        data = record(data_key)
        seen = timesteps.first(data.observation[:1], legal_actions=data.legal[:1])
        params = network.init(network_key, seen)
        begin = lambda params: Learner(params, optimizer.init(params))
        partner, _ = clone(
            begin(params), data, config.cloning_updates, train_key, hyper.learning_rate
        )
        return State(begin(partner.params), partner, partner.params, data, jnp.int32(0))

    def returns(batch: Batch, discount: Array) -> tuple[Array, Array]:
        """Return what reinforces each step [T, B], and which steps are the agent's."""
        assert batch.mask is not None
        x = batch.transitions
        mine = is_agents(jnp.asarray(x.timestep.role)) & batch.mask
        paid = outcomes(batch)["utility"]
        return (paid - paid.mean()) * discount ** later_acts(mine), mine

    def reinforce(state: State, key: Key, hyper: Any) -> Learner:
        def update(agent, key):
            batch = play_pair(played, agent.params, state.partner.params, key)
            gain, mine = returns(batch, hyper.discount)
            x = batch.transitions

            def error(params):
                policy = of(params, x.timestep)
                value = losses.policy_gradient(policy.log_prob(x.action), gain)
                return losses.masked_mean(value - hyper.entropy_weight * policy.entropy(), mine)

            return descend(agent, jax.grad(error)(agent.params), hyper.agent_learning_rate), None

        agent = state.agent
        if config.begin_anew:
            copied = jax.tree.map(jnp.copy, state.partner.params)
            agent = Learner(copied, optimizer.init(copied))
        return jax.lax.scan(update, agent, jax.random.split(key, config.updates))[0]

    def acquire(examples: Examples, batch: Batch, partner: Tree, key: Key):
        """Return the dataset with the expert's answers in flagged dialogues, and the scores of
        these, a mean."""
        x, seen = batch.transitions, batch.transitions.timestep
        counted = is_answered(batch)
        if config.acquisition == "random":
            scores = random_scores(key, counted)
        else:
            scores = act_scores(of(partner, seen), x.action, config.acquisition)
        column, step, there = flag(scores, counted, config.annotations, reduction)
        told, game = jax.tree.map(lambda y: y[step, column], (seen, x.extras["env_state"]))
        answer = jax.vmap(expert, (0, None))(game, env.params)
        new = Examples(told.observation, told.legal_actions, answer, there.sum(dtype=jnp.int32))
        score = dialogue_scores(scores, counted, reduction)[0][column]
        return append(examples, new), m.mean(jnp.where(there, score, 0.0), there)

    def step(state, key, hyper):
        keys = jax.random.split(key, 4)
        state = dataclasses.replace(state, agent=reinforce(state, keys[0], hyper))
        batch = play_pair(kept, state.agent.params, state.partner.params, keys[1])
        metrics = {name: m.mean(value) for name, value in outcomes(batch).items()}

        def evolve() -> tuple[Learner, Examples, dict[str, Any]]:
            old = state.examples
            data, score = acquire(old, batch, state.partner.params, keys[2])
            partner, error = clone(
                state.partner, data, config.retraining_updates, keys[3], hyper.learning_rate
            )
            queries = (data.filled - old.filled).astype(jnp.float32)
            found = {"flagged_score": score, "partner_loss": m.mean(error)}
            return partner, data, found | {"queries": m.Sum(queries)}

        if config.annotations:
            shapes = jax.eval_shape(evolve)[2]
            rest = lambda: (state.partner, state.examples, trees.zeros(shapes))
            partner, examples, found = jax.lax.cond(state.rounds < config.rounds, evolve, rest)
            state = dataclasses.replace(state, partner=partner, examples=examples)
            metrics |= found
        return dataclasses.replace(state, rounds=state.rounds + 1), metrics

    def measure(state, key):
        return judge(env, agent_of(state), Policy(act, no_memory, state.first), key, config.judged)

    agent_of = lambda state: Policy(act, no_memory, state.agent.params)
    return Direct(
        init,
        step,
        policy=agent_of,
        env_steps=(config.updates + 1) * config.num_envs * length,
        initial_env_steps=config.dialogues * length,
        scores=JUDGED if config.judged else {},
        measure=measure,
    )


def judge(
    env: Environment, agent: Policy, partner: Policy, key: Key, number: int
) -> dict[str, Array]:
    """Return how an agent negotiates with a partner and with the environment's expert, in `number`
    dialogues each: its own utility, that of both, and the shares of agreements and, among these, of
    Pareto-optimal deals."""
    if not number:
        return {}
    advised = expert_channel(env)
    others = {"partner": against(env, partner), "expert": against(advised, expert_policy(advised))}
    found = {}
    for name, game in others.items():
        x = evaluate(game, agent, jax.random.fold_in(key, len(found)), number).metrics
        share = {n: x[n].mean() for n in ("outcome", "joint_utility", "agreement")}
        share["pareto"] = x["pareto"].mean() / jnp.maximum(share["agreement"], 1 / number)
        found |= {f"{n}_with_{name}": value for n, value in share.items()}
    return found


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for another environment than `deal_or_no_deal`, and for more annotations
    than dialogues."""
    if env.name != NAME:
        raise UserError(f"{name} cannot act in '{env.name}'; it negotiates in {NAME} alone.")
    if config.annotations > config.num_envs:
        raise UserError(
            f"{name} flags {config.annotations} of {config.num_envs} dialogues; annotations must "
            "not exceed num_envs."
        )


targeted_acquisition = DirectBuilder("targeted_acquisition", Config, build, check)

TINY = {
    "env": "deal_or_no_deal", "env_params": {"turns": 4, "fewest": 3, "most": 4, "largest": 2},
    "hidden": (4,), "dialogues": 8, "cloning_updates": 2, "minibatch": 8, "num_envs": 4,
    "updates": 2, "annotations": 2, "rounds": 2, "retraining_updates": 2, "judged": 4,
}  # fmt: skip
