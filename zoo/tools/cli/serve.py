"""`zoo serve --train`: a run whose clients play the env, ask for actions and send rewards."""

from __future__ import annotations

import argparse
import os

from zoo.core.errors import UserError
from zoo.tools.cli.output import argument
from zoo.tools.cli.train import ARGUMENTS as TRAIN_ARGUMENTS, run_train

_TAKEN = ('config', 'overrides', '--env', '--policy', '--seed', '--steps', '--resume', '--run')
ARGUMENTS = {
    'serve': (
        *(each for each in TRAIN_ARGUMENTS['train'] if each[0][0] in _TAKEN),
        argument('--train', action='store_true', help='learn from the steps of the clients'),
        argument('--port', type=int, metavar='N', help='short for pipeline.port=N (8585)'),
        argument(
            '--host',
            metavar='HOST',
            help='address to listen on: 127.0.0.1, which only this machine reaches, or 0.0.0.0 for all networks',
        ),
        argument(
            '--token-file',
            metavar='FILE',
            help='file with the token that clients send; without it, and without ZOO_SERVE_TOKEN, one is made in the run folder',
        ),
    )
}
NOTES = {
    'serve': """clients (zoo/client.py needs only Python and numpy, and may be copied):
  from zoo.client import PolicyClient
  client = PolicyClient('http://127.0.0.1:8585', token=...)
  episode = client.start_episode()
  action = client.get_action(episode, observation)
  client.log_returns(episode, reward)
  client.end_episode(episode, observation)"""
}


def run_serve(args: argparse.Namespace) -> int:
    """Serves a run until it is over. Returns: the exit code, as `zoo train`."""
    if not args.train:
        raise UserError(
            'zoo serve learns from its clients: write zoo serve CONFIG --train. To act without learning, load_policy(RUN) or '
            'zoo export'
        )
    from zoo.run.serving.served_job import HOST, TOKEN

    if args.host is not None:
        os.environ[HOST] = args.host
    if args.token_file is not None:
        try:
            with open(args.token_file, encoding='utf-8') as file:
                token = file.read().strip()
        except OSError as error:
            raise UserError(
                f'--token-file {args.token_file} cannot be read ({error.strerror}); name a file with one line'
            ) from error
        if not token:
            raise UserError(f'--token-file {args.token_file} is empty; write a token of random letters into it')
        os.environ[TOKEN] = token
    args.overrides = [*args.overrides, 'pipeline.type=serve']
    if args.port is not None:
        args.overrides.append(f'pipeline.port={args.port}')
    args.seeds = args.jobs = args.profile = None
    return run_train(args)
