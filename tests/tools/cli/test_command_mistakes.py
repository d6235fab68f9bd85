"""Wrong command lines: one sentence on stderr that says what to do, exit code 2, and no file is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.real_runs import made_run, write_run
from tests.tools.cli.commands import LINE_ENV, Zoo
from tests.tools.importers.published import RL_ZOO3_PPO

RATE = 'policy.learn.learning_rate'
WORDS = [  # without a command, or with any command
    ('--quiet', '--quiet names no command'),
    ('trian cartpole_ppo', "no command 'trian'; did you mean zoo train?"),
    ('lst', 'did you mean zoo list?'),
    ('tune cartpole_ppo', "no command 'tune'; did you mean zoo sweep?"),
    ('optimize', 'did you mean zoo sweep?'),
    ('cartpole_ppo', 'to train it: zoo train cartpole_ppo'),
    ('my_env.py:MyEnv', 'to train it: zoo train my_env.py:MyEnv'),
    ('frobnicate', 'the commands are train, serve, eval,'),
    ('eval', 'the following arguments are required: CHECKPOINT;'),
    ('check-env', 'the following arguments are required: ENV;'),
    ('convert', 'the following arguments are required: FILE;'),
    ('init', 'the following arguments are required: FILE;'),
    ('plot', 'the following arguments are required: RUN'),
    ('list env', 'did you mean zoo list envs?'),
    ('list frobs', 'the kinds are configs, envs,'),
    ('list envs seed=1', "zoo list does not take 'seed=1'"),
    ('completion tcsh', "invalid choice: 'tcsh'"),
    ('config CartPole-v1', 'zoo config --env CartPole-v1'),
    ('config cartpole_ppo lr=3', RATE),
    ('config cartpole_ppo --json --sed=7', '--sed=7'),
    ('config cartpole_ppo foobar', 'no key has foobar in its name or meaning'),
    ('config cartpole_ppo type=ppg', 'unknown key type'),  # policy, model and buffer have it
]
TRAIN = [
    ('', '--resume .. zoo list configs'),
    ('cartpole_pp', "cartpole_pp .. 'cartpole_ppo'"),
    ('cartpole_ppo policy.learn.learning_rat=1', RATE),
    ('cartpole_ppo policy.type=pgg', "pgg .. did you mean 'pg' .. registered:  .. ppg_offpolicy"),
    ('cartpole_ppo env.id=CartPol-v1', 'CartPol-v1 .. CartPole-v1'),
    ('cartpole_ppo policy.learn.batch_size=96', 'is 96 .. divisor'),
    ('cartpole_ppo --profile 0', 'profile is 0 .. 1 or more'),
    ('cartpole_ppo --profile -3 seed=1', 'profile is -3 .. 1 or more'),
    ('--resume nowhere', 'nowhere .. does not exist'),
    ('cartpole_ppo --run mine --resume elsewhere', 'elsewhere .. does not exist'),
    ('cartpole_ppo --policy ppg', 'write policy.type=ppg'),
    ('cartpole_ppo --env Pendulum-v1', 'zoo train cartpole_ppo env.id=Pendulum-v1'),
    ('--env CartPol-v1', 'CartPole-v1'),
    ('--env CartPole-v1 --policy pppo', "'ppo'"),
    ('--env MiniGrid-Empty-8x8-v0', "package 'minigrid' .. env.id='minigrid:MiniGrid-Empty-8x8-v0' .. env.id=envpool"),
    ('CartPole-v1', 'zoo train --env CartPole-v1'),
    ('ppo', 'zoo train ppo --env CartPole-v1'),
    ('sac --env CartPole-v1', "'sac' is neither a policy nor a config"),
    ('line.py:Nothing', 'Nothing'),
    ('nowhere.py:make', 'nowhere.py'),
    ('line.py', 'line.py'),
    ('cartpole_ppo --seed x', 'seed'),
    ('cartpole_ppo --steps -1', 'max_env_step'),
    ('cartpole_ppo --policy.learn.clip_ratio=.1', 'KEY=VALUE: policy.learn.clip_ratio=.1'),
    ('cartpole_ppo --stepz 3', 'did you mean --steps?'),
    ('cartpole_ppo --learning-rate 3', f'KEY=VALUE: {RATE}=...'),
    ('cartpole_ppo --lr=3e-4', f'KEY=VALUE: {RATE}=3e-4'),
    ('cartpole_ppo --total-timesteps 3', 'max_env_step=...'),
    ('cartpole_ppo --dry-run', '`zoo config CONFIG KEY=VALUE ...` checks a config and shows it, and trains nothing'),
    ('cartpole_ppo seed 3', "override 'seed' is not key=value"),
    ('cartpole_ppo seed = 3', 'policy.learn.learning_rate=1e-3, without spaces or in quotes.'),
    ('cartpole_ppo policy.model.hidden_sizes=(64,64)', "write 'policy.model.hidden_sizes=[64,64]'"),
    ('cartpole_ppo policy.model.hidden_sizes=64,64', "for a list 'policy.model.hidden_sizes=[64,64]'"),
    ('cartpole_ppo --jobs 2', '--jobs 2 is for several runs'),  # from here on: several runs
    ('cartpole_ppo --seeds 2 --resume x', '--resume is for one run'),
    ('cartpole_ppo --seeds 2 --profile 3', '--profile is for one run'),
    ('cartpole_ppo seed=3..1', 'counts down'),
    ('cartpole_ppo seed=0-4', 'write seed=0..4'),
]
ENVS_AND_FILES = [
    ('check-env Nothing-v0', 'Nothing-v0'),
    ('check-env line.py:Nothing', 'Nothing'),
    ('check-env line.py:make --kwargs colour=1', "env.kwargs has 'colour' but"),
    ('check-env line.py:make policy.type=ppg', 'env.KEY=value'),
    ('check-env line.py:make --steps 0', 'wanted 1 or more'),
    ('check-env line.py', 'line.py:Line or line.py:make'),
    ('check-env CartPole-v1 --fast', "does not take '--fast'; its options are "),
    ('init line_env.py', 'line_env.py exists; name another file'),
    ('init thing.py', 'say which: --kind env'),
    ('init env.yaml --kind env', 'name it env.py'),
    ('init config.py --kind config', 'name it config.yaml'),
    ('init nowhere/my_env.py', 'cannot be written (No such file or directory)'),
    ('convert nowhere.yml', 'nowhere.yml'),
    ('convert ppo.yml', '--name'),
    ('convert ppo.yml --name CartPol-v1', 'CartPole-v1'),
    ('convert ppo.yml --from tianshou', "invalid choice: 'tianshou'"),
    ('convert ppo.yml -o mine.json', 'name a .yaml file'),
    ('convert ppo.yml -o ppo.yml', 'ppo.yml exists'),
    ('pretrain cartpole_ppo', 'zoo pretrain got no --demos; name a file .npz'),
    ('pretrain --demos demos.npz', 'zoo pretrain got no config and no --env'),
    ('pretrain acrobot_ppo --demos demos.npz', 'observations that are not of this env'),
    ('pretrain cartpole_ppo --demos demo.npz', 'demo.npz cannot be read (No such file or directory)'),
    ('pretrain cartpole_ppo --demos demos.npz --epochs 0', 'epoch is 0 but must be an integer >= 1'),
    ('pretrain cartpol_ppo --demos demos.npz', 'cartpole_ppo'),
    ('pretrain cartpole_ppo --demoz demos.npz', 'did you mean --demos?'),
]
RUNS = [
    ('eval nowhere', 'nowhere .. does not exist'),
    ('eval nowhere --episodes 0', '--episodes is 0'),
    ('eval nowhere --episode', 'expected one argument'),
    ('eval nowhere -o rows.txt', 'must end in .csv, .json, .jsonl'),
    ('eval nowhere -o none/rows.csv', 'there is no folder none'),
    ('eval nowhere --max-step 0', '--max-step is 0'),
    ('video nowhere -o x.mp4', 'nowhere'),
    ('runs rums', 'no run at rums; did you mean runs'),
    ('runs --sort retrun', 'must be one of time, return, steps, name'),
    ('runs foreign', 'is no config of a run'),
    ('report no', 'no run at no'),
    ('report runs/a -o a.pdf', 'must end in .html'),
    ('report runs/a -o no/a.html', 'there is no folder no'),
    ('report runs/a -o folder.html', 'that is a folder'),
    ('report runs/a --metric eval/return', 'did you mean eval/return_mean'),
    ('report runs/a --video a.avi', 'must end in .mp4, .webm, .gif'),
    ('report runs/a --video a.mp4', 'cannot be read (No such file'),
    ('report runs/a --oput a.html', 'did you mean --output'),
    ('plot runs/a', 'name one with -o'),
    ('plot runs/a -o x.jpg', '.svg, .png or .pdf'),
    ('plot runs/a -o x', '.svg, .png or .pdf'),
    ('plot runs/a -o .', 'must end in'),
    ('plot runs/a -o no/x.svg', 'there is no folder no'),
    ('plot runs/a -o folder.svg', 'that is a folder'),
    ('plot runs/aa -o x.svg', 'no run at runs/aa; did you mean runs/a?'),
    ('plot runs -o x.svg', 'is of the env CartPole-v1 but runs/other/0 of Acrobot-v1'),
    ('plot runs/a -o x.svg --metric eval/retrun_mean', 'did you mean eval/return_mean?'),
    ('plot runs/a -o x.svg --stat iqr', "invalid choice: 'iqr'"),
    ('plot runs/a -o x.svg --x steps', "invalid choice: 'steps'"),
    ('plot runs/a -o x.svg --outptu y', 'zoo plot does not take'),
    ('compare a', 'all 2 runs are of one config'),
    ('compare a aa', 'no run at'),
    ('compare a other', 'returns of different envs do not compare'),
    ('compare a b --metric eval/return', 'did you mean eval/return_mean'),
    ('compare a b --stat best', "invalid choice: 'best'"),
]
SWEEP = [
    ('', 'got no config'),
    ('cartpole_ppo --n 0', 'n is 0'),
    ('cartpole_ppo --n x', "--n is 'x'"),
    ('cartpole_ppo --jobs 0', 'jobs is 0'),
    ('cartpole_ppo --trails 3', 'did you mean --trials'),
    ('cartpole_ppo --metric mean', 'steps, best, last, auc'),
    ('cartpol_ppo', "did you mean 'cartpole_ppo'"),
    ('CartPole-v1', 'zoo sweep --env CartPole-v1'),
    (f'{RATE}=log(1e-4,1e-2)', 'got no config'),
    ('cartpole_ppo policy.learn.clip_ratio=uniform(.4,.1)', 'write uniform(.1,.4)'),
    ('cartpole_ppo policy.learn.clip=uniform(.1,.4)', 'unknown key policy.learn.clip'),
    ('cartpole_ppo policy.learn.batch_size=choice(64,100)', '1024 % 100'),
    ('cartpole_ppo policy.learn.batch_size=64 policy.learn.batch_size=128', 'given twice'),
]
NO_PART = 'zoo: error: zoo bench'
BENCH = [  # whole sentences
    ('learnin', "zoo: error: there is no benchmark 'learnin'; did you mean zoo bench learning?\n"),
    ('zzz', "zoo: error: there is no benchmark 'zzz'; they are learning, speed, kernels, cluster\n"),
    (
        'learning --only cartpole_pp',
        f"{NO_PART} learning has no part 'cartpole_pp'; did you mean 'cartpole_ppg' or 'cartpole_ppo'?\n",
    ),
    ('kernels --only gaee', f"{NO_PART} kernels has no part 'gaee'; did you mean 'gae'?\n"),
    ('speed --only zzz', f"{NO_PART} speed has no part 'zzz'; zoo bench speed --list names them\n"),
    (
        'kernels --repeats 3',
        f'{NO_PART} kernels does not take --repeats (of learning, speed, cluster); leave it out\n',
    ),
    ('cluster --scale 0', 'zoo: error: --scale is 0.0 but must be positive; e.g. --scale 1\n'),
    (
        '--quick',
        'zoo: error: --quick is given but no benchmark; name one: zoo bench learning or zoo bench speed or '
        'zoo bench kernels or zoo bench cluster\n',
    ),
    (
        'learning --only cartpole_ppo -o ppo.yml',
        'cannot be made a folder (File exists); name another one: -o FOLDER\n',
    ),
]
TABLES = (('', WORDS), ('train ', TRAIN), ('', ENVS_AND_FILES), ('', RUNS), ('sweep ', SWEEP), ('bench ', BENCH))
ROWS = [(f'{first}{words}', said) for first, rows in TABLES for words, said in rows]


@pytest.fixture
def folder(in_tmp: Path) -> Path:
    """The current folder, with an env, runs of three configs, demonstrations and files of other programs."""
    (in_tmp / 'line.py').write_text(LINE_ENV)
    (in_tmp / 'line_env.py').write_text('mine')
    (in_tmp / 'ppo.yml').write_text(RL_ZOO3_PPO)
    for name in ('foreign', 'folder.html', 'folder.svg'):
        (in_tmp / name).mkdir()
    (in_tmp / 'foreign' / 'config.yaml').write_text('database: here\n')
    for name, env in (('a', 'CartPole-v1'), ('b', 'CartPole-v1'), ('other', 'Acrobot-v1')):
        for seed in (0, 1):
            write_run(Path('runs', name, str(seed)), made_run([1, 2], [3, seed], seed=seed, name=name, env=env))
    steps = {'obs': np.zeros((6, 4), np.float32), 'action': np.zeros(6, np.int64), 'episode_ends': np.array([2, 6])}
    np.savez(in_tmp / 'demos.npz', **steps)
    return in_tmp


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.suffix != '.pyc'}


@pytest.mark.many
@pytest.mark.parametrize(('words', 'said'), ROWS, ids=[words or 'nothing' for words, _ in ROWS])
def test_mistake_is_one_sentence_on_stderr_and_exit_2_and_writes_nothing(
    words: str, said: str, folder: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    if words.startswith(('report', 'plot')):
        pytest.importorskip('matplotlib')
    before = content(folder)
    caplog.set_level('INFO')
    out, err = zoo(words, code=2)
    assert out == '' and (caplog.text == '' or not words.startswith('train'))
    assert err.startswith('zoo: error: ') and err.count('\n') == 1, err
    assert all(part in err for part in said.split(' .. ')), err
    assert content(folder) == before and not Path('mine').exists()
