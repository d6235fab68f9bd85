"""Writes what 7e7fb52 promises to tests/old_house/files; run once, in an empty `files`, in a checkout of that commit:

    OMP_NUM_THREADS=1 PYTHONPATH=$PWD python -m tests.old_house.record

It takes a minute. Only public names of zoo are used. No fixture names a folder of the machine that wrote it: all paths are
relative to tests/old_house/files, but for the sweep, which notes where it is, and so is made in `NEUTRAL`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.old_house import behaviour, surface
from zoo import load_policy, make_policy, record_demonstrations, save_demonstrations, serial_pipeline

USER = behaviour.USER
NEUTRAL = Path('/old_house')
N_ROUND = 2  # that a resume adds
ENV_STEPS = 16  # of a round, 2 envs x 8 steps

MASKED = {'id': 'own_house:Walk'}
MIXED = {'id': 'own_house:Walk', 'kwargs': {'size': 4, 'is_mixed': True}}
OWN = {
    'callbacks': ['own_house:Diary'],
    'stop': [{'type': 'own_house:Rounds', 'n': 50}, {'type': 'patience', 'n': 40}],
    'logger': {'sinks': [{'type': 'own_house:Steps', 'name': 'steps.txt'}, 'csv']},
}
NORMS = {'value_norm': True, 'reward_norm': True}
RICH = {
    'intrinsic': {'type': 'rnd', 'batch_size': 16, 'feature_size': 4, 'hidden_sizes': [8], 'epoch_per_collect': 1},
    'penalties': [{'type': 'kl', 'weight': 0.5, 'target': 0.01}, {'type': 'value_drift', 'weight': 0.1}],
    'plasticity': {'type': 'shrink_perturb', 'every': 2},
    'learning_rate': {'start': 1e-3, 'kl_target': 0.01},
    'entropy_weight': {'start': 0.01, 'end': 0.0},
}
LSTM = {'recurrent': {'cell': 'lstm', 'hidden_size': 8}}
REPLAY = {'size': 64, 'n_sample': 16}

# name -> policy, env, rounds, policy.learn, policy.model, other sections
RUNS: dict[str, tuple[str, Any, int, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    'ppo': ('ppo', 'CartPole-v1', 3, {}, {}, {'logger': {'sinks': ['csv']}}),
    'ppo_native': ('ppo', 'CartPole-v1', 3, {'executor': 'native'}, {}, {}),
    'ppo_continuous': ('ppo', 'Pendulum-v1', 3, NORMS, {'obs_norm': True}, {}),
    'ppg': ('ppg', 'CartPole-v1', 6, {'aux_freq': 4}, {}, {}),  # one auxiliary phase, then half a memory
    'ppo_offpolicy': ('ppo_offpolicy', 'CartPole-v1', 3, {}, {}, {'buffer': REPLAY}),
    'ppo_lstm': ('ppo', 'CartPole-v1', 3, {'sequence': {'len': 4}}, LSTM, {}),
    'dqn': ('dqn', 'CartPole-v1', 4, {'target_freq': 3}, {}, {'buffer': {**REPLAY, 'alpha': 0.6}}),
    'impala': ('impala', 'CartPole-v1', 3, {}, {}, {}),
    'ppg_ewma': ('ppg_ewma', 'Pendulum-v1', 3, {'aux_freq': 4}, {}, {}),
    'rich': ('ppo', 'CartPole-v1', 3, RICH, {}, {}),
    'own': ('ppo', MASKED, 3, {}, {}, OWN),
    'own_mixed': ('ppo', MIXED, 3, {}, {}, {}),
    'own_registered': ('ppo', 'CartPole-v1', 3, {'surrogate': {'type': 'old_house_soft', 'strength': 2.0}}, {}, {}),
    'a2c': ('a2c', 'CartPole-v1', 2, {}, {}, {}),
    'pg': ('pg', 'CartPole-v1', 2, {}, {}, {}),
    'spo': ('spo', 'Pendulum-v1', 2, {}, {'distribution': 'beta'}, {}),
    'dna': ('dna', 'CartPole-v1', 2, {}, {}, {}),
    'ppo_ewma': ('ppo_ewma', 'CartPole-v1', 2, {'optimizer': 'muon'}, {}, {}),
    'ppo_ewma_offpolicy': ('ppo_ewma_offpolicy', 'CartPole-v1', 3, {}, {}, {'buffer': REPLAY}),
    'ppg_offpolicy': (
        'ppg_offpolicy',
        'CartPole-v1',
        3,
        {'aux_freq': 4},
        {},
        {'buffer': {'size': 64, 'policy': {'n_sample': 16}, 'value': {'n_sample': 32}}},
    ),
    'ppg_reloaded': ('ppg_reloaded', 'CartPole-v1', 5, {'aux_freq': 2, 'aux_window': 4}, {'arch': 'shared'}, {}),
    'ppo_gru_sequences': (
        'ppo',
        'Pendulum-v1',
        3,
        {'value_loss': {'type': 'two_hot', 'n_bin': 5}, 'sequence': {'len': 8}},
        {'recurrent': {'cell': 'gru', 'hidden_size': 8}},
        {},
    ),
    'two_ranks': ('ppo_offpolicy', 'CartPole-v1', 3, {}, {}, {'buffer': REPLAY}),  # has a file of rank 1
    'ppo_gsde': ('ppo', 'Pendulum-v1', 2, {'critic_learning_rate': 1e-3}, {'distribution': 'gsde'}, {}),
}
TRUST = {'own': ['own_house'], 'own_mixed': ['own_house']}
TINY = """exp_name: tiny
max_env_step: 96
env: {id: CartPole-v1, collector_env_num: 2, evaluator_env_num: 1}
policy:
  type: ppo
  n_thread: 1
  model: {hidden_sizes: [8]}
  learn: {batch_size: 16, executor: eager}
  collect: {n_step: 16}
  eval: {eval_freq: 32, n_episode: 1}
