"""A picture of the env of each bundled config, for the gallery: python docs/site/frames.py writes docs/images/frames/.

An env that cannot be drawn, or whose package is not installed, keeps the picture that is there, if any.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.agents.games import make_game
from zoo.agents.inspection import AgentSpaces
from zoo.config.source import bundled_configs, load_config
from zoo.core.errors import RunError, UserError
from zoo.env.config import EnvConfig
from zoo.env.errors import SeveralAgentsError
from zoo.env.inspection.family import random_actions
from zoo.tools.media.film import Camera, draw_without_display, make_filmed_env

FRAMES = Path(__file__).resolve().parents[1] / 'images' / 'frames'
SIZE = 240, 160  # pixels of a picture at most
DRAWN_AS = {
    'connect_four': {'id': 'pettingzoo:classic/connect_four-v3'},
    'kuhn_poker': {'id': 'pyspiel:kuhn_poker'},
    'leduc_poker': {'id': 'pyspiel:leduc_poker'},
    'tictactoe': {'id': 'pettingzoo:classic/tictactoe-v3'},
}
"""Tensor envs that are not drawn, and the same games that are."""
N_STEP = 40  # before it is taken, with random actions


def frame_of(env: dict[str, Any]) -> Path:
    """Where the picture of an env section is, or would be."""
    return FRAMES / f'{(env.get("game") or env["id"]).replace("/", "-").replace(":", "-")}.png'


def picture(env: dict[str, Any]) -> np.ndarray:
    """The env [H, W, 3] after some random steps."""
    camera = Camera(env['id'])
    with closing(make_filmed_env(EnvConfig(**{**env, 'collector_env_num': 1}), camera)) as vector:
        vector.reset(np.random.SeedSequence(0))
        rng = torch.Generator().manual_seed(0)
        for _ in range(N_STEP):
            vector.step(random_actions(vector.action_space, 1, rng))
        return camera.now()


def picture_of_agents(env: dict[str, Any]) -> np.ndarray:
    """An env of several agents after some random legal moves."""
    draw_without_display()
    cfg = EnvConfig(**{**env, 'collector_env_num': 1, 'kwargs': {**env.get('kwargs', {}), 'render_mode': 'rgb_array'}})
    with closing(make_game(cfg)) as game:
        spaces = {agent: AgentSpaces(game, agent, cfg.id, 'auto') for agent in game.agents}
        rng = torch.Generator().manual_seed(0)
        turn = game.reset(seed=0)
        for _ in range(N_STEP):
            if not turn.acts:
                break
            turn = game.step(
                {agent: spaces[agent].sample(obs, turn.masks.get(agent), rng) for agent, obs in turn.acts.items()}
            )
        return np.asarray(game.render())[..., :3]


def picture_of_text(env: dict[str, Any]) -> np.ndarray:
    """The state of a game of OpenSpiel as its text, after the chance moves and two moves."""
    import pyspiel
    from PIL import Image, ImageDraw, ImageFont

    state = pyspiel.load_game(env['id'].partition(':')[2]).new_initial_state()
    rng = np.random.default_rng(0)
    n_move = 0
    while not state.is_terminal() and n_move < 2:
        n_move += not state.is_chance_node()
        state.apply_action(int(rng.choice(state.legal_actions())))
    image = Image.new('RGB', SIZE, 'white')
    text = env['id'].partition(':')[2].replace('_', ' ') + '\n\n' + str(state)
    ImageDraw.Draw(image).multiline_text((12, 12), text, fill='black', font=ImageFont.load_default(14))
    return np.asarray(image)


def main() -> None:
    """Draws each env once."""
    from PIL import Image  # here, so that the site is built without it

    FRAMES.mkdir(parents=True, exist_ok=True)
    sections = {frame_of(env): env for env in (load_config(name)[0]['env'] for name in bundled_configs())}
    for path, section in sections.items():
        env = DRAWN_AS.get(section.get('game') or '', section)
        try:
            if env['id'].startswith('pyspiel:'):
                image = Image.fromarray(picture_of_text(env))
                image.save(path, optimize=True)
                continue
            try:
                image = Image.fromarray(picture(env))
            except SeveralAgentsError:
                image = Image.fromarray(picture_of_agents(env))
        except (UserError, RunError, ImportError) as error:
            print(f'{path.stem}: not drawn, {str(error).splitlines()[0]}', file=sys.stderr)
            continue
        image.thumbnail(SIZE)
        image.quantize(64).save(path, optimize=True)


if __name__ == '__main__':
    main()
