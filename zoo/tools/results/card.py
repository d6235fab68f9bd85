"""Model card of a policy in Markdown, to put next to an exported file: description, score, how to load it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import jinja2
import numpy as np
import yaml

from zoo.config.section import value_at
from zoo.config.yaml_io import value_text
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, leaf_spaces
from zoo.run.checkpoint.file import Checkpoint
from zoo.run.checkpoint.schema import SavedRun, saved_run
from zoo.tools.results.read import Run, read_run
from zoo.tools.results.settings import changed_settings, env_name
from zoo.tools.results.statistics import interval
from zoo.tools.results.table import number_text

if TYPE_CHECKING:
    from zoo.tools.export import Exported, Port


def card(
    checkpoint: Checkpoint,
    shipped: Exported | None = None,
    *,
    returns: Sequence[float] = (),
    licence: str | None = None,
) -> str:
    """Writes the model card of the policy in a checkpoint.

    Args:
      shipped: the exported file that the card is about; None: the checkpoint itself.
      returns: of greedy episodes played for the card; without them the card shows the run's evaluation, if there was one.
      licence: SPDX name of the licence of the weights, e.g. 'Apache-2.0'; None: the card says that none is stated.
    Raises: CheckpointError if the checkpoint was not written by zoo.
    """
    saved = saved_run(checkpoint)
    config, version, env = saved.config, checkpoint.meta.get('version', {}), env_name(saved.config)
    tags = ['reinforcement-learning', str(config['policy']['type']), env]  # model hubs read these
    mean_return, episodes = _score(saved, _run_of(checkpoint), returns)
    if licence:
        front = {'license': licence, 'tags': tags}
    else:
        front = {'tags': tags}
    return _template().render(
        saved=saved,
        config=config,
        env=env,
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=False, width=10**6),
        mean_return=mean_return,
        episodes=episodes,
        licence=licence,
        model=_model_words(saved),
        versions={name: version[name] for name in ('zoo', 'torch') if name in version},
        shipped=shipped,
        settings=[] if saved.by_hand else changed_settings([config]),
    )


@cache
def _template() -> jinja2.Template:
    """Returns the template of the card; rendering fails if a variable is not given."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= dict(plain=_plain, code=_code, space=space_words, yaml=value_text, repr=repr)
    environment.filters['identifier'] = lambda name: re.sub(r'\W', '_', name)
    environment.filters['example'] = _example
    return environment.from_string(files('zoo.tools.results').joinpath('card.md').read_text(encoding='utf-8'))


def _example(port: Port, obs_space: Space, module: str, dtype: str) -> str:
    """Code for a valid input of an exported policy: the lowest index, an action mask that allows everything, else zeros.

    Args: module: 'np' or 'torch'; dtype: the code of the number type there.
    """
    shape = tuple(n if isinstance(n, int) else 1 for n in port.shape)
    # the parts of a Tuple are the inputs 'obs_0', 'obs_1', ..
    leaf = next((leaf for name, leaf in leaf_spaces(obs_space) if port.name in (name or 'obs', f'obs_{name}')), None)
    if port.name == ACTION_MASK and isinstance(leaf, MultiBinary):
        return f'{module}.ones({shape}, dtype={dtype})'
    starts = np.unique(getattr(leaf, 'start', 0))
    if len(starts) == 1 and starts[0] == 0:
        return f'{module}.zeros({shape}, dtype={dtype})'
    if len(starts) == 1:
        return f'{module}.full({shape}, {starts[0]}, dtype={dtype})'
    values = np.reshape(leaf.start, shape).tolist()  # type: ignore[union-attr]  # only indices have a start
    return f'{"np.array" if module == "np" else "torch.tensor"}({values}, dtype={dtype})'


def _run_of(checkpoint: Checkpoint) -> Run | None:
    """Returns the run in whose folder the checkpoint lies; None for a policy that was saved elsewhere."""
    if checkpoint.path.parent.name == 'checkpoints':
        with suppress(UserError):
            return read_run(checkpoint.path)
    return None


