"""Whole runs: reproducibility, resume, stop conditions, run folder and log, errors."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs import limit_env
from tests.gpu import needs_gpu
from tests.pipeline.models import OneLayer
from tests.policy_envs import differing, flat, job_config, rows, run_config
from zoo.core.errors import RunError, UserError
from zoo.env import EnvError, make_env
from zoo.pipeline import serial_pipeline
from zoo.rl_utils.optimizer import NonFiniteGradientError
from zoo.run.checkpoint.file import Checkpoint, load_checkpoint, save_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.policy_file import load_policy
from zoo.run.result import TrainResult
from zoo.worker.evaluator import evaluate

SCHEDULES: dict[str, Any] = dict(
    learning_rate={'start': 3e-3, 'end': 0.0},
    clip_ratio={'start': 0.2, 'end': 0.1},
    entropy_weight={'points': [[0, 0.01], [200, 0.0]]},
)
NORMS = dict.fromkeys(('reward_norm', 'value_norm', 'recompute_adv'), True) | {'value_loss': 'clip'}
ALL_ON = dict(model=dict(obs_norm=True), learn=dict(NORMS, adv_norm='batch', target_kl=0.05, **SCHEDULES))
"""Every normaliser, schedule and optional step of PPO."""


def discrete(root: Any, **sections: Any) -> dict[str, Any]:
    return job_config(root, 'CartPole-v1', **sections)


def continuous(root: Any, **sections: Any) -> dict[str, Any]:
    return job_config(root, 'Pendulum-v1', env=dict(max_episode_steps=20), **{'policy': ALL_ON, **sections})


def keeping(root: Any, name: str, **learn: Any) -> dict[str, Any]:
    """CartPole with 64 steps a rollout; PPG has an auxiliary phase every 4 rollouts (ppg), or every 4 draws, two a rollout."""
    if 'ppg' in name:
        learn = {'aux_freq': 4, 'value_norm': True, 'aux_learning_rate': {'start': 2e-3, 'end': 0.0}, **learn}
    learn = {'reward_norm': True, 'learning_rate': {'start': 3e-3, 'end': 0.0}, **learn}
    return run_config(root, name, 'CartPole-v1', max_env_step=400, policy=dict(learn=learn))


def column(run_dir: Path, name: str) -> list[Any]:
    """The values of a column of the log, without the lines that lack it."""
    return [row[name] for row in rows(run_dir) if name in row]


def checked_checkpoint(root: Path) -> Checkpoint:
    """The last checkpoint of the only run below a folder; asserts that its numbers are finite."""
    (run_dir,) = (root / 'run').iterdir()
    checkpoint = load_checkpoint(run_dir)
    floats = [x for x in flat(checkpoint.state).values() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    assert floats and all(torch.isfinite(x).all() for x in floats)
    return checkpoint


# --- seeds, resume ---


@pytest.mark.slow
def test_runs_with_one_seed_are_equal_to_the_bit_whatever_the_global_random_stream(tmp_path: Path) -> None:
    a = serial_pipeline(continuous(tmp_path / 'a'), seed=7)
    torch.manual_seed(123)
    torch.rand(7)
    b, other = (serial_pipeline(continuous(tmp_path / name), seed=seed) for name, seed in (('b', 7), ('c', 8)))
    assert not differing(a.policy.state_dict(), b.policy.state_dict())
    assert rows(a.run_dir) == rows(b.run_dir) and len(rows(a.run_dir)) >= 4
    weights = {k: v for k, v in flat(a.policy.state_dict()['model']).items() if 'weight' in k}
    assert set(differing(weights, {k: other.policy.state_dict()['model'][k] for k in weights})) == set(weights)


@pytest.mark.parametrize('name', ['ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy'])
def test_resumed_run_equals_one_that_went_straight_on(tmp_path: Path, name: str) -> None:
    """The checkpoint lies between two auxiliary phases: 3 of 4 rollouts, or 2 of 4 draws, are done."""
    cfg = resolve_config(continuous(tmp_path, max_env_step=400) if name == 'ppo' else keeping(tmp_path, name))
    with SerialJob(cfg) as job:
        for i in range(6):
            if i == 3:
                job.reset_env()  # a resume starts new episodes
            job.iteration()
        straight, counts = job.state_dict(), (job.env_step, job.train_iter)
    with SerialJob(cfg) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        run_dir = job.run_dir
    checkpoint = load_checkpoint(run_dir)
    assert bool(checkpoint.state['memory']) == ('ppg' in name) and bool(checkpoint.state['buffer']) == ('off' in name)
    with SerialJob(resolve_config(checkpoint.meta['config']), checkpoint=checkpoint) as job:
        assert job.run_dir == run_dir
        for _ in range(3):
            job.iteration()
        assert (job.env_step, job.train_iter) == counts
        for key in ('policy', 'memory', 'buffer'):
            assert not differing(job.state_dict()[key], straight[key])
    if 'ppg' in name:  # an auxiliary phase after the checkpoint learned from samples kept before it
        before, after = (x['policy']['learn']['optimizer']['aux_actor'] for x in (checkpoint.state, straight))
        assert after['step_count'] > before['step_count']


def test_resume_continues_counters_log_best_and_rate(tmp_path: Path) -> None:
    learn = dict(learning_rate={'start': 1e-3, 'end': 0.0})
    cfg = job_config(tmp_path, max_env_step=256, policy=dict(learn=learn, eval=dict(eval_freq=64)))
    first = serial_pipeline(cfg)
    second = serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert second.run_dir == first.run_dir
    assert second.env_step == 512 and second.train_iter == 2 * first.train_iter
    assert second.wall_s > first.wall_s
    lines = [row for row in rows(first.run_dir) if 'collect/iter' in row]
    assert [row['env_step'] for row in lines] == list(range(64, 513, 64))
    assert [row['collect/iter'] for row in lines] == list(range(1, 9))
    # 4 rollouts of 4 envs x 16 steps, episodes of 5: 4 x 12 are whole; the resume cuts the others, so 4 x 12 again
    assert [row['collect/episode'] for row in lines][3::4] == [48, 96]
    # the schedule's length follows max_env_step: when that grows, the rate must not have reached 0 before
    rates = column(first.run_dir, 'learn/learning_rate')
    assert len(rates) == 8 and min(rates) > 0
    assert second.best_return == 5 and load_checkpoint(first.run_dir).meta['env_step'] == 512


def test_new_episodes_depend_on_the_seed_and_the_env_step(tmp_path: Path) -> None:
    def first_obs(job: SerialJob) -> torch.Tensor:
        job.reset_env()
        return job.collector.block.obs[-1].clone()

    with SerialJob(resolve_config(discrete(tmp_path))) as a, SerialJob(resolve_config(discrete(tmp_path, seed=1))) as b:
        start = first_obs(a)
        assert torch.equal(first_obs(a), start) and not torch.equal(first_obs(b), start)
        a.iteration()
        later = first_obs(a)
        assert not torch.equal(later, start) and torch.equal(first_obs(a), later)
        assert a.run_dir != b.run_dir  # although both runs start at the same time


@pytest.mark.slow
def test_file_of_a_run_on_a_gpu_is_resumed_in_a_new_folder_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU generator's state has 16 bytes, which no CPU generator can load: the resumed run draws from new streams."""
    monkeypatch.chdir(tmp_path)
    first = serial_pipeline(job_config(tmp_path), max_env_step=128)
    checkpoint = load_checkpoint(first.run_dir)
    for i, name in enumerate(('learn', 'collect')):
        checkpoint.state['policy'][name]['generator'] = torch.full((16,), i, dtype=torch.uint8)
    file = tmp_path / 'of_a_gpu.safetensors'
    save_checkpoint(file, checkpoint.state, checkpoint.meta)
    runs = [serial_pipeline(None, resume=file, max_env_step=256) for _ in range(2)]
    assert [run.env_step for run in runs] == [256, 256] and first.run_dir not in {run.run_dir for run in runs}
    assert not differing(*(run.policy.state_dict() for run in runs))


