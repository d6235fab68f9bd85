"""Values that follow from others, and values that contradict others or this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import Field

from tests.tables import are_said, overrides_of, refused, rows_of
from zoo.agents.config import AgentsConfig
from zoo.cluster.config import ClusterConfig
from zoo.config.section import Job
from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from zoo.env.config import EndsConfig, EnvConfig
from zoo.model import VAC, VACConfig
from zoo.policy import PPOConfig, PPOLearnConfig, PPOPolicy
from zoo.policy.config import EvalConfig
from zoo.policy.sequences import SequenceConfig
from zoo.run.base_config import CheckpointConfig, LoggerConfig
from zoo.run.config import explain_config, resolve_config, without_derived_values

ENV: dict[str, Any] = {'env': {'id': 'CartPole-v1', 'collector_env_num': 8}}
# a rollout of 8 envs x 32 steps = 256 samples
BASE: dict[str, Any] = {**ENV, 'policy': {'collect': {'n_step': 32}, 'learn': {'batch_size': 64}}}


@pytest.mark.parametrize(
    'words, n_step, n_sample',
    [
        ('policy.collect.n_step=32', 32, 256),
        ('policy.collect.n_sample=256', 32, 256),
        ('policy.collect.n_step=32 policy.collect.n_sample=256', 32, 256),
        ('', 128, 1024),  # n_step=128 is the default of ppo
        ('policy.collect.n_sample=256 policy.collect.n_step=null', 32, 256),
        ('policy.collect.n_step=32 policy.collect.n_sample=null', 32, 256),
    ],
)
def test_rollout_size_follows_from_the_key_given(words: str, n_step: int, n_sample: int) -> None:
    found = resolve_config(ENV, overrides_of(words)).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


@pytest.mark.parametrize('override, n_step, n_sample', [('n_step=16', 16, 128), ('n_sample=512', 64, 512)])
def test_rollout_size_override_of_one_key_replaces_both(override: str, n_step: int, n_sample: int) -> None:
    resolved = resolve_config(BASE).to_dict()  # has both keys
    found = resolve_config(resolved, [f'policy.collect.{override}']).policy.collect
    assert (found.n_step, found.n_sample) == (n_step, n_sample)


REPLAY = '{type: replay, size: 1024, n_sample: 128, update_per_collect: 2}'
DRAW = '{n_sample: 128, update_per_collect: 2}'
MULTI = f'{{type: multi, size: 1024, policy: {DRAW}, value: {DRAW}}}'
# Overrides of BASE; those without a sentence are taken. Samples in the memory of PPG: 32 rollouts have
# 32 x 256 = 8192 = 2 ** 13; 3 rollouts 768 = 2 ** 8 * 3; 2 draws of 128 have 256.
TABLE = """
# sizes of a rollout, its minibatches and the run
policy.collect.n_step=128 max_env_step=1024
policy.collect.n_sample=1001
    - policy.collect.n_sample is 1001 but env.collector_env_num is 8: 1001 % 8 = 1; use a multiple, e.g. 1000.
policy.collect.n_sample=5
    - policy.collect.n_sample is 5 but env.collector_env_num is 8: 5 % 8 = 5; use a multiple, e.g. 8.
policy.collect.n_sample=1024 policy.collect.n_step=12
    - policy.collect.n_sample is 1024 but policy.collect.n_step is 12 and env.collector_env_num is 8: 12 * 8 = 96; give
      one of the two, the other follows.
policy.collect.n_step=null
    - policy.collect.n_step is missing: give the env steps per rollout and env, or policy.collect.n_sample, over all envs.
policy.learn.batch_size=96
    - policy.learn.batch_size is 96 but a rollout has 256 samples (32 x 8 envs): 256 % 96 = 64 would be dropped; use a
      divisor, e.g. 64 or 128.
policy.learn.batch_size=255
    - policy.learn.batch_size is 255 but a rollout has 256 samples (32 x 8 envs): 256 % 255 = 1 would be dropped; use a
      divisor, e.g. 128 or 256.
policy.learn.batch_size=512
    - policy.learn.batch_size is 512 but a rollout has 256 samples (32 x 8 envs): that fills no minibatch; use a divisor,
      e.g. 256.
