"""`zoo eval`, `zoo play` and `zoo video`: the same episodes as numbers, in a window and as a file."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import job_config
from tests.tools.cli.commands import Zoo, run_in
from tests.video_files import read_video
from zoo import serial_pipeline

pytestmark = pytest.mark.slow
OWN = Path(__file__).parents[2] / 'film_envs.py'
needs_video = pytest.mark.skipif(not importlib.util.find_spec('imageio_ffmpeg'), reason='the extra video is missing')
needs_window = pytest.mark.skipif(not importlib.util.find_spec('pygame'), reason='the extra video is missing')


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sets = {'short': {'max_episode_steps': 9}}
    config = {
        'max_env_step': 2_048,
        'env': {'id': 'CartPole-v1'},
        'policy': {'collect': {'n_step': 64}, 'eval': {'eval_freq': 1_024, 'n_episode': 2, 'sets': sets}},
        'logger': {'console': 'off', 'tensorboard': False, 'root': str(tmp_path_factory.mktemp('runs'))},
    }
    return serial_pipeline(config).run_dir


def evaluated(zoo: Zoo, run: object, *words: str) -> dict[str, Any]:
    return zoo('eval', run, *words, '--episodes', 4, '--json').data


def test_eval_of_the_best_is_that_of_its_checkpoint(run_dir: Path, zoo: Zoo) -> None:
    assert evaluated(zoo, run_dir, '--best') == evaluated(zoo, run_dir / 'checkpoints' / 'best.safetensors')
    (run_dir.parent / 'empty').mkdir(exist_ok=True)
    assert 'has no best checkpoint' in zoo('eval --best', run_dir.parent / 'empty', code=2).err


@pytest.mark.parametrize('word', ['run', 'runs', 'last', 'runs/run/new'])
def test_the_newest_run_goes_by_a_name(
    word: str, run_dir: Path, in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    for k, name in enumerate(('old', 'new', 'no_checkpoint')):
        ignore = shutil.ignore_patterns('*.safetensors') if name == 'no_checkpoint' else None
        shutil.copytree(run_dir, Path('runs', 'run', name), ignore=ignore)
        os.utime(Path('runs', 'run', name, 'metrics.jsonl'), (2e9 + k, 2e9 + k))
    assert evaluated(zoo, word) == evaluated(zoo, 'runs/run/new')
    said = [text for text in caplog.messages if 'newest' in text]
    assert said == ([] if word == 'runs/run/new' else [f'{word} is runs/run/new, the newest of 3 runs'])


def test_keys_of_the_env_sets_and_max_step_change_what_is_evaluated(run_dir: Path, zoo: Zoo) -> None:
    cut = evaluated(zoo, run_dir, 'env.max_episode_steps=7')
    assert cut['return_mean'] == cut['length_mean'] == 7.0
    assert evaluated(zoo, run_dir, '--set', 'short')['return_max'] == 9.0
    assert evaluated(zoo, run_dir, '--max-step', '5')['episodes_cut'] == 4
    for words, said in (
        ('--set none', 'it has short'),
        ('policy.type=ppg', 'env.KEY=value'),
        ('env.id=Pendulum-v1', 'the policy takes'),
    ):
        assert said in zoo(f'eval {run_dir} {words}', code=2).err


def test_sampled_actions_are_others_and_the_same_with_the_same_seed(run_dir: Path, zoo: Zoo) -> None:
    sampled = evaluated(zoo, run_dir, '--stochastic')
    assert sampled == evaluated(zoo, run_dir, '--stochastic') != evaluated(zoo, run_dir)


@pytest.mark.parametrize('suffix', ['csv', 'json', 'jsonl'])
def test_output_has_a_row_for_each_episode(suffix: str, run_dir: Path, tmp_path: Path, zoo: Zoo) -> None:
    file = tmp_path / f'episodes.{suffix}'
    summary = evaluated(zoo, run_dir, '-o', str(file))
    text = file.read_text()
    rows: list[dict[str, Any]] = {
        'csv': lambda: list(csv.DictReader(text.splitlines())),
        'json': lambda: json.loads(text),
        'jsonl': lambda: [json.loads(line) for line in text.splitlines()],
    }[suffix]()
    returns = [float(row['return']) for row in rows]
    assert len(returns) == 4 and sum(returns) / 4 == pytest.approx(summary['return_mean'], abs=1e-9)
    assert {'episode', 'return', 'length', 'cut'} <= set(rows[0])


@pytest.fixture
def invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDL's driver 'dummy', whose windows cannot be seen."""
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')