# --- where a run stops ---


@pytest.mark.parametrize(
    ('arguments', 'want'),
    [
        ({'max_env_step': 255}, (192, 12)),  # rollouts of 64 steps
        ({'max_env_step': 257}, (256, 16)),
        ({'max_env_step': 64}, (64, 4)),
        ({'max_train_iter': 5}, (128, 8)),  # 2 epochs x 2 minibatches are 4 updates: the second rollout reaches 5
        ({'overrides': ['policy.eval.stop_value=5.0']}, (128, 8)),  # every return is 5
        ({'overrides': ['policy.eval.stop_value=5.1']}, (256, 16)),
    ],
)
def test_run_stops_between_rollouts_at_the_first_limit_and_never_passes_it(
    tmp_path: Path, arguments: dict[str, Any], want: tuple[int, int]
) -> None:
    result = serial_pipeline(job_config(tmp_path, policy=dict(eval=dict(eval_freq=128))), **arguments)
    assert (result.env_step, result.train_iter, result.last_return) == (*want, 5)


@pytest.mark.parametrize(
    ('max_env_step', 'words'),
    [
        (127, 'a rollout takes up to 64 env steps (those that only reset an env are not counted): max_env_step=127 is enough for at '
              'least 1 rollout, max_env_step=128 for 2'),
        (255, 'max_env_step=255 is enough for at least 3 rollouts, max_env_step=256 for 4'),
        (128, ''),
        (130, ''),  # 2 of 130 are less than 5%
    ],
)  # fmt: skip
def test_run_says_before_it_trains_how_far_its_rollouts_reach(
    max_env_step: int, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    serial_pipeline(job_config(tmp_path), max_env_step=max_env_step)
    said = [text for text in caplog.messages if 'is enough for' in text]
    assert len(said) == bool(words) and words in ''.join(said)


def test_resume_says_how_far_its_rollouts_reach_from_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = serial_pipeline(job_config(tmp_path), max_env_step=128)
    caplog.set_level('INFO')
    serial_pipeline(resume=run.run_dir, max_env_step=250)  # 122 more, of which the second 58 are not trained
    assert 'max_env_step=250 is enough for at least 1 more rollout, max_env_step=256 for 2' in caplog.text


def test_max_env_step_is_never_passed_where_reset_rows_do_not_count(tmp_path: Path) -> None:
    # rollouts of 16 x 4 rows; every 6th row of an env only resets it
    result = serial_pipeline(job_config(tmp_path, 'tests.envs:Limit-v0'))
    assert 256 - 64 < result.env_step <= 256


# --- folder, log, config ---


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], TrainResult]:
    """A run, and the config that it was given."""
    cfg = job_config(
        tmp_path_factory.mktemp('trained'),
        exp_name='trial',
        seed=3,
        logger=dict(tensorboard=True),
        checkpoint=dict(freq=64, keep_last=2),
        policy=dict(learn=dict(reward_norm=True), n_thread=2),
    )
    before, n_thread = json.dumps(cfg), torch.get_num_threads()
    result = serial_pipeline(cfg, max_env_step=256, overrides=['policy.learn.learning_rate={start: 1e-3, end: 0}'])
    assert json.dumps(cfg) == before  # the given config is not changed
    assert torch.get_num_threads() == n_thread  # the number of threads is restored
    return cfg, result


