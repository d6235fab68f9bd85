"""Policy files: saved by hand or from a run; loaded to act, to continue training, or in part; users' own policies."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs import limit_env
from tests.policy_envs import TWO_ACTIONS, job_config, make_policy
from zoo import load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import Box
from zoo.env import EnvConfig, make_vector_env
from zoo.policy import PPOPolicy
from zoo.policy.base import Policy
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.config import resolve_policy
from zoo.run.policy_file import env_config_of
from zoo.worker.collector import Collector

ROWS = np.arange(4, dtype=np.float32)[:, None]


def by_hand(kind: str = 'ppo', **learn: Any) -> Policy:
    env = make_vector_env(EnvConfig(id='tests.envs:limit_env'), 2)
    return make_policy(
        env.obs_space, env.action_space, type=kind, seed=3, collect=dict(n_step=8), learn=dict(batch_size=8, **learn)
    )


def learn(policy: Policy, n: int) -> None:
    """Trains for n rounds, each on new envs."""
    for i in range(n):
        env = make_vector_env(EnvConfig(id='tests.envs:limit_env'), 2)
        collector = Collector([env], policy.collect_mode)
        collector.reset(stream(i, 'test'))
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))


def parameters(policy: Policy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(first: Policy, second: Policy) -> bool:
    return all(torch.equal(*pair) for pair in zip(parameters(first), parameters(second), strict=True))


@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_policy_trained_by_hand_learns_on_bit_equal(kind: str, tmp_path: Path) -> None:
    """PPG is saved after 2 of the 3 rollouts of a phase (aux_freq=3), so the samples that it keeps count too."""
    policy = by_hand(kind, **({'aux_freq': 3, 'aux_batch_size': 16} if kind == 'ppg' else {}))
    learn(policy, 2)
    loaded = load_policy(policy.save(tmp_path / 'mine.safetensors', env_step=32), fields='all')
    assert loaded.learn_mode.train_iter() == policy.learn_mode.train_iter() > 0
    learn(policy, 2), learn(loaded, 2)
    assert equal(policy, loaded)


@pytest.mark.slow
def test_moving_average_that_a_file_lacks_starts_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = by_hand('ppo', proximal='ewma')
    learn(policy, 1)
    state, meta, _ = load_checkpoint(policy.save(tmp_path / 'whole.safetensors'))
    for name in ('average', 'average_weight'):
        del state['policy']['learn']['optimizer']['all'][name]
    save_checkpoint(tmp_path / 'older.safetensors', state, meta)
    with caplog.at_level(logging.INFO, 'zoo'):
        again = load_policy(tmp_path / 'older.safetensors', fields='all')
    assert 'learn/optimizer/all/average is not in the checkpoint: it begins anew' in caplog.text
    assert equal(again, policy)
    learn(again, 1)


def test_policy_of_a_run_is_trained_on_in_a_new_run(tmp_path: Path) -> None:
    config = job_config(tmp_path, seed=1)
    run = serial_pipeline(config)
    before = load_policy(run.run_dir, fields='all')
    assert equal(before, run.policy) and before.executor_name == run.policy.executor_name
    n_before = before.learn_mode.train_iter()
    result = serial_pipeline(config, policy=before)
    assert result.policy is before and before.learn_mode.train_iter() > n_before > 0
    assert not equal(before, run.policy)


def test_policy_without_all_its_modes_is_refused_with_the_way(tmp_path: Path) -> None:
    run = serial_pipeline(job_config(tmp_path, seed=1))
    with pytest.raises(UserError, match=r"without its modes collect, learn .* load_policy\(run, fields='all'\)"):
        serial_pipeline(job_config(tmp_path), policy=load_policy(run.run_dir))


@pytest.mark.slow
def test_policy_of_a_run_has_all_that_is_needed_to_resume_after_save(tmp_path: Path) -> None:
    run = serial_pipeline(job_config(tmp_path, seed=1))
    path = run.policy.save(tmp_path / 'copy.safetensors')
    assert load_checkpoint(path).meta['env_step'] == run.env_step > 0
    assert load_checkpoint(path).meta['config']['env']['id'] == 'tests.envs:limit_env'
    result = serial_pipeline(resume=path, overrides=['max_env_step=512', f'logger.root={tmp_path}'], trust=True)
    assert result.env_step > run.env_step and result.train_iter > run.train_iter


def test_loaded_policy_is_saved_with_the_env_steps_of_its_file(tmp_path: Path) -> None:
    first = by_hand().save(tmp_path / 'first.safetensors', env_step=32)
    second = load_policy(first).save(tmp_path / 'second.safetensors')
    assert load_checkpoint(second).meta['env_step'] == 32 == load_policy(second).run.env_step
    third = load_policy(first, fields='all').save(tmp_path / 'third.safetensors', env_step=48)
    assert load_checkpoint(third).meta['env_step'] == 48
    part = load_policy(second, only=['critic_*', 'value_head*']).save(tmp_path / 'part.safetensors')
    assert load_checkpoint(part).meta['env_step'] == 0  # most of the policy is new


def test_fields_choose_the_modes(tmp_path: Path) -> None:
    path = by_hand().save(tmp_path / 'mine.safetensors')
    policy = load_policy(path, fields=['collect'])
    assert policy.collect_mode.n_step == 8
    with pytest.raises(AttributeError, match='has no learn mode'):
        _ = policy.learn_mode
    with pytest.raises(UserError, match=r"^fields is \['lern'\] but must be 'all' or a list of learn, collect, eval"):
        load_policy(path, fields=['lern'])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ('kind', 'fields'),
    [
        ('ppo', ('eval',)),
        ('ppg', ('collect',)),
        ('dqn', ('collect', 'eval')),
        ('ppg', ('learn', 'eval')),
        ('dqn', ('learn',)),
        ('dqn', ('eval',)),
    ],
)
def test_policy_of_some_modes_is_saved_and_the_file_says_of_which(
    kind: str, fields: tuple[Any, ...], tmp_path: Path
) -> None:
    first = by_hand(kind)
    path = load_policy(first.save(tmp_path / 'all.safetensors'), fields=fields).save(tmp_path / 'some.safetensors')
    assert load_checkpoint(path).meta['fields'] == list(fields)
    assert 'fields' not in load_checkpoint(tmp_path / 'all.safetensors').meta
    loaded = load_policy(path, fields=sorted({*fields, 'eval'}))
    assert equal(first, loaded) and (loaded.act(ROWS) == first.act(ROWS)).all()
    missing = ' and '.join(mode for mode in ('learn', 'collect') if mode not in fields)
    left = [mode for mode in ('learn', 'collect', 'eval') if mode in (*fields, 'eval')]
    with pytest.raises(CheckpointError, match=rf'was saved without {missing}: .*use fields={re.escape(str(left))}'):
        load_policy(path, fields='all')
    assert load_policy(path, fields='all', only=['*']).learn_mode.train_iter() == 0


def test_resume_of_a_policy_saved_without_its_optimiser_says_so(tmp_path: Path) -> None:
    run = serial_pipeline(job_config(tmp_path, seed=1))
    path = load_policy(run.run_dir).save(tmp_path / 'some.safetensors', env_step=run.env_step)
    with pytest.raises(CheckpointError, match='was saved without learn and collect'):
        serial_pipeline(resume=path, overrides=['max_env_step=512', f'logger.root={tmp_path}'], trust=True)


def test_only_loads_what_matches_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = by_hand()
    learn(policy, 2)
    with caplog.at_level(logging.INFO, 'zoo'):
        loaded = load_policy(policy.save(tmp_path / 'mine.safetensors'), only=['critic_*', 'value_head*'])
    assert torch.equal(loaded.value(ROWS), policy.value(ROWS))
    assert not torch.equal(loaded.distribution(ROWS).param, policy.distribution(ROWS).param)
    assert 'not used: actor_encoder' in caplog.text
    with pytest.raises(UserError, match='^nothing of the state fits this policy'):
        load_policy(tmp_path / 'mine.safetensors', only=['quux'])


def test_file_of_a_policy_by_hand_knows_the_env_that_it_was_told(tmp_path: Path) -> None:
    policy = by_hand()
    nameless, named = (
        policy.save(tmp_path / 'a.safetensors'),
        policy.save(tmp_path / 'b.safetensors', env='CartPole-v1'),
    )
    assert env_config_of(load_checkpoint(named)).id == 'CartPole-v1'
    with pytest.raises(CheckpointError, match='saved by hand, without an env; give env.id=..., or name it when saving'):
        env_config_of(load_checkpoint(nameless))
    assert env_config_of(load_checkpoint(nameless), overrides=['env.id=CartPole-v1']).id == 'CartPole-v1'
    of_function = policy.save(tmp_path / 'c.safetensors', env=limit_env)
    assert env_config_of(load_checkpoint(of_function), trust=True).id == 'tests.envs:limit_env'


def test_action_mode_is_kept(tmp_path: Path) -> None:
    space = Box(np.zeros(1), np.full(1, 10.0))
    obs = Box(np.full(1, -np.inf), np.full(1, np.inf))
    policy = POLICY_REGISTRY.build('ppo', resolve_policy({'type': 'ppo'}), obs, space, action_mode='rescale')
    assert (load_policy(policy.save(tmp_path / 'a.safetensors')).act(ROWS) == policy.act(ROWS)).all()
    assert abs(policy.act(ROWS)[0, 0] - 5) < 2  # 5 is the middle of the bounds


@pytest.mark.parametrize(
    ('arguments', 'said'),
    [
        (dict(path=3), '^a policy is saved to the path of a file, got 3; '),
        (dict(path='a', env=5), '^env is 5 but must name an env, or be the section env as a dict'),
        (dict(path='a', env_step=-1), '^env_step is -1 but must be the number of env steps so far'),
        (dict(path='a', form='onnxx'), "^unknown form of a saved policy 'onnxx': registered: checkpoint"),
    ],
)
def test_bad_arguments_are_told(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        by_hand().save(**arguments)


def test_unknown_device_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="policy.device is 'tpu' but must be 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        load_policy(by_hand().save(tmp_path / 'policy'), device='tpu')


def test_policy_of_a_gpu_that_is_not_here_is_loaded_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy was trained on the second of two GPUs and is loaded on a machine with one; naming that GPU is refused."""
    policy = by_hand()
    policy.cfg = policy.cfg.model_copy(update={'device': 'cuda:1'})
    path = policy.save(tmp_path / 'policy')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    assert load_policy(path).device.type == 'cpu'
    with pytest.raises(UserError, match="policy.device is 'cuda:1' but torch finds 1 CUDA devices here; use 'auto'"):
        load_policy(path, device='cuda:1')


