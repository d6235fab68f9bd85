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

from zoo.config.source import bundled_configs, load_config
from zoo.core.errors import RunError, UserError
from zoo.env.config import EnvConfig
from zoo.env.inspection.family import random_actions
from zoo.tools.media.film import Camera, make_filmed_env

FRAMES = Path(__file__).resolve().parents[1] / 'images' / 'frames'
SIZE = 240, 160  # pixels of a picture at most
N_STEP = 40  # before it is taken, with random actions


def frame_of(env: dict[str, Any]) -> Path:
    """Where the picture of an env section is, or would be."""
    return FRAMES / f'{(env.get("game") or env["id"]).replace("/", "-")}.png'


def picture(env: dict[str, Any]) -> np.ndarray:
    """The env [H, W, 3] after some random steps."""
    camera = Camera(env['id'])
    with closing(make_filmed_env(EnvConfig(**{**env, 'collector_env_num': 1}), camera)) as vector:
        vector.reset(np.random.SeedSequence(0))
        rng = torch.Generator().manual_seed(0)
        for _ in range(N_STEP):
            vector.step(random_actions(vector.action_space, 1, rng))
        return camera.now()


def main() -> None:
    """Draws each env once."""
    from PIL import Image  # here, so that the site is built without it

    FRAMES.mkdir(parents=True, exist_ok=True)
    sections = {frame_of(env): env for env in (load_config(name)[0]['env'] for name in bundled_configs())}
    for path, env in sections.items():
        try:
            image = Image.fromarray(picture(env))
        except (UserError, RunError, ImportError) as error:
            print(f'{path.stem}: not drawn, {str(error).splitlines()[0]}', file=sys.stderr)
            continue
        image.thumbnail(SIZE)
        image.quantize(64).save(path, optimize=True)


if __name__ == '__main__':
    main()
