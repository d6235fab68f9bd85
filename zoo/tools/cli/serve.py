"""`zoo serve`: clients play the env and ask for actions; with --train a run learns from their rewards."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from zoo.core.errors import UserError
from zoo.tools.cli.output import argument
from zoo.tools.cli.train import ARGUMENTS as TRAIN_ARGUMENTS, run_train

MAX_PORT = 65_535
N_SEED = 2**64  # of a generator of torch
_TAKEN = ('config', 'overrides', '--env', '--policy', '--seed', '--steps', '--resume', '--run')
ARGUMENTS = {
    'serve': (
        *(each for each in TRAIN_ARGUMENTS['train'] if each[0][0] in _TAKEN),
        argument(
            '--train',
            action='store_true',
            help='learn from the steps of the clients; without it, a saved run acts for them',
        ),
        argument('--stochastic', action='store_true', help='without --train: draw actions, not the most likely ones'),
        argument('--best', action='store_true', help='without --train: the best checkpoint of the run, not the newest'),
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


logger = logging.getLogger('zoo')


def run_serve(args: argparse.Namespace) -> int:
    """Serves a run or a saved policy until it is over, or until a signal. Returns: the exit code, as `zoo train`."""
    _set_token(args)
    if not args.train:
        return _serve_saved(args)
    if args.stochastic or args.best:
        raise UserError('--stochastic and --best say how a saved run acts, without --train; leave them out')
    from zoo.run.serving.served_job import HOST

    if args.host is not None:
        os.environ[HOST] = args.host
    args.overrides = [*args.overrides, 'pipeline.type=serve']
    if args.port is not None:
        args.overrides.append(f'pipeline.port={args.port}')
    args.seeds = args.jobs = args.profile = None
    return run_train(args)


def _set_token(args: argparse.Namespace) -> None:
    """Puts the token of --token-file where the server reads it. Raises: UserError."""
    from zoo.run.serving.served_job import TOKEN

    if args.token_file is None:
        return
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


def _serve_saved(args: argparse.Namespace) -> int:
    """Serves the policy of a saved run, which learns nothing, until a signal."""
    if args.config is None or args.overrides or args.env or args.policy or args.steps or args.resume or args.run_dir:
        raise UserError(
            'zoo serve RUN acts with a saved run, and takes --port, --host, --token-file, --stochastic, --seed and --best; to learn '
            'from clients, write zoo serve CONFIG --train'
        )
    port = 8585
    if args.port is not None:
        port = args.port
    if not 0 <= port <= MAX_PORT:
        raise UserError(f'--port is {port} but must be 0 to {MAX_PORT}; 0 takes a free one')
    seed = args.seed or '0'
    if not seed.isdecimal() or int(seed) >= N_SEED:
        raise UserError(f'--seed is {seed} but must be a whole number from 0 to 2**64 - 1; it draws the actions')
    from zoo.run.checkpoint.file import load_checkpoint
    from zoo.run.policy_file import load_policy
    from zoo.run.serving.acting import serve_policy
    from zoo.run.serving.served_job import token_for
    from zoo.tools.cli.episodes import checkpoint_path

    args.checkpoint = args.config
    path = checkpoint_path(args)
    if not path.exists():
        raise UserError(
            f'there is no run {args.config}; to learn from clients by a config, write zoo serve CONFIG --train'
        )
    checkpoint = load_checkpoint(path)
    policy = load_policy(checkpoint, trust=args.trust or args.imports)
    token, source = token_for(_folder_of(checkpoint.path))
    is_greedy = policy.cfg.eval.deterministic and not args.stochastic
    address = args.host or '127.0.0.1', port
    server = serve_policy(policy, address, token, deterministic=is_greedy, seed=int(seed))
    logger.info('clients reach the policy at %s; the token is in %s', server.url, source)
    try:
        server.wait()  # until a signal
    finally:
        server.close()
    return 0


def _folder_of(checkpoint: Path) -> Path:
    """The run folder of a checkpoint, or the folder of a file that is in none."""
    if checkpoint.parent.name == 'checkpoints':
        return checkpoint.parents[1]
    return checkpoint.parent