policy.collect.n_step=128 max_env_step=1023
    - max_env_step is 1023 but a rollout has 1024 samples (128 x 8 envs): nothing would be trained; use 1024 or more, or
      a smaller policy.collect.n_step.
policy.learn.batch_size=96 max_env_step=100 env.id=CartPol-v1
    - policy.learn.batch_size is 96 but*
    - max_env_step is 100 but*
    - unknown env*
env.id=Acrobot-v7
    - *Acrobot-v1*
# an option of a component keeps the component that the config names: not 'pipeline has no type'
pipeline=serial pipeline.no_option=3
    - unknown key pipeline.no_option*
# without minibatches any size is taken, and all other checks stay
policy.learn.batch_size=null
policy.learn.batch_size=null policy.collect.n_step=33
policy.learn.batch_size=null policy.type=ppo_offpolicy buffer.n_sample=100
policy.learn.batch_size=null policy.type=ppo_offpolicy buffer.n_sample=300 buffer.max_staleness=0
    - buffer.max_staleness is 0 but a rollout has 256 samples*
policy.learn.batch_size=null policy.collect.n_step=24 policy.model.recurrent={cell: gru} policy.learn.sequence.len=8
policy.learn.batch_size=null policy.collect.n_step=24 policy.model.recurrent={cell: gru} policy.learn.sequence.len=7
    - policy.learn.sequence.len is 7 but policy.collect.n_step is 24*
policy.learn.batch_size=null policy.collect.n_step=1 env.collector_env_num=2
policy.learn.batch_size=null policy.collect.n_step=1 env.collector_env_num=1
    - policy.learn.batch_size is null and a rollout has 1 sample but policy.learn.adv_norm is 'minibatch', which leaves
      one sample no advantage; use batch_size 2 or more, or adv_norm 'batch' or 'off'.
# PPG
policy.type=ppg
policy.type=ppg policy.learn.aux_freq=1 policy.learn.aux_batch_size=256
policy.type=ppg policy.learn.aux_freq=3 policy.learn.aux_batch_size=384
policy.type=ppg policy.learn.aux_freq=2 policy.learn.aux_batch_size=256 buffer=MULTI
policy.type=ppg policy.learn.aux_freq=2 policy.learn.aux_batch_size=256 policy.model.arch=shared
policy.type=ppg policy.learn.aux_batch_size=16384
    - policy.learn.aux_batch_size is 16384 but the memory holds aux_freq 32 x 256 = 8192 samples: that fills no
      minibatch; use a divisor, e.g. 8192.
policy.type=ppg policy.learn.aux_batch_size=1000
    - policy.learn.aux_batch_size is 1000 but the memory holds aux_freq 32 x 256 = 8192 samples: 8192 % 1000 = 192 would
      be dropped; use a divisor, e.g. 512 or 1024.
policy.type=ppg policy.learn.aux_freq=3 policy.learn.aux_batch_size=769
    - policy.learn.aux_batch_size is 769 but the memory holds aux_freq 3 x 256 = 768 samples: that fills no minibatch;
      use a divisor, e.g. 768.
policy.type=ppg policy.learn.aux_freq=4 policy.learn.aux_window=6 policy.learn.aux_batch_size=1024
    - policy.learn.aux_batch_size is 1024 but the memory holds aux_window 6 x 256 = 1536 samples: 1536 % 1024 = 512 would
      be dropped; use a divisor, e.g. 768 or 1536.
policy.type=ppg policy.learn.critic_batch_size=100
    - policy.learn.critic_batch_size is 100 but a rollout has 256 samples (32 x 8 envs): 256 % 100 = 56 would be dropped;
      use a divisor, e.g. 64 or 128.
policy.type=ppg policy.learn.aux_freq=0
    - policy.learn.aux_freq is 0 (integer) but must be an integer >= 1*
policy.type=ppg policy.learn.aux_train_epoch=0
    - policy.learn.aux_train_epoch is 0 (integer) but must be an integer >= 1*
policy.type=ppg policy.learn.aux_batch_size=0
    - policy.learn.aux_batch_size is 0 (integer) but must be an integer >= 1*