@pytest.mark.slow
@needs_video
def test_video_of_short_episodes_has_several_unless_a_number_is_given(run_dir: Path, in_tmp: Path, zoo: Zoo) -> None:
    # an episode of 5 steps has 6 frames, 0.6 s at 10 a second: 7 of them fill 4 s
    words = f'{run_dir} --max-step 5 --fps 10 --json'
    assert len(zoo(f'video -o x.gif {words}').data['returns']) == 7
    assert len(zoo(f'video -o x.gif {words} --episodes 1').data['returns']) == 1


@pytest.mark.long
@needs_window
@pytest.mark.usefixtures('invisible')
def test_play_shows_the_episodes_of_zoo_eval(run_dir: Path, zoo: Zoo) -> None:
    found = zoo('play --seed 2 --fps 1000 --json', run_dir).data
    evaluation = zoo('eval --seed 2 --episodes 3 --json', run_dir, 'env.evaluator_env_num=1').data
    assert len(found['returns']) == 3 and found['return_mean'] == evaluation['return_mean']
    said = zoo('play --max-step 3 --episodes 1 --fps 1000', run_dir).out
    assert said == 'episode 1: return 3.00, length 3, cut off\n'


@needs_window
@pytest.mark.usefixtures('invisible')
def test_closing_the_window_ends_play(run_dir: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    import pygame

    flips, close = [], pygame.event.Event(pygame.QUIT)
    monkeypatch.setattr(pygame.display, 'flip', lambda: flips.append(pygame.event.post(close)))
    assert zoo('play --episodes 1000000', run_dir).out == ''
    assert len(flips) == 2  # the first state, and the one that the first step reached


@needs_window
def test_play_without_a_display_is_refused(run_dir: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('SDL_VIDEODRIVER', 'DISPLAY', 'WAYLAND_DISPLAY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr('sys.platform', 'linux')
    said = 'zoo play opens a window, but there is no display here; write a video: zoo video RUN -o FILE.mp4'
    assert zoo('play', run_dir, code=2).err == f'zoo: error: {said}\n'
    assert '--fps is 0 but' in zoo('play --fps 0', run_dir, code=2).err


@pytest.mark.soak
@needs_video
@pytest.mark.parametrize(
    ('name', 'options'),
    [('x.mp4', ''), ('x.gif', '--stochastic --best'), ('x.mp4', '--max-step 7 env.max_episode_steps=20')],
)
def test_video_has_the_episodes_of_zoo_eval(name: str, options: str, run_dir: Path, in_tmp: Path, zoo: Zoo) -> None:
    words = f'{run_dir} --episodes 2 --seed 5 {options} --json'
    found = zoo(f'video {words} -o {name}').data
    zoo(f'eval {words} env.evaluator_env_num=1 -o rows.json')
    rows = json.loads(Path('rows.json').read_text())
    assert found['returns'] == [row['return'] for row in rows]
    assert found['lengths'] == [row['length'] for row in rows]
    assert found['frames'] == len(read_video(name)[0]) == sum(found['lengths']) + 2 and found['fps'] == 50


@needs_video
def test_people_read_a_line_for_each_episode_of_a_video(run_dir: Path, in_tmp: Path, zoo: Zoo) -> None:
    *episodes, last = zoo('video -o x.gif --episodes 2 --max-step 5 --fps 10', run_dir).lines
    assert episodes == [f'episode {n}: return 5.00, length 5, cut off' for n in (1, 2)]
    assert re.fullmatch(r'x.gif: 1.2 s, 12 frames, policy of env step \d+', last)


@needs_video
@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('-o x.avi', 'x.avi must end in .mp4 or .gif'),
        ('-o none/x.mp4', 'there is no folder none'),
        ('-o x.mp4 --episodes 0', '--episodes is 0'),
        ('-o x.mp4 --max-step 0', '--max-step is 0'),
        ('-o x.gif --fps 99', 'fps is 99 but must be more than 0 and at most 50'),
        ('-o x.mp4 --set none', 'there is no evaluation'),
        ('-o x.mp4 env.id=torch env.game=CartPole-v1', 'draws nothing; name an env that does: env.id=CartPole-v1'),
        ('', 'the following arguments are required: --output/-o'),
    ],
)
def test_video_that_is_refused_leaves_no_file(words: str, said: str, run_dir: Path, in_tmp: Path, zoo: Zoo) -> None:
    error = zoo(f'video {run_dir} {words}', code=2).err.strip()
    assert said in error and '\n' not in error and os.listdir(in_tmp) == []


@needs_video
def test_own_env_of_a_file_needs_consent_like_zoo_eval(in_tmp: Path, zoo: Zoo) -> None:
    result = serial_pipeline(job_config(in_tmp / 'runs', f'{OWN}:LineEnv', max_env_step=64))
    words = 'video', str(result.run_dir), '-o', 'x.mp4'
    refused = run_in(*words, cwd=in_tmp)  # in a new process: this one has loaded its code
    assert refused.returncode == 2 and 'loaded only with your consent' in refused.stderr and not Path('x.mp4').exists()
    found = zoo(*words, '--import', OWN, '--json').data
    assert found['frames'] == sum(length + 1 for length in found['lengths']) and found['fps'] == 12


@needs_video
@pytest.mark.soak
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_of_a_video_leaves_nothing(number: int, code: int, run_dir: Path, in_tmp: Path) -> None:
    words = ['video', str(run_dir), '-o', 'x.mp4', '--episodes', '100000']
    process = subprocess.Popen([sys.executable, '-m', 'zoo', *words], cwd=in_tmp, start_new_session=True)
    try:
        for _ in range(600):
            if os.listdir(in_tmp):  # the first picture is written
                break
            time.sleep(0.1)
        assert os.listdir(in_tmp)
        os.killpg(process.pid, number)  # as a terminal does: to all processes of the command
        assert process.wait(60) == code
    finally:
        process.kill()
    assert os.listdir(in_tmp) == []


@pytest.fixture(scope='module')
def run_of_agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = job_config(
        tmp_path_factory.mktemp('runs'),
        'CartPole-v1',
        max_env_step=32,
        env=dict(id='tests.agents.envs:Clockwork', collector_env_num=2, evaluator_env_num=2, vectorization='sync'),
        policy=dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=16), eval=dict(n_episode=2)),
        agents=dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'}),
    )
    return serial_pipeline(config).run_dir


