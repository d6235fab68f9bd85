"""Settings of RLlib's PPO: dicts, YAML, and PPOConfig chains in code that is never run."""

from __future__ import annotations

import ast

import pytest

from tests.tools.importers.published import RLLIB_CARTPOLE
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.rllib import from_rllib, settings_of

CHAIN = """
from ray.rllib.algorithms.ppo import PPOConfig

raise SystemExit('it was run')
config = (
    PPOConfig()
    .environment('Pendulum-v1')
    .env_runners(num_env_runners=2, num_envs_per_env_runner=10)
    .training(
        train_batch_size=512 * 20,
        minibatch_size=64,
        num_epochs=6,
        lr=[[0, 3e-4], [100000, 1e-5]],
        gamma=0.95,
        lambda_=0.1,
        vf_clip_param=10000.0,
        kl_coeff=0.3,
        model={'fcnet_activation': 'relu'},
    )
    .evaluation(evaluation_interval=2)
)
"""


def test_chain_of_calls_converts_and_resolves(tmp_path):
    path = tmp_path / 'pendulum_ppo.py'
    path.write_text(CHAIN)
    config = convert(path).config
    expected = {
        'env.id': 'Pendulum-v1',
        'env.collector_env_num': 20,
        'policy.collect.n_sample': 10_240,
        'policy.learn.batch_size': 64,
        'policy.learn.learning_rate': {'points': [[0, 3e-4], [100_000, 1e-5]]},
        'policy.collect.gae_lambda': 0.1,
        'policy.learn.value_loss': {'type': 'error_clip', 'range': 10_000.0},
        'policy.learn.penalties': [{'type': 'kl', 'weight': 0.3, 'target': 0.01}],
        'policy.learn.value_weight': 2.0,  # vf_loss_coeff 1.0, RLlib's default, of a squared error that is not halved
        'policy.model.hidden_sizes': [256, 256],
        'policy.eval.eval_freq': 2 * 10_240,
    }
    assert {key: value_at(config, key) for key in expected} == expected
    assert resolve_config(config).policy.type == 'ppo'


def test_yaml_converts_and_names_the_activation_that_zoo_lacks(tmp_path):
    path = tmp_path / 'cartpole-ppo.yaml'
    path.write_text(RLLIB_CARTPOLE)
    said = "model.fcnet_activation is 'linear', which cannot be read: it must be one of"
    with pytest.raises(ConfigError, match=said):
        convert(path)
    path.write_text(RLLIB_CARTPOLE.replace('linear', 'tanh'))
    config = convert(path).config
    assert config['policy']['learn']['value_weight'] == 0.02
    assert config['policy']['learn']['batch_size'] == 125  # 4000 % 128 = 32; 128 / 125 = 1.02
    assert (config['policy']['eval']['stop_value'], config['max_env_step']) == (150.0, 100_000)
    assert resolve_config(config).policy.model.shared_encoder is True


def test_lstm_is_a_recurrent_model_whose_sequences_divide_the_rollout():
    settings = dict(
        env='CartPole-v1', train_batch_size=1000, num_workers=1, model=dict(use_lstm=True, lstm_cell_size=64)
    )
    policy = from_rllib(settings).config['policy']
    assert policy['model']['recurrent'] == {'cell': 'lstm', 'hidden_size': 64}
    assert policy['learn']['sequence'] == {'len': 20}


def test_object_with_to_dict_is_read_by_the_keys_that_are_known():
    class PPOConfig:
        def to_dict(self):
            return {'env': 'CartPole-v1', 'lr': 1e-4, 'train_batch_size': 800, '_internal': object(), 'num_workers': 0}

    conversion = convert(PPOConfig())
    assert conversion.config['policy']['learn']['learning_rate'] == 1e-4
    assert conversion.left_out[0][0] == 'other keys of the PPOConfig'


@pytest.mark.parametrize(
    'key, value, sentence',
    [
        ('framework', 'tf2', 'zoo uses PyTorch alone'),
        ('batch_mode', 'complete_episodes', "policy.collect.batch_mode='episode'"),
        ('model', {'use_attention': True}, 'there is no attention'),
        ('train_batch_size', 'big', "train_batch_size is 'big', which cannot be read"),
        ('no_such_key', 1, 'no_such_key is 1, which is no key'),
    ],
)
def test_key_without_counterpart_is_refused_with_the_way(key, value, sentence):
    with pytest.raises(ConfigError) as caught:
        from_rllib({'env': 'CartPole-v1', 'num_workers': 1, key: value})
    assert sentence in str(caught.value)


def test_evaluation_without_exploration_is_deterministic():
    config = from_rllib({'env': 'CartPole-v1', 'evaluation_config': {'explore': False, 'env_config': {'g': 9}}}).config
    assert config['policy']['eval'] == {'deterministic': True, 'env': {'kwargs': {'g': 9}}}


def test_run_of_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match="run is 'DQN': only PPO"):
        from_rllib({'run': 'DQN', 'env': 'CartPole-v1', 'config': {}})


def from_code(code):
    return from_rllib(settings_of(ast.parse(code)))


SETUP = "config = PPOConfig().environment('CartPole-v1').env_runners(num_env_runners=2)"
CODE = """
raise SystemExit('it was run')
SETUP.training(train_batch_size=4000)
stop = {'training_iteration': 3}
tune.Tuner('PPO', param_space=config, run_config=RunConfig(stop=STOP, name='mine')).fit()
""".replace('SETUP', SETUP)


