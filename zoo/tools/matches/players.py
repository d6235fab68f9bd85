"""Players of matches from what names them: runs, snapshots of a league, policies, functions, 'random'."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from zoo.agents.match import Contestant
from zoo.agents.self_play import BUILT_IN
from zoo.config.user_code import load_code, names_code
from zoo.core.errors import UserError, shown
from zoo.env import EnvConfig
from zoo.env.config import env_config
from zoo.policy.base import Policy
from zoo.run.checkpoint.consent import Trust
from zoo.run.checkpoint.file import Checkpoint, load_checkpoint
from zoo.run.checkpoint.schema import SavedRun, saved_run
from zoo.run.policy_file import checkpoint_of_policy, env_config_of, load_policy, saved_policies
from zoo.tools.results.read import one_run
from zoo.worker.evaluation_env import evaluation_env

LEAGUE = 'league'
CHECKPOINTS = 'checkpoints'
BEST = Path(CHECKPOINTS) / 'best.safetensors'
Named = str | os.PathLike[str] | Policy | Callable[..., Any]
"""A player as users name it: 'random', 'one_move_ahead', a run, its file, RUN@STEP, RUN:POLICY, 'module:function'; a policy; a
function."""
WITH_STEP = re.compile(r'(?P<run>.+)@(?P<step>[\d_]+)')


class Entrant(NamedTuple):
    """A player, and where it comes from. checkpoint: None for others than runs; run_dir: of a whole run, None for its parts."""

    contestant: Contestant
    checkpoint: Checkpoint | None = None
    run_dir: Path | None = None

    def with_policy(self, policy: Policy) -> Contestant:
        """The player with another policy of its run."""
        return replace(self.contestant, policy=policy)

    @property
    def run(self) -> SavedRun | None:
        if self.checkpoint is None:
            return None
        return saved_run(self.checkpoint)


def read_players(
    players: Sequence[Named], trust: Trust = (), policy: str | None = None, best: bool = False
) -> list[Entrant]:
    """The players of a match; players of one name get a number.

    Args: trust: consent to code that checkpoints name, as of `load_policy`; policy: the one that plays for runs of several;
      best: the best checkpoint of a run folder, not the newest.
    Raises: UserError, CheckpointError, ConfigError.
    """
    if len(players) < 2:
        raise UserError(
            f'a match has two players or more but got {len(players)}; name others: a run, RUN@STEP for a snapshot of its league, '
            "'random', 'one_move_ahead', or a function as my_bots.py:greedy"
        )
    entrants: list[Entrant] = []
    for player in players:
        entrant = entrant_of(player, trust, policy, best)
        name = entrant.contestant.name
        number = 1 + sum(re.sub(r' \(\d+\)$', '', each.contestant.name) == name for each in entrants)
        if number > 1:
            name = f'{name} ({number})'
        entrants.append(entrant._replace(contestant=replace(entrant.contestant, name=name)))
    return entrants


def entrant_of(player: Named, trust: Trust = (), policy: str | None = None, best: bool = False) -> Entrant:
    """One player. Args and raises: as of `read_players`."""
    if isinstance(player, Policy):
        agents = (player.run.config or {}).get('agents') or {}
        return Entrant(_of_policy(player.cfg.type, player, agents))
    if isinstance(player, str | os.PathLike):
        return _of_word(os.fspath(player), trust, policy, best)
    if callable(player):
        return Entrant(Contestant(getattr(player, '__name__', type(player).__name__), act=player))
    raise UserError(
        f"a player is {shown(player)} but must be a run's path, 'random', 'one_move_ahead', 'module:function', a policy, or a function "
        'of (observations, mask)'
    )


def _of_policy(name: str, policy: Policy, agents: dict[str, Any]) -> Contestant:
    return Contestant(name, policy, state=agents.get('state', 'off'), pad=bool(agents.get('pad', False)))


def _of_word(word: str, trust: Trust, policy: str | None, best: bool) -> Entrant:
    if word in BUILT_IN:
        return Entrant(Contestant(word, built_in=word))
    place = _checkpoint_place(word, best)
    named = policy
    if place is None and ':' in word:
        run, _, name = word.rpartition(':')
        if not run.endswith('.py'):
            place = _checkpoint_place(run, best)
            named = name
        if place is None and names_code(word):
            return Entrant(_of_function(word))
    if place is None:
        raise UserError(
            f"{word} is no player: there is no such run or file; name a run, RUN@STEP for a snapshot of its league, 'random', "
            "'one_move_ahead', or a function as my_bots.py:greedy"
        )
    checkpoint = load_checkpoint(place)
    names = saved_policies(saved_run(checkpoint))
    if named is None and len(names) > 1:
        raise UserError(
            f'{word} has the policies {", ".join(names)}, and one of them plays in a match; say which: {word}:{names[0]}'
        )
    if named is not None and not (named == policy and len(names) == 1):  # --policy is for the runs that have several
        checkpoint = checkpoint_of_policy(checkpoint, named)
    agents = saved_run(checkpoint).config.get('agents') or {}
    run_dir = None
    if place.is_dir() or place.name == BEST.name:
        run_dir = checkpoint.path.parents[1]
    return Entrant(_of_policy(word, load_policy(checkpoint, trust=trust), agents), checkpoint, run_dir)


def _of_function(word: str) -> Contestant:
    function = load_code(word, 'a player of the match')
    if not callable(function):
        raise UserError(f'{word} is {shown(function)} but a player is a function of (observations, mask)')
    return Contestant(word, act=function)


def _checkpoint_place(word: str, best: bool) -> Path | None:
    """The file or run folder that a word names; None if there is none. Raises: UserError for a snapshot that is not there."""
    path = one_run(word)
    if path.is_file():
        return path
    if path.is_dir():
        if not best:
            return path
        if (path / BEST).exists():
            return path / BEST
        raise UserError(f'{path} has no best checkpoint; leave --best out for the newest one')
    match = WITH_STEP.fullmatch(word)
    if match is None:
        return None
    run = one_run(match['run'])
    if not run.is_dir():
        return None
    return _snapshot(run, match['step'])


def _snapshot(run: Path, word: str) -> Path:
    """The snapshot of the league of a run at an env step, or its checkpoint of that step. Raises: UserError with those it has."""
    step = int(word)
    league = snapshots_of(run)
    saved = _by_step(run / CHECKPOINTS, 'step_')
    found = {**saved, **league}
    if step in found:
        return found[step]
    if not found:
        raise UserError(f'{run} has no snapshot of env step {step}, nor any other; name another run')
    near = min(found, key=lambda known: abs(known - step))
    raise UserError(
        f'{run} has no snapshot of env step {step}: its league has {_listed(sorted(league))}, its checkpoints are of '
        f'{_listed(sorted(saved))}; e.g. {run}@{near}'
    )


def snapshots_of(run: Path) -> dict[int, Path]:
    """The snapshots of the league of a run by env step, the oldest first."""
    found = _by_step(run / LEAGUE, '')
    return {step: found[step] for step in sorted(found)}


def _by_step(folder: Path, prefix: str) -> dict[int, Path]:
    """The files of env steps in a folder."""
    found = {}
    for path in folder.glob(f'{prefix}*.safetensors'):
        step = path.stem.removeprefix(prefix)
        if step.isdecimal():
            found[int(step)] = path
    return found


def _listed(steps: Sequence[int]) -> str:
    if not steps:
        return 'none'
    if len(steps) <= 6:
        return ', '.join(map(str, steps))
    return f'{steps[0]}, {steps[1]}, ... {steps[-1]} ({len(steps)} in all)'


def env_of_match(entrants: Sequence[Entrant], env: object, trust: Trust, overrides: Sequence[str]) -> EnvConfig:
    """The section env of a match: the given env, else that of the first run, which all other runs must have.

    Args: env: as of `evaluate`, or None; overrides: 'env.KEY=VALUE' texts.
    Raises: UserError if nothing names the env, or runs are of different envs; CheckpointError for code without consent.
    """
    of_runs = [entrant for entrant in entrants if entrant.checkpoint is not None]
    if isinstance(env, str):
        overrides = [f'env.id={env}', *overrides]
    elif env is not None:
        return _with_mode(env_config(env if isinstance(env, EnvConfig | dict) else {'id': env}), entrants)
    if of_runs:
        first = of_runs[0]
        assert first.checkpoint is not None
        if env is None:
            _refuse_other_envs(of_runs, overrides)
        return env_config_of(first.checkpoint, trust, overrides)
    if env is None:
        raise UserError(
            'no player is a run, so that nothing says what is played; name the game: --env ENV, in Python env='
        )
    return _with_mode(evaluation_env({'env': {}}, overrides), entrants)


def _with_mode(section: EnvConfig, entrants: Sequence[Entrant]) -> EnvConfig:
    """The section with the form of actions that the first policy has, unless it has one itself."""
    modes = [
        entrant.contestant.policy._action_map.mode for entrant in entrants if entrant.contestant.policy is not None
    ]
    if not modes or 'action_mode' in section.model_fields_set:
        return section
    return section.model_copy(update={'action_mode': modes[0]})


def _refuse_other_envs(entrants: Sequence[Entrant], overrides: Sequence[str]) -> None:
    """Raises: UserError for runs of different envs."""
    if any(text.startswith(('env.id=', 'env.game=')) for text in overrides):
        return
    envs: dict[tuple[str, str | None], str] = {}
    for entrant in entrants:
        run = entrant.run
        assert run is not None
        section = run.config['env']
        if section.get('id'):
            envs.setdefault((section['id'], section.get('game')), entrant.contestant.name)
    if len(envs) > 1:
        (first, name), (other, other_name), *_ = envs.items()
        raise UserError(
            f'{name} plays {_env_words(first)} and {other_name} plays {_env_words(other)}; a match is of players of one game, or name '
            'one that both can play: --env ENV, in Python env='
        )


def _env_words(env: tuple[str, str | None]) -> str:
    return ', game '.join(str(part) for part in env if part)