def _score(saved: SavedRun, run: Run | None, returns: Sequence[float]) -> tuple[str, str]:
    """Returns the mean return of the policy with a 95% interval, and a description of the episodes; both '' if unknown.

    The episodes were played for the card, or in the run's last evaluation at the env step of the policy.
    """
    if len(returns):
        values = np.asarray(returns, dtype=np.float64)
        low = high = np.nan
        if np.isfinite(values).all():
            low, high = map(float, interval(values, 'mean'))
        played = f'{len(values)} greedy episodes played for this card'
        return _with_ends(float(values.mean()), low, high), played
    if run is None or not {'eval/return_mean', 'eval/return_std'} <= run.columns.keys():
        return '', ''
    at = (run.columns['env_step'] == saved.env_step) & np.isfinite(run.columns['eval/return_mean'])
    if not at.any():
        return '', ''
    mean, std = (float(run.columns[f'eval/return_{name}'][at][-1]) for name in ('mean', 'std'))
    n = value_at(saved.config, 'policy.eval.n_episode')
    # std is over n, not n - 1
    if isinstance(n, int) and n > 1:
        half = 1.96 * std / math.sqrt(n - 1)
    else:
        half = math.nan
    chosen = ''
    if saved.path.stem == 'best':
        chosen = ', the best one of the run, which is why it is a little too high'
    is_drawn = value_at(saved.config, 'policy.eval.deterministic') is False
    if is_drawn:
        kind = 'episodes with drawn actions'
    else:
        kind = 'greedy episodes'
    episodes = f'{n} {kind} of an evaluation during training{chosen}'
    return _with_ends(mean, mean - half, mean + half), episodes


def _with_ends(mean: float, low: float, high: float) -> str:
    ends = ''
    if math.isfinite(low):
        ends = f' (95% interval {number_text(low)} to {number_text(high)})'
    return f'{number_text(mean)}{ends}'


def _model_words(saved: SavedRun) -> str:
    """Returns a short description of the network: 'network `vac`, 64 x 64, tanh'."""
    model = saved.config['policy'].get('model') or {}
    if saved.given_model:
        return f'a network of its own, {_code(saved.given_model)}'
    sizes = model.get('hidden_sizes')
    words = (
        f'network {_code(model.get("type", "of its own"))}',
        ' x '.join(map(str, sizes)) if isinstance(sizes, list) else '',
        _plain(model['activation']) if isinstance(model.get('activation'), str) else '',
        f'memory {_code(value_text(model["recurrent"]))}' if model.get('recurrent') else '',
    )
    return ', '.join(filter(None, words))


def space_words(space: Space) -> str:
    """Describes a space in words: 'float32 [4], -4.8 to 4.8', 'one of 2 choices, 0 to 1'."""
    match space:
        case Dict():
            return '; '.join(f'{name}: {space_words(part)}' for name, part in space.spaces.items())
        case Discrete():
            return f'one of {space.n} choices, {space.start} to {space.start + space.n - 1}'
        case MultiDiscrete():
            counts = ', '.join(map(str, space.nvec[:8])) + (', ...' if len(space.nvec) > 8 else '')
            return f'{len(space.nvec)} choices at once, of {counts}'
        case Box():
            low = float(space.low.min())
            high = float(space.high.max())
            bounds = ''
            if max(abs(low), abs(high)) < 1e30:
                bounds = f', {number_text(low)} to {number_text(high)}'
            return f'{space.dtype} {list(space.shape)}{bounds}'
    return f'zeros and ones {list(space.shape)}'


def _plain(text: object) -> str:
    """Escapes text on one line, so that Markdown shows it literally: no tags, links, tables or emphasis."""
    return re.sub(r'([\\`*_\[\]<>&|#~])', r'\\\1', ' '.join(str(text).split()))


def _code(text: object) -> str:
    """Puts text between backticks, safe for tables; a backtick in the text becomes a quotation mark."""
    line = ' '.join(str(text).split()).replace('`', "'").replace('|', '\\|')
    return f'`{line}`'
