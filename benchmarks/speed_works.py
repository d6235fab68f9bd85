"""Matched works of benchmarks/speed.py, as data, with the libraries and the settings of zoo.

A work is equal for all libraries: env, envs x steps of a rollout, epochs, minibatch, network (two towers 64-64 of tanh; the
Nature CNN for images), learning rate, entropy weight; gamma .99, lambda .95, clip .2, value weight .5, gradient norm
.5, advantages normalised per minibatch, no clipping of values. (rl8: normalised over the rollout, and its own value loss.)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from report import IN_CHECKOUT, PEERS_DIR

BASELINE = 'stable-baselines3'  # peak memory and returns are compared with this library
BEFORE = 'zoo best, before'
Setting = tuple[str, ...]  # config overrides of zoo


class Peer(NamedTuple):
    """A library that is driven by peers/<script> in the virtual environment <venv>."""

    label: str
    script: str
    venv: str


PEERS = {
    'sb3': Peer('stable-baselines3', 'run_sb3.py', 'sb3'),
    'sb3_contrib': Peer('sb3-contrib', 'run_sb3_contrib.py', 'sb3'),
    'cleanrl': Peer('CleanRL', 'run_cleanrl.py', 'cleanrl'),
    'tianshou': Peer('Tianshou', 'run_tianshou.py', 'tianshou'),
    'rl8': Peer('rl8', 'run_rl8.py', 'rl8'),
}

SYNC, BATCHED = 'env.vectorization=sync', 'env.vectorization=batched'
EAGER, NATIVE, GRAPH = (f'policy.learn.executor={name}' for name in ('eager', 'native', 'graph'))
COMPILED = 'policy.learn.compile=on'  # envs that are tensor programs
BF16 = 'policy.model.precision=auto'


class Work(NamedTuple):
    """One row of the table. `eager`, `best` and `tensor` are alternative settings of zoo; the fastest of each is taken."""

    name: str
    title: str
    env: str
    num_envs: int
    rollout: int
    minibatch: int
    epochs: int
    wanted: tuple[float, float]  # targets for zoo eager and zoo best: speed / that of the fastest reference
    total_steps: int  # stable-baselines3 took some 10 to 15 s on the machine of the first table
    eager: tuple[Setting, ...]
    best: tuple[Setting, ...]
    tensor: tuple[Setting, ...] = ()  # like best, but with the env as a tensor program
    peers: tuple[str, ...] = ('sb3', 'cleanrl', 'tianshou')
    reference: tuple[str, ...] = ('sb3', 'cleanrl')  # zoo's speed is divided by that of the fastest of these
    lr: float = 2.5e-4
    entropy: float = 0.01
    warmup: int = 2  # iterations before the clock starts
    episodes: int = 20  # greedy episodes after the clock
    image: bool = False
    peer_env: Mapping[str, str] = {}  # library -> its name of the env, if it differs
    note: str = ''

    @property
    def batch(self) -> int:
        """Env steps of a rollout, over all envs."""
        return self.num_envs * self.rollout

    def scaled_steps(self, scale: float) -> int:
        """About `scale` times the env steps, in whole rollouts, of which at least one is timed."""
        return max(round(self.total_steps * scale / self.batch), self.warmup + 1) * self.batch


class Driver(NamedTuple):
    """A program that trains: label, library, command without the work's arguments, alternative settings."""

    label: str
    library: str
    command: tuple[str, ...]
    settings: tuple[Setting, ...]


CLASSIC = {'lr': 3e-4, 'entropy': 0.0, 'warmup': 1}
TENSOR = ((NATIVE, COMPILED, 'env.id=torch', 'env.game=CartPole-v1'),)
LSTM = (
    'policy.model.hidden_sizes=[64]',
    'policy.model.recurrent={cell: lstm, hidden_size: 64}',
    'policy.learn.sequence.len=16',
)
SYNC_EAGER, SYNC_NATIVE = ((EAGER, SYNC),), ((NATIVE, SYNC),)