def test_eval_of_several_agents_prints_returns_by_policy_and_agent(run_of_agents: Path, zoo: Zoo) -> None:
    """a earns 1 + 8 in each episode, b 2 + 16 + 128 + 1024, c 256 + 2048 + 16384; q acts for b and c."""
    found = evaluated(zoo, run_of_agents)
    assert found['agents'] == {'a': 9, 'b': 1_170, 'c': 18_688}
    assert found['policies'] == {'p': 9, 'q': (1_170 + 18_688) / 2}
    out = zoo('eval', run_of_agents, '--episodes', 2).out
    # a + b + c = 9 + 1170 + 18688
    assert out.startswith('return (team, sum over 3 agents) 19867.00 +- 0.00 ')
    lines = [line.split() for line in out.splitlines()]
    assert ['policy', 'q', '9929.00'] in lines and ['agent', 'c', '18688.00'] in lines


def test_eval_of_several_agents_takes_another_opponent(run_of_agents: Path, zoo: Zoo) -> None:
    others = 'agents.mapping={b: random, c: random}'
    assert evaluated(zoo, run_of_agents, others)['policies'] == {'p': 9, 'random': (1_170 + 18_688) / 2}
    err = zoo('eval', run_of_agents, 'agents.mapping.c=random', code=2).err
    assert 'give other opponents all agents of a policy or none' in err
    err = zoo('eval', run_of_agents, 'agents.mapping={"*": random}', code=2).err
    assert 'agents.mapping gives no agent to p, q' in err


def test_eval_of_several_agents_records_no_demonstrations(run_of_agents: Path, in_tmp: Path, zoo: Zoo) -> None:
    assert 'demonstrations are of an env of one agent' in zoo('eval', run_of_agents, '-o', 'x.npz', code=2).err