# --- own policies ---


class TorchOptimPPO(PPOPolicy):
    """PPO with a second network, trained by an optimiser of torch."""

    def _init_learn(self) -> None:
        super()._init_learn()
        torch.manual_seed(0)
        self.extra = torch.nn.Linear(3, 1)
        self.adam = torch.optim.Adam(self.extra.parameters(), lr=1e-2)

    def _forward_learn(self, batch: Any) -> Any:
        self.adam.zero_grad()
        self.extra(torch.ones(2, 3)).square().sum().backward()
        self.adam.step()
        return super()._forward_learn(batch)

    def _state_dict_learn(self) -> dict[str, Any]:
        own = {'opt': self.adam.state_dict(), 'extra': dict(self.extra.state_dict())}
        return {**super()._state_dict_learn(), **own}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        super()._load_state_dict_learn(state)
        self.adam.load_state_dict(state['opt'])
        self.extra.load_state_dict(state['extra'])


class SetPPO(PPOPolicy):
    """PPO whose state has a set, which no checkpoint can hold."""

    def _state_dict_learn(self) -> dict[str, Any]:
        return {**super()._state_dict_learn(), 'seen': {1, 2}}


@pytest.fixture
def own_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cls in (('torch_optim_ppo', TorchOptimPPO), ('set_ppo', SetPPO)):
        monkeypatch.setitem(POLICY_REGISTRY.entries, name, cls)
        monkeypatch.setitem(POLICY_REGISTRY.places, name, __name__)


