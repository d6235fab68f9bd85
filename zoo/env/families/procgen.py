"""The env family 'procgen': the 16 games of the Procgen benchmark, by envpool."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from zoo.config.section import Section
from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvKwargsError, UnsupportedEnvError
from zoo.env.families.envpool import PROCGEN_EXTRA, EnvpoolVectorEnv, make_pool
from zoo.env.families.family import EnvRequest, env_family, import_extra
from zoo.env.ids import PROCGEN_GAMES

DIFFICULTIES = ('easy', 'hard', 'extreme', 'memory', 'exploration')


class ProcgenOptions(Section):
    """env.kwargs of the family 'procgen'."""

    difficulty: Literal['easy', 'hard', 'extreme', 'memory', 'exploration'] = Field(
        'easy', description='easy (25M env steps are usual) or hard (100M); some games have the others'
    )
    num_levels: int = Field(
        0, ge=0, description='number of levels in training; 0: all; 200 (easy) or 500 (hard) to measure generalisation'
    )
    start_level: int = Field(0, ge=0, description='the first level in training')
    eval_num_levels: int = Field(0, ge=0, description='number of levels in evaluation; 0: all')
    eval_start_level: int = Field(0, ge=0, description='the first level in evaluation')
    num_threads: int = Field(0, ge=0, description="threads of envpool; 0: envpool's default")


@ENV_REGISTRY.register('procgen')
@env_family(
    games=PROCGEN_GAMES,
    options=ProcgenOptions,
    summary='The 16 games of Procgen, whose levels are generated; env.game names one, e.g. coinrun.',
)
def make_procgen(request: EnvRequest, options: ProcgenOptions) -> EnvpoolVectorEnv:
    """`request.n_env` games with colour images [3, 64, 64] of bytes as observations and 15 actions.

    By default training has all levels, as in the published results of PPO and PPG (easy, 25M steps; hard, 100M). The
    benchmark's other protocol measures generalisation: it trains on 200 levels (easy) or 500 (hard) and evaluates on
    all. An episode that runs out of time is truncated; the original ends it as done.

    Source: Cobbe et al. 2020, arXiv:1912.01588; PPG: arXiv:2009.04416.
    """
    if request.max_episode_steps is not None:
        raise UnsupportedEnvError(
            f'env.max_episode_steps is {request.max_episode_steps} but {request.name} has a '
            'fixed time limit; leave env.max_episode_steps out.'
        )
    known = import_extra('envpool', PROCGEN_EXTRA, request.name).list_all_envs()
    tasks = {kind: f'{request.game.capitalize()}{kind.capitalize()}-v0' for kind in DIFFICULTIES}
    if tasks[options.difficulty] not in known:
        takes = ', '.join(kind for kind in DIFFICULTIES if tasks[kind] in known)
        raise EnvKwargsError(
            f'env.kwargs.difficulty is {options.difficulty!r} but {request.name} takes {takes}; use one of these.'
        )
    if request.training:
        levels = (options.num_levels, options.start_level)
    else:
        levels = (options.eval_num_levels, options.eval_start_level)
    pool = make_pool(
        request,
        tasks[options.difficulty],
        PROCGEN_EXTRA,
        {'num_levels': levels[0], 'start_level': levels[1], 'num_threads': options.num_threads},
    )
    pool.metadata['render_fps'] = 15.0  # as the original plays
    return pool
