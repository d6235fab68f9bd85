"""The public names of zoo.env; its modules load only when one of their names is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import zoo.env

NOT_CHOSEN = (
    'families.atari',
    'families.envpool',
    'families.procgen',
    'tensor',
    'toy',
    'workers',
    'inspection.inspect',
    'given',
    'ids',
    'masks',
    'entries',
    'serial',
    'settings',
    'wrappers',
)


def test_every_name_is_found_in_its_module() -> None:
    for name in zoo.env.__all__:
        found = getattr(getattr(zoo.env, name), '__name__', name).rpartition('.')[2]
        assert found == {'memory': 'targets', 'minigrid_memory': 'targets'}.get(name, name)  # which have moved


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module zoo.env has no attribute 'make_envs'"):
        zoo.env.make_envs  # noqa: B018


@pytest.mark.long
@pytest.mark.slow
def test_checked_cartpole_loads_no_env_that_is_not_chosen() -> None:
    code = (
        'import sys; from zoo.env import EnvConfig, check_env, make_env_groups; '
        "cfg = EnvConfig(id='CartPole-v1'); check_env(cfg); make_env_groups(cfg)[0].reset(0); "
        "print(*(name.removeprefix('zoo.env.') for name in sys.modules if name.startswith('zoo.env.')))"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert 'inspection.check' in loaded and 'vector' in loaded
    assert not [name for name in loaded if name.startswith(NOT_CHOSEN)]
