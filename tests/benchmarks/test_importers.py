"""benchmarks/importers.py: which files it counts, and what counts as translated."""

from __future__ import annotations

import importers

from tests.tools.importers import forms


def counted(cases):
    """{name of a case: whether it converts}"""
    return {case.name: not importers.reasons(case) for case in cases}


def test_scripts_are_counted_by_their_names_and_tried(tmp_path):
    for name, code in forms.CLEANRL.items():
        (tmp_path / f'{name}.py').write_text(code)
    for name, (code, _) in forms.CLEANRL_REFUSED.items():
        (tmp_path / f'{name}.py').write_text(code)
    found = counted(importers.of_cleanrl(tmp_path))
    expected = {f'{name}.py': True for name in forms.CLEANRL} | {f'{name}.py': False for name in forms.CLEANRL_REFUSED}
    del expected['dqn.py']  # no script for PPO
    assert found == expected


def test_blocks_of_files_for_translated_algorithms_are_counted(tmp_path):
    for name in ('ppo', 'trpo'):
        (tmp_path / f'{name}.yml').write_text(forms.RL_ZOO3[name])
    (tmp_path / 'sac.yml').write_text('CartPole-v1: {n_envs: 1, n_timesteps: 9}')
    found = counted(importers.of_rl_zoo3(tmp_path))
    assert len(found) == 10 and all(found.values())  # 7 blocks of ppo, 3 of trpo


def test_configs_of_di_engine_are_counted_by_the_type_of_their_policy(tmp_path):
    """A file whose code fails is counted if its name is that of a config for PPO or PPG."""
    for i, (main, create) in enumerate(
        [*forms.DI_ENGINE.values(), *(pair for pair, _ in forms.DI_ENGINE_REFUSED.values())]
    ):
        (tmp_path / f'a{i}_config.py').write_text(f'main_config = {main!r}\ncreate_config = {create!r}\n')
    other = "main_config = dict(policy=dict(cuda=True))\ncreate_config = dict(policy=dict(type='dqn'))\n"
    (tmp_path / 'dqn_config.py').write_text(other)
    (tmp_path / 'x_onppo_config.py').write_text('import no_such_simulator\nmain_config = {}\n')
    found = counted(importers.of_di_engine(tmp_path))
    assert len(found) == 11 + 11 + 1 and sum(found.values()) == 11 and found['x_onppo_config.py'] is False