checkpoint: {keep_last: 1, keep_best: false}
logger: {tensorboard: false, freq: 32, console: 'off'}
"""


def config_of(name: str) -> dict[str, Any]:
    """The config of a run: two small networks, two envs, rounds of 16 env steps."""
    policy, env, n_round, learn, model, others = RUNS[name]
    env = {'id': env} if isinstance(env, str) else env
    size = {} if policy in ('a2c', 'impala', 'pg') else {'batch_size': 8}
    executor = {} if policy == 'dqn' else {'executor': 'eager'}  # the same with and without a C compiler
    if policy.startswith(('ppg', 'dna')):
        learn = {'aux_batch_size': 16, 'aux_train_epoch': 1, **learn}
    logger = {'root': 'runs', 'tensorboard': False, 'freq': 16, 'console': 'off', **others.get('logger', {})}
    return {
        'exp_name': name,
        'seed': 5,
        'max_env_step': n_round * ENV_STEPS,
        'env': {'collector_env_num': 2, 'evaluator_env_num': 1, 'max_episode_steps': 20, **env},
        'policy': {
            'type': policy,
            'device': 'cpu',
            'n_thread': 1,
            'model': {'hidden_sizes': [8, 8], **model},
            'learn': {**executor, **size, **learn},
            'collect': {'n_step': ENV_STEPS // 2},
            'eval': {'eval_freq': 2 * ENV_STEPS, 'n_episode': 2},
        },
        'checkpoint': {'freq': 10**9, 'keep_last': 1, 'keep_best': name == 'ppo'},
        **{key: value for key, value in others.items() if key != 'logger'},
        'logger': logger,
    }


def kind_of(name: str) -> str:
    """Which observations a run's policy is asked about."""
    env = RUNS[name][1]
    return env if isinstance(env, str) else 'mixed' if env is MIXED else 'masked'


def record_run(name: str) -> dict[str, Any]:
    """Trains a run, asks its policy, and continues a copy of it; returns what a test compares with."""
    folder = Path('runs', name, 'old')
    env_step = train(name, folder)
    policy = load_policy(folder, trust=TRUST.get(name, ()))
    said = behaviour.answers(policy, behaviour.observations(kind_of(name)))
    copy = Path('continued', name)
    shutil.copytree(folder, copy)
    max_env_step = env_step + N_ROUND * ENV_STEPS
    more = [f'max_env_step={max_env_step}']
    result = serial_pipeline(resume=copy, overrides=more, trust=TRUST.get(name, ()))
    newest = behaviour.newest(result.run_dir)
    lines = behaviour.metrics(result.run_dir)
    files = sorted(path.relative_to(copy).as_posix() for path in copy.rglob('*') if path.is_file())
    diary = copy / 'diary.json'
    wanted = {
        'kind': kind_of(name),
        'trust': TRUST.get(name, []),
        'max_env_step': max_env_step,
        'env_step': result.env_step,
        'train_iter': result.train_iter,
        'stop_reason': result.stop_reason,
        'answers': said,
        'metrics': lines,
        'files': files,
        'diary': json.loads(diary.read_text()) if diary.exists() else None,
    }
    newest.rename(Path('continued', f'{name}.safetensors'))
    shutil.rmtree(copy)
    return wanted


def train(name: str, folder: Path) -> int:
    """Trains a run, 'two_ranks' under torchrun; returns its env steps."""
    if name != 'two_ranks':
        return serial_pipeline(config_of(name), run_dir=folder).env_step
    file = Path('two_ranks.json')
    file.write_text(json.dumps(config_of(name)))
    file = file.rename('two_ranks.yaml')  # JSON is YAML
    words = ['-m', 'torch.distributed.run', '--nproc-per-node=2', '-m', 'zoo', 'train', str(file), '--run-dir', folder]
    subprocess.run([sys.executable, *words, '--quiet'], check=True)
    file.unlink()
    return json.loads((folder / 'result.json').read_text())['env_step']


