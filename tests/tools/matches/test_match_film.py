"""Film of a match: a real file with a game of each seating."""

from __future__ import annotations

import pytest

pytest.importorskip('pettingzoo', reason='the extra agents')
pytest.importorskip('imageio_ffmpeg', reason='the extra video')
pytest.importorskip('pygame', reason='the extra video')

from tests.video_files import read_video
from zoo import match, serial_pipeline
from zoo.agents.match import Contestant, Seating
from zoo.core.errors import UserError
from zoo.tools.matches.match_film import caption, film_match
from zoo.tools.matches.setup import set_up

GAME = 'pettingzoo:classic/tictactoe-v3'


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    config = dict(
        exp_name='game',
        max_env_step=64,
        env=dict(id=GAME, collector_env_num=4, evaluator_env_num=2),
        policy=dict(
            model=dict(hidden_sizes=[8]),
            learn=dict(batch_size=32),
            collect=dict(n_step=16),
            eval=dict(eval_freq=64, n_episode=2),
        ),
        logger=dict(root=str(tmp_path_factory.mktemp('runs')), console='off', tensorboard=False),
    )
    return str(serial_pipeline(config).run_dir)


def set_up_of(players, env=None):
    return set_up(
        players,
        n_episode=2,
        env=env,
        seed=0,
        greedy=False,
        policy=None,
        best=False,
        max_step=None,
        trust=(),
        overrides=(),
    )


@pytest.mark.long
def test_film_has_a_game_of_each_seating_and_a_line_below_each_picture(run, tmp_path):
    path = tmp_path / 'game.mp4'
    film = film_match(set_up_of([run, 'tests.agents.opening_env:first']), path, fps=10)
    lengths = film.evaluation.lengths
    assert len(lengths) == 2
    assert film.n_frame == sum(lengths) + 2  # the picture after the reset, and one after each move
    frames, fps = read_video(path)
    assert fps == 10
    assert len(frames) == film.n_frame
    height, width, _ = frames[0].shape
    assert (width, height) == (1000, 1066)  # a board of 1000 x 1000, and a line of two thirtieths of it


@pytest.mark.long
def test_match_writes_the_film_too(run, tmp_path):
    path = tmp_path / 'game.gif'
    assert match(run, 'random', n_episode=2, video=path).score.n_game == 2
    assert path.stat().st_size > 1000


def test_caption_says_who_plays_what():
    pair = (Contestant('runs/game/new'), Contestant('runs/game/old@0'))
    seating = Seating(['player_1', 'player_2'], 1)
    assert [caption(seating, pair, i) for i in range(2)] == [
        'game 1   new: player_1   old@0: player_2',
        'game 2   new: player_2   old@0: player_1',
    ]


def test_film_of_what_cannot_be_filmed_is_refused(run, tmp_path):
    path = tmp_path / 'game.mp4'
    with pytest.raises(UserError, match='a film is of two players and the match has 3; film them in pairs'):
        film_match(set_up_of([run, 'random', 'random']), path)
    with pytest.raises(UserError, match='a film is of a match with a policy, and neither player has one; name a run'):
        film_match(set_up_of(['random', 'random'], GAME), path)
    with pytest.raises(UserError, match='must end in .mp4 or .gif'):
        match(run, 'random', video='game.txt')
    assert not path.exists()