WORKS = (
    Work(
        'cartpole_8x128',
        'CartPole-v1, 8 envs x 128',
        'CartPole-v1',
        8,
        128,
        256,
        4,
        (1.7, 5.2),
        153_600,
        ((EAGER, BATCHED), (EAGER, SYNC)),
        ((NATIVE, BATCHED), (NATIVE, SYNC)),
        TENSOR,
    ),
    Work(
        'cartpole_8x32',
        'CartPole-v1, 8 envs x 32',
        'CartPole-v1',
        8,
        32,
        256,
        20,
        (1.0, 5.0),
        61_440,
        ((EAGER, BATCHED), (EAGER, SYNC)),
        ((NATIVE, BATCHED), (NATIVE, SYNC)),
        TENSOR,
        lr=1e-3,
        peers=('sb3', 'cleanrl'),
    ),
    Work(
        'cartpole_64x32',
        'CartPole-v1, 64 envs x 32',
        'CartPole-v1',
        64,
        32,
        1024,
        4,
        (1.0, 4.2),
        409_600,
        ((EAGER, BATCHED),),
        ((NATIVE, BATCHED),),
        TENSOR,
    ),
    Work(
        'cartpole_lstm_8x128',
        'CartPole-v1, LSTM of 64, 8 envs x 128',
        'CartPole-v1',
        8,
        128,
        256,
        4,
        (1.0, 2.0),
        30_720,
        tuple((EAGER, setting, *LSTM) for setting in (BATCHED, SYNC)),
        tuple((NATIVE, setting, *LSTM) for setting in (BATCHED, SYNC)),
        peers=('sb3_contrib',),
        reference=('sb3_contrib',),
        note='RecurrentPPO has its dense layer after the LSTMs, zoo before them; both have an LSTM each for actor and '
        'critic; zoo trains on sequences of 16 steps, RecurrentPPO on whole episodes within a rollout',
    ),
    Work(
        'pendulum_1x2048',
        'Pendulum-v1, 1 env x 2048',
        'Pendulum-v1',
        1,
        2048,
        64,
        10,
        (1.0, 8.0),
        28_672,
        SYNC_EAGER,
        SYNC_NATIVE,
        ((NATIVE, COMPILED, 'env.id=torch', 'env.game=Pendulum-v1'),),
        **CLASSIC,
    ),
    Work(
        'halfcheetah_1x2048',
        'HalfCheetah-v5, 1 env x 2048',
        'HalfCheetah-v5',
        1,
        2048,
        64,
        10,
        (1.0, 4.5),
        24_576,
        SYNC_EAGER,
        SYNC_NATIVE,
        **CLASSIC,
        episodes=10,
        peer_env={'cleanrl': 'HalfCheetah-v4'},
        note='CleanRL has HalfCheetah-v4, which its gymnasium knows, and its wrappers normalise observations and '
        'rewards, here and in Pendulum',
    ),
    Work(
        'pong_8x128',
        'Pong, 8 envs x 128, Nature CNN',
        'atari/Pong',
        8,
        128,
        256,
        4,
        (1.0, 2.5),
        6_144,
        ((EAGER,),),
        ((EAGER, BF16),),
        image=True,
        warmup=1,
        episodes=0,
        peers=('sb3',),
        reference=('sb3',),
        peer_env={'sb3': 'PongNoFrameskip-v4'},
        note='CleanRL is left out: the Atari script of its release needs ROMs that no package has; no returns: so few '
        'steps teach nobody Pong',
    ),
    Work(
        'torch_cartpole_4096x32',
        'torch CartPole, 4096 envs x 32',
        'torch/CartPole-v1',
        4096,
        32,
        4096,
        4,
        (1.0, 3.0),
        1_966_080,
        ((EAGER,),),
        ((NATIVE, COMPILED), (NATIVE,)),
        peers=('rl8',),
        reference=('rl8',),
        note="rl8 steps its own examples' CartPole (3 actions, 5 observations, no ends, its step compiled), zoo "
        'CartPole-v1 as a tensor program, with ends and resets',
    ),
)