@pytest.mark.parametrize(
    'stop, wanted',
    [
        ("{'num_env_steps_sampled_lifetime': 50_000}", {'max_env_step': 50_000}),
        ("{'training_iteration': 10}", {'max_env_step': 40_000}),
        ('stop', {'max_env_step': 12_000}),
        ("{TIME_TOTAL_S: 60, 'timesteps_total': 9}", {'max_env_step': 9, 'stop': [{'type': 'wall_time', 's': 60.0}]}),
        ('{f"{ENV_RUNNER_RESULTS}/{NUM_ENV_STEPS_SAMPLED_LIFETIME}": 7}', {'max_env_step': 7}),
    ],
)
def test_stop_of_a_run_config_is_translated(stop, wanted):
    config = from_code(CODE.replace('STOP', stop)).config
    assert {key: config[key] for key in ('max_env_step', 'stop') if key in config} == wanted


@pytest.mark.parametrize('stop', ['args.stop', 'make_stop()', "{'training_iteration': n + 1}", 'lambda result: True'])
def test_stop_that_the_code_works_out_is_named(stop):
    conversion = from_code(CODE.replace('STOP', stop))
    assert ('stop', 'it cannot be read without running the code; set max_env_step') in conversion.left_out
    assert 'max_env_step' not in conversion.config


@pytest.mark.parametrize(
    ('call', 'name'),
    [
        ('.training(lr=tune.grid_search([1e-3, 1e-4]))', 'lr'),
        ('.training(train_batch_size=2 * args.n)', 'train_batch_size'),
        ('.training(model={"fcnet_hiddens": [8] * n, "use_lstm": True})', 'model.fcnet_hiddens'),
        ('.environment(env_config={"map": load("a")})', 'env_config'),
        ('.rl_module(model_config=make(2))', 'model'),
    ],
)
def test_setting_that_the_code_works_out_is_asked_for(call, name):
    """Such a setting must not be replaced by RLlib's default, as it once was."""
    with pytest.raises(ConfigError) as caught:
        from_code(SETUP + call)
    assert caught.value.problems == [f'{name} is worked out when the script runs; give it a plain value in the script.']


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        ('.training(**found)', '**found is .*no key of RLlib that this translation knows'),
        ('.multi_agent(policies=make(3))', 'policies is .*one policy acts for one agent'),
        (".multi_agent(policies={'a', 'b'})", 'policies is .*one policy acts for one agent'),
    ],
)
def test_setting_of_the_code_without_counterpart_is_refused_with_the_way(call, said):
    with pytest.raises(ConfigError, match=said.replace('**', r'\*\*')):
        from_code(SETUP + call)


def test_entries_of_a_dict_are_read_next_to_one_that_the_code_works_out():
    code = """
config = {'env': 'CartPole-v1', 'num_workers': 1, 'lr': 1e-3, 'log_level': level(), 'num_gpus': int(os.environ['N'])}
PPOTrainer(config=config)
"""
    with pytest.raises(ConfigError) as caught:
        from_code(code)
    said = 'num_gpus is worked out when the script runs; give it a plain value in the script.'
    assert caught.value.problems == [said]
    assert caught.value.conversion.config['policy']['learn']['learning_rate'] == 1e-3


def test_what_is_set_in_the_config_later_holds():
    code = """
config = dict(env='CartPole-v1', num_workers=1, lr=1e-4, model={'fcnet_activation': 'relu'})
config['lr'] = 1e-3
config['model']['fcnet_hiddens'] = [8]
config.gamma = 0.9
config.update({'clip_param': 0.1})
other['lr'] = 1
PPOTrainer(config=config)
"""
    policy = from_code(code).config['policy']
    assert policy['learn']['learning_rate'] == 1e-3 and policy['learn']['clip_ratio'] == 0.1
    assert policy['model'] == {'hidden_sizes': [8], 'activation': 'relu'}
    assert policy['collect']['discount_factor'] == 0.9


def test_network_of_the_new_api_is_read_with_its_own_defaults():
    """vf_share_layers is true in DefaultModelConfig and false in PPO's own model."""
    model = "DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation='relu', head_fcnet_hiddens=[16])"
    config = from_code(f'{SETUP}.rl_module(model_config={model})').config
    heads = {'actor_head': [16], 'critic_head': [16]}
    assert config['policy']['model'] == dict(shared_encoder=True, hidden_sizes=[32], activation='relu', **heads)
    resolve_config(config)
    plain = from_code(SETUP + ".rl_module(model_config={'fcnet_hiddens': [32]})").config
    assert plain['policy']['model'] == {'hidden_sizes': [32], 'activation': 'tanh'}


@pytest.mark.parametrize('home', ['model', '_model_config'])
def test_network_of_an_object_is_read(home):
    """An object has every key, with RLlib's default; network keys that still have their default are ignored."""

    class PPOConfig:
        def to_dict(self):
            model = {'fcnet_hiddens': [64], 'use_lstm': False, 'free_log_std': False, 'conv_filters': None, 'dim': 84}
            return {'env': 'CartPole-v1', 'num_env_runners': 1, 'model': {}, home: model}

    config = convert(PPOConfig()).config
    assert config['policy']['model'] == {'hidden_sizes': [64], 'activation': 'tanh'}
    resolve_config(config)
