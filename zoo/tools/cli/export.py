"""`zoo export`: a checkpoint -> a file that acts without zoo, and a model card next to it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.core.errors import UserError
from zoo.tools.cli.episodes import RUN_HELP, checkpoint_path
from zoo.tools.cli.output import argument, show

if TYPE_CHECKING:
    from zoo.tools.export import Exported

ARGUMENTS = {
    'export': (
        argument('checkpoint', metavar='RUN', help=RUN_HELP),
        argument(
            '--format', metavar='NAME', help='onnx, torch-export or sb3 (default: by the ending of FILE, else onnx)'
        ),
        argument(
            '--output',
            '-o',
            metavar='FILE',
            help='the file, .onnx, .pt2 or .zip (default policy.onnx, policy.pt2, policy.zip)',
        ),
        argument('--value', action='store_true', help="give the critic's value too, in the unit of returns"),
        argument('--best', action='store_true', help='the best checkpoint of the run, not the newest'),
        argument(
            '--policy', metavar='NAME', help='one of the policies of a run with several agents (default: the first)'
        ),
        argument(
            '--licence',
            metavar='NAME',
            help='licence of the weights, for the model card, e.g. Apache-2.0 (default: none stated)',
        ),
    )
}
NOTES = {
    'export': """\
The file is compared with the policy on 1,000 random observations before it takes its place; a model card is written
next to it, as FILE.md.

  zoo export runs/cartpole_ppo/RUN -o policy.onnx
  zoo export runs/cartpole_ppo/RUN --format torch-export --value --best
  zoo export runs/cartpole_ppo/RUN --format sb3       a zip that stable-baselines3 loads"""
}


def run_export(args: argparse.Namespace) -> None:
    if args.format == 'sb3' or str(args.output or '').endswith('.zip'):
        return _write_sb3(args)
    path = _path_of(args)
    from zoo.core.files import whole_file
    from zoo.run.checkpoint.file import load_checkpoint
    from zoo.run.policy_file import checkpoint_of_policy, load_policy
    from zoo.tools.export import exporting
    from zoo.tools.results.card import card

    checkpoint = load_checkpoint(checkpoint_path(args))
    if args.policy is not None:
        checkpoint = checkpoint_of_policy(checkpoint, args.policy)
    policy = load_policy(checkpoint, 'cpu', args.trust or args.imports)
    env_step = checkpoint.meta['env_step']
    card_path = path.with_name(f'{path.name}.md')
    with exporting(policy, path, args.format, value=args.value, env_step=env_step) as exported:
        with whole_file(card_path) as file:
            file.write(card(checkpoint, exported, licence=args.licence).encode())
    found = exported.comparison
    data = {
        'file': str(exported.path),
        'format': exported.format,
        'inputs': [port._asdict() for port in exported.inputs],
        'outputs': [port._asdict() for port in exported.outputs],
        'state': exported.state,
        'n_checked': found.n,
        **{name: getattr(found, name) for name in ('drawn', 'error', 'n_differ', 'n_tie', 'in_bf16')},
        'card': str(card_path),
        'env_step': env_step,
    }
    show(args, data, _text(exported, card_path, env_step))


def _write_sb3(args: argparse.Namespace) -> None:
    """Writes a zip of stable-baselines3. Raises: UserError for a name of another format."""
    path = Path(args.output or 'policy.zip')
    if path.suffix != '.zip' or args.format not in (None, 'sb3'):
        raise UserError(f'{path} is to be of the format sb3, whose files end in .zip; rename it, or leave --format out')
    from zoo.run.checkpoint.file import load_checkpoint
    from zoo.run.policy_file import checkpoint_of_policy, load_policy
    from zoo.tools.exchange.sb3_writer import write_sb3

    checkpoint = load_checkpoint(checkpoint_path(args))
    if args.policy is not None:
        checkpoint = checkpoint_of_policy(checkpoint, args.policy)
    written = write_sb3(load_policy(checkpoint, 'cpu', args.trust or args.imports), path)
    text = f'{path}: a zip for {written.algorithm}.load of stable-baselines3; its actions, read back, differ by {written.error:.1e}'
    if written.normalizer is not None:
        text += f'\n{written.normalizer}: for VecNormalize.load, which normalises its observations'
    data = {name: str(value) if isinstance(value, Path) else value for name, value in written._asdict().items()}
    show(args, data, text)


def _path_of(args: argparse.Namespace) -> Path:
    """Returns the path to write to. Raises: UserError for a name that does not fit, before anything is loaded."""
    from zoo.tools.export import format_of

    if args.output is None:
        return Path(f'policy{format_of(args.format or "onnx").suffix}')
    path = Path(args.output)
    format_of(args.format, path)
    if path.is_dir():
        raise UserError(f'--output is {path}, a folder; name a file in it')
    return path


def _text(exported: Exported, card_path: Path, env_step: int) -> str:
    """Returns a readable summary of the two files."""
    size = exported.path.stat().st_size / 1e3
    inputs, outputs = (
        ', '.join(f'{port.name} {port.words}' for port in ports) for ports in (exported.inputs, exported.outputs)
    )
    return (
        f'{exported.path}: {exported.format}, {size:,.0f} kB, policy of env step {env_step}\n'
        f'  inputs   {inputs}\n'
        f'  outputs  {outputs}\n'
        f'  compared with policy.act on {exported.comparison.text()}\n'
        f'{card_path}: model card'
    )
