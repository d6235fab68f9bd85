"""What is said where a file of another library is given as a config of zoo."""

from __future__ import annotations

import pytest

from tests.tools.importers.published import CLEANRL_ARGS, CLEANRL_PPG_ARGS, RL_ZOO3_PPO, RLLIB_CARTPOLE
from zoo.config.section import ConfigError
from zoo.config.source import load_config
from zoo.tools.importers.convert import how_to_convert

SCRIPT = 'import no_such_module\n@dataclass\nclass Args:\n' + '\n'.join(
    f'    {k} = {v}' for k, v in CLEANRL_ARGS.items()
)
PARSER = 'def parse_args():\n' + '\n'.join(
    f'    p.add_argument("{k}", default={v})' for k, v in CLEANRL_PPG_ARGS.items()
)
CHAIN = 'from no_such_ray import PPOConfig\nconfig = PPOConfig().environment("CartPole-v1")\n'


@pytest.mark.parametrize(
    'name, text, what, option',
    [
        ('zoo_case_script.py', SCRIPT, 'a script of CleanRL', ''),
        ('zoo_case_parser.py', PARSER, 'a script of CleanRL', ''),
        ('zoo_case_chain.py', CHAIN, 'code for RLlib', ''),
        ('ppo.yml', 'atari:\n  n_steps: 8\n  n_envs: 2\n' + RL_ZOO3_PPO, "a file of rl-zoo3's settings", 'Pendulum-v1'),
        ('flat.yaml', 'env: CartPole-v1\nn_steps: 32\nn_envs: !!python/name:int 8\n', '', ''),
        ('flat.yaml', 'env: CartPole-v1\nn_steps: 32\nn_envs: 8\n', "a file of rl-zoo3's settings", ''),
        ('ppo.yaml', RLLIB_CARTPOLE, 'a file of RLlib', ''),
    ],
)
def test_file_of_another_library_is_told_to_be_converted(name, text, what, option, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    named = f' --name {option}' if option else ''
    wanted = f'{path} is {what}, not a config of zoo: translate it with zoo convert {path}{named} -o config.yaml, '
    assert str(caught.value).startswith(wanted) == bool(what)


@pytest.mark.parametrize('text', ['env: {id: CartPole-v1}\nn_steps: 1\nn_envs: 2', 'policy: {}\nseed: 1', 'seed: 1'])
def test_config_of_zoo_is_of_no_other_library(text, tmp_path):
    (tmp_path / 'config.yaml').write_text(text)
    assert how_to_convert(tmp_path / 'config.yaml', 'config.yaml') == ''
