"""env.drop_obs: entries of Dict observations that are left out, in every kind of vector and for a policy that acts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Text, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from tests.envs import LimitEnv, play
from tests.policy_envs import job_config
from zoo import load_policy, serial_pipeline
from zoo.env import EnvConfig, UnsupportedEnvError, check_env, make_env, make_vector_env
from zoo.env.adapter import convert_space
from zoo.env.entries import kept_space

NUMBER = Box(0, np.inf, (1,), np.float32)


class ForeignSpace(gymnasium.Space):
    """A space of texts that is none of gymnasium's."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return 'go to the red door'

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class EntriesEnv(LimitEnv):
    """The step count as entry 'n', and samples of other spaces as further entries."""

    def __init__(self, **others: gymnasium.Space) -> None:
        super().__init__()
        self.observation_space = Dict({'n': NUMBER, **others})

    def observed(self, n: np.ndarray) -> dict[str, Any]:
        return {**self.observation_space.sample(), 'n': n}

    def reset(self, **kwargs: Any) -> Any:
        n, info = super().reset(**kwargs)
        return self.observed(n), info

    def step(self, action: Any) -> Any:
        n, *rest = super().step(action)
        return self.observed(n), *rest


def nested_env() -> gymnasium.Env:
    inner = Dict(word=Text(4), x=Box(-1, 1, (2,), np.float32))
    return EntriesEnv(goal=Dict(deep=inner, place=Discrete(3)))


def of(space: gymnasium.Space) -> Any:
    return lambda: EntriesEnv(word=space)