def test_run_folder_and_result(trained: tuple[dict[str, Any], TrainResult]) -> None:
    cfg, result = trained
    assert result.run_dir.parent == Path(cfg['logger']['root']) / 'trial' and result.run_dir.name.endswith('_seed3')
    names = ['checkpoints', 'config.yaml', 'metrics.jsonl', 'result.json', 'tb']
    assert sorted(path.name for path in result.run_dir.iterdir()) == names
    names = ['best.safetensors', 'step_000000192.safetensors', 'step_000000256.safetensors']
    assert sorted(path.name for path in (result.run_dir / 'checkpoints').iterdir()) == names
    assert list((result.run_dir / 'tb').iterdir())
    cfg['policy']['learn']['learning_rate'] = {'start': 1e-3, 'end': 0.0}  # an override wins
    assert resolve_config(str(result.run_dir / 'config.yaml')) == resolve_config(cfg)
    assert (result.env_step, result.train_iter, result.best_return, result.last_return) == (256, 16, 5, 5)
    assert result.wall_s > 0 and result.env_step_per_s > 0
    assert result.policy.run.max_env_step == 256  # the policy knows how long the run is


def test_log_has_schedules_raw_returns_and_shares_of_time(trained: tuple[dict[str, Any], TrainResult]) -> None:
    lines = [json.loads(line) for line in (trained[1].run_dir / 'metrics.jsonl').read_text().splitlines()]
    lines = [line for line in lines if 'learn/learning_rate' in line]
    # 4 rollouts of 64 steps; the rollout that begins at half of the run is learned from with half the rate
    assert [line['learn/learning_rate'] for line in lines] == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert [line['collect/return_mean'] for line in lines] == [5.0] * 4  # in rewards before scaling
    for line in lines:
        assert sum(v for k, v in line.items() if k.startswith('time/share_')) == pytest.approx(1)
    assert {f'time/share_{name}' for name in ('env', 'act', 'sample', 'learn', 'evaluate')} <= lines[-1].keys()


