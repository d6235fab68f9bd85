"""CleanRL's scripts: their arguments are read, and the code is never run."""

from __future__ import annotations

import pytest

from tests.tools.importers.published import CLEANRL_ARGS, CLEANRL_PPG_ARGS
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers import convert


@pytest.fixture
def ppo_script(tmp_path):
    path = tmp_path / 'ppo_continuous_action.py'
    fields = '\n'.join(f'    {name} = {value}' for name, value in CLEANRL_ARGS.items())
    wrappers = 'env = gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(env))'
    path.write_text(f'raise SystemExit("it was run")\n@dataclass\nclass Args:\n{fields}\n\n{wrappers}\n')
    return path


@pytest.fixture
def ppg_script(tmp_path):
    path = tmp_path / 'ppg_procgen.py'
    flags = '\n'.join(f'parser.add_argument("{name}", default={value})' for name, value in CLEANRL_PPG_ARGS.items())
    path.write_text(f'raise SystemExit("it was run")\n{flags}\nnetwork = ConvSequence()\n')
    return path


def test_ppo_script_converts_and_resolves(ppo_script):
    config = convert(ppo_script).config
    expected = {
        'env.id': 'HalfCheetah-v4',
        'max_env_step': 1_000_000,
        'policy.learn.batch_size': 64,  # 1 env x 2048 steps / 32 minibatches
        'policy.learn.learning_rate': {'start': 3e-4, 'end': 0.0},
        'policy.learn.value_weight': 0.5,  # CleanRL halves the squared error too
        'policy.learn.value_loss': 'clip',
        'policy.model.obs_norm': True,
        'policy.learn.reward_norm': True,
    }
    assert {path: value_at(config, path) for path in expected} == expected
    assert resolve_config(config).policy.type == 'ppo'


def test_ppg_script_converts_to_ppg(ppg_script):
    config = convert(ppg_script).config
    expected = {
        'policy.type': 'ppg',
        'env.id': 'procgen',
        'env.game': 'starpilot',
        'policy.learn.aux_freq': 32,
        'policy.learn.aux_batch_size': 4 * 256,
        'policy.learn.batch_size': 64 * 256 // 8,
        'policy.learn.adv_norm': 'batch',
        'policy.model.arch': 'detach',
        'policy.model.encoder': 'impala',
    }
    assert {path: value_at(config, path) for path in expected} == expected


def test_target_kl_is_the_same_limit(ppo_script):
    ppo_script.write_text(ppo_script.read_text().replace('target_kl: float = None', 'target_kl: float = 0.03'))
    assert convert(ppo_script).config['policy']['learn']['target_kl'] == pytest.approx(0.02)  # stops above 1.5 x 0.02


def test_script_of_another_algorithm_is_refused(tmp_path):
    path = tmp_path / 'dqn.py'
    path.write_text('class Args:\n    buffer_size: int = 10000\n    gamma: float = 0.99\n')
    with pytest.raises(ConfigError, match='num_minibatches and clip_coef'):
        convert(path, 'cleanrl')


def test_argument_without_counterpart_is_refused(ppo_script):
    ppo_script.write_text(ppo_script.read_text().replace('seed: int = 1', 'seed: int = 1\n    rpo_alpha: float = 0.5'))
    with pytest.raises(ConfigError, match=r'rpo_alpha is 0.5, which has no counterpart here'):
        convert(ppo_script)


def test_run_is_named_as_the_script_and_every_argument_has_a_line(ppo_script):
    conversion = convert(ppo_script)
    assert conversion.config['exp_name'] == 'ppo_continuous_action'
    said = '\n'.join(old for old, _ in [*conversion.became, *conversion.left_out])
    missing = [name for field in CLEANRL_ARGS if (name := field.partition(':')[0]) not in said]
    assert not missing


def test_default_that_the_script_works_out_is_asked_for(ppo_script):
    ppo_script.write_text(ppo_script.read_text().replace('gamma: float = 0.99', 'gamma: float = 1 - 1 / horizon'))
    with pytest.raises(ConfigError, match='^gamma is worked out when the script runs; give it a plain value'):
        convert(ppo_script)


def test_numbers_in_the_code_are_those_of_the_config(ppg_script):
    """As in ppg_procgen.py: Adam's epsilon differs from the ppo scripts, and the wrapper has its own gamma of .99."""
    code = 'envs = gym.wrappers.NormalizeReward(envs)\noptimizer = optim.Adam(p, lr=args.learning_rate, eps=1e-8)\n'
    ppg_script.write_text(ppg_script.read_text() + code)
    config = convert(ppg_script).config
    learn = config['policy']['learn']
    assert config['policy']['collect']['discount_factor'] == 0.999
    assert (learn['adam_eps'], learn['reward_norm'], learn['reward_norm_discount']) == (1e-8, True, 0.99)
    resolve_config(config)
    ppg_script.write_text(ppg_script.read_text().replace('NormalizeReward(envs)', 'NormalizeReward(envs, args.gamma)'))
    assert 'reward_norm_discount' not in convert(ppg_script).config['policy']['learn']  # the discount of the policy


def test_lstm_of_atari_sees_one_frame_and_whole_rollouts(ppo_script):
    """As in ppo_atari_lstm.py, where env.id=atari alone would stack four frames."""
    code = ppo_script.read_text().replace('HalfCheetah-v4', 'BreakoutNoFrameskip-v4')
    code += 'env = gym.wrappers.FrameStack(env, 1)\nnn.Conv2d(1, 32, 8)\nself.lstm = nn.LSTM(512, 128)\n'
    ppo_script.write_text(code.replace('num_minibatches: int = 32', 'num_minibatches: int = 1'))
    config = convert(ppo_script).config
    assert config['env']['kwargs'] == {'frame_stack': 1} and config['env']['game'] == 'Breakout'
    assert config['policy']['learn']['sequence'] == {'len': 2048}  # num_steps of this script
