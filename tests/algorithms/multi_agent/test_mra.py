"""MRA: the bound on information, relations and masks, games in more slots, latents, refusals."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import envs
from jaxrl.algorithms.multi_agent import mra as module
from jaxrl.algorithms.multi_agent.mra import AGENTS, CRITIC, information_bound, mra
from jaxrl.algorithms.multi_agent.shared.views import team_view
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.kit.wrapping import params_of
from jaxrl.networks.relations import masked_softmax, others_there
from tests.kit.stub import stub

RNG = np.random.default_rng(0)
SETTINGS = {"hidden": (8,), "latents": 3, "epochs": 1, "minibatches": 1}
make = functools.partial(envs.make, "pursuit", size=5, evaders=1, listed=True)
ENV = make(agents=4)


def distributions(*shape):
    """Draw probabilities [*shape]."""
    x = RNG.gamma(0.5, size=shape) + 1e-6
    return x / x.sum(-1, keepdims=True)


def first_steps(env, count, present):
    """Return the first time steps of all agents in games of `present` agents."""
    params = dataclasses.replace(env.params, present=present)
    reset = jax.vmap(lambda key: env.reset(key, params)[1])
    return team_view(reset(jax.random.split(random.key(3), count)), env.agents)


def parts_of(env, **settings):
    """Return a recipe's parts as functions, with parameters large enough for latents to matter."""
    recipe = mra.recipe(env, mra(env, SETTINGS | settings).config)
    params = {name: part.init(random.key(1)) for name, part in recipe.parts.items()}

    def enlarge(path, x):
        name = jax.tree_util.keystr(path)
        return x * (400 if "PolicyHead" in name else 4 if "relation" in name else 2)

    params = jax.tree_util.tree_map_with_path(enlarge, params)
    return recipe, params


def net_of(recipe, params, target=None):
    bind = lambda params: {
        name: functools.partial(part.apply, params[name]) for name, part in recipe.parts.items()
    }
    return stub(
        bind(target or params),
        key=lambda name="": jax.random.fold_in(random.key(5), len(name)),
        **bind(params),
    )


# --------------------------------------------------------------------------------- the information


def test_the_bound_is_the_information_less_the_divergence_of_posteriors():
    prior, policy = distributions(5, 4), distributions(5, 4, 3)
    model = distributions(5, 4, 3)
    bound = lambda q: np.asarray(information_bound(np.log(prior), np.log(policy), np.log(q)))
    joint, marginal = prior[..., None] * policy, (prior[..., None] * policy).sum(1, keepdims=True)
    product = prior[..., None] * marginal
    information = (joint * np.log(joint / product)).sum((1, 2))
    np.testing.assert_allclose(bound(policy), information, rtol=1e-4)
    posterior = lambda p: prior[..., None] * p / (prior[..., None] * p).sum(1, keepdims=True)
    apart = np.log(posterior(policy) / posterior(model))
    gap = (joint * apart).sum((1, 2))  # the mean over actions of KL(p(z | a) || q(z | a))
    np.testing.assert_allclose(bound(model), information - gap, rtol=1e-3, atol=1e-5)
    assert (gap > 1e-3).all() and (information < np.log(4)).all()


def test_latents_that_act_apart_have_all_information_and_one_latent_none():
    certain = jnp.log(jnp.eye(3) + 1e-12)
    even = jnp.log(jnp.full(3, 1 / 3))
    np.testing.assert_allclose(information_bound(even, certain, certain), np.log(3), rtol=1e-5)
    one = jnp.log(distributions(1, 3))
    np.testing.assert_allclose(information_bound(jnp.zeros(1), one, one), 0, atol=1e-6)


def loss_and_gradient(recipe, params, target, seen):
    """Return the information and the gradient of the relation's loss, as one vector."""

    def total(relation):
        net = net_of(recipe, params | {"relation": relation}, target | {"relation": relation})
        return module.relation_loss(net, stub(timestep=seen)).value.mean()

    value, gradient = jax.value_and_grad(total)(params["relation"])
    return -float(value), gradient


