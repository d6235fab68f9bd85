"""Film of a match: one game of each seating of two players, with a line that says who plays what."""

from __future__ import annotations

from pathlib import Path

from zoo.agents.evaluator import AgentEvaluator
from zoo.agents.match import FIRST, Contestant, Seating, pair_evaluator
from zoo.agents.stage import table_section
from zoo.core.errors import UserError
from zoo.env import AnyVectorEnv
from zoo.policy.base import Policy
from zoo.tools.matches.setup import MatchSetup
from zoo.tools.media.recording import Recording, record_video
from zoo.worker.evaluator import Player


def film_match(setup: MatchSetup, path: str | Path, fps: float | None = None) -> Recording:
    """Writes a video, .mp4 or .gif, of one game of each seating of the two players of a match.

    Args: fps: frames per second; None: those of the env.
    Raises: UserError for more players, for two without a policy, and for files that cannot be written; UnsupportedEnvError if the
      env cannot be drawn.
    """
    contestants = setup.contestants
    if len(contestants) != 2:
        raise UserError(f'a film is of two players and the match has {len(contestants)}; film them in pairs')
    if not setup.policies:
        raise UserError('a film is of a match with a policy, and neither player has one; name a run')
    pair = (contestants[0], contestants[1])
    seating = Seating(setup.layout.agents, 1)
    player = MatchPlayer(setup, pair, setup.policies[0])
    recording = record_video(
        player,
        setup.section,
        path,
        seating.n_kind,
        setup.seed,
        fps=fps,
        max_step=setup.limit,
        caption=lambda episode: caption(seating, pair, episode),
    )
    assert recording is not None, 'nothing stops it'
    return recording


def caption(seating: Seating, pair: tuple[Contestant, Contestant], episode: int) -> str:
    """The line below the pictures of a game: who plays which agents."""
    first, second = pair
    of_first = [agent for agent in seating.agents if seating.player(agent, episode) == FIRST]
    of_second = [agent for agent in seating.agents if agent not in of_first]
    words = [f'{_short(player.name)}: {", ".join(own)}' for player, own in ((first, of_first), (second, of_second))]
    return f'game {episode + 1}   {"   ".join(words)}'


def _short(name: str) -> str:
    """The last part of a path."""
    return name.rstrip('/').rpartition('/')[2]


class MatchPlayer(Player):
    """Two players of a match as recordings take them. Args: policy: the one whose options of evaluation count."""

    def __init__(self, setup: MatchSetup, pair: tuple[Contestant, Contestant], policy: Policy) -> None:
        super().__init__(policy)
        self._setup = setup
        self._pair = pair

    def seated(self, env: object) -> tuple[object, Player]:
        return table_section(self._setup.section, self._setup.layout), self

    def refuse_other_spaces(self, env: AnyVectorEnv) -> None:
        """The layout was refused for other players."""

    def evaluator(
        self, env: AnyVectorEnv, n_episode: int, limit: int | None, deterministic: bool, quiet: bool
    ) -> AgentEvaluator:
        setup = self._setup
        return pair_evaluator(setup.layout, env, self._pair, n_episode, limit, setup.greedy, setup.section.action_mode)
