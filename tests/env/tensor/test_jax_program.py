"""JaxSimulator with a task whose every number is known in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Dict, Discrete, MultiBinary
from zoo.env.errors import EnvContractError

jax = pytest.importorskip('jax')
jnp = jax.numpy

from zoo.env.tensor import jax_program  # noqa: E402  # they import jax
from zoo.env.tensor.jax_program import JaxSimulator, JaxStep, JaxTask, in_jax  # noqa: E402


class Walk(JaxTask):
    """From a random place in 0..1 the action, -1 to 1, is added; above 3 is the end. Reward: the action."""

    obs_space = Box(np.full(2, -np.inf, np.float32), np.full(2, np.inf, np.float32))
    action_space = Box(np.full(1, -1, np.float32), np.ones(1, np.float32))
    max_episode_steps = 4
    n_trace = 0  # calls of `step`: a compiled program makes none

    def reset(self, key: Any) -> tuple[Any, Any]:
        place = jax.random.uniform(key)
        # a Python number, whose type would change with the first step, and an array without numbers, as simulators have
        state = {'place': place, 'age': 0, 'key': key, 'contacts': jnp.zeros(0)}
        return state, self._seen(state)

    def step(self, key: Any, state: Any, action: Any) -> JaxStep:
        self.n_trace += 1
        state = {**state, 'place': state['place'] + action[0], 'age': state['age'] + 1}
        return JaxStep(state, self._seen(state), action[0], state['place'] > 3)

    def _seen(self, state: Any) -> Any:
        return jnp.array([state['place'], state['age']])


class Gate(JaxTask):
    """Counts to n; at 2 the mask allows nothing, at 3 the Discrete of observations (0..2) is left."""

    obs_space = Dict({'n': Discrete(3), 'action_mask': MultiBinary((2,))})
    action_space = Discrete(2)
    has_empty_mask = True

    def reset(self, key: Any) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), self._seen(jnp.zeros((), jnp.int32))

    def step(self, key: Any, state: Any, action: Any) -> JaxStep:
        return JaxStep(state + action, self._seen(state + action), 0.0 * state, state < 0)

    def _seen(self, n: Any) -> Any:
        return {'n': n, 'action_mask': jnp.ones(2, bool) & ((n != 2) | (not self.has_empty_mask))}


class Wrong(Walk):
    """Gives one thing that is not as it says."""

    def __init__(self, **wrong: Any) -> None:
        self._wrong = wrong

    def step(self, key: Any, state: Any, action: Any) -> Any:
        found = super().step(key, state, action)
        if 'type' in self._wrong:
            return self._wrong['type'](found)
        return found._replace(**self._wrong)


def ones(n: int) -> torch.Tensor:
    return torch.ones(n, 1)


@pytest.fixture(scope='module')
def walk() -> JaxSimulator:
    return JaxSimulator(Walk(), 3, None)


def test_jax_simulator_at_an_end_has_the_true_observation_and_a_new_start(walk: JaxSimulator) -> None:
    first = walk.reset(5)
    assert ((0 <= first[:, 0]) & (first[:, 0] < 1)).all()
    for t in range(1, 4):  # three steps of 1: above 3, but for a start at exactly 0
        out = walk.step(ones(3))
        torch.testing.assert_close(out.next_obs[:, 0], first[:, 0] + t)
        assert out.reward.tolist() == [1.0] * 3
    assert out.terminated.tolist() == [True] * 3 and out.truncated.tolist() == [False] * 3
    assert out.next_obs[:, 1].tolist() == [3.0] * 3
    assert out.obs[:, 1].tolist() == [0.0] * 3
    assert ((0 <= out.obs[:, 0]) & (out.obs[:, 0] < 1)).all()
    assert len(set(out.obs[:, 0].tolist()) | set(first[:, 0].tolist())) == 6  # no two starts are equal


def test_jax_simulator_at_the_limit_truncates_with_the_observation_reached(walk: JaxSimulator) -> None:
    first = walk.reset(5)
    for _ in range(4):
        out = walk.step(torch.zeros(3, 1))
    assert out.truncated.tolist() == [True] * 3 and out.terminated.tolist() == [False] * 3
    assert torch.equal(out.next_obs, torch.stack((first[:, 0], torch.full((3,), 4.0)), 1))


def test_jax_simulator_with_the_same_seed_repeats_its_episodes_and_with_another_does_not(walk: JaxSimulator) -> None:
    def starts(seed: int) -> list[Any]:
        seen = [walk.reset(seed)]
        seen += [walk.step(ones(3)).obs.clone() for _ in range(3)]
        return [x.tolist() for x in seen]

    assert starts(1 << 40) == starts(1 << 40)
    assert starts(1 << 40) != starts(1)


def test_jax_simulator_env_has_the_same_numbers_beside_other_envs(walk: JaxSimulator) -> None:
    other = JaxSimulator(Walk(), 2, None, first=1)  # the second and third env of three
    assert torch.equal(walk.reset(7)[1:], other.reset(7))
    for t in range(6):
        action = torch.full((3, 1), t / 3)
        mine, its = walk.step(action), other.step(action[1:].clone())
        assert torch.equal(mine.obs[1:], its.obs) and torch.equal(mine.truncated[1:], its.truncated)


def test_jax_simulator_in_its_second_step_is_not_compiled_again() -> None:
    task = Walk()
    env = JaxSimulator(task, 3, None)
    env.reset(0)
    env.step(ones(3))
    n_trace = task.n_trace
    env.step(ones(3))
    env.reset(1)
    env.step(ones(3))
    assert task.n_trace == n_trace


def test_jax_simulator_and_torch_share_memory() -> None:
    action = torch.rand(64, 2)
    array = in_jax(action)
    assert array.unsafe_buffer_pointer() == action.data_ptr()
    back = torch.from_dlpack(array)
    assert back.data_ptr() == action.data_ptr()


def test_jax_simulator_step_returns_the_memory_of_the_program(
    walk: JaxSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    program = walk.program

    def recorded(carry: Any, action: Any) -> Any:
        made.append((action, *program(carry, action)))
        return made[-1][1:]

    walk.reset(0)
    monkeypatch.setattr(walk, 'program', recorded)
    action = ones(3)
    out = walk.step(action)
    taken, _, (obs, next_obs, reward, terminated, truncated) = made[0]
    assert taken.unsafe_buffer_pointer() == action.data_ptr()
    arrays = (*obs, *next_obs, reward, terminated, truncated)
    assert [x.unsafe_buffer_pointer() for x in arrays] == [x.data_ptr() for x in out]


def test_jax_simulator_that_steps_some_rows_after_others_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = JaxSimulator(Walk(), 6, None)
    first = whole.reset(3)
    monkeypatch.setattr(jax_program, 'CACHED', 50)  # bytes of three rows: 4 of the place, 4 of the age, 8 of the key
    parts = JaxSimulator(Walk(), 6, None)
    program, given = parts.program, []

    def watched(*arguments: Any) -> Any:
        given.append(arguments)
        return program(*arguments)

    parts.program = watched
    assert torch.equal(parts.reset(3), first)
    for t in range(9):
        action = torch.arange(6.0)[:, None] / 5 + t / 10
        wanted, out = whole.step(action.clone()), parts.step(action)
        for mine, its in zip(out, wanted, strict=True):
            assert torch.equal(mine, its)
    assert 'length=2' in str(jax.make_jaxpr(program)(*given[-1]))  # two parts


@pytest.mark.parametrize(
    ('n_env', 'n_most', 'wanted'),
    [(256, 161, 128), (6, 6, 6), (6, 100, 6), (6, 5, 3), (14, 13, 7), (13, 8, 13), (4, 0, 4)],
)
def testrows_together_divide_the_envs_or_are_all(n_env: int, n_most: int, wanted: int) -> None:
    assert jax_program.rows_together(n_env, n_most) == wanted


@pytest.mark.parametrize(('has_empty_mask', 'step'), [(True, 2), (False, 3)])
def test_jax_simulator_with_an_invalid_value_finds_its_env_and_step(has_empty_mask: bool, step: int) -> None:
    gate = Gate()
    gate.has_empty_mask = has_empty_mask
    env = JaxSimulator(gate, 2, None)
    env.reset(0)
    for _ in range(4):
        assert env.step(torch.tensor([0, 1])).obs['n'].dtype == torch.int64
    assert env.find_bad() == (1, step)


def test_jax_simulator_with_nan_finds_it(walk: JaxSimulator) -> None:
    walk.reset(0)
    walk.step(ones(3))
    assert walk.find_bad() is None
    walk.step(torch.tensor([[0.0], [0.0], [torch.nan]]))
    walk.step(ones(3))
    assert walk.find_bad() == (2, 2)


@pytest.mark.parametrize(
    ('wrong', 'words'),
    [
        ({'obs': np.zeros(1)}, r"Wrong gave 'observation' of shape \(1,\), wanted \(2,\), as obs_space has it"),
        ({'reward': np.ones(2)}, r"gave 'reward' of shape \(2,\), wanted one number for each env"),
        ({'type': tuple}, r'gave a tuple from step, wanted a JaxStep'),
    ],
)
def test_jax_simulator_refuses_what_would_only_broadcast(wrong: Any, words: str) -> None:
    simulator = JaxSimulator(Wrong(**wrong), 3, None)
    with pytest.raises(EnvContractError, match=words):
        simulator.reset(0)
        simulator.step(ones(3))
