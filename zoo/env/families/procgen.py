"""The env family 'procgen': the 16 games of the Procgen benchmark, as envpool has them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from zoo.config.section import Section
from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvKwargsError, UnsupportedEnvError
from zoo.env.families.envpool import EnvpoolVectorEnv, make_pool
from zoo.env.families.family import EnvRequest, env_family, need
from zoo.env.families.qt import EXTRA

GAMES = (
    'bigfish',
    'bossfight',
    'caveflyer',
    'chaser',
    'climber',
    'coinrun',
    'dodgeball',
    'fruitbot',
    'heist',
    'jumper',
    'leaper',
    'maze',
    'miner',
    'ninja',
    'plunder',
    'starpilot',
)
DIFFICULTIES = ('easy', 'hard', 'extreme', 'memory', 'exploration')


class ProcgenOptions(Section):
    """env.kwargs of the family 'procgen'."""

    difficulty: Literal['easy', 'hard', 'extreme', 'memory', 'exploration'] = Field(
        'easy', description='easy and hard are in every game, the others in some'
    )
    num_levels: int = Field(0, ge=0, description='levels there are in training; 0: all there are')
    start_level: int = Field(0, ge=0, description='the first of them')
    eval_num_levels: int = Field(0, ge=0, description='levels there are in evaluation; 0: all there are')
    eval_start_level: int = Field(0, ge=0, description='the first of them')
    num_threads: int = Field(0, ge=0, description='of envpool; 0: as many as it thinks fit')


@ENV_REGISTRY.register('procgen')
@env_family(games=GAMES, options=ProcgenOptions)
def make_procgen(request: EnvRequest, options: ProcgenOptions) -> EnvpoolVectorEnv:
    """`request.n_env` games that show colour images [3, 64, 64] of bytes and take 15 actions.

    All levels are there in training, as for the published results of PPO and PPG (easy, 25M steps; hard, 100M). The
    benchmark's other protocol, which asks how well a policy generalises, trains on 200 levels (easy) or 500 (hard) and
    evaluates on all. An episode that runs out of time is truncated, where the original calls it done.

    Source: Cobbe et al. 2020, arXiv:1912.01588; PPG: arXiv:2009.04416.
    """
    if request.max_episode_steps is not None:
        raise UnsupportedEnvError(
            f'env.max_episode_steps is {request.max_episode_steps} but {request.name} has a time '
            'limit of its own that nothing changes; leave env.max_episode_steps out.'
        )
    known = need('envpool', EXTRA, request.name).list_all_envs()
    tasks = {kind: f'{request.game.capitalize()}{kind.capitalize()}-v0' for kind in DIFFICULTIES}
    if tasks[options.difficulty] not in known:
        takes = ', '.join(kind for kind in DIFFICULTIES if tasks[kind] in known)
        raise EnvKwargsError(
            f'env.kwargs.difficulty is {options.difficulty!r} but {request.name} takes {takes}; use one of these.'
        )
    levels = (
        (options.num_levels, options.start_level)
        if request.training
        else (options.eval_num_levels, options.eval_start_level)
    )
    return make_pool(
        request,
        tasks[options.difficulty],
        EXTRA,
        {'num_levels': levels[0], 'start_level': levels[1], 'num_threads': options.num_threads},
    )
