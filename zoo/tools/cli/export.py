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
        argument('--format', metavar='NAME', help='onnx or torch-export (default: by the ending of FILE, else onnx)'),
        argument('--output', '-o', metavar='FILE', help='the file, .onnx or .pt2 (default policy.onnx, policy.pt2)'),
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
  zoo export runs/cartpole_ppo/RUN --format torch-export --value --best"""
}


def run_export(args: argparse.Namespace) -> None:
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
