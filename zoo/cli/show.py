"""`zoo config`: every key of a resolved config."""

from __future__ import annotations

import argparse

from zoo.cli.choice import add_options, chosen
from zoo.cli.output import print_json
from zoo.core.errors import UserError
from zoo.core.streams import write_line

SUMMARY = 'print a resolved config and where each value comes from'
OPTIONS = ('json',)


def add(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Prints each key with its value, origin, meaning and range."""
    config = chosen(args)
    if config is None:
        raise UserError('zoo config got neither a config nor --env; name one (zoo list configs shows the bundled ones)')
    from zoo.run.config import explain_config

    rows = explain_config(config, args.overrides)
    if args.json:
        print_json(
            {
                row.key: {'value': row.value, 'description': row.description, 'range': row.wanted, 'origin': row.origin}
                for row in rows
            }
        )
        return 0
    values = [f'{row.key} = {row.value!r}' for row in rows]
    width = min(max(map(len, values)), 50)
    origin_width = max(len(row.origin) for row in rows)
    lines = [
        f'{value:<{width}}  {row.origin:<{origin_width}}  {row.description} ({row.wanted})'
        for value, row in zip(values, rows, strict=True)
    ]
    write_line('\n'.join(lines))
    return 0
