"""Scenarios of VMAS beside VMAS itself, and with a package of its interface whose numbers are known."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.env.tensor.vmas_fake import Environment, vmas as fake
from zoo.core.spaces import Box, Discrete, MultiDiscrete
from zoo.env import EnvConfig, EnvKwargsError, EnvRequest, UnknownEnvError, make_vector_env
from zoo.env.errors import EnvContractError, SeveralAgentsError
from zoo.env.tensor.vmas_scenarios import OwnRandomState, VmasSimulator, make_vmas, vmas_family

STAY = [torch.zeros(3, 2), torch.zeros(3, 2)]


def line(n_env: int = 3, limit: int | None = None, **kwargs: Any) -> VmasSimulator:
    return make_vmas(fake, 'line', EnvRequest('vmas:line', '', n_env, True, limit), kwargs)


def moves(*of_near: float) -> list[Tensor]:
    """Moves of `near` in each env; `far` stays."""
    near = torch.zeros(len(of_near), 2)
    near[:, 0] = torch.tensor(of_near)
    return [near, torch.zeros(len(of_near), 2)]


def test_spaces_are_those_of_each_agent() -> None:
    env = line()
    assert env.agents == ('near', 'far')
    assert [space.shape for space in env.obs_spaces if isinstance(space, Box)] == [(2,), (3,)]
    assert env.action_spaces[0] == Box(-torch.ones(2).numpy(), torch.ones(2).numpy())
    assert line(continuous_actions=False).action_spaces == (Discrete(9), Discrete(9))
    multi = line(continuous_actions=False, multidiscrete_actions=True).action_spaces
    assert multi == (MultiDiscrete((3, 3), (0, 0), (2,)),) * 2


def test_an_end_shows_the_state_reached_and_leaves_the_other_envs() -> None:
    env = line()
    start = env.reset(5).obs[0][:, 0]
    assert (0 <= start).all() and (start < 1).all()
    env.step(moves(1.0, 1.0, 0.0))
    env.step(moves(1.0, 1.0, 0.0))
    out = env.step(moves(1.0, 0.5, 0.5))  # env 0 is at start + 3; env 1 at start + 2.5
    has_ended = start + torch.tensor([3.0, 2.5, 0.5]) >= 3.0
    assert has_ended.tolist()[::2] == [True, False]
    assert out.terminated.tolist() == has_ended.tolist() and not out.truncated.any()
    torch.testing.assert_close(out.reached.obs[0][:, 0], start + torch.tensor([3.0, 2.5, 0.5]))
    torch.testing.assert_close(out.reward[:, 0], out.reached.obs[0][:, 0])
    assert float(out.seen.obs[0][0, 0]) < 1.0  # a new start
    assert torch.equal(out.seen.obs[0][~has_ended], out.reached.obs[0][~has_ended])
    torch.testing.assert_close(out.reached.obs[1][:, 1], torch.full((3,), 0.3))  # the third step of each
    torch.testing.assert_close(env.step(STAY).reached.obs[1][:, 1], torch.where(has_ended, 0.1, 0.4))


@pytest.mark.parametrize(('limit', 'n_step'), [(4, 4), (None, 100)])
def test_the_limit_is_truncated_not_terminated(limit: int | None, n_step: int) -> None:
    env = line(limit=limit)
    env.reset(0)
    for _ in range(n_step - 1):
        assert not env.step(STAY).truncated.any()
    out = env.step(STAY)
    assert out.truncated.all() and not out.terminated.any()
    torch.testing.assert_close(out.seen.obs[1][:, 1], torch.zeros(3))


def test_an_end_at_the_limit_is_terminated() -> None:
    env = line(n_env=1, limit=3)
    env.reset(0)
    for _ in range(2):
        env.step(moves(1.0))
    out = env.step(moves(1.0))
    assert out.terminated.all() and not out.truncated.any()


def test_starts_are_those_of_the_seed_whatever_other_envs_do() -> None:
    env, other = line(limit=2), line(limit=2)

    def starts(disturbed: bool) -> list[list[float]]:
        seen = [env.reset(7)]
        for _ in range(6):
            if disturbed:
                other.reset(3)
                other.step(STAY)
            seen.append(env.step(STAY).seen)
        return [x.obs[0][:, 0].tolist() for x in seen]

    assert starts(disturbed=False) == starts(disturbed=True)
    assert env.reset(7).obs[0].tolist() != env.reset(8).obs[0].tolist()


def test_the_random_states_of_the_process_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    shared = Environment.vmas_random_state[0].clone()
    env = line(limit=1)
    env.reset(0)
    env.step(STAY)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(Environment.vmas_random_state[0], shared)


def test_own_random_state_continues_where_it_was() -> None:
    own = OwnRandomState(fake, 1)
    state = Environment.vmas_random_state
    drawn = []
    for _ in range(2):
        with own:
            generator = torch.Generator()
            generator.set_state(state[0])
            drawn.append(float(torch.rand(1, generator=generator)))
            state[0] = generator.get_state()
    assert drawn[0] != drawn[1]
    own.seed(1)
    with own:
        generator = torch.Generator()
        generator.set_state(state[0])
        assert float(torch.rand(1, generator=generator)) == drawn[0]


def test_actions_reach_the_env_in_the_memory_of_the_caller() -> None:
    """What VMAS gets are views: a Box unmodified, a choice as [B, 1]. Its results are given as they are."""
    env = line()
    env.reset(0)
    sent = moves(0.1, 0.2, 0.3)
    out = env.step(sent)
    inner: Any = env.source
    assert [x.data_ptr() for x in inner.sent] == [x.data_ptr() for x in sent]
    assert out.seen.obs is out.reached.obs
    discrete = line(continuous_actions=False)
    discrete.reset(0)
    choices = [torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0])]
    discrete.step(choices)
    inner = discrete.source
    assert [(x.data_ptr(), x.shape) for x in inner.sent] == [(x.data_ptr(), (3, 1)) for x in choices]
    assert choices[0].shape == (3,)


def test_a_number_that_is_not_finite_is_found_with_its_env_and_step() -> None:
    env = line()
    env.reset(0)
    inner: Any = env.source
    inner.broken_at = 2
    env.step(STAY)
    assert env.find_bad() is None
    env.step(STAY)
    env.step(STAY)
    assert env.find_bad() == (2, 2)
    env.reset(0)
    assert env.find_bad() is None


def test_a_reward_of_another_shape_is_refused() -> None:
    env = line()
    env.reset(0)
    env.source.num_envs = 3  # type: ignore[attr-defined]
    env.n_env = 2
    with pytest.raises(EnvContractError, match=r'reward has shape \(3,\).*each of 2'):
        env.step(STAY)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'scenario': 'x'}, "'scenario'.*env.id"),
        ({'num_envs': 3}, "'num_envs'.*env.collector_env_num"),
        ({'max_steps': 3}, "'max_steps'.*env.max_episode_steps"),
        ({'n_walls': 3}, "VMAS says \"Scenario kwargs: {'n_walls': 3}.*correct the names"),
        ({'multidiscrete_actions': True}, 'env.kwargs.continuous_actions=false'),
    ],
)
def test_arguments_that_vmas_does_not_take_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvKwargsError, match=message):
        line(**kwargs)


def test_scenario_without_an_agent_for_a_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, 'make_env', lambda *_, **__: SimpleNamespace(agents=[]))
    with pytest.raises(EnvKwargsError, match='leave no agent for a policy'):
        line()


def test_an_error_of_vmas_leaves_the_random_states_of_the_process_alone() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(1)), np.random.random(), random.random()]

    states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    wanted = drawn()
    torch.random.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    with pytest.raises(KeyError), OwnRandomState(fake, 1):
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        raise KeyError
    assert drawn() == wanted


def test_unknown_scenario_and_use_as_an_env_of_one_agent_are_refused() -> None:
    with pytest.raises(UnknownEnvError, match="no scenario 'lin'; did you mean 'line'"):
        vmas_family(fake, 'lin', 'vmas:lin')
    request = EnvRequest('vmas:line', '', 1, True, None)
    with pytest.raises(SeveralAgentsError, match='several agents'):
        vmas_family(fake, 'line', 'vmas:line').make(request)


def test_picture_is_that_of_vmas() -> None:
    assert line().render().shape == (4, 5, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize('scenario', ['balance', 'navigation', 'wheel', 'simple_tag'])
def test_real_scenario_is_that_of_vmas_stepped_by_hand(scenario: str) -> None:
    """Three worlds, a limit of 5, 12 steps of random pushes: the same observations, rewards and flags, resets at the limit."""
    vmas = pytest.importorskip('vmas', reason='the package vmas')
    request = EnvRequest(f'vmas:{scenario}', '', 3, True, 5)
    env = make_vmas(vmas, scenario, request, {})
    by_hand = vmas.make_env(scenario, num_envs=3)
    own = OwnRandomState(vmas, 11)
    seen = env.reset(11)
    with own:
        wanted = by_hand.reset()
    torch.testing.assert_close(list(seen.obs), list(wanted))
    generator = torch.Generator().manual_seed(0)
    age = torch.zeros(3)
    for _ in range(12):
        actions = [
            (2 * torch.rand(3, *space.shape, generator=generator) - 1) * torch.from_numpy(space.high)
            for space in env.action_spaces
            if isinstance(space, Box)
        ]
        out = env.step(actions)
        with own:
            wanted, rewards, done, _ = by_hand.step(actions)
        age += 1
        torch.testing.assert_close(list(out.reached.obs), wanted)
        torch.testing.assert_close(out.reward, torch.stack([x.view(3) for x in rewards], 1))
        assert out.terminated.tolist() == done.tolist()
        late = age >= 5
        assert out.truncated.tolist() == (late & ~done).tolist()
        ended = done | late
        if ended.all():
            with own:
                by_hand.reset()
        else:
            for row in ended.nonzero().flatten().tolist():
                with own:
                    by_hand.reset_at(row)
        age[ended] = 0
        with own:
            (fresh,) = by_hand.get_from_scenario(True, False, False, False)
        torch.testing.assert_close(list(out.seen.obs), fresh)


@pytest.mark.parametrize('scenario', ['wind_flocking', 'road_traffic', 'balance'])
def test_real_scenario_after_other_episodes_has_the_episodes_of_its_seed(scenario: str) -> None:
    """The first two keep numbers of the episodes before a reset."""
    vmas = pytest.importorskip('vmas', reason='the package vmas')

    def rewards(used: bool) -> list[Tensor]:
        env = make_vmas(vmas, scenario, EnvRequest(f'vmas:{scenario}', '', 2, True, 50), {})
        n_step = 4
        if used:
            n_step += 6
            env.reset(3)
        else:
            env.reset(5)
        found = []
        for t in range(n_step):
            if used and t == 6:
                env.reset(5)
            push = torch.linspace(-1, 1, 2)[:, None] * ((t - n_step) % 4 + 1) / 4
            actions = [
                push.expand(2, *x.shape) * torch.from_numpy(x.high) for x in env.action_spaces if isinstance(x, Box)
            ]
            found.append(env.step(actions).reward)
        return found[-4:]

    for one, other in zip(rewards(used=True), rewards(used=False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_real_scenario_by_config() -> None:
    pytest.importorskip('vmas', reason='the package vmas')
    with pytest.raises(SeveralAgentsError):
        make_vector_env(EnvConfig(id='vmas:balance'), 2)
    with pytest.raises(UnknownEnvError, match="did you mean 'balance'"):
        make_vector_env(EnvConfig(id='vmas:balanc'), 2)
