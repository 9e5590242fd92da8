import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.sources.rollouts import rollouts
from jaxrl.tasks import fixed, randomize, schedule
from tests.counting import NEVER, counting

NOTHING = Policy(
    lambda state, timestep, memory, key, greedy: (
        jnp.zeros(timestep.reward.shape, jnp.int32),
        memory,
        {},
    ),
    lambda n: (),
    (),
)


def environment(length):
    return {"terminates_after": jnp.int32(length), "truncates_after": jnp.int32(NEVER)}


def collect(source, windows, key=0):
    """Return the transitions of all windows [windows * T, B]."""

    @jax.jit
    def go(key):
        state = source.init(key, {}, NOTHING)

        def body(state, key):
            state, batch, _ = source.collect(state, NOTHING, key)
            return state, batch.transitions

        return jax.lax.scan(body, state, jax.random.split(key, windows))

    state, transitions = go(random.key(key))
    return state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions)


def lengths_of_episodes(transitions, copy):
    """Return (first step, length) of each complete episode of one copy."""
    done = np.flatnonzero(np.asarray(transitions.done[:, copy]))
    begins = np.concatenate([[0], done[:-1] + 1])
    return list(zip(begins.tolist(), (done - begins + 1).tolist(), strict=True))


def test_fixed_parameters_lie_in_the_state():
    tasks = fixed(environment(3))
    state = tasks.init(random.key(0), NOTHING, {})
    assert tasks.sample(state, random.key(0), 4) == ()
    assert tasks.params(state, ()) is state
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))


def test_an_edited_state_is_another_environment():
    source = rollouts(counting(), 2, 12, fixed(environment(4)))
    state = source.init(random.key(0), {}, NOTHING)
    counts = jax.jit(
        lambda tasks: (
            source.collect(
                type(state)(state.streams, tasks, state.windows), NOTHING, random.key(1)
            )[2]["episodes"].total
        )
    )
    assert counts(state.tasks) == 6
    assert counts(environment(3)) == 8
    assert counts._cache_size() == 1


@pytest.mark.slow
def test_randomize_ids_reproduce_their_params():
    draw = lambda key: environment(jax.random.randint(key, (), 1, 8))
    tasks = randomize(draw)
    _, transitions = collect(rollouts(counting(), 3, 20, tasks), 2)
    params = jax.vmap(jax.vmap(lambda id: tasks.params((), id)))(transitions.task)
    assert len(np.unique(params["terminates_after"])) > 3
    length = params["terminates_after"]
    np.testing.assert_array_equal(
        transitions.terminated, transitions.next_observation[..., 0] >= length
    )
    # Ids are constant within an episode, and no two copies or episodes share one.
    within = ~np.asarray(transitions.done[:-1])
    data = np.asarray(jax.random.key_data(transitions.task))
    assert (data[1:] == data[:-1]).all(-1)[within].all()
    firsts = data[np.asarray(transitions.first)]
    assert len(np.unique(firsts, axis=0)) == len(firsts)


def test_schedule_moves_on_at_resets_only():
    tasks = schedule(
        {"terminates_after": jnp.array([4, 7]), "truncates_after": jnp.full(2, NEVER)}, 2
    )
    state, transitions = collect(rollouts(counting(), 1, 5, tasks), 6)
    # Steps 0-9: task 0; 10-19: task 1; 20-29: task 0 again; an episode keeps its task.
    expected = []
    t, began = 0, None
    for step in range(30):
        if t == 0:
            began = (step // 10) % 2 if step else 0
            # A reset happens at the end of the previous step, still in the window of that step.
            began = ((step - 1) // 10) % 2 if step else 0
        expected.append(began)
        t = 0 if t + 1 == (4, 7)[began] else t + 1
    np.testing.assert_array_equal(transitions.task[:, 0], expected)
    for begin, length in lengths_of_episodes(transitions, 0):
        assert length == (4, 7)[expected[begin]]
    assert set(expected) == {0, 1}
    assert state.tasks.windows == 6


def test_schedule_refuses_params_without_a_shared_axis():
    with pytest.raises(UserError, match="leading axis"):
        schedule({"a": jnp.ones(2), "b": jnp.ones(3)}, 1)
    with pytest.raises(UserError, match="leading axis"):
        schedule({"a": jnp.float32(2)}, 1)
    with pytest.raises(UserError, match="every"):
        schedule({"a": jnp.ones(2)}, 0)


def test_each_gives_every_task_its_turn():
    from jaxrl.tasks import each

    tasks = each({"mass": np.array([1.0, 2.0, 3.0])})
    state = tasks.init(random.key(0), None, {})
    ids = tasks.sample(state, random.key(0), 6)
    np.testing.assert_array_equal(ids, [0, 1, 2, 0, 1, 2])
    masses = jax.vmap(lambda i: tasks.params(state, i)["mass"])(ids)
    np.testing.assert_array_equal(masses, [1, 2, 3, 1, 2, 3])