def zoo_drivers(work: Work, omit: Sequence[str], device: str = 'cpu') -> list[Driver]:
    """Drivers of zoo: eager, best, best with a tensor env. omit: config keys that are not set (unknown to an older zoo).

    On a GPU the best settings are compiled and captured.
    """
    command = (sys.executable, str(PEERS_DIR / 'run_zoo.py'))

    def kept(settings: Sequence[Setting]) -> tuple[Setting, ...]:
        return tuple(tuple(item for item in setting if item.partition('=')[0] not in omit) for setting in settings)

    best, tensor = work.best, work.tensor
    if device != 'cpu':
        best, tensor = (tuple(dict.fromkeys(map(captured, settings))) for settings in (best, tensor))
    settings = {'zoo eager': work.eager, 'zoo best': best, 'zoo best, torch env': tensor}
    return [Driver(label, 'zoo', command, kept(of)) for label, of in settings.items() if of]


def captured(setting: Setting) -> Setting:
    """A setting for a GPU: compiled and captured, in place of the executor that it names for a CPU."""
    return (GRAPH, COMPILED, *(item for item in setting if item not in (EAGER, NATIVE, COMPILED)))


def before_driver(work: Work, checkout: Path) -> Driver:
    """Driver of another checkout's zoo (for example an older commit, with its C library built) at its best.

    The script is this checkout's, so that both zoos run the same one: the older one must have the modules that it imports.
    """
    script = PEERS_DIR / 'run_zoo.py'
    return Driver(BEFORE, 'zoo', ('env', f'PYTHONPATH={checkout.resolve()}', sys.executable, str(script)), work.best)


def peer_drivers(work: Work, names: Sequence[str], venvs: Path) -> tuple[list[Driver], list[str]]:
    """Drivers of the requested peers of a work that are installed; and a sentence about the others, if any."""
    found, missing = [], []
    for name in (name for name in work.peers if name in names):
        peer = PEERS[name]
        if is_installed(name, venvs):
            command = (str(python_of(peer.venv, venvs)), str(PEERS_DIR / peer.script))
            found.append(Driver(peer.label, name, command, ((),)))
        else:
            missing.append(peer.label)
    return found, left_out(missing, venvs)


def python_of(venv: str, venvs: Path) -> Path:
    """The Python of a virtual environment."""
    return venvs.absolute() / venv / 'bin' / 'python'


def is_installed(name: str, venvs: Path) -> bool:
    """Whether a peer has a virtual environment."""
    return python_of(PEERS[name].venv, venvs).exists()


def left_out(labels: Sequence[str], venvs: Path) -> list[str]:
    """A sentence about libraries that are not installed; [] if there are none."""
    if not labels:
        return []
    guide = 'benchmarks/peers/README.md' if IN_CHECKOUT else PEERS_DIR / 'README.md'
    are = 'is' if len(labels) == 1 else 'are'
    return [f'{", ".join(labels)} {are} left out: not installed in {venvs}; {guide} tells how to']


def arguments(work: Work, driver: Driver, setting: Setting, total_steps: int, n_thread: int, seed: int) -> list[str]:
    """Command-line arguments of a work, which every driver understands."""
    options = {
        'env': work.peer_env.get(driver.library, work.env),
        'num-envs': work.num_envs,
        'rollout': work.rollout,
        'minibatch': work.minibatch,
        'epochs': work.epochs,
        'lr': work.lr,
        'entropy': work.entropy,
        'warmup': work.warmup,
        'total-steps': total_steps,
        'episodes': work.episodes,
        'threads': n_thread,
        'seed': seed,
    }
    return flags(options, ()) + ['--image'] * work.image + flags({}, setting)


def flags(options: Mapping[str, Any], setting: Sequence[str]) -> list[str]:
    """Options of a driver and config overrides of zoo as command-line arguments."""
    return [
        *(part for name, value in options.items() for part in (f'--{name}', str(value))),
        *(part for item in setting for part in ('--set', item)),
    ]