@pytest.mark.slow
def test_the_relation_leads_the_target_policy_to_the_better_one():
    """The gradient flows through the posterior alone: it is 0 for two equal policies, where the
    bound is at its greatest, and for two others the bound rises along it."""
    recipe, params = parts_of(ENV)
    seen = first_steps(ENV, 16, 3)
    information, gradient = loss_and_gradient(recipe, params, params, seen)
    size = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))
    assert 0.003 < information < np.log(3)
    at_best = size(gradient)
    better = params | {AGENTS: jax.tree.map(lambda x: x + 0.3 * jnp.sin(9 * x), params[AGENTS])}
    before, gradient = loss_and_gradient(recipe, better, params, seen)
    assert at_best < 1e-3 * size(gradient)

    def posterior_only(scale):
        """The bound as a function of the target's relation alone, along the gradient."""
        moved = jax.tree.map(lambda p, g: p - scale * g, params["relation"], gradient)
        log_probs = []
        for relation, source in ((params["relation"], better), (moved, params)):
            net = net_of(recipe, source | {"relation": relation})
            at = lambda z, net=net: (
                net.agents(
                    module.relate(net, seen, jnp.broadcast_to(z, (*seen.alive.shape, 3)))
                ).logits
            )
            log_probs.append(jnp.stack([at(z) for z in jnp.eye(3)], -2))
        prior = net_of(recipe, params).game(module.population(seen))[:, None]
        bound = information_bound(prior, *log_probs)
        return float((bound * seen.alive).sum() / seen.alive.sum())

    np.testing.assert_allclose(posterior_only(0.0), before, rtol=1e-4)
    norm = sum(float((g**2).sum()) for g in jax.tree.leaves(gradient))
    slope = (posterior_only(1e-2) - posterior_only(-1e-2)) / 2e-2
    np.testing.assert_allclose(slope, norm, rtol=0.05)


# ------------------------------------------------------------------------------ relations and masks


def test_weights_are_a_softmax_over_those_that_are_there():
    logits = RNG.normal(size=(6, 4)).astype(np.float32) * 30
    mask = RNG.random((6, 4)) < 0.5
    mask[0], mask[1] = False, True
    found = np.asarray(masked_softmax(jnp.asarray(logits), jnp.asarray(mask)))
    for weight, x, there in zip(found, logits, mask, strict=True):
        assert not weight[~there].any()
        if there.any():
            expected = np.exp(x[there] - x[there].max())
            np.testing.assert_allclose(weight[there], expected / expected.sum(), rtol=1e-4)
    slope = jax.grad(lambda x: masked_softmax(x, jnp.asarray(mask))[:, 0].sum())(logits)
    assert np.isfinite(slope).all()
    alive = jnp.array([True, False, True])
    np.testing.assert_array_equal(others_there(alive), [[False, True], [True, True], [True, False]])


@pytest.mark.slow
@pytest.mark.parametrize("present", [1, 2, 3])
def test_a_game_in_more_slots_is_the_same_game(present):
    """All networks that act or value have the same weights for any number of slots, and say the
    same of the agents that are there."""
    small, large = make(agents=3), make(agents=6)
    (recipe, params), (wide, _) = parts_of(small), parts_of(large)
    few, many = first_steps(small, 8, present), first_steps(large, 8, present)
    # The same game: slots that are there as in the small one, noise in all others.
    noise = lambda x: jnp.asarray(RNG.normal(size=x.shape), jnp.float32)
    own, others = noise(many.observation["own"]), noise(many.observation["others"])
    for i in range(present):
        own = own.at[:, i].set(few.observation["own"][:, i])
        rows = [j for j in range(3) if j != i and j < present]
        for row, j in enumerate([j for j in range(6) if j != i]):
            if j < present:
                at = [j for j in range(3) if j != i].index(j)
                others = others.at[:, i, row].set(few.observation["others"][:, i, at])
        assert len(rows) == present - 1
    legal = many.legal_actions.at[:, :present].set(few.legal_actions[:, :present])
    seen = {"own": own, "others": others}
    many = dataclasses.replace(many, observation=seen, legal_actions=legal)

    def outputs(recipe, timestep):
        net = net_of(recipe, params)
        latent = jnp.broadcast_to(jnp.eye(3)[1], (*timestep.alive.shape, 3))
        related = module.relate(net, timestep, latent)
        policy, value = net.agents(related).logits, getattr(net, CRITIC)(related)
        prior = net.game(module.population(timestep))
        posterior = net.posterior(related, latent)  # the logits of the small field's games
        return policy[:, :present], value[:, :present], prior, posterior

    # The posterior of six games has other shapes; its network with three is applied to both.
    wide = dataclasses.replace(wide, parts=wide.parts | {"posterior": recipe.parts["posterior"]})
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    jax.tree.map(near, outputs(recipe, few), outputs(wide, many))