policy.type=ppg policy.learn.aux_bc_weight=-1.0
    - policy.learn.aux_bc_weight is -1.0 (number) but must be a number >= 0*
policy.type=ppg policy.learn.aux_learning_rate=0.0
    - policy.learn.aux_learning_rate is 0.0 (number) but must be a number > 0*
policy.type=ppg policy.learn.aux_memory=gpu
    - policy.learn.aux_memory is 'gpu' (string) but must be one of 'device', 'cpu', 'disk'*
policy.type=ppg policy.learn.policy_loss=trust
    - policy.learn.policy_loss is 'trust' (string) but must be one of 'clip', 'kl'*
policy.type=ppg policy.model.arch=single
    - policy.model.arch is 'single' (string) but must be one of 'dual', 'detach', 'shared'*
# policies on draws from a buffer
policy.type=ppg_offpolicy policy.learn.aux_freq=2 policy.learn.aux_batch_size=256 buffer=MULTI
policy.type=ppg_offpolicy policy.learn.aux_freq=2 policy.learn.aux_batch_size=256 buffer=REPLAY
policy.type=ppg_offpolicy policy.learn.aux_freq=2 policy.learn.aux_batch_size=256 buffer=REPLAY policy.model.arch=shared
policy.type=ppo buffer=REPLAY
policy.type=ppo_offpolicy buffer=REPLAY
policy.type=ppo buffer.type=rollout policy.learn.recompute_adv=true
policy.type=ppg_offpolicy policy.learn.aux_freq=2 policy.learn.aux_batch_size=512 buffer=MULTI
    - policy.learn.aux_batch_size is 512 but the memory holds aux_freq 2 x 128 = 256 samples: that fills no minibatch;
      use a divisor, e.g. 256.
policy.type=ppg_offpolicy policy.learn.aux_freq=2 policy.learn.aux_batch_size=512 buffer=REPLAY
    - policy.learn.aux_batch_size is 512 but the memory holds aux_freq 2 x 128 = 256 samples: that fills no minibatch;
      use a divisor, e.g. 256.
policy.type=ppo buffer=MULTI
    - buffer.type is 'multi' but policy 'ppo' learns policy and value from the same samples; use 'replay' or 'rollout'.
policy.type=ppo_offpolicy buffer=MULTI
    - buffer.type is 'multi' but policy 'ppo_offpolicy' learns policy and value from the same samples; use 'replay' or
      'rollout'.
policy.type=ppo buffer=REPLAY policy.learn.recompute_adv=true
    - policy.learn.recompute_adv is true but buffer.type is 'replay', which yields random draws: advantages are
      recomputed over whole rollouts; use recompute_adv=false or buffer.type 'rollout'.
policy.type=ppo_offpolicy buffer=REPLAY policy.learn.recompute_adv=true
    - policy.learn.recompute_adv is True: advantages can be recomputed over whole rollouts only, not over draws; use
      false.
policy.type=ppg_offpolicy policy.learn.aux_batch_size=128 buffer=MULTI policy.model.arch=shared
    - policy.model.arch is 'shared' but buffer.type is 'multi': a network that shares all parameters cannot learn policy
      and value from different samples; use arch 'dual' or 'detach', or buffer.type 'replay'.
policy.type=ppg_offpolicy policy.learn.aux_batch_size=128 buffer={size: 1024, policy: {n_sample: 128}}
    - buffer: policy is given but value is missing: 'multi' draws for both; give value: {n_sample: ..,
      update_per_collect: ..} too.
policy.type=ppo_offpolicy buffer=REPLAY buffer.max_use=0
    - buffer.max_use is 0 (integer) but must be an integer >= 1*
policy.type=ppg_offpolicy policy.learn.aux_batch_size=128 buffer=MULTI buffer.value.max_use=0
    - buffer.value.max_use is 0 (integer) but must be an integer >= 1*
# a buffer smaller than a draw, or than a rollout; a draw smaller than a minibatch
policy.type=ppo_offpolicy buffer=REPLAY buffer.size=100
    - buffer: size is 100 but n_sample is 128: the buffer would never hold enough for a draw; use size 128 or more, or a
      smaller n_sample.
