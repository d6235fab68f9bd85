"""The section cluster: each value that cannot be, or has no effect, is one sentence before anything is started."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from zoo.cluster import config as section
from zoo.config.section import ConfigError
from zoo.run.config import resolve_config

BASE = {'env': {'id': 'CartPole-v1', 'collector_env_num': 8}, 'policy': {'type': 'ppo'}}


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(BASE, overrides)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ('overrides', 'words'),
    [
        (['cluster.runner_num=3'], 'env.collector_env_num is 8: 8 % 3 = 2; use a divisor, e.g. 2 or 4.'),
        (['cluster.runner_num=16'], '8 % 16 = 8; use a divisor, e.g. 8.'),
        (['cluster.engine=process'], "cluster.engine is 'process' but cluster.runner_num is 0"),
        (['cluster.max_lag=1'], 'cluster.max_lag is 1 but cluster.runner_num is 0'),
        (['cluster.runner_num=2', 'cluster.address=host:1'], "cluster.address is 'host:1', which only Ray reads"),
        (['cluster.runner_num=2', 'cluster.runner_gpu=0.5'], 'cluster.runner_gpu is 0.5, which only Ray reads'),
        (
            ['cluster.runner_num=2', 'env.collector_group_num=1'],
            'env.collector_group_num is 1 but cluster.runner_num is 2',
        ),
        (['cluster.engine=mpi', 'cluster.runner_num=2'], "must be one of 'auto', 'inline', 'process', 'ray'"),
        (['cluster.runner_num=-1'], 'cluster.runner_num'),
        (['cluster.runner_timeout=0'], 'cluster.runner_timeout'),
        (['cluster.runners=2'], 'cluster.runner_num'),
    ],
    ids=lambda x: ' '.join(x) if isinstance(x, list) else None,
)
def test_what_cannot_be_is_one_sentence(overrides: list[str], words: str) -> None:
    assert words in problem(*overrides)


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_ray(name: str) -> object:
        return None if name == 'ray' else importlib.util.find_spec(name)

    monkeypatch.setattr(section, 'find_spec', without_ray)
    assert problem('cluster.runner_num=2', 'cluster.engine=ray').endswith(
        "pip install '.[ray]' in the checkout of zoo."
    )


def test_windows_has_no_engine_process(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve_config(BASE, ['cluster.runner_num=2'])
    monkeypatch.setattr(section, 'os', SimpleNamespace(name='nt'))
    assert 'needs Linux or macOS' in next(section.cluster_problems(config))


def test_defaults_are_one_process_and_auto_means_process() -> None:
    cfg = resolve_config(BASE)
    assert section.engine_of(cfg.cluster) is None and not list(section.cluster_problems(cfg))
    assert section.engine_of(resolve_config(BASE, ['cluster.runner_num=2']).cluster) == 'process'
    assert (
        section.engine_of(resolve_config(BASE, ['cluster.runner_num=2', 'cluster.engine=inline']).cluster) == 'inline'
    )
