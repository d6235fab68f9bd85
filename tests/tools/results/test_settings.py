"""The settings that a report lists, their values, and the portable config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.real_runs import made_run
from zoo.config.section import plain
from zoo.run.config import resolve_config
from zoo.tools.results.settings import NONE, changed_settings, env_name, portable_config, short_names


def saved(*overrides: str, source: Any = 'cartpole_ppo') -> dict[str, Any]:
    """A resolved config, as a run saves it."""
    return plain(resolve_config(source, overrides))


def listed(*configs: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {s.key: (*s.values, s.default) for s in changed_settings(configs)}


def test_settings_are_those_that_the_config_changes_with_values_as_one_types_them() -> None:
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'learn': {'learning_rate': {'start': 1e-3, 'end': 0.0}}}}
    words = 'seed=4', 'policy.collect.gae_lambda=0.8', 'env.kwargs={size: 3}', 'logger.root=x'
    assert listed(saved(*words, source=config)) == {
        'env.kwargs': ('{size: 3}', '{}'),
        'policy.learn.learning_rate': ('{start: 0.001, end: 0.0}', '0.00025'),
        'policy.collect.gae_lambda': ('0.8', '0.95'),
    }


def test_settings_of_a_config_of_defaults_are_none() -> None:
    assert listed(saved(source={'env': {'id': 'CartPole-v1'}})) == {}


PPO, PPG = ({'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}} for name in ('ppo', 'ppg'))


def test_settings_of_two_policies_name_both_defaults_and_the_policy() -> None:
    got = listed(saved('policy.collect.gae_lambda=0.5', source=PPO), saved(source=PPG))
    assert got['policy.type'] == ('ppo', 'ppg', NONE)
    assert got['policy.collect.gae_lambda'] == ('0.5', '0.95', '0.95')
    assert 'env.id' not in got


def test_settings_of_a_key_that_one_policy_lacks_are_a_dash_there() -> None:
    got = listed(saved(source=PPO), saved('policy.learn.aux_freq=7', source=PPG))
    assert got['policy.learn.aux_freq'][:2] == (NONE, '7')


def test_settings_of_a_policy_that_is_not_registered_are_what_differs_and_no_code_is_imported(tmp_path: Path) -> None:
    (tmp_path / 'evil.py').write_text('raise SystemExit("imported")')
    sys.path.insert(0, str(tmp_path))
    try:
        one, two = saved(), saved('policy.collect.gae_lambda=0.5')
        for config in (one, two):
            config['policy']['type'], config['env']['id'] = 'evil:Policy', 'evil:make'
            config['logger']['sinks'], config['stop'], config['callbacks'] = ['evil:Sink'], ['evil:f'], ['evil:C']
        assert listed(one, two) == {'policy.collect.gae_lambda': ('0.95', '0.5', NONE)}
        assert listed(one) == {} and 'evil' not in sys.modules
    finally:
        sys.path.remove(str(tmp_path))


def test_portable_config_names_no_folder_and_trains_the_same() -> None:
    config = saved('logger.root=/home/me/runs')
    config['env']['wrappers'] = ['/home/me/code/my.py:Wrapper', {'type': 'C:\\code\\own.py:Other'}, 'a/b/data.txt']
    made = portable_config(config)
    assert made['env']['wrappers'] == ['my.py:Wrapper', {'type': 'own.py:Other'}, 'a/b/data.txt']
    assert 'root' not in made['logger']
    made['env']['wrappers'] = []
    assert saved('logger.root=/home/me/runs') == saved('logger.root=/home/me/runs', source=made)


def test_files_of_one_name_are_distinguished_by_as_much_of_their_folders_as_it_takes() -> None:
    files = ['/home/me/one/my_env.py', '/home/me/two/my_env.py', r'C:\code\two\my_env.py', '/home/me/one/parts.py']
    short = ['one/my_env.py', 'me/two/my_env.py', 'code/two/my_env.py', 'parts.py']
    assert short_names(files) == dict(zip(files, short, strict=True))
    configs = [saved() for _ in range(2)]
    for config, folder in zip(configs, ('one', 'two'), strict=True):
        config['env']['id'] = f'/home/me/{folder}/my_env.py:MyEnv'
    assert listed(*configs)['env.id'][:2] == ('one/my_env.py:MyEnv', 'two/my_env.py:MyEnv')
    assert listed(configs[0], configs[0]).keys() == listed(configs[0]).keys() - {'env.id'}


def test_env_name_is_the_name_of_the_file_and_has_the_game() -> None:
    assert env_name({'env': {'id': '/home/me/my_env.py:MyEnv'}}) == 'my_env.py:MyEnv'
    assert env_name({'env': {'id': 'atari', 'game': 'pong'}}) == 'atari: pong'


def test_schedule_of_a_config_without_max_env_step_stays_as_it_is() -> None:
    rate = {'start': 1.0, 'end': 0.0, 'over': 10}
    config = made_run([1], [1], learning_rate=rate).config  # type: ignore[arg-type]
    assert portable_config(config)['policy']['learn']['learning_rate'] == rate