policy.type=ppo_offpolicy buffer=REPLAY buffer.size=200
    - buffer.size is 200 but a rollout has 256 samples: 56 of them would never be kept; use 256 or more.
policy.type=ppo_offpolicy buffer=REPLAY buffer.n_sample=32
    - buffer.n_sample is 32 but policy.learn.batch_size is 64: 32 % 64 = 32 would be dropped; use a multiple, e.g. 64.
# 999 // 256 = 3 rollouts; then the same with a draw for the policy and one for the value
policy.type=ppo_offpolicy buffer=REPLAY buffer.n_sample=1024 max_env_step=999
    - buffer.n_sample is 1024 but max_env_step is 999 and a rollout has 256 samples: the run collects 3 x 256 = 768, so
      nothing would be trained; use max_env_step 1024 or more, or a smaller n_sample.
policy.type=ppg_offpolicy policy.learn.aux_batch_size=128 buffer=MULTI buffer.value.n_sample=1024 max_env_step=999
    - buffer.value.n_sample is 1024 but max_env_step is 999 and a rollout has 256 samples: *
policy.type=ppg_offpolicy policy.learn.aux_batch_size=128 buffer=MULTI buffer.policy.max_staleness=4
    - buffer.policy.max_staleness is 4 but buffer.size is 1024 and a rollout has 256 samples: 5 x 256 = 1280 would *