def test_an_absent_agent_changes_nothing():
    """Whatever is written in the slot of an absent agent, an update learns the same."""
    agent = mra.agent(ENV, SETTINGS | {"num_envs": 4, "num_steps": 3})
    rng, names, shape = np.random.default_rng(2), ENV.agents, (3, 4)
    absent = 2  # agent_2 is absent in some columns, agent_3 in all
    there = np.ones((*shape, 4), bool)
    there[:, 1:, absent], there[..., 3] = False, False
    alive, no = jnp.asarray(there), jnp.zeros(shape, bool)
    draw = lambda *more: jnp.asarray(rng.normal(size=(*shape, *more)), jnp.float32)
    plain = [{n: {"own": draw(6), "others": draw(3, 3)} for n in names} for _ in range(2)]
    log_prob, reward = -jnp.abs(draw(4)), draw()
    action = {n: jnp.asarray(rng.integers(0, 5, shape)) for n in names}
    latent, junk = jnp.asarray(rng.integers(0, 3, (*shape, 4))), draw(4)

    def update(size):
        put = lambda x, mask: jnp.where(mask, x, size * junk.mean(-1).reshape(
            *shape, *[1] * (x.ndim - 2)))  # fmt: skip

        def spoil(seen):
            changed = {}
            for i, name in enumerate(names):
                others = [j for j in range(4) if j != i]
                changed[name] = {
                    "own": put(seen[name]["own"], alive[..., i, None]),
                    "others": put(seen[name]["others"], alive[..., others, None]),
                }
            return changed

        legal = {n: jnp.ones((*shape, 5), bool) for n in names}
        if size:
            legal[names[3]] = legal[names[3]].at[..., 1:].set(False)
        make_step = lambda seen, reward: TimeStep(
            spoil(seen), reward, no, no, no, legal_actions=legal, alive=alive
        )
        pick = lambda x, i: jnp.where(alive[..., i], x, (x + (size > 0)) % 3)
        extras = {
            "log_prob": {AGENTS: jnp.where(alive, log_prob, log_prob - size)},
            "latent": jnp.stack([pick(latent[..., i], i) for i in range(4)], -1),
        }
        acts = {n: pick(action[n], i) if size else action[n] for i, n in enumerate(names)}
        x = Transition(
            make_step(plain[0], 0 * reward), acts, make_step(plain[1], reward), (), extras
        )
        began = agent.init(random.key(0), agent.hyper)
        after, info = agent.update(began, Batch(x, jnp.float32(0)), random.key(1))
        return params_of(began), params_of(after), after.extra, info.metrics

    update = jax.jit(update, static_argnums=0)
    begun, *expected = update(0.0)
    _, *found = update(4.0)
    near = lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5)
    jax.tree.map(near, expected, found)
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), begun, expected[0])
    for name in (AGENTS, CRITIC, "relation", "posterior", "game"):
        assert max(jax.tree.leaves(moved[name])) > 5e-5, name


# ------------------------------------------------------------------------------- latents and games