@pytest.mark.parametrize(
    'space',
    [
        Text(4),
        Sequence(NUMBER),
        Graph(NUMBER, None),
        ForeignSpace(),
        Tuple((Text(4), NUMBER)),
        Dict(a=Text(4)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_drop_obs_leaves_out_an_entry_of_any_kind_that_the_error_without_it_names(space: gymnasium.Space) -> None:
    if not isinstance(space, Tuple):  # an entry of a Tuple has no name
        name = 'word.a' if isinstance(space, Dict) else 'word'
        with pytest.raises(UnsupportedEnvError, match=rf'leave the entry out by env.drop_obs=\[{name}\]'):
            make_env(EnvConfig(id=of(space)))
    cfg = EnvConfig(id=of(space), drop_obs=['word'])
    assert check_env(cfg) == []
    with closing(make_env(cfg)) as env:
        assert env.observation_space == Dict(n=NUMBER)
        obs, _ = env.reset(seed=0)
        assert list(obs) == ['n']


@pytest.mark.parametrize('how', ['sync', 'async'])
@pytest.mark.parametrize('autoreset', ['same_step', 'next_step'])
def test_drop_obs_of_a_nested_entry_keeps_the_others_in_every_row(how: str, autoreset: str) -> None:
    cfg = EnvConfig(id=nested_env, drop_obs=['goal.deep.word'], vectorization=how, autoreset=autoreset)
    steps = play(make_vector_env(cfg, 2), *[[0, 0]] * 5)
    assert [step.obs['n'][0].item() for step in steps[:4]] == [1, 2, 3, 4]
    assert set(steps[0].obs) == {'n', 'goal'} and set(steps[0].obs['goal']) == {'deep', 'place'}
    assert set(steps[0].obs['goal']['deep']) == {'x'}
    last = steps[4].obs if autoreset == 'next_step' else steps[4].final_obs
    assert last['n'].ravel().tolist() == [5, 5] and set(last['goal']['deep']) == {'x'}


def test_drop_obs_of_all_entries_of_a_dict_leaves_out_the_dict() -> None:
    cfg = EnvConfig(id=nested_env, drop_obs=['goal.deep.word', 'goal.deep.x'])
    with closing(make_env(cfg)) as env:
        assert env.observation_space == Dict(n=NUMBER, goal=Dict(place=Discrete(3)))


class WordVectorEnv(gymnasium.vector.VectorEnv):
    """Envs that step as one batch; their texts are no arrays."""

    metadata = {'autoreset_mode': AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = Dict(n=NUMBER, word=Text(4))
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def observed(self) -> dict[str, Any]:
        return {'n': np.full((self.num_envs, 1), self.t, np.float32), 'word': ['abc'] * self.num_envs}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observed(), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        none = np.zeros(self.num_envs, bool)
        return self.observed(), np.ones(self.num_envs), none, none, {}


class OldEnv:
    """An env of old gym with a text among its observations."""

    observation_space, action_space = Dict(n=NUMBER, word=Text(4)), Discrete(2)

    def reset(self) -> Any:
        self.n = 0
        return {'n': [0.0], 'word': 'abc'}

    def step(self, action: Any) -> Any:
        self.n += 1
        return {'n': [float(self.n)], 'word': 'abc'}, 1.0, self.n == 5, {}


@pytest.mark.parametrize('env_id', [WordVectorEnv, OldEnv])
def test_drop_obs_works_for_a_whole_vector_and_for_an_env_of_old_gym(env_id: Any) -> None:
    (step,) = play(make_vector_env(EnvConfig(id=env_id, drop_obs=['word']), 3), [0, 0, 0])
    assert list(step.obs) == ['n'] and step.obs['n'].ravel().tolist() == [1, 1, 1]


def dots_env() -> gymnasium.Env:
    return EntriesEnv(**{'a.b': Discrete(2), 'a': Dict(b=Discrete(3), c=Discrete(4))})


@pytest.mark.parametrize(
    ('drop', 'left'),
    [
        ([['a', 'b']], Dict({'a': Dict(c=Discrete(4)), 'a.b': Discrete(2), 'n': NUMBER})),
        ([['a.b'], 'n'], Dict({'a': Dict(b=Discrete(3), c=Discrete(4))})),
        ('a', Dict({'a.b': Discrete(2), 'n': NUMBER})),
    ],
)
def test_drop_obs_takes_lists_of_names_for_names_with_dots(drop: Any, left: gymnasium.Space) -> None:
    with closing(make_env(EnvConfig(id=dots_env, drop_obs=drop))) as env:
        assert env.observation_space == left


class NumberedEnv(EntriesEnv):
    """Its keys are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict({1: NUMBER, 2: Dict({3: Text(4), 4: Discrete(2)})})

    def observed(self, n: np.ndarray) -> dict[Any, Any]:
        return {1: n, 2: {3: 'abc', 4: 1}}


def test_drop_obs_names_a_key_that_is_no_string_as_text() -> None:
    (step,) = play(make_vector_env(EnvConfig(id=NumberedEnv, drop_obs=['2.3']), 2), [0, 0])
    assert step.obs['1'].ravel().tolist() == [1, 1] and step.obs['2']['4'].tolist() == [1, 1]
    assert set(step.obs['2']) == {'4'}


@pytest.mark.parametrize(
    ('make', 'drop', 'message'),
    [
        (dots_env, ['a.b'], r"names 'a.b', which means \['a', 'b'\] and \['a.b'\]; give the list of names"),
        (nested_env, ['wrd'], "names 'wrd' but the entries of the observations are .*'goal.deep.word'.*; use some"),
        (nested_env, [['goal', 'x']], r"names \['goal', 'x'\] but"),
        (nested_env, ['n', 'goal'], 'leaves no entry of the observations; name fewer'),
        (LimitEnv, ['n'], 'which has no named entries; leave it out'),
        ('torch', ['n'], 'is a tensor program, whose observations are taken whole'),
    ],
)
def test_drop_obs_that_names_what_is_not_there_is_refused(make: Any, drop: Any, message: str) -> None:
    game = {'game': 'CartPole-v1'} if make == 'torch' else {}
    with pytest.raises(UnsupportedEnvError, match=f'env.drop_obs .*{message}'):
        make_vector_env(EnvConfig(id=make, drop_obs=drop, **game), 1)


def test_run_with_dropped_entries_evaluates_and_its_policy_acts_on_whole_observations(tmp_path: Path) -> None:
    config = job_config(tmp_path, nested_env, max_env_step=64, env=dict(drop_obs=['goal.deep.word'], check=True))
    result = serial_pipeline(config)
    assert result.train_iter > 0
    policy = load_policy(result.run_dir)
    whole, _ = nested_env().reset(seed=0)
    part = {'n': whole['n'], 'goal': {'deep': {'x': whole['goal']['deep']['x']}, 'place': whole['goal']['place']}}
    assert 'word' in whole['goal']['deep']
    assert torch.equal(torch.as_tensor(policy.act(whole)), torch.as_tensor(policy.act(part)))


def test_hint_for_a_part_of_a_tuple_names_the_entry_around_it_which_can_be_left_out() -> None:
    box, text = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Text(5)
    inner = gymnasium.spaces.Tuple([box, gymnasium.spaces.Dict(word=text)])
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Dict(b=inner), x=box)
    with pytest.raises(UnsupportedEnvError, match=r"in the entry 'a\.b\.1\.word' .*env\.drop_obs=\[a\.b\]"):
        convert_space(space, 'observation', 'e')
    assert list(kept_space(space, ['a.b'], 'e').spaces) == ['x']  # type: ignore[union-attr]
    with pytest.raises(UnsupportedEnvError) as error:
        convert_space(inner, 'observation', 'e')
    assert 'drop_obs' not in str(error.value)
