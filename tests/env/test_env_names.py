"""Ids of other libraries: which game each means, and which versions of an env gymnasium still has."""

from __future__ import annotations

import gymnasium
import pytest

from zoo.env.ids import ATARI_GAMES, PROCGEN_GAMES, Game, game_of, versions_of


@pytest.mark.parametrize(
    ('env_id', 'game'),
    [
        ('Pong-v4', Game('atari', 'Pong')),
        ('ALE/Pong-v5', Game('atari', 'Pong')),
        ('ale_py:ALE/UpNDown-v5', Game('atari', 'UpNDown')),
        ('PongNoFrameskip-v4', Game('atari', 'Pong')),
        ('NewGameDeterministic-v0', Game('atari', 'NewGame')),
        ('Pong-ram-v4', Game('atari', 'Pong', True)),
        ('Pong-ramNoFrameskip-v4', Game('atari', 'Pong', True)),
        ('ALE/MsPacman-ram-v5', Game('atari', 'MsPacman', True)),
        ('bigfish', Game('procgen', 'bigfish')),
        ('procgen_bigfish', Game('procgen', 'bigfish')),
        ('procgen/bigfish', Game('procgen', 'bigfish')),
        ('procgen:procgen-coinrun-v0', Game('procgen', 'coinrun')),
        ('CartPole-v1', None),
        ('ALE/Pong', None),
        ('fish', None),
        ('my_module:Pong', None),
    ],
)
def test_game_of_an_id_is_that_of_its_family(env_id: str, game: Game | None) -> None:
    assert game_of(env_id) == game


def test_game_of_every_form_of_an_atari_id() -> None:
    for name in (*ATARI_GAMES, 'Xyz'):
        assert game_of(f'{name}-v4') == (Game('atari', name) if name != 'Xyz' else None)
        for start, end in (('ALE/', '-v5'), ('', 'NoFrameskip-v4'), ('', 'Deterministic-v0')):
            assert game_of(f'{start}{name}{end}') == Game('atari', name)


def test_games_are_those_of_the_families() -> None:
    roms = pytest.importorskip('ale_py').roms.get_all_rom_ids()
    assert {''.join(part.capitalize() for part in rom.split('_')) for rom in roms} >= ATARI_GAMES
    assert len(PROCGEN_GAMES) == 16


def test_versions_of_an_env_are_those_that_can_be_made_oldest_first() -> None:
    ants = [spec.id for spec in versions_of('Ant-v2')]
    assert ants[-2:] == ['Ant-v4', 'Ant-v5']
    if 'raise' in str(gymnasium.registry['Ant-v2'].entry_point):  # as in newer versions of gymnasium, and so does v3
        assert len(ants) == 2
    assert [spec.id for spec in versions_of('CartPole-v7')] == ['CartPole-v0', 'CartPole-v1']
    assert versions_of('NoSuchEnv-v0') == []