def test_the_latent_matters_and_is_that_of_the_episode():
    recipe, params = parts_of(ENV)
    net = net_of(recipe, params)
    seen = first_steps(ENV, 16, 3)
    at = lambda z: (
        net.agents(module.relate(net, seen, jnp.broadcast_to(jnp.eye(3)[z], (16, 4, 3)))).logits
    )
    apart = jnp.abs(jnp.exp(at(0)) - jnp.exp(at(1))).max(-1)
    assert float(apart[:, :3].mean()) > 0.01
    # Two agents are related to each other whatever the latent is.
    alone = first_steps(ENV, 16, 2)
    weights = net.relation(alone, jnp.broadcast_to(jnp.eye(3)[0], (16, 4, 3)))
    np.testing.assert_allclose(weights[:, 0, 0], 1, rtol=1e-6)

    count = 4000
    timestep = jax.tree.map(lambda x: jnp.repeat(x, count, 0), example_timestep(ENV, agents=True))
    begins = jnp.arange(count) % 2 == 0
    timestep = dataclasses.replace(
        timestep, first=begins, alive=jnp.broadcast_to(jnp.array([1, 1, 1, 0], bool), (count, 4))
    )
    memory = jnp.ones((count, 4), jnp.int32)
    action, after, extras = recipe.act(net, timestep, memory, random.key(0), False)
    np.testing.assert_array_equal(after[~begins], memory[~begins])
    np.testing.assert_array_equal(after, extras["latent"])
    shares = np.bincount(np.asarray(after[begins]).ravel(), minlength=3) / after[begins].size
    np.testing.assert_allclose(shares, np.exp(net.game(jnp.array(3))), atol=0.02)
    # Read again by its latents, the policy acted as recorded.
    view = team_view(timestep, ENV.agents)
    policy = net.agents(module.relate(net, view, jax.nn.one_hot(extras["latent"], 3)))
    chosen = jnp.stack([action[n] for n in ENV.agents], -1)
    np.testing.assert_allclose(policy.log_prob(chosen), extras["log_prob"][AGENTS], rtol=1e-5)


def test_the_posterior_learns_the_game_and_teaches_the_latents():
    """The loss falls, and its gradient reaches the latents' distribution through the draw."""
    recipe, _ = parts_of(ENV)
    two, four = first_steps(ENV, 16, 2), first_steps(ENV, 16, 4)
    seen = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), two, four)

    def total(own, key):
        net = stub(key=lambda name="": key, **{
            n: functools.partial(p.apply, (params | own)[n]) for n, p in recipe.parts.items()
        })  # fmt: skip
        output = module.game_loss(net, stub(timestep=seen))
        return output.value.mean(), output.metrics["game_accuracy"].mean()

    value = jax.jit(jax.value_and_grad(total, has_aux=True))
    params = {name: part.init(random.key(1)) for name, part in recipe.parts.items()}
    own = {"game": params["game"], "posterior": params["posterior"]}
    (before, _), gradient = value(own, random.key(0))
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradient["game"])) > 1e-4
    adam = optax.adam(1e-2)
    state = adam.init(own)
    for i in range(200):
        (after, accuracy), gradient = value(own, random.key(i))
        change, state = adam.update(gradient, state)
        own = optax.apply_updates(own, change)
    assert after < 0.2 * before and accuracy > 0.75
    # Whatever the absent would see is no evidence.
    net = net_of(recipe, params)
    latent = jnp.broadcast_to(jnp.eye(3)[0], (16, 4, 3))
    noisy = dataclasses.replace(
        two, observation=jax.tree.map(lambda x: x.at[:, 2:].add(3.0), two.observation)
    )
    for timestep in (two, noisy):
        logits = net.posterior(module.relate(net, timestep, latent), latent)
        if timestep is two:
            expected = logits
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_other_environments_are_refused():
    with pytest.raises(UserError, match="must observe a dict of 'own'"):
        mra(envs.make("pursuit"))
    always = dataclasses.replace(
        ENV, reset=lambda key, params: _without_slots(*ENV.reset(key, params)),
        step=lambda *x: _without_slots(*ENV.step(*x)),
    )  # fmt: skip
    with pytest.raises(UserError, match="it has no `alive`"):
        mra(always)
    with pytest.raises(UserError, match="needs Discrete actions"):
        mra(envs.make("simple_spread"))
    with pytest.raises(UserError, match="one network, but their spaces differ"):
        mra(envs.make("simple_adversary", actions="discrete"))
    with pytest.raises(UserError, match="minibatches"):
        mra(ENV, {"num_envs": 4, "num_steps": 3, "minibatches": 5})


def _without_slots(state, timestep):
    return state, dataclasses.replace(timestep, alive=None)
