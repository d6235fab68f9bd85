"""The model card of a policy: what it is, how good, how to load it, as Markdown to put beside an exported file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import yaml

from zoo.config.section import value_at
from zoo.config.yaml_io import value_text
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from zoo.run.checkpoint.file import Checkpoint
from zoo.run.checkpoint.schema import SavedRun, saved_run
from zoo.tools.results.read import Run, read_run
from zoo.tools.results.settings import changed_settings, env_name
from zoo.tools.results.statistics import interval
from zoo.tools.results.table import number_text

if TYPE_CHECKING:
    from zoo.tools.export import Exported, Port


class _Score(NamedTuple):
    """Mean return of the policy, its 95% interval over episodes, and where both are from."""

    mean: float
    low: float
    high: float
    source: str


def card(
    checkpoint: Checkpoint,
    shipped: Exported | None = None,
    *,
    returns: Sequence[float] = (),
    licence: str | None = None,
) -> str:
    """The model card of the policy in a checkpoint.

    Args:
      shipped: the exported file that the card is about; None: the checkpoint itself.
      returns: of greedy episodes played just now; without them the card has the evaluation of the run, if there was one.
      licence: SPDX name of the licence of the weights, e.g. 'Apache-2.0'; None: the card says that none is stated.
    Raises: CheckpointError if the checkpoint was not written by zoo.
    """
    saved, run = saved_run(checkpoint), _run_of(checkpoint)
    score = _score(saved, run, returns)
    parts = [
        _front_matter(saved, licence),
        f'# {_plain(saved.config["exp_name"])}: {saved.config["policy"]["type"]} on {_plain(env_name(saved.config))}',
        _summary(saved, score),
        '## Facts\n\n' + _table(('', ''), _facts(saved, checkpoint, score, licence)),
        '## How to load it\n\n' + _how_to_load(saved, shipped),
        '## How it was trained\n\n' + _training(saved),
    ]
    return '\n\n'.join(part for part in parts if part) + '\n'


def _run_of(checkpoint: Checkpoint) -> Run | None:
    """The run whose folder the checkpoint lies in; None for a policy that was saved elsewhere."""
    if checkpoint.path.parent.name != 'checkpoints':
        return None
    try:
        return read_run(checkpoint.path)
    except UserError:
        return None


def _score(saved: SavedRun, run: Run | None, returns: Sequence[float]) -> _Score | None:
    """How good the policy is: of the episodes that were just played, or of the last evaluation of the run at its env step."""
    if len(returns):
        values = np.asarray(returns, dtype=np.float64)
        low, high = interval(values, 'mean') if np.isfinite(values).all() else (np.nan, np.nan)
        return _Score(
            float(values.mean()), float(low), float(high), f'{len(values)} greedy episodes played for this card'
        )
    if run is None or not {'eval/return_mean', 'eval/return_std'} <= run.columns.keys():
        return None
    at = (run.columns['env_step'] == saved.env_step) & np.isfinite(run.columns['eval/return_mean'])
    if not at.any():
        return None
    mean, std = (float(run.columns[f'eval/return_{name}'][at][-1]) for name in ('mean', 'std'))
    n = value_at(saved.config, 'policy.eval.n_episode')
    half = 1.96 * std / math.sqrt(n - 1) if isinstance(n, int) and n > 1 else math.nan  # std is over n, not n - 1
    chosen = ', the best one of the run, which is why it is a little too high' if saved.path.stem == 'best' else ''
    return _Score(mean, mean - half, mean + half, f'{n} greedy episodes of an evaluation during training{chosen}')


def _front_matter(saved: SavedRun, licence: str | None) -> str:
    """What model hubs read: the licence and tags."""
    tags = ['reinforcement-learning', str(saved.config['policy']['type']), env_name(saved.config)]
    data = {'license': licence, 'tags': tags} if licence else {'tags': tags}
    return f'---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=10**6)}---'


def _summary(saved: SavedRun, score: _Score | None) -> str:
    policy, env = saved.config['policy']['type'], _code(env_name(saved.config))
    text = f'A policy trained with {_code(policy)} on {env} for {saved.env_step:,} env steps.'
    if score is None:
        return f'{text} It was not evaluated.'
    return f'{text} Its mean return is {number_text(score.mean)}{_interval(score)} over {score.source}.'


def _interval(score: _Score) -> str:
    return f' (95% interval {number_text(score.low)} to {number_text(score.high)})' if math.isfinite(score.low) else ''


def _facts(
    saved: SavedRun, checkpoint: Checkpoint, score: _Score | None, licence: str | None
) -> Iterator[tuple[str, str]]:
    version = checkpoint.meta.get('version', {})
    yield 'env', _code(env_name(saved.config))
    if kwargs := saved.config['env'].get('kwargs'):
        yield 'arguments of the env', _code(value_text(kwargs))
    yield 'observation', _plain(space_words(saved.obs_space))
    yield 'action', _plain(space_words(saved.action_space))
    yield 'policy', f'{_code(saved.config["policy"]["type"])}, {_model_words(saved)}'
    yield 'acts', 'greedily: the most likely action of a state, the mean of a Gaussian'
    yield 'mean return', 'not known' if score is None else f'{number_text(score.mean)}{_interval(score)}'
    yield 'trained for', f'{saved.env_step:,} env steps, seed {saved.config["seed"]}'
    yield (
        'made with',
        ', '.join(f'{_plain(name)} {_plain(version[name])}' for name in ('zoo', 'torch') if name in version),
    )
    unknown = 'none is stated; whoever trained the policy decides. Env and assets have licences of their own'
    yield 'licence of the weights', _plain(licence) if licence else unknown


def _model_words(saved: SavedRun) -> str:
    """The network in a few words, '64 x 64, tanh'."""
    model = saved.config['policy'].get('model') or {}
    if saved.given_model:
        return f'a network of its own, {_code(saved.given_model)}'
    sizes = model.get('hidden_sizes')
    words = [f'network {_code(model.get("type", "of its own"))}']
    words += [' x '.join(map(str, sizes))] if isinstance(sizes, list) and sizes else []
    words += [_plain(model['activation'])] if isinstance(model.get('activation'), str) else []
    words += [f'memory {_code(value_text(model["recurrent"]))}'] if model.get('recurrent') else []
    return ', '.join(words)


def space_words(space: Space) -> str:
    """A space in words: 'float32 [4], -4.8 to 4.8', 'one of 2 choices'."""
    if isinstance(space, Dict):
        return '; '.join(f'{name}: {space_words(part)}' for name, part in space.spaces.items())
    if isinstance(space, Discrete):
        return f'one of {space.n} choices, {space.start} to {space.start + space.n - 1}'
    if isinstance(space, MultiDiscrete):
        counts = ', '.join(map(str, space.nvec[:8])) + (', ...' if len(space.nvec) > 8 else '')
        return f'{len(space.nvec)} choices at once, of {counts}'
    if not isinstance(space, Box):
        return f'zeros and ones {list(space.shape)}'
    low, high = (float(bound.min() if i == 0 else bound.max()) for i, bound in enumerate((space.low, space.high)))
    bounds = f', {number_text(low)} to {number_text(high)}' if max(abs(low), abs(high)) < 1e30 else ''
    return f'{space.dtype} {list(space.shape)}{bounds}'


def _how_to_load(saved: SavedRun, shipped: Exported | None) -> str:
    if shipped is None:
        head = f'from zoo import load_policy\n\npolicy = load_policy({saved.path.name!r})\n'
        return _block(f'{head}action = policy.act(obs)  # obs: one observation, or a batch of them')
    text = _block(
        '\n'.join(_LOADERS[shipped.format](shipped) if shipped.format in _LOADERS else [f'# {shipped.path.name}'])
    )
    ports = [(f'input `{p.name}`', _shape(p)) for p in shipped.inputs] + [
        (f'output `{p.name}`', _shape(p)) for p in shipped.outputs
    ]
    text += '\n\nIt takes raw observations of the env and returns its actions; normalisation and bounds are inside.\n\n'
    text += _table(('', 'dtype and shape'), ports)
    text += (
        f'\n\nCompared with `policy.act` on {shipped.comparison.n:,} random observations, the largest difference is '
        f'{shipped.comparison.error or 0.0:.2g}.'
    )
    if shipped.comparison.in_bf16 is not None:
        text += (
            ' Both computed in float32. In bfloat16, as zoo computes images on processors that have it: '
            f'{shipped.comparison.in_bf16}.'
        )
    return text


def _shape(port: Port) -> str:
    return _plain(f'{port.dtype} [{", ".join(map(str, port.shape))}]')


def _zeros(port: Port) -> str:
    return (
        f'({", ".join(str(n) if isinstance(n, int) else "1" for n in port.shape)}{"," if len(port.shape) == 1 else ""})'
    )


def _onnx(shipped: Exported) -> list[str]:
    outputs = ', '.join(re.sub(r'\W', '_', p.name) for p in shipped.outputs)
    return [
        'import numpy as np',
        'import onnxruntime',
        '',
        f'session = onnxruntime.InferenceSession({shipped.path.name!r})',
        'inputs = {  # your observations in place of zeros',
        *(f'    {p.name!r}: np.zeros({_zeros(p)}, dtype={p.dtype!r}),' for p in shipped.inputs),
        '}',
        f'[{outputs}] = session.run(None, inputs)',
    ]


def _torch_export(shipped: Exported) -> list[str]:
    return [
        'import torch',
        '',
        f'module = torch.export.load({shipped.path.name!r}).module()',
        'outputs = module(  # your observations in place of zeros',
        *(f'    torch.zeros({_zeros(p)}, dtype=torch.{p.dtype}),  # {p.name}' for p in shipped.inputs),
        ')',
    ]


_LOADERS = {'onnx': _onnx, 'torch-export': _torch_export}


def _training(saved: SavedRun) -> str:
    """The settings that differ from the defaults."""
    if saved.by_hand:
        return 'The policy was made and saved by hand; its training is not recorded.'
    rows = [tuple(map(_code, (s.key, *s.values, s.default))) for s in changed_settings([saved.config])]
    if not rows:
        return f'With the default settings of {_code(saved.config["policy"]["type"])}.'
    return 'Settings that differ from the defaults:\n\n' + _table(('setting', 'value', 'default'), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return '\n'.join(f'| {" | ".join(line)} |' for line in (head, ['---'] * len(head), *rows))


def _block(code: str) -> str:
    return f'```python\n{code}\n```'


def _plain(text: object) -> str:
    """Text that Markdown shows as it is, in one line: no tags, links, tables or emphasis."""
    return re.sub(r'([\\`*_\[\]<>&|#~])', r'\\\1', ' '.join(str(text).split()))


def _code(text: object) -> str:
    """Text between backticks, in a table too; a backtick of its own becomes a quotation mark."""
    line = ' '.join(str(text).split()).replace('`', "'").replace('|', '\\|')
    return f'`{line}`'
