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


def with_arguments(script, **arguments):
    """The code of a script with more fields of Args; of two with one name the first counts."""
    fields = ''.join(f'\n    {name}: float = {value}' for name, value in arguments.items())
    return script.read_text().replace('class Args:', f'class Args:{fields}')


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
    ppo_script.write_text(with_arguments(ppo_script, reward_scaler=0.01))
    with pytest.raises(
        ConfigError, match=r'reward_scaler is 0.01, which has no counterpart here: scale rewards in a wrapper'
    ):
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


@pytest.mark.parametrize(
    ('code', 'number'),
    [('int(2e5)', 200_000), ('int("5_000")', 5000), ('2 * int(1e4)', 20_000), ('int(float("1e6"))', 10**6)],
)
def test_int_or_float_of_a_literal_is_a_number(ppo_script, code, number):
    ppo_script.write_text(with_arguments(ppo_script, total_timesteps=code))
    assert convert(ppo_script).config['max_env_step'] == number


@pytest.mark.parametrize('code', ['int(os.environ["N"])', 'int(n)', 'int("many")', 'int(1e999)'])
def test_int_of_what_the_script_works_out_is_asked_for(ppo_script, code):
    ppo_script.write_text(with_arguments(ppo_script, total_timesteps=code))
    with pytest.raises(ConfigError, match='^total_timesteps is worked out when the script runs'):
        convert(ppo_script)


def test_arguments_that_are_filled_in_at_run_time_are_left_out(ppg_script):
    """num_phases is 0 in the script, and set when it runs, as num_iterations is."""
    names = ['num_phases', 'num_iterations', 'batch_size', 'minibatch_size', 'aux_batch_rollouts']
    more = ''.join(f'parser.add_argument("--{name.replace("_", "-")}", default=0)\n' for name in names)
    before = convert(ppg_script).config
    ppg_script.write_text(more + ppg_script.read_text())
    conversion = convert(ppg_script)
    assert conversion.config == before
    assert {f'{name}=0' for name in names} <= {old for old, _ in conversion.left_out}


def test_script_for_several_processes_has_the_numbers_of_one(ppo_script):
    """As in ppo_atari_multigpu.py: 8 envs of 2048 steps in a process, 32 minibatches of 512."""
    more = dict(
        local_num_envs=8, local_batch_size=0, local_minibatch_size=0, world_size=0, num_envs=0, backend='"gloo"'
    )
    ppo_script.write_text(with_arguments(ppo_script, **more, device_ids='field(default_factory=list)'))
    conversion = convert(ppo_script)
    cfg = resolve_config(conversion.config)
    assert (cfg.env.collector_env_num, cfg.policy.learn.batch_size) == (8, 512)
    assert 'torchrun --nproc-per-node=N -m zoo train' in dict(conversion.left_out)['several processes']


def test_rnd_has_the_ratio_of_its_factors_and_the_numbers_of_the_script(ppo_script):
    """Advantages are int_coef * a + ext_coef * b there, b + weight * a here, and normalised after that."""
    more = dict(int_coef=1.0, ext_coef=4.0, int_gamma=0.98, update_proportion=0.5, num_iterations_obs_norm_init=50)
    code = with_arguments(ppo_script, **more).replace('HalfCheetah-v4', 'MontezumaRevenge-v5')
    ppo_script.write_text(
        f'{code}\nenvs = envpool.make(args.env_id, repeat_action_probability=0.25)\nnn.Conv2d(1, 32, 8)\n'
    )
    config = convert(ppo_script).config
    rnd = resolve_config(config).policy.learn.intrinsic
    assert (rnd['type'], rnd['weight'], rnd['discount_factor'], rnd['predictor_share']) == ('rnd', 0.25, 0.98, 0.5)
    assert (rnd['learning_rate'], rnd['batch_size'], rnd['epoch_per_collect']) == (
        3e-4,
        64,
        10,
    )  # those of the ppo update
    assert config['env']['kwargs']['repeat_action_probability'] == 0.25


def test_rpo_is_the_option_of_the_example(ppo_script):
    ppo_script.write_text(with_arguments(ppo_script, rpo_alpha=0.5))
    conversion = convert(ppo_script)
    assert conversion.config['policy']['learn']['options'] == [{'type': 'rpo', 'alpha': 0.5}]
    assert '--import examples/rpo.py' in dict(conversion.became)['rpo_alpha=0.5']
    ppo_script.write_text(with_arguments(ppo_script, rpo_alpha=0.0))
    assert 'options' not in convert(ppo_script).config['policy']['learn']


STACK = 'class Agent:\n    def __init__(self):\n        self.{} = nn.Sequential(nn.Linear(obs, {}), nn.Linear({}, {}), {})\n'


def test_widths_of_the_network_are_those_of_its_code(ppo_script):
    critic = STACK.format('critic', 256, 256, 128, 'layer_init(nn.Linear(128, 1), std=1.0)')
    actor = STACK.format('actor_mean', 256, 256, 128, 'layer_init(nn.Linear(128, n), std=0.01)')
    code = ppo_script.read_text()
    ppo_script.write_text(code + critic + actor)
    assert convert(ppo_script).config['policy']['model']['hidden_sizes'] == [256, 128]
    ppo_script.write_text(code + (critic + actor).replace('256', '64').replace('128', '64'))
    assert 'hidden_sizes' not in convert(ppo_script).config['policy']['model']  # 64, 64 are the default
    ppo_script.write_text(code + critic.replace('256', '32') + actor)
    with pytest.raises(
        ConfigError, match='the layers of actor and critic differ: critic 32, 128, actor_mean 256, 128;'
    ):
        convert(ppo_script)


def test_script_for_several_agents_is_refused_by_one_reason(ppo_script):
    ppo_script.write_text(ppo_script.read_text() + 'env = pettingzoo.atari.pong_v3.env()\n')
    said = 'ppo_continuous_action is a script of CleanRL that is not translated: it trains several agents; zoo does so by the section agents'
    with pytest.raises(ConfigError, match=said) as caught:
        convert(ppo_script)
    assert len(caught.value.problems) == 1


def test_envs_of_isaac_gym_are_to_be_named_and_the_rest_is_translated(ppo_script):
    before = convert(ppo_script).config
    ppo_script.write_text(
        ppo_script.read_text() + 'envs = isaacgymenvs.make(task=args.env_id, num_envs=args.num_envs)\n'
    )
    conversion = convert(ppo_script)
    del before['env']['id']
    assert conversion.config == before
    assert 'give env.id=module:function' in dict(conversion.became)['env_id=HalfCheetah-v4']


def test_script_with_attention_is_refused_by_one_reason(ppo_script):
    ppo_script.write_text(with_arguments(ppo_script, trxl_dim=384, trxl_num_heads=4))
    with pytest.raises(ConfigError, match='its memory is a Transformer-XL') as caught:
        convert(ppo_script)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize('file, name', [('dqn.py', 'DQN'), ('sac_atari.py', 'SAC'), ('c51_jax.py', 'C51')])
def test_script_for_another_algorithm_is_named(tmp_path, file, name):
    path = tmp_path / file
    common = 'exp_name seed track wandb_project_name wandb_entity total_timesteps env_id learning_starts'.split()
    path.write_text('class Args:\n' + ''.join(f'    {word}: int = 1\n' for word in common))
    with pytest.raises(ConfigError, match=f'is a script of CleanRL for {name}; only PPO and PPG are translated.'):
        convert(path)