def test_evaluation_does_not_change_training(tmp_path: Path) -> None:
    often, never = continuous(tmp_path / 'a'), continuous(tmp_path / 'b')
    often['policy'] = {**often['policy'], 'eval': dict(eval_freq=64, n_episode=3)}
    a, b = serial_pipeline(often), serial_pipeline(never)
    assert len(column(a.run_dir, 'eval/return_mean')) > len(column(b.run_dir, 'eval/return_mean'))
    assert not differing(a.policy.state_dict(), b.policy.state_dict())


@pytest.mark.slow
def test_best_checkpoint_is_the_policy_of_the_best_evaluation(tmp_path: Path) -> None:
    policy = dict(learn=dict(learning_rate=0.03), eval=dict(eval_freq=128, n_episode=2))
    result = serial_pipeline(discrete(tmp_path, max_env_step=1024, policy=policy))
    returns = {row['env_step']: row['eval/return_mean'] for row in rows(result.run_dir) if 'eval/return_mean' in row}
    assert len(set(returns.values())) > 2
    best = load_checkpoint(result.run_dir / 'checkpoints' / 'best.safetensors')
    want = max(returns.values())
    assert result.best_return == want == best.meta['best_return']
    assert best.meta['env_step'] == next(step for step, value in returns.items() if value == want)
    assert result.last_return == returns[result.env_step]


def test_given_policy_is_trained_in_place_of_a_new_one(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path, max_env_step=64))
    before = first.policy.learn_mode.train_iter()
    second = serial_pipeline(job_config(tmp_path, max_env_step=64), policy=first.policy)
    assert second.policy is first.policy and first.policy.learn_mode.train_iter() == 2 * before


def test_resolved_config_is_read_only_in_the_run(tmp_path: Path) -> None:
    with SerialJob(resolve_config(job_config(tmp_path))) as job, pytest.raises(TypeError, match='read-only'):
        job.cfg.policy.learn.batch_size = 1


# --- faults ---


