"""Settings of RLlib's PPO: dicts, YAML, and PPOConfig chains in code that is never run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import pytest

from tests.tools.importers.published import RLLIB_CARTPOLE
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.rllib import from_rllib, settings_of
from zoo.tools.sweep.spaces import parse_space

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


@pytest.mark.parametrize(
    'max_seq_len, sequence, batch_size',
    [
        # 10 envs of 400 steps; minibatch 128. Divisors of 4000 in whole sequences of 20: .., 100, 160, 200, ..: 160 / 128 =
        # 1.25 and 128 / 100 = 1.28
        (20, 20, 160),
        (16, 16, 160),  # multiples of 16: .., 80, 160, ..: 128 / 80 = 1.6
        (1000, 400, 400),  # a sequence is at most a rollout: 400 is the least batch
    ],
)
def test_minibatches_of_an_lstm_are_whole_sequences(max_seq_len, sequence, batch_size):
    model = dict(use_lstm=True, max_seq_len=max_seq_len)
    config = from_rllib(dict(env='CartPole-v1', num_env_runners=10, model=model)).config
    learn = resolve_config(config).policy.learn
    assert (learn.sequence.len, learn.batch_size) == (sequence, batch_size)


def test_attention_is_the_cell_trxl_with_the_sizes_of_rllib():
    model = dict(
        use_attention=True, attention_dim=32, attention_num_heads=2, attention_memory_training=9, max_seq_len=10
    )
    policy = from_rllib(dict(env='CartPole-v1', train_batch_size=1000, num_workers=1, model=model)).config['policy']
    # RLlib's defaults: one unit, a memory of 50 steps
    assert policy['model']['recurrent'] == dict(cell='trxl', hidden_size=32, n_layer=1, heads=2, memory=50)
    assert policy['learn']['sequence']['len'] == 10


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
        ('model', {'attention_init_gru_gate_bias': 0.5}, 'gates of the cell trxl begin with it'),
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
        ('.training(train_batch_size=2 * args.n)', 'train_batch_size'),
        ('.training(lr=float(args.lr))', 'lr'),
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
        ('.multi_agent(policies=make(3))', 'policies is .*in zoo it is `agents.policies`'),
        (".multi_agent(policies={'a', 'b'})", 'policies is .*in zoo it is `agents.policies`'),
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


class AlgorithmConfig:
    """A config in the form of RLlib's: settings are attributes, removed ones are -1, some have a leading underscore."""

    def __init__(self, **settings):
        self.env, self.env_config, self.normalize_actions, self.clip_actions = None, {}, True, False
        self.num_env_runners, self.num_envs_per_env_runner, self.gamma, self.lr = 2, 1, 0.99, 5e-5
        self._env_to_module_connector, self._module_to_env_connector, self._learner_connector = None, None, None
        self._train_batch_size_per_learner, self.train_batch_size, self.minibatch_size = None, 4000, 128
        self.sgd_minibatch_size, self.vf_share_layers, self.enable_connectors = -1, -1, -1
        self.num_epochs, self.clip_param, self.vf_clip_param, self.grad_clip = 30, 0.3, 10.0, None
        self.model = {
            'fcnet_hiddens': [256, 256],
            'use_lstm': False,
            'max_seq_len': 20,
            'conv_filters': None,
            'dim': 84,
        }
        self._model_config, self._rl_module_spec, self._validate_config = {}, None, True
        self.policies, self.callbacks, self.log_level = {'default_policy': None}, object, 'WARN'
        vars(self).update(settings)

    def to_dict(self):
        return dict(vars(self))


class PPOConfig(AlgorithmConfig):
    pass


@dataclass
class DefaultModelConfig:
    """Networks in the form of RLlib's class of this name."""

    fcnet_hiddens: list = field(default_factory=lambda: [256, 256])
    vf_share_layers: bool = True
    use_lstm: bool = False
    max_seq_len: int = 20
    lstm_cell_size: int = 256
    free_log_std: bool = False
    conv_filters: list | None = None
    conv_activation: str = 'relu'


def MeanStdFilter():  # noqa: N802, the name is looked at
    raise SystemExit('it was run')


Unknown = Other = MeanStdFilter


def filtered(env):
    return [MeanStdFilter()]


REAL = {
    'plain': {},
    'batch of a learner': dict(_train_batch_size_per_learner=2048),
    'lstm': dict(num_env_runners=10, _model_config=DefaultModelConfig(use_lstm=True)),
    'continuous': dict(env='Pendulum-v1', lr=3e-4, vf_clip_param=1e4, minibatch_size=64),
}


