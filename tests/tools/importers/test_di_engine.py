"""DI-engine's pairs (main_config, create_config): converted to the same policy and env, or refused with the keys."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from easydict import EasyDict

from tests.tools.importers.published import CARTPOLE_PPG, CARTPOLE_PPO, CARTPOLE_PPO_OFFPOLICY, PAIRS, PENDULUM_PPO
from zoo import serial_pipeline
from zoo.config.schedule import Linear
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers.di_engine import POLICIES, from_pair, is_main_config

old_cartpole = pytest.mark.filterwarnings('ignore:.*CartPole-v0 is out of date')
QUIET = ['logger.console=off', 'logger.tensorboard=false']


def changed(pair: Any, path: str, value: Any, which: int = 0) -> Any:
    """A copy of a pair in which one key has another value."""
    found = copy.deepcopy(pair)
    *parents, last = path.split('.')
    inner = found[which]
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return found


def problems(pair: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        from_pair(*pair)
    return caught.value.problems


@pytest.mark.parametrize('name', PAIRS)
def test_published_pair_resolves_to_the_policy_that_create_config_names(name):
    main, create = PAIRS[name]
    cfg = resolve_config((main, create))
    assert cfg.policy.type == create['policy']['type']
    assert cfg.env.collector_env_num == main['env']['collector_env_num']
    assert cfg.policy.collect.n_sample == main['policy']['collect']['n_sample']


def test_value_norm_baseline_is_true():
    baseline, popart = (changed(CARTPOLE_PPO, 'policy.learn.value_norm', kind) for kind in ('baseline', 'popart'))
    assert resolve_config(baseline).policy.learn.value_norm is True
    with pytest.raises(ConfigError, match=r"policy\.learn\.value_norm is 'popart'"):
        resolve_config(popart)


def test_cartpole_ppo_pair_has_di_engines_numbers():
    cfg = resolve_config(CARTPOLE_PPO)
    learn, model = cfg.policy.learn, cfg.policy.model
    assert (cfg.env.id, cfg.env.vectorization, cfg.policy.device) == ('CartPole-v0', 'sync', 'cpu')
    assert (learn.epoch_per_collect, learn.batch_size, learn.learning_rate) == (2, 64, 0.001)
    assert (learn.value_weight, learn.entropy_weight, learn.grad_clip) == (0.5, 0.01, 0.5)
    # values that the pair leaves to DI-engine's defaults
    assert (learn.adv_norm, learn.value_norm, learn.recompute_adv, learn.value_loss) == (
        'minibatch',
        True,
        True,
        'clip',
    )
    assert (model.hidden_sizes, model.actor_head, model.critic_head) == ([64, 64, 128], [128], [128])
    assert (model.shared_encoder, model.activation) == (True, 'relu')
    # 100 gradient steps; a rollout of 256 has 2 x 256 / 64 = 8 of them
    assert cfg.policy.eval.eval_freq == 100 * 256 // 8 == cfg.checkpoint.freq
    assert (cfg.policy.eval.n_episode, cfg.policy.eval.stop_value) == (5, 195.0)


def test_offpolicy_pair_draws_its_batch_size_from_a_buffer_of_its_size():
    cfg = resolve_config(CARTPOLE_PPO_OFFPOLICY)
    buffer = cfg.buffer
    assert (buffer.type, buffer.size, buffer.n_sample, buffer.update_per_collect) == ('replay', 5000, 64, 6)
    assert (cfg.policy.learn.grad_clip, cfg.policy.learn.value_norm) == (0.5, True)  # of DI-engine's class


def test_keys_that_set_up_threads_of_a_buffer_are_left_out_by_name():
    pair = changed(CARTPOLE_PPO_OFFPOLICY, 'policy.other.replay_buffer.thruput_controller', 1)
    left_out = [old for old, _ in from_pair(*pair).left_out if 'replay_buffer' in old]
    assert left_out == ['policy.other.replay_buffer.thruput_controller']


def test_ppg_offpolicy_pair_keeps_the_two_buffers_separately():
    buffer = resolve_config(PAIRS['cartpole_ppg_offpolicy']).buffer
    assert (buffer.type, buffer.policy.max_use, buffer.value.max_use) == ('multi', 10, 100)
    assert (buffer.policy.size, buffer.value.size) == (128, 1000)  # the pair's 100 cannot hold a rollout of 128


def test_ppg_pair_says_that_its_buffers_are_left_out():
    names = [old.partition('=')[0] for old, why in from_pair(*CARTPOLE_PPG).left_out if 'ppg_offpolicy' in why]
    assert names == ['policy.learn.update_per_collect', 'policy.other.replay_buffer']


def test_pair_of_a_game_says_that_its_env_manager_is_left_out():
    conversion = from_pair(*PAIRS['pong_ppg'])
    why = dict(conversion.left_out)['env_manager.type=subprocess']
    assert 'step together in their own vector env' in why and 'vectorization' not in conversion.config['env']


def test_batch_size_that_does_not_divide_the_rollout_becomes_a_divisor_and_is_named():
    conversion = from_pair(*PENDULUM_PPO)
    assert conversion.config['policy']['learn']['batch_size'] == 40  # 200 % 32 = 8; 40 / 32 = 1.25, 32 / 25 = 1.28
    (new,) = (new for old, new in conversion.became if old.endswith('batch_size=32'))
    assert '40 (a divisor of the rollout, 200' in new


@pytest.mark.slow
@old_cartpole
def test_cartpole_ppo_pair_reaches_195_within_12800_env_steps(seed, tmp_path):
    quiet = [*QUIET, f'logger.root={tmp_path}']
    assert serial_pipeline(CARTPOLE_PPO, seed=seed, max_env_step=12_800, overrides=quiet).best_return >= 195


@pytest.mark.slow
@old_cartpole
@pytest.mark.parametrize('name', ['cartpole_ppg', 'cartpole_ppg_offpolicy', 'cartpole_ppo_offpolicy', 'pendulum_ppo'])
def test_pair_given_as_a_list_trains_its_policy(name, tmp_path):
    main, create = PAIRS[name]
    result = serial_pipeline([main, create], seed=0, max_env_step=1024, overrides=[*QUIET, f'logger.root={tmp_path}'])
    assert result.env_step >= 1000
    assert resolve_config(f'{result.run_dir}/config.yaml').policy.type == create['policy']['type']


@pytest.mark.parametrize('kind', POLICIES)
def test_command_types_are_the_same_policies(kind):
    pair = changed(CARTPOLE_PPO, 'policy.type', f'{kind}_command', 1)
    assert from_pair(*pair).config['policy']['type'] == kind


@pytest.mark.parametrize(
    'path, value, which, sentence',
    [
        ('policy.type', 'dqn', 1, "policy.type is 'dqn', which is not translated"),
        ('policy.type', 'ppg', 0, "create_config.policy.type is 'ppo' but main_config.policy.type is 'ppg'"),
        ('policy.on_policy', False, 0, "write 'ppo_offpolicy' there"),
        ('policy.priority', True, 0, 'policy.priority is True, which has no counterpart here: set buffer.alpha'),
        ('policy.multi_agent', True, 0, 'an import takes one agent'),
        ('policy.nstep_return', True, 0, 'policy.collect.estimator={type: n_step, n: 3}'),
        ('policy.action_space', 'hybrid', 0, 'only discrete and continuous are translated'),
        ('policy.collect.unroll_len', 8, 0, 'policy.model.recurrent and policy.learn.sequence'),
        ('policy.collect.n_episode', 4, 0, 'give n_sample'),
        ('policy.model.sigma_type', 'free', 0, "use 'independent', 'conditioned' or 'fixed'"),
        ('policy.model.norm_type', 'BN', 0, "write 'LN' or leave it out"),
        ('policy.model.activation', 'swiglu', 0, 'it must be one of tanh, relu'),
        ('policy.learn.batch_size', 'many', 0, "policy.learn.batch_size is 'many', which cannot be read"),
        ('policy.learn.grad_clip_type', 'clip_momentum', 0, "must be 'clip_norm' or 'clip_value'"),
        ('policy.learn.no_such_key', 1, 0, 'policy.learn.no_such_key is 1, which is no key'),
        ('reward_model', dict(type='rnd'), 0, 'policy.learn.intrinsic={type: rnd}'),
        ('reward_model', dict(type='icm', batch_size=32), 1, 'the curiosity of zoo is random network distillation'),
        ('reward_model', dict(type='guided_cost'), 1, 'zoo learns no reward from demonstrations or ranked episodes'),
        ('reward_model', dict(min_snippet_length=9, num_snippets=5), 0, "reward_model.type is 'trex'"),
        ('level_replay', dict(strategy='one_step_td_error'), 0, 'scores of levels are other numbers in zoo'),
        ('policy.type', 'ppo_pg', 1, 'which learns from a number of whole episodes without a critic'),
        ('policy.learn.pretrained_model_path', 'net.pth', 0, 'init_from=RUN begins with the weights of a run'),
        ('policy.learn.resume_training', True, 0, 'pass resume=RUN to serial_pipeline'),
        ('policy.learn.nstep_return', True, 0, 'policy.collect.estimator={type: n_step, n: 3}'),
        ('policy.learn.lr_scheduler', dict(epoch_num=0, min_lr_lambda=0), 0, 'give epoch_num and min_lr_lambda'),
        ('policy.learn.lr_scheduler', dict(epoch_num=5), 0, 'give epoch_num and min_lr_lambda'),
        ('env.robot', 'walker', 0, 'an env of yours gets its options by env.kwargs'),
        ('env.type', 'bitflip', 1, "create_config.env.type is 'bitflip', which is not known here; add env.env_id"),
        ('env.type', 'mujoco', 1, 'is that of many envs; add env.env_id'),
    ],
)
def test_key_without_counterpart_is_refused_with_the_way(path, value, which, sentence):
    found = problems(changed(CARTPOLE_PPO, path, value, which))
    assert len(found) == 1 and sentence in found[0]


def test_keys_of_a_policy_that_is_not_translated_are_not_told_of():
    pair = changed(changed(CARTPOLE_PPO, 'policy.type', 'dqn', 1), 'policy.nstep', 3)
    found = problems(changed(pair, 'policy.discount_factor', 0.97))
    assert len(found) == 1 and found[0].startswith("policy.type is 'dqn', which is not translated")


def test_all_problems_are_told_at_once_one_a_line():
    pair = changed(changed(CARTPOLE_PPO, 'policy.priority', True), 'policy.learn.no_such_key', 1)
    with pytest.raises(ConfigError) as caught:
        from_pair(*changed(pair, 'env.type', 'bitflip', 1))
    assert len(str(caught.value).splitlines()) == len(caught.value.problems) == 3


def test_main_config_alone_says_what_is_missing():
    found = problems((CARTPOLE_PPO[0],))
    assert len(found) == 2
    assert 'pass (main_config, create_config)' in found[0] and 'the env is not named' in found[1]


def test_main_config_alone_that_names_policy_and_env_is_translated():
    main = changed(changed(CARTPOLE_PPO, 'policy.type', 'ppo'), 'env.env_id', 'CartPole-v1')[0]
    cfg = resolve_config(main)
    assert (cfg.policy.type, cfg.env.id, cfg.policy.learn.epoch_per_collect) == ('ppo', 'CartPole-v1', 2)


def test_every_published_main_config_is_recognised_and_no_config_of_zoo():
    assert all(is_main_config(main) for main, _ in PAIRS.values())
    assert not is_main_config(dict(env=dict(id='CartPole-v1', stop_value=3), policy=dict(cuda=True, type='ppo')))


def test_zoos_own_main_config_takes_the_policy_of_create_config():
    main = dict(env=dict(id='CartPole-v1'), policy=dict(learn=dict(learning_rate=1e-3)))
    cfg = resolve_config((main, dict(policy=dict(type='ppg'), env_manager=dict(type='subprocess'))))
    assert (cfg.policy.type, cfg.policy.learn.learning_rate, cfg.env.vectorization) == ('ppg', 1e-3, 'async')


def test_zoos_own_main_config_with_another_policy_is_refused():
    main = dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo'))
    assert 'write the same one twice' in problems((main, dict(policy=dict(type='ppg'))))[0]


def test_nothing_of_the_pair_is_changed():
    pair = copy.deepcopy(CARTPOLE_PPO)
    from_pair(*pair)
    assert pair == CARTPOLE_PPO


@pytest.mark.parametrize('name', PAIRS)
def test_every_key_of_a_pair_is_told(name):
    main, create = PAIRS[name]
    conversion, sections = from_pair(main, create), ('collect', 'model', 'eval.evaluator')
    told = ' '.join(old for old, _ in [*conversion.became, *conversion.left_out])
    for key in ('unroll_len', 'n_sample', 'discount_factor', 'gae_lambda', 'obs_shape', 'action_shape', 'eval_freq'):
        if any(value_at(main, f'policy.{section}.{key}') is not None for section in sections):
            assert f'{key}=' in told


def converted(pair, **keys):
    """The config of a pair with changed keys of main_config, each a path with __ for a dot."""
    for path, value in keys.items():
        pair = changed(pair, path.replace('__', '.'), value)
    return from_pair(*pair).config


@pytest.mark.parametrize('kind', ['ppg', 'ppg_offpolicy'])
def test_ppg_has_two_hidden_layers_in_its_actor_head_as_in_di_engine(kind):
    """Its class PPG has actor_head_layer_num=2, VAC of ppo has 1: two matrices of 128 x 128 before the last layer."""
    model = PAIRS[f'cartpole_{kind}'][0]['policy']['model']
    assert 'actor_head_layer_num' not in model
    config = resolve_config(PAIRS[f'cartpole_{kind}']).policy.model
    assert (config.actor_head, config.critic_head) == ([128, 128], [128])
    assert resolve_config(CARTPOLE_PPO).policy.model.actor_head == [128]


def test_ppg_clips_no_gradients_whatever_the_config_says():
    learn = converted(CARTPOLE_PPG, policy__learn__grad_clip_type='clip_norm', policy__learn__grad_clip_value=10)[
        'policy'
    ]['learn']
    assert learn['grad_clip'] is None and 'grad_clip_value' not in learn


def test_ppo_offpolicy_is_clipped_and_normalised_unless_the_config_says_otherwise():
    learn = converted(CARTPOLE_PPO_OFFPOLICY)['policy']['learn']
    assert (learn['grad_clip'], learn['value_norm']) == (0.5, True)
    own = converted(CARTPOLE_PPO_OFFPOLICY, policy__learn__grad_clip_value=2.0, policy__learn__value_norm=False)
    assert (own['policy']['learn']['grad_clip'], own['policy']['learn']['value_norm']) == (2.0, False)


@pytest.mark.parametrize(
    'path, value',
    [
        ('policy.learn.resume_training', False),
        ('policy.learn.nstep_return', False),
        ('policy.learn.nstep', 1),
        ('policy.collect.collector_env_num', 8),
        ('policy.learn.kl_beta', 0.01),
        ('policy.learn.kl_type', 'k1'),
        ('policy.learn.pretrained_model_path', None),
        ('policy.learn.lr_scheduler', None),
        ('policy.other.eps', dict(type='exp', start=1.0, end=0.05, decay=1000)),
        ('policy.load_path', './run/ckpt/ckpt_best.pth.tar'),
        ('policy.multi_gpu', False),
        ('reward_model', None),
    ],
)
def test_key_whose_value_asks_for_nothing_changes_nothing(path, value):
    assert from_pair(*changed(CARTPOLE_PPO, path, value)).config == from_pair(*CARTPOLE_PPO).config


def test_several_gpus_are_a_way_to_start_the_same_config():
    conversion = from_pair(*changed(CARTPOLE_PPO, 'policy.multi_gpu', True))
    assert conversion.config == from_pair(*CARTPOLE_PPO).config
    assert 'torchrun --nproc-per-node=N -m zoo train' in dict(conversion.left_out)['policy.multi_gpu=True']


def test_lr_scheduler_is_a_linear_fall_over_its_rollouts():
    """One step of the scheduler for each rollout of 256: after 100 of them the rate is 0.1 times 1e-3, and stays there."""
    scheduler = dict(epoch_num=100, min_lr_lambda=0.1)
    config = converted(CARTPOLE_PPO, policy__learn__lr_scheduler=scheduler)
    resolve_config(config)
    rate = Linear(**config['policy']['learn']['learning_rate'])
    found = [rate.value(step) for step in (0, 12_800, 25_600, 99_999)]
    assert found == pytest.approx([1e-3, 1e-3 * (1 - 50 * 0.9 / 100), 1e-4, 1e-4])


def test_rewards_of_bipedalwalker_are_clipped_in_training_alone():
    pair = changed(changed(CARTPOLE_PPO, 'env.type', 'bipedalwalker', 1), 'env.rew_clip', True)
    cfg = resolve_config(from_pair(*pair).config)
    assert cfg.env.wrappers == [{'type': 'gymnasium.wrappers:ClipReward', 'min_reward': -10}]
    assert cfg.policy.eval.env == {'wrappers': []}


def test_fixed_deviation_is_the_only_one_that_the_config_allows():
    keys = dict(policy__action_space='continuous', policy__model__action_space='continuous')
    model = converted(PENDULUM_PPO, **keys, policy__model__sigma_type='fixed', policy__model__fixed_sigma_value=0.5)
    found = model['policy']['model']
    # log(0.5) = -0.6931
    assert [found[f'log_std_{name}'] for name in ('init', 'min', 'max')] == pytest.approx([-0.6931] * 3, abs=1e-4)


@pytest.mark.parametrize('which, where', [(0, 'env'), (0, 'policy.learn'), (1, 'env'), (1, 'policy')])
def test_easydict_whose_key_hides_its_own_method_is_refused_by_name(which, where):
    pair = changed(CARTPOLE_PPO, f'{where}.items', 3, which)
    found = problems([EasyDict(each) for each in pair])
    assert len(found) == 1 and found[0].startswith(f'{where}.items is 3')