@pytest.mark.parametrize(
    ('env', 'error', 'said'),
    [
        ('nan_env', EnvError, r'nan_env.*index \d.*step 40.*reward is nan'),
        ('huge_env', NonFiniteGradientError, r"gradient of \d+ steps in a row.*parameter '\w+.*learning_rate"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run_and_leave_the_last_good_checkpoint(
    tmp_path: Path, env: str, error: type[Exception], said: str
) -> None:
    sections = dict(env=dict(kwargs={'at': 40}), policy=dict(learn=dict(nonfinite_limit=2)), checkpoint=dict(freq=1))
    with pytest.raises(error, match=said):
        serial_pipeline(job_config(tmp_path, f'tests.policy_envs:{env}', **sections))
    assert checked_checkpoint(tmp_path).meta['env_step'] == 128  # rollouts of 4 x 16 steps: two were complete


@pytest.mark.slow
def test_run_that_cannot_begin_gives_threads_and_processes_back(tmp_path: Path) -> None:
    sections = dict(env=dict(vectorization='async'), logger=dict(root=str(tmp_path / 'file')))
    cfg = resolve_config(job_config(tmp_path, 'tests.policy_envs:aim_env', **sections))
    (tmp_path / 'file').touch()  # where the folder of the runs should be
    torch.set_num_threads(2)
    try:
        with pytest.raises(UserError, match='logger.root'), SerialJob(cfg):
            pass
        assert torch.get_num_threads() == 2
        assert not multiprocessing.active_children()
    finally:
        torch.set_num_threads(1)
        for process in multiprocessing.active_children():
            process.kill()


def test_a_save_that_fails_after_an_error_still_gives_threads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(job: SerialJob) -> None:
        raise OSError('no space left on device')

    before = torch.get_num_threads()
    job = SerialJob(resolve_config(job_config(tmp_path, policy=dict(n_thread=before + 1))))
    assert torch.get_num_threads() == before + 1
    monkeypatch.setattr(SerialJob, 'save', full_disk)
    with pytest.raises(OSError, match='no space left'), job:
        raise RuntimeError('the env broke')
    assert torch.get_num_threads() == before


@needs_gpu
def test_tensor_envs_of_training_and_evaluation_lie_on_the_device_of_the_policy(tmp_path: Path) -> None:
    cfg = job_config(tmp_path, 'torch', env=dict(game='CartPole-v1'), policy=dict(device='cuda'))
    with SerialJob(resolve_config(cfg)) as job:
        assert job.parts.envs[0].device.type == job.parts.evaluators[''].env.device.type == 'cuda'
        job.iteration()
        assert job.evaluate() is not None


# --- envs, models, and arguments ---


def test_env_given_takes_the_place_of_that_of_the_config_and_its_name_is_kept(tmp_path: Path) -> None:
    config = job_config(tmp_path, limit_env, max_env_step=64)
    result = serial_pipeline({**config, 'env': {**config['env'], 'id': 'CartPole-v1'}}, env=limit_env)
    assert load_checkpoint(result.run_dir).meta['config']['env']['id'] == 'tests.envs:limit_env'
    result = serial_pipeline(config, env={'max_episode_steps': 3})
    env = load_checkpoint(result.run_dir).meta['config']['env']
    assert (env['id'], env['max_episode_steps']) == ('tests.envs:limit_env', 3) and result.last_return == 3


def test_env_without_a_config_is_trained_on_with_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = serial_pipeline(env=limit_env, max_env_step=1_024, overrides=['policy.type=ppg', 'logger.console=off'])
    config = load_checkpoint(result.run_dir).meta['config']
    assert config['policy']['type'] == 'ppg' and config['policy']['learn']['reward_norm']
    assert config['env']['id'] == 'tests.envs:limit_env'


def test_module_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    model = OneLayer()
    before = model.actor.weight.detach().clone()
    result = serial_pipeline(discrete(tmp_path), model=model)
    assert result.policy.model is model and not torch.equal(model.actor.weight, before)
    policy = load_policy(result.run_dir, model=OneLayer())
    assert torch.equal(policy.model.actor.weight, model.actor.weight)
    again = serial_pipeline(resume=result.run_dir, model=OneLayer(), max_env_step=2 * result.env_step)
    assert again.train_iter > result.train_iter


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serial_pipeline(job_config(tmp_path_factory.mktemp('run')), max_train_iter=1).run_dir


CARTPOLE: Any = {'id': 'CartPole-v1'}
OTHERS: Any = {'config': {'env': CARTPOLE}, 'model': OneLayer()}


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (
            dict(policy='ppo'),
            "policy is 'ppo' but must be a policy made from a class of POLICY_REGISTRY; to choose one by",
        ),
        (dict(model='vac'), "model is 'vac' but must be a torch.nn.Module"),
        (dict(overrides='seed=1'), "overrides is 'seed=1' but must be a list of 'key=value' texts"),
        (dict(overrides=[1]), "overrides is [1] but must be a list of 'key=value' texts"),
        (dict(resume=3), 'resume is 3 but must be the path of a run folder'),
        (dict(seed='x'), "seed is 'x' (string) but must be an integer >= 0"),
        (dict(max_env_step=1e6), 'max_env_step is 1000000.0 (number) but must be an integer >= 1; write 1000000.'),
        (dict(config=3), 'a config is a dict, a path or a name, got int'),
        (dict(config=None), 'neither a config nor a run'),
        (dict(config=None, env={'window': 3}), 'has no id; give one'),
        (
            lambda run_dir: serial_pipeline(policy=load_policy(run_dir, fields='all'), **OTHERS),
            'both a policy and a model',
        ),
        (
            lambda run_dir: serial_pipeline(resume=run_dir, run_dir=run_dir),
            'the run to resume and its new folder are both ',
        ),
        (lambda _: load_policy(3), 'path of a file or run folder, got 3'),  # type: ignore[arg-type]
        (lambda run_dir: load_policy(run_dir, trust=3), 'trust is 3 but must be True or a list of modules'),  # type: ignore
        (lambda _: evaluate('ppo', CARTPOLE), "policy is 'ppo' but must be a policy"),  # type: ignore[arg-type]
        (lambda _: make_env('CartPole-v1'), "env is 'CartPole-v1' (string) but must be a dict"),  # type: ignore[arg-type]
        (lambda _: make_env({'id': 3}), 'env.id is 3 (integer) but must be text or a function'),
    ],
)
def test_argument_of_another_type_is_refused_in_a_sentence(
    call: dict[str, Any] | Callable[[Path], Any], said: str, run_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as error:
        call(run_dir) if callable(call) else serial_pipeline(**{'config': job_config(tmp_path), **call})
    assert said in str(error.value) and '\n' not in str(error.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ('name', 'ends'),
    [
        ('lr', 'in zoo it is `policy.learn.learning_rate`.'),
        ('foo', "['key=value']."),
        ('overides', 'did you mean overrides?'),
    ],
)
def test_argument_that_does_not_exist_is_refused_with_its_key_in_the_config(
    name: str, ends: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=f"serial_pipeline has no argument '{name}': ") as error:
        serial_pipeline(job_config(tmp_path), **{name: 3})
    assert str(error.value).endswith(ends) and list(tmp_path.iterdir()) == []


def test_default_dtype_other_than_float32_is_refused_in_a_sentence(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        said = "^torch's default dtype is torch.float64 but policies compute in float32; "
        with pytest.raises(UserError, match=said):
            serial_pipeline(job_config(tmp_path))
    finally:
        torch.set_default_dtype(torch.float32)


def test_default_device_that_the_policy_is_not_on_is_refused_in_a_sentence(tmp_path: Path) -> None:
    said = "^torch's default device is meta but the policy is on cpu; call torch.set_default_device.'cpu'. before"
    with torch.device('meta'), pytest.raises(UserError, match=said):
        serial_pipeline(job_config(tmp_path, policy=dict(device='cpu')))


@pytest.mark.parametrize(('env', 'has_box'), [('CartPole-v1', False), ('Pendulum-v1', True)])
def test_rescaling_of_actions_that_are_no_numbers_is_warned_of(
    env: str, has_box: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serial_pipeline(job_config(tmp_path, env, env=dict(action_mode='rescale')))
    said = 'env.action_mode=rescale has no effect: the env has no Box actions; leave it out'
    assert (said in caplog.messages) is not has_box


# --- policies that keep samples between rollouts ---


def test_log_has_the_auxiliary_phase_though_it_is_written_between_two_lines(tmp_path: Path) -> None:
    # rollouts of 64 rows, a few of them reset rows: the only log line is due from 320 env steps on, so it comes after
    # the 6th rollout or later; the auxiliary phase comes after the 4th
    cfg = keeping(tmp_path, 'ppg')
    result = serial_pipeline({**cfg, 'logger': {**cfg['logger'], 'freq': 320}})
    learn = [row for row in rows(result.run_dir) if 'learn/policy_loss' in row]
    assert len(learn) == 1 and learn[0]['collect/iter'] > 4
    assert learn[0]['learn/auxiliary_loss'] > 0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ppg', 'ppg_offpolicy'])
def test_checkpoint_without_the_auxiliary_memory_resumes_with_a_new_count(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = keeping(tmp_path, name) | dict(checkpoint=dict(aux_memory=False), max_env_step=192)
    first = serial_pipeline(cfg)
    assert load_checkpoint(first.run_dir).state['memory'] == {} and 'memory' not in caplog.text
    serial_pipeline(resume=first.run_dir, max_env_step=448)
    kept = {'ppg': 3, 'ppg_offpolicy': 2}[name]
    assert f'no auxiliary memory: what was kept of {kept} policy phases is lost' in caplog.text
    # ppg: the phase comes with the fourth rollout after the resume, not the first; ppg_offpolicy: with every fourth draw
    phases = [row['collect/iter'] for row in rows(first.run_dir) if 'learn/aux_kl_after' in row]
    assert phases == ([7] if name == 'ppg' else [2, 5, 7])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('change', 'phases'),
    [  # 3 rollouts are kept: the phase comes with the fourth, even if aux_freq=2 made it due before; if 8, with the eighth
        ('policy.collect.n_step=8', [4, 8]),
        ('env.collector_env_num=2', [4, 8]),
        ('policy.learn.aux_freq=2', [4, 6]),
        ('policy.learn.aux_freq=8', [8, 16]),
    ],
)
def test_resume_with_other_rollouts_or_phases_takes_the_memory_along(
    tmp_path: Path, change: str, phases: list[int]
) -> None:
    first = serial_pipeline(keeping(tmp_path, 'ppg') | dict(max_env_step=192))
    sizes = ['policy.learn.batch_size=16', 'policy.learn.aux_batch_size=32']
    more = 1024 if change.endswith('freq=8') else 640
    second = serial_pipeline(resume=first.run_dir, max_env_step=more, overrides=[change, *sizes])
    assert [row['collect/iter'] for row in rows(second.run_dir) if 'learn/aux_kl_after' in row][:2] == phases


# --- an auxiliary memory on a disk that is full ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 kB for temporary files; the auxiliary memory of `on_disk` has 4 x 64 rows of 16 + 4 bytes."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    try:
        mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=32k', 'none', str(folder)], capture_output=True)
    except FileNotFoundError:
        pytest.skip('there is no mount command')
    if mounted.returncode:
        pytest.skip('this user may not mount a small file system')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, 'tempdir', str(folder))
        yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)


def fill(disk: Path) -> None:
    with open(disk / 'other', 'wb', buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1024)):
            pass
    assert shutil.disk_usage(disk).free == 0


def on_disk(root: Path) -> dict[str, Any]:
    return keeping(root, 'ppg', aux_memory='disk') | dict(checkpoint=dict(freq=1))


def test_disk_that_is_full_before_a_run_stops_it_with_a_clear_error(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(RunError, match=r"aux_memory is 'disk' but .*/disk has no room for .*No space left.*set TMPDIR"):
        serial_pipeline(on_disk(tmp_path))
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert not (run_dir / 'checkpoints').exists()  # no checkpoint of a half-made update


@pytest.mark.slow
def test_disk_that_fills_up_during_a_run_does_not_disturb_it(tmp_path: Path, small_disk: Path) -> None:
    with SerialJob(resolve_config(on_disk(tmp_path / 'a'))) as job:
        job.iteration()
        fill(small_disk)  # the memory has reserved space for 4 x 64 rows; 64 are filled
        for _ in range(5):
            job.iteration()
        state = job.state_dict()
    (small_disk / 'other').unlink()
    with SerialJob(resolve_config(on_disk(tmp_path / 'b'))) as job:
        for _ in range(6):
            job.iteration()
        assert not differing(job.policy.state_dict(), state['policy'])


@pytest.mark.slow
def test_disk_that_is_full_at_a_resume_leaves_the_last_checkpoint_intact(tmp_path: Path, small_disk: Path) -> None:
    first = serial_pipeline(on_disk(tmp_path) | dict(max_env_step=192))
    gc.collect()
    before = {path.name: path.read_bytes() for path in (first.run_dir / 'checkpoints').iterdir()}
    fill(small_disk)
    with pytest.raises(RunError, match="aux_memory is 'disk'"):
        serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert {path.name: path.read_bytes() for path in (first.run_dir / 'checkpoints').iterdir()} == before
    (small_disk / 'other').unlink()
    second = serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert second.env_step > 448 and any('learn/aux_kl_after' in row for row in rows(first.run_dir))


def test_policy_that_has_taken_all_its_steps_is_not_trained_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """16 gradient steps: 4 rollouts of 64 samples, each with 2 epochs of 2 minibatches."""
    policy = serial_pipeline(job_config(tmp_path)).policy
    assert serial_pipeline(job_config(tmp_path), policy=policy, max_train_iter=16).env_step == 0
    said = 'nothing is left to train: the policy has taken 16 gradient steps and max_train_iter is 16; raise that'
    assert said in caplog.messages