def test_configs_in_the_form_of_real_objects_convert_and_resolve():
    """removed settings are -1; these four are the form of PPOConfig of ray 2.60."""
    found = []
    for name, settings in REAL.items():
        config = convert(PPOConfig(**{'env': 'CartPole-v1', **settings})).config
        assert resolve_config(config).policy.type == 'ppo', name
        found.append((config['policy']['collect']['n_sample'], config['policy']['learn']['batch_size']))
    print(f'{len(found)} of {len(REAL)} objects of RLlib convert')
    # 125 = 4000 / 32, the divisor nearest to 128; 160: test_minibatches_of_an_lstm...; 80 / 64 = 1.25, 64 / 50 = 1.28
    assert found == [(4000, 125), (2048, 128), (4000, 160), (4000, 80)]


def test_object_of_a_continuous_env_has_the_actions_and_deviations_of_rllib():
    """There mean 0 of an action in [-2, 2] is 0 and mean 1 is 2; the deviation depends on the observation."""
    config = convert(PPOConfig(env='Pendulum-v1')).config
    assert config['env']['action_mode'] == 'rescale'
    assert config['policy']['model']['state_dependent_std'] is True
    free = convert(PPOConfig(env='Pendulum-v1', _model_config={'free_log_std': True})).config
    assert free['policy']['model']['state_dependent_std'] is False
    own = convert(PPOConfig(env='Pendulum-v1', normalize_actions=False)).config
    assert own['env']['action_mode'] == 'clip'


def test_chain_without_normalize_actions_has_that_of_rllib():
    code = "PPOConfig().environment('Pendulum-v1').rl_module(model_config=DefaultModelConfig(free_log_std=True))"
    assert from_code(code).config['env']['action_mode'] == 'rescale'


@pytest.mark.parametrize(
    'connect', [filtered, lambda env: MeanStdFilter(), lambda env, spaces=None: [[MeanStdFilter()]]]
)
def test_connector_of_an_object_that_filters_is_obs_norm_and_is_not_run(connect):
    config = convert(PPOConfig(env='CartPole-v1', _env_to_module_connector=connect)).config
    assert config['policy']['model']['obs_norm'] is True


@pytest.mark.parametrize(
    ('call', 'model'),
    [
        ('lambda env: MeanStdFilter()', {'obs_norm': True}),
        ('lambda env, spaces, device: [FlattenObservations(), MeanStdFilter(multi_agent=False)]', {'obs_norm': True}),
        ('connect', {'obs_norm': True}),
        ('lambda env: FlattenObservations()', {}),
        ('None', {}),
    ],
)
def test_connector_of_a_chain_is_read_by_its_words(call, model):
    code = (
        f'def connect(env):\n    return connectors.MeanStdFilter()\n{SETUP}.env_runners(env_to_module_connector={call})'
    )
    found = from_code(code).config['policy']['model']
    assert {key: value for key, value in found.items() if key == 'obs_norm'} == model


@pytest.mark.parametrize(
    ('arguments', 'clip'),
    [
        ('', 10.0),
        ('clip_by_value=5', 5.0),
        ('clip_by_value=None', 1e6),
        ('clip_by_value=0', 1e6),
        ('clip_by_value=1e9', 1e6),
    ],
)
def test_bound_of_a_connector_that_filters_is_obs_clip(arguments, clip):
    # RLlib clips normalised observations to +-clip_by_value, 10 by default; None and 0 are no bound; here at most 1e6
    code = f'{SETUP}.env_runners(env_to_module_connector=lambda env: [MeanStdFilter({arguments})])'
    model = from_code(f'config.lr = 1e-3\n{code}').config['policy']['model']
    assert (model['obs_norm'], model['obs_clip']) == (True, clip)


