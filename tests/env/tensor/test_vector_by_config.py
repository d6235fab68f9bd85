"""env.id=torch: tensor envs that a config names, and the page about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.env.tensor.tracks import Track
from tests.forked import run_python
from zoo.core.registry import ENV_REGISTRY
from zoo.env import (
    TENSOR_ENV_REGISTRY,
    EnvConfig,
    EnvContractError,
    EnvKwargsError,
    EnvRequest,
    TensorVectorEnv,
    UnsupportedEnvError,
    check_env,
    make_vector_env,
)


@TENSOR_ENV_REGISTRY.register('Track-v0', force=True)
class LongTrack(Track):
    """Track whose length is an argument; its constructor makes a tensor."""

    def __init__(self, length: int, offset: float = 0.0) -> None:
        self.end, self.offset = length, torch.tensor(offset)

    def observe(self, state: Any) -> Tensor:
        return super().observe(state) + self.offset


TENSOR_ENV_REGISTRY.register('Number-v0', force=True)(lambda: 3)


def config(**fields: Any) -> EnvConfig:
    return EnvConfig(**{'id': 'torch', 'game': 'Track-v0', 'kwargs': {'length': 2}, **fields})


def test_make_vector_env_makes_the_registered_env_with_its_kwargs() -> None:
    env = make_vector_env(config(kwargs={'length': 2, 'offset': 0.5}), 4, training=True)
    assert isinstance(env, TensorVectorEnv) and env.autoreset == 'same_step'
    assert (env.name, env.n_env) == ('torch/Track-v0', 4)
    assert (env.reset(0)[:, 1] == 0.5).all()
    assert env.step(torch.tensor([2, 1, 0, 2])).terminated.tolist() == [True, False, False, True]
    env.close()


def test_make_vector_env_tensors_of_the_constructor_lie_on_the_device() -> None:
    # calls only the family: 'meta' has no random numbers, so that no vector can be made there
    request = EnvRequest('torch/Track-v0', 'Track-v0', n_env=1, training=False, max_episode_steps=None, device='meta')
    assert ENV_REGISTRY.get('torch').make(request, length=2).offset.device.type == 'meta'


def test_make_vector_env_constructor_that_takes_any_name_is_given_all() -> None:
    @TENSOR_ENV_REGISTRY.register('Open-v0', force=True)
    class Open(Track):
        def __init__(self, length: int, *rest: int, **more: int) -> None:
            self.end, self.given = length, (rest, more)

    env = make_vector_env(config(game='Open-v0'), 2)
    assert isinstance(env, TensorVectorEnv) and env.program.env.given == ((), {})
    env = make_vector_env(config(game='Open-v0', kwargs={'length': 2, 'wind': 3}), 2)
    assert isinstance(env, TensorVectorEnv) and env.program.env.given == ((), {'wind': 3})
    with pytest.raises(EnvKwargsError, match="env.kwargs lacks 'length', which"):
        make_vector_env(config(game='Open-v0', kwargs={}), 2)


@pytest.mark.parametrize(
    ('fields', 'error', 'message'),
    [
        ({'kwargs': {}}, EnvKwargsError, "env.kwargs lacks 'length', which torch/Track-v0 needs; give it a value"),
        (
            {'kwargs': {'length': 2, 'lenth': 3}},
            EnvKwargsError,
            "env.kwargs has 'lenth' but torch/Track-v0 takes length, offset; correct the name, or leave it out",
        ),
        ({'game': 'Acrobot-v1'}, EnvKwargsError, "env.kwargs has 'length' but torch/Acrobot-v1 takes none"),
        ({'kwargs': {'length': 2, 'max_episode_steps': 3}}, EnvKwargsError, 'not take; set env.max_episode_steps'),
        ({'game': 'Number-v0', 'kwargs': {}}, EnvContractError, 'made a int, wanted a zoo.env.TensorEnv; derive'),
        ({'autoreset': 'next_step'}, UnsupportedEnvError, "the batched 'torch/Track-v0' does 'same_step'; use 'auto'."),
        ({'vectorization': 'sync'}, UnsupportedEnvError, "'torch/Track-v0' steps all its envs at once; use 'auto'."),
    ],
)
def test_make_vector_env_config_that_leads_nowhere_says_what_to_do(fields: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_vector_env(config(**fields), 2)


@pytest.mark.parametrize('game', ['Acrobot-v1', 'CartPole-v1', 'MountainCarContinuous-v0', 'Track-v0'])
def test_check_env_finds_nothing(game: str) -> None:
    assert check_env(config(game=game, kwargs={'length': 2} if game == 'Track-v0' else {}), n_step=30) == []


# --- the page

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / 'docs' / 'device_envs.md').read_text()


@pytest.mark.long
def test_page_env_of_ones_own_is_learned(tmp_path: Path) -> None:
    example = str(ROOT / 'examples' / 'device_env.py')
    done = run_python(example, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in next(tmp_path.glob('runs/corridor/*/metrics.jsonl')).read_text().splitlines()]
    last = [row['eval/return_mean'] for row in rows if 'eval/return_mean' in row][-1]
    # from place 2.5 on average to 12, 9 of 10 steps to the right and 1 to the left: 9.5 / 0.8 = 12 steps of 0.01 each
    assert last > 0.8


def test_page_lists_every_env_that_there_is() -> None:
    games = PAGE.partition('\n| package |')[0]  # packages have rows of their own
    listed = re.findall(r'^\| `([\w-]+)` \|', games, re.MULTILINE)
    own = [name for name in TENSOR_ENV_REGISTRY.names() if TENSOR_ENV_REGISTRY.where(name).startswith('zoo.')]
    assert listed == own