"""


@pytest.mark.parametrize(('words', 'sentences'), rows_of(TABLE))
def test_values_that_contradict_each_other_are_named_with_the_remedy(words: str, sentences: list[str]) -> None:
    overrides = overrides_of(words.replace('MULTI', MULTI).replace('REPLAY', REPLAY))
    if sentences:
        found = refused(BASE, overrides)
        assert are_said(sentences, found), found
    else:
        resolve_config(BASE, overrides)


def test_problems_of_a_users_section_are_said_next_to_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class MyLearnConfig(PPOLearnConfig):
        n_part: int = Field(2, ge=1, description='parts of my loss')

        def problems(self, job: Job) -> Iterator[str]:
            yield from super().problems(job)
            if job.env.collector_env_num % self.n_part:
                yield f'policy.learn.n_part is {self.n_part} but env.collector_env_num is {job.env.collector_env_num}; use a divisor.'

    class MyConfig(PPOConfig):
        learn: MyLearnConfig = MyLearnConfig()  # type: ignore[call-arg]

    class MyPolicy(PPOPolicy):
        config = MyConfig

    monkeypatch.setitem(POLICY_REGISTRY.entries, 'mine', MyPolicy)
    assert resolve_config(BASE, ['policy.type=mine']).policy.learn.n_part == 2  # 8 envs
    words = 'policy.type=mine policy.learn.n_part=3 policy.learn.batch_size=96 env.id=CartPol-v1 cluster.max_lag=1'
    found = refused(BASE, overrides_of(words))
    sentences = [
        'policy.learn.batch_size is 96 but*',
        'policy.learn.n_part is 3 but env.collector_env_num is 8; use a divisor.',
        'unknown env*',
        'cluster.max_lag is 1 but cluster.runner_num is 0*',
    ]
    assert are_said(sentences, found), found


SECTIONS = (
    SequenceConfig,
    EvalConfig,
    EnvConfig,
    EndsConfig,
    AgentsConfig,
    CheckpointConfig,
    LoggerConfig,
    ClusterConfig,
)


def test_each_section_of_a_run_is_asked_for_its_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    for section in SECTIONS:
        monkeypatch.setattr(section, 'problems', lambda self, job: iter([f'{type(self).__name__} was asked.']))
    assert refused(BASE) == [f'{section.__name__} was asked.' for section in SECTIONS]


def test_field_of_a_user_that_is_named_problems_is_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match='shadows an attribute'):

        class CountedConfig(VACConfig):
            problems: int = Field(3, description='how many of them')  # type: ignore[assignment]

    class Counted(VAC):
        config = CountedConfig

    monkeypatch.setitem(MODEL_REGISTRY.entries, 'counted', Counted)
    config = resolve_config(BASE, ['policy.model.type=counted', 'policy.model.problems=4'])
    assert config.policy.model.problems == 4


def test_sizes_of_batches_are_free_where_the_buffer_is_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'other', BUFFER_REGISTRY.get('rollout'))
    assert resolve_config(BASE, ['policy.learn.batch_size=96', 'buffer.type=other']).policy.learn.batch_size == 96
    words = 'policy.type=ppg policy.learn.aux_freq=3 policy.learn.aux_batch_size=100 policy.learn.batch_size=50'
    assert resolve_config(BASE, [*overrides_of(words), 'buffer.type=other']).policy.learn.aux_batch_size == 100


@pytest.mark.parametrize(
    'name, kind', [('ppo', 'rollout'), ('ppg', 'rollout'), ('ppo_offpolicy', 'replay'), ('ppg_offpolicy', 'multi')]
)
def test_policies_bring_their_buffer(name: str, kind: str) -> None:
    assert resolve_config(ENV, [f'policy.type={name}']).buffer.type == kind


def test_schedule_without_length_lasts_as_long_as_the_run() -> None:
    rates = {'learning_rate': {'start': 1e-3, 'end': 0}, 'clip_ratio': {'start': 0.2, 'end': 0.1, 'over': 500}}
    learn = resolve_config({**ENV, 'policy': {'learn': rates}}, max_env_step=4096).policy.learn
    assert learn.learning_rate == {'start': 1e-3, 'end': 0.0, 'over': 4096}
    assert learn.clip_ratio == {'start': 0.2, 'end': 0.1, 'over': 500}


@pytest.mark.parametrize(('source', 'origin'), [(BASE, 'config'), (ENV, 'default')])
def test_filled_values_are_derived_not_default(source: Any, origin: str) -> None:
    rows = {row.key: row.origin for row in explain_config(source)}
    assert (rows['policy.collect.n_step'], rows['policy.collect.n_sample']) == (origin, 'derived')


@pytest.mark.parametrize(
    ('device', 'n_cuda', 'is_there'),
    [
        *(('cuda', 0, False), ('cuda:0', 0, False), ('cuda:1', 1, False)),
        *((device, 2, True) for device in ('auto', 'cpu', 'cuda', 'cuda:1')),
    ],
)
def test_device_is_taken_if_it_is_there(
    device: str, n_cuda: int, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: n_cuda > 0)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: n_cuda)
    if is_there:
        assert resolve_config(ENV, [f'policy.device={device}']).policy.device == device
    else:
        said = f"policy.device is '{device}' but torch finds {n_cuda} CUDA devices here; use 'auto' or 'cpu'."
        assert refused(ENV, [f'policy.device={device}']) == [said]


@pytest.mark.parametrize('env_id', ['LunarLander-v3', 'HalfCheetah-v5'])
def test_env_whose_extra_may_be_missing_is_a_known_name(env_id: str) -> None:
    assert resolve_config({'env': {'id': env_id}}).env.id == env_id


def test_keywords_of_the_form_of_a_schedule_stay_as_they_are_when_a_run_continues() -> None:
    """A schedule as long as the run becomes as long as the longer run; arguments of the user's own code stay as they are."""
    line = {'start': 0.5, 'end': 0.0, 'over': 4096}
    own = {'kwargs': {'line': line}, 'schedule': {'wind': line}, 'reset_options': {'goal': line, 'map': {'line': line}}}
    penalty = {'type': 'kl', 'weight': line}
    learn = {'learning_rate': line, 'penalties': [penalty], 'surrogate': {'type': 'clip'}}
    config = resolve_config(
        {'max_env_step': 4096, 'env': {'id': 'CartPole-v1', **own}, 'policy': {'type': 'ppo', 'learn': learn}}
    ).to_dict()
    longer = resolve_config(without_derived_values(config), max_env_step=8192)
    assert config['env']['kwargs'] == longer.env.kwargs == {'line': line}
    assert config['env']['reset_options']['map'] == longer.env.reset_options['map'] == {'line': line}
    lines = longer.policy.learn.learning_rate, longer.policy.learn.penalties[0].weight, longer.env.schedule.wind
    assert [each['over'] for each in (*lines, longer.env.reset_options.goal)] == [8192] * 4