@pytest.mark.slow
@pytest.mark.usefixtures('own_policies')
def test_own_policy_with_an_optimiser_of_torch_saves_and_resumes_bit_equal(tmp_path: Path) -> None:
    config = job_config(tmp_path, policy=dict(type='torch_optim_ppo'), seed=2)
    whole = serial_pipeline(config | {'max_env_step': 512})
    half = serial_pipeline(config | {'max_env_step': 256})
    rest = serial_pipeline(resume=half.run_dir, overrides=['max_env_step=512'])
    assert whole.env_step == rest.env_step == 512
    step = rest.policy.adam.state_dict()['state'][0]['step']  # type: ignore[attr-defined]
    assert step == whole.policy.adam.state_dict()['state'][0]['step'] == 8  # type: ignore[attr-defined]
    assert torch.equal(rest.policy.extra.weight, whole.policy.extra.weight)  # type: ignore[attr-defined]


def test_policy_without_a_network_is_saved_too(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location('random_policy_example', Path('examples/random_policy.py').resolve())
    assert spec is not None and spec.loader is not None
    names = set(POLICY_REGISTRY.names())
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    (name,) = set(POLICY_REGISTRY.names()) - names or {'random_policy'}
    policy = POLICY_REGISTRY.build(name, resolve_policy({'type': name}), *(2 * [TWO_ACTIONS]))
    assert load_policy(policy.save(tmp_path / 'a.safetensors')).cfg.type == name


@pytest.mark.usefixtures('own_policies')
def test_own_policy_that_cannot_be_saved_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^policy 'set_ppo' cannot be saved: state learn/seen is of type set; .* return "
    ):
        serial_pipeline(job_config(tmp_path, policy=dict(type='set_ppo')))
    assert not [*tmp_path.rglob('*.safetensors')]


def test_policy_with_a_central_critic_loads_and_acts_without_the_state(tmp_path):
    config = job_config(
        tmp_path,
        'CartPole-v1',
        max_env_step=32,
        env=dict(id='tests.agents.envs:Clockwork', collector_env_num=2, evaluator_env_num=2),
        policy=dict(
            type='ppo',
            model=dict(hidden_sizes=[4]),
            collect=dict(n_step=16),
            learn=dict(batch_size=16),
            eval=dict(n_episode=2),
        ),
        agents=dict(state='concat'),
    )
    result = serial_pipeline(config)
    loaded = load_policy(result.run_dir)
    state = result.policy.state_dict()['model']
    assert all(torch.equal(x, state[name]) for name, x in loaded.state_dict()['model'].items())
    assert 'state' in loaded.obs_space.spaces
    seen = {'obs': np.ones((3, 2), np.float32), 'agent': np.eye(3, dtype=np.float32)}
    assert torch.equal(loaded.distribution(seen).param, result.policy.distribution(seen).param)
    again = loaded.save(tmp_path / 'again.safetensors')
    assert torch.equal(load_policy(again).distribution(seen).param, loaded.distribution(seen).param)