def zoo(*words: str, cwd: str | Path = '.') -> Any:
    """The JSON that a command prints, with the module of a user next to the run folders."""
    path = os.pathsep.join([str(surface.ROOT), str(USER)])
    env = {**os.environ, 'PYTHONPATH': path}
    done = subprocess.run([sys.executable, '-m', 'zoo', *words], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'zoo {" ".join(words)}: {done.stderr}')
    text = done.stdout.replace(f'{Path(cwd).absolute()}/', '')
    return json.loads(text) if '--json' in words else text


def record_sweep() -> dict[str, Any]:
    """A sweep of two trials; then what the third one is, in a copy."""
    folder, copy = NEUTRAL / 'sweep', NEUTRAL / 'copy'
    folder.mkdir(parents=True)
    (folder / 'tiny.yaml').write_text(TINY)
    words = ['sweep', 'tiny.yaml', 'policy.learn.learning_rate=log(1e-4,1e-2)', '--json', '--quiet']
    first = zoo(*words, '--n', '2', cwd=folder)
    shutil.copytree(folder, copy)
    third = zoo(*words, '--n', '3', cwd=copy)
    shutil.copytree(folder, 'sweep')
    shutil.rmtree(NEUTRAL)
    return {'words': words, 'first': first, 'third': third}


def record_files() -> dict[str, Any]:
    """Saved policies and demonstrations, and what commands say of the runs."""
    Path('saved').mkdir()
    policy = load_policy('runs/ppo/old', fields='all')
    policy.save('saved/ppo_all.safetensors')
    load_policy('runs/ppo_continuous/old').save('saved/ppo_continuous_eval.safetensors')
    by_hand = make_policy(config_of('ppg'))
    by_hand.save('saved/ppg_by_hand.safetensors', env='CartPole-v1', env_step=7)
    loaded = {}
    for path in sorted(Path('saved').glob('*')):
        kind = 'Pendulum-v1' if 'continuous' in path.stem else 'CartPole-v1'
        loaded[path.stem] = {
            'kind': kind,
            'answers': behaviour.answers(load_policy(path), behaviour.observations(kind)),
        }
    demos, _ = record_demonstrations(load_policy('runs/ppo/old'), 'CartPole-v1', n_episode=2, seed=4)
    save_demonstrations('demos.npz', demos)
    pretrain = ['pretrain', 'sweep/tiny.yaml', '--demos', 'demos.npz', '--epochs', '2', '--json', '--quiet']
    imitated = zoo(*pretrain, '--run-dir', 'imitated')
    continued = serial_pipeline('sweep/tiny.yaml', max_env_step=64, overrides=['init_from=imitated'], run_dir='begun')
    behaviour.newest(continued.run_dir).rename('continued/imitated.safetensors')
    shutil.rmtree('begun')
    return {'loaded': loaded, 'pretrain': pretrain, 'imitated': imitated}


def record_commands() -> dict[str, Any]:
    """{words: what is printed} of commands that read runs."""
    ppo, own = 'runs/ppo/old', 'runs/own/old'
    asked = [
        ['eval', ppo, '--episodes', '3', '--seed', '2', '--json'],
        ['eval', ppo, '--best', '--stochastic', '--episodes', '2', '--json'],
        ['eval', 'runs/ppo_lstm/old', '--episodes', '2', '--json'],
        ['eval', own, '--episodes', '2', '--import', 'own_house', '--json'],
        ['eval', 'runs/own_mixed/old', 'env.kwargs.size=6', '--episodes', '2', '--import', 'own_house', '--json'],
        ['eval', 'runs/own_registered/old', '--episodes', '2', '--import', 'own_surrogate', '--json'],
        ['eval', 'saved/ppg_by_hand.safetensors', '--episodes', '2', '--json'],
        ['runs', 'runs', '--json'],
        ['runs', 'sweep/runs', '--json'],
        ['compare', ppo, 'runs/ppg/old', '--json'],
        ['plot', ppo, '--json', '-o', 'curve.svg'],
    ]
    printed = [[words, zoo(*words)] for words in asked]
    Path('curve.svg').unlink()
    return {'printed': printed}


def main() -> None:
    torch.set_num_threads(1)
    files = behaviour.FILES
    files.mkdir(exist_ok=True)
    if any(files.iterdir()):
        raise SystemExit(f'{files} is not empty; the fixtures are those of 7e7fb52 and stay as they are')
    os.chdir(files)
    found = surface.surface()
    found['mentioned'], found['homes'] = surface.mentioned(), surface.homes()
    write('surface.json', found)
    sys.path.insert(0, str(USER))
    import own_surrogate  # noqa: F401

    wanted = {name: record_run(name) for name in RUNS}
    write('machine.json', behaviour.machine())
    write('runs.json', wanted)
    write('sweep.json', record_sweep())
    write('saved.json', record_files())
    write('commands.json', record_commands())


def write(name: str, value: dict[str, Any]) -> None:
    """A line for each entry."""
    Path(name).write_text(
        '{' + ',\n'.join(f'{json.dumps(key)}: {json.dumps(item)}' for key, item in value.items()) + '}\n'
    )


if __name__ == '__main__':
    main()