def test_observation_filter_has_no_bound():
    # RLlib makes the filter of its older stack with clip=None; 1e6 is the largest bound here
    model = from_code(f"{SETUP}.env_runners(observation_filter='MeanStdFilter')").config['policy']['model']
    assert (model['obs_norm'], model['obs_clip']) == (True, 1e6)


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (
            'clip_by_value=-5.0',
            'MeanStdFilter.clip_by_value is -5.0, which cannot be read: it must be a number above 0',
        ),
        ('clip_by_value=bound(3)', 'MeanStdFilter.clip_by_value is worked out when the script runs'),
        ('de_std_to_one=False', 'MeanStdFilter.de_std_to_one is False, which has no counterpart here'),
        ('multi_agent=True', 'MeanStdFilter.multi_agent is True, .*: each policy has its own statistics'),
        ('**more', r'MeanStdFilter.\*\*more'),
    ],
)
def test_argument_of_a_connector_without_a_counterpart_is_refused(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        from_code(f'{SETUP}.env_runners(env_to_module_connector=lambda env: MeanStdFilter({arguments}))')


def test_argument_of_a_connector_that_is_compiled_is_refused_with_what_to_do():
    config = PPOConfig(env='CartPole-v1', _env_to_module_connector=lambda env: [MeanStdFilter(clip_by_value=5.0)])
    with pytest.raises(
        ConfigError, match='MeanStdFilter.clip_by_value cannot be read .*convert the .py file'
    ) as caught:
        convert(config)
    assert 'clip_by_value is policy.model.obs_clip' in str(caught.value)


@pytest.mark.parametrize('connect', ['lambda env: Unknown()', 'lambda env: [MeanStdFilter(), Unknown(env)]', 'make(3)'])
def test_connector_that_is_not_known_is_refused_and_obs_norm_named(connect):
    with pytest.raises(ConfigError, match=r'env_to_module_connector is .*MeanStdFilter is policy.model.obs_norm'):
        from_code(f'{SETUP}.env_runners(env_to_module_connector={connect})')
    with pytest.raises(ConfigError, match=r"env_to_module_connector is 'Other, Unknown'"):
        convert(PPOConfig(env='CartPole-v1', _env_to_module_connector=lambda env: [Other(), Unknown()]))


def test_object_has_no_limit_of_the_value_error_and_one_minibatch_where_it_says_none():
    learn = convert(PPOConfig(env='CartPole-v1', vf_clip_param=None, minibatch_size=None)).config['policy']['learn']
    assert 'value_loss' not in learn and learn['batch_size'] == 4000


def test_dict_of_an_object_is_read_as_the_object():
    config = PPOConfig(env='CartPole-v1', _train_batch_size_per_learner=512)
    assert convert(config.to_dict()).config == convert(config).config


@pytest.mark.parametrize(
    ('settings', 'sentence'),
    [
        (dict(policies={'a': None, 'b': None}), 'in zoo it is `agents.policies`'),
        (dict(_rl_module_spec=object()), 'register a model of your own'),
        (dict(_model_config=DefaultModelConfig(conv_filters=[[16, 8, 4]])), 'set policy.model.encoder'),
        (dict(_model_config=DefaultModelConfig(conv_activation='elu')), 'model.conv_activation is'),
    ],
)
def test_object_whose_settings_have_no_counterpart_is_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        convert(PPOConfig(env='CartPole-v1', **settings))


def test_object_of_another_algorithm_is_refused():
    class OtherConfig(AlgorithmConfig):
        pass

    with pytest.raises(ConfigError, match='the config is a OtherConfig: only PPO is translated'):
        convert(OtherConfig(env='CartPole-v1'))


class Walk:
    """An env class in RLlib's form: env_config is its one argument."""

    def __init__(self, config):
        raise SystemExit('it was run')


def test_class_of_envs_is_named_and_gets_its_dict():
    env = convert(PPOConfig(env=Walk, env_config={'size': 3})).config['env']
    assert (env['id'], env['kwargs']) == (f'{__name__}:Walk', {'config': {'size': 3}})


@pytest.mark.parametrize(
    ('call', 'space'),
    [
        ('lr=tune.grid_search([1e-3, 1e-4])', 'policy.learn.learning_rate=0.001,0.0001'),
        ('clip_param=tune.uniform(0.1, 0.3)', 'policy.learn.clip_ratio=uniform(0.1,0.3)'),
        ('entropy_coeff=loguniform(1e-4, 1e-2)', 'policy.learn.entropy_weight=log(0.0001,0.01)'),
        ('num_epochs=tune.randint(3, 9)', 'policy.learn.epoch_per_collect=int(3,8)'),  # there 9 is left out
        ('vf_loss_coeff=tune.choice([0.5, 1])', 'policy.learn.value_weight=1.0,2.0'),  # the error is halved here
        ('train_batch_size=tune.grid_search([512, 1024])', 'policy.collect.n_sample=512,1024'),
    ],
)
def test_space_of_values_is_a_sweep(call, space):
    with pytest.raises(ConfigError) as caught:
        from_code(f'{SETUP}.training({call})')
    (problem,) = caught.value.problems
    assert problem.endswith(f"give it one value, and try the others with zoo sweep CONFIG '{space}'.")
    key, _, text = space.partition('=')
    parse_space(key, text)  # it is one that the command takes


def test_grid_search_of_a_yaml_file_is_a_sweep():
    with pytest.raises(ConfigError, match=r"zoo sweep CONFIG 'policy.learn.learning_rate=0.001,0.01'"):
        from_rllib({'env': 'CartPole-v1', 'num_workers': 1, 'lr': {'grid_search': [1e-3, 1e-2]}})


def test_overrides_of_the_evaluation_are_read():
    code = SETUP + '.evaluation(evaluation_interval=1, evaluation_config=PPOConfig.overrides(explore=False))'
    assert from_code(code).config['policy']['eval']['deterministic'] is True


@pytest.mark.parametrize('value', ['n_step', 'args.n_step'])
def test_number_that_is_a_name_in_the_code_is_asked_for(value):
    with pytest.raises(ConfigError) as caught:
        from_code(f'{SETUP}.training(train_batch_size={value})')
    said = 'train_batch_size is n_step, a name in the code, which cannot be read: it must be a number; give it a plain value.'
    assert caught.value.problems == [said]
