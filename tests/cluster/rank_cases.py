"""The same training on two ranks, and in one process with twice the batch, for the tests of ranks.

The one process steps the ranks' envs as two groups. Each of its minibatches joins one minibatch of each rank ("stratified").
"""

from __future__ import annotations

import copy
import runpy
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.buffer.replay import ReplayBuffer
from zoo.cluster.torch_ranks import join
from zoo.config.section import validate
from zoo.core.data import first_leaf, leaves
from zoo.core.errors import RunError
from zoo.core.ranks import ALONE, Ranks, RunInfo
from zoo.core.registry import OPTION_REGISTRY, POLICY_REGISTRY
from zoo.core.seeding import reseed, stream
from zoo.env import make_vector_env
from zoo.policy.hooks import gradient_ready, listening
from zoo.policy.passes import Passes
from zoo.rl_utils.optimizer import FlatAdam
from zoo.run.config import resolve_policy
from zoo.worker.collector import Collector

HANG_S = 5.0  # seconds that a rank waits for one that hangs; ranks must also join within it, on a busy machine
SIZE, SEED, N_ENV, N_STEP, BATCH_SIZE = 2, 3, 4, 64, 64  # N_ENV and BATCH_SIZE are of one rank


class Case(NamedTuple):
    """A training: the policy's sections, the env, the number of rollouts. `aux_batch_size` and other sizes are of one rank."""

    policy: dict[str, Any]
    env: str = 'CartPole-v1'
    n_rollout: int = 1


def ppo(learn: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    return {'type': 'ppo', 'learn': {'epoch_per_collect': 3, **(learn or {})}, **sections}


LSTM = {'recurrent': {'cell': 'lstm', 'hidden_size': 16}}  # C takes multiples of 16
SEQUENCE_LEN = 16
PHASES = dict(actor_epoch_per_collect=2, critic_epoch_per_collect=2, aux_freq=1, aux_train_epoch=2, aux_batch_size=64)
KL_LIMIT = dict(epoch_per_collect=8, target_kl=0.002, learning_rate=0.003)
ADAPTIVE = dict(
    learning_rate={'start': 1e-3, 'kl_target': 1e-4}, penalties=[{'type': 'kl', 'weight': 0.5, 'target': 1e-5}]
)
if 'centering' not in OPTION_REGISTRY:
    runpy.run_path(str(Path(__file__).parents[2] / 'examples' / 'my_option.py'))
CASES = {
    'plain, weighted rows': Case(ppo()),
    'continuous': Case(ppo(), 'Pendulum-v1'),
    'three normalisers': Case(ppo(dict(reward_norm=True, value_norm=True), model={'obs_norm': True})),
    'adv_norm minibatch': Case(ppo(dict(adv_norm='minibatch'))),
    'adv_norm batch': Case(ppo(dict(adv_norm='batch'))),
    'value_norm, value clip': Case(ppo(dict(value_norm=True, value_loss='clip'))),
    'target_kl': Case(ppo(KL_LIMIT)),
    'target_kl at minibatches': Case(ppo(dict(KL_LIMIT, target_kl_at='minibatch'))),
    'adaptive rate and penalty': Case(ppo(ADAPTIVE), n_rollout=2),
    'accumulate': Case(ppo(dict(accumulate=3))),
    'ppg with its auxiliary phase': Case({'type': 'ppg', 'learn': PHASES}),
    'ppg, two rollouts, both in its memory': Case({'type': 'ppg', 'learn': {**PHASES, 'aux_freq': 2}}, n_rollout=2),
    'lstm': Case(ppo(dict(sequence=dict(len=SEQUENCE_LEN)), model=LSTM)),
    'lstm, ppg': Case({'type': 'ppg', 'learn': {**PHASES, 'sequence': dict(len=SEQUENCE_LEN)}, 'model': LSTM}),
    'natural gradient': Case({'type': 'trpo', 'learn': dict(epoch_per_collect=2, entropy_weight=0.01)}, n_rollout=2),
    'option of examples/my_option.py': Case(ppo(dict(options=[{'type': 'centering', 'rate': 0.5}])), n_rollout=2),
    'returns of whole episodes': Case({'type': 'a2c', 'learn': {}, 'collect': {'batch_mode': 'episode'}}),
}

EQUAL_ONLY = {  # `stratified` does not reproduce their order of samples: the ranks are only compared with each other
    'rnd': Case(ppo(dict(intrinsic={'type': 'rnd', 'batch_size': 64})), n_rollout=2),
    'muon, no weights': Case(ppo(dict(optimizer='muon')), 'Pendulum-v1'),
    'prioritized draw': Case(ppo(dict(draw='prioritized'))),
    'shrink and perturb': Case(ppo(dict(plasticity={'type': 'shrink_perturb', 'every': 1}))),
    'dqn': Case({'type': 'dqn', 'learn': dict(target_freq=2)}, n_rollout=2),
}


def make_policy(case: Case, ranks: Ranks, n_part: int) -> Any:
    """Returns the policy of a case. Args: n_part: ranks whose envs and minibatches it has: 1, or SIZE in one process."""
    sections = copy.deepcopy(case.policy)
    learn = sections['learn']
    if sections['type'] != 'a2c':
        learn['batch_size'] = BATCH_SIZE * n_part
    if 'aux_batch_size' in learn:
        learn['aux_batch_size'] *= n_part
    sections['model'] = {'hidden_sizes': [16, 16], **sections.get('model', {})}
    sections['collect'] = {'n_step': N_STEP, 'n_sample': N_STEP * N_ENV * n_part, **sections.get('collect', {})}
    cfg = resolve_policy(sections)
    env = make_vector_env({'id': case.env}, 1)
    env.close()
    info = RunInfo(ranks=ranks) if ranks.size > 1 else RunInfo(eager_only='it is compared with ranks')
    return POLICY_REGISTRY.get(cfg.type)(cfg, env.obs_space, env.action_space, seed=SEED, run=info)


def trained(case: Case, ranks: Ranks = ALONE, n_part: int = 1) -> dict[str, Tensor]:
    """Trains on the rollouts of a case; returns the whole state of the policy, by path, and the last metrics."""
    policy = make_policy(case, ranks, n_part)
    firsts = [N_ENV * (ranks.rank + i) for i in range(n_part)]
    envs = [make_vector_env({'id': case.env}, N_ENV, first=first) for first in firsts]
    collector = Collector(envs, policy.collect_mode, first=firsts[0])
    collector.reset(stream(SEED, 'test'))
    for _ in range(case.n_rollout):
        samples = policy.collect_mode.get_train_sample(collector.collect())
        metrics = policy.learn_mode.forward(samples)
    for env in envs:
        env.close()
    state = {path: torch.as_tensor(x).detach().clone() for path, x in leaves(policy.state_dict())}
    return {**state, **{f'metric/{name}': torch.as_tensor(x).detach().clone() for name, x in metrics.items()}}


def in_one_process(case: Case) -> dict[str, Tensor]:
    """Returns `trained` with all envs in one process; each minibatch joins one minibatch of each rank."""
    with stratified():
        return trained(case, ALONE, SIZE)


@contextmanager
def stratified() -> Iterator[None]:
    """Makes one process take minibatches that each join one minibatch of each of SIZE ranks, in the order of the ranks."""
    own = Passes._order_stream, Passes._plan, Passes.permutations

    def orders_of(passes: Passes, n_pass: int, n: int) -> list[Tensor]:
        """Returns the order of samples of each rank, [n_pass, n // SIZE], as `Passes` draws it."""
        return [
            torch.stack([torch.randperm(n // SIZE, generator=generator) for _ in range(n_pass)])
            for generator in passes.generators  # type: ignore[attr-defined]
        ]

    def reseeded(passes: Passes) -> None:
        passes.generators = [  # type: ignore[attr-defined]
            reseed(torch.Generator(), SEED, 'learn', rank, passes.train_iter) for rank in range(SIZE)
        ]

    def one_pass(passes: Passes, columns: Any, n_pass: int, batch_size: int | None, stream: Any) -> Any:
        n, length = len(first_leaf(columns)), columns['adv' if 'adv' in columns else 'return_'].shape[1:].numel()
        n_row = n if batch_size is None else batch_size // length
        order = together(orders_of(passes, n_pass, n), n, n_row // SIZE)
        passes.draw = lambda columns, n_pass, generator: (order, columns)
        return own[1](passes, columns, n_pass, batch_size, stream)

    def permutations(passes: Passes, n_pass: int, columns: Any, device: torch.device) -> Tensor:
        reseeded(passes)
        n = len(first_leaf(columns))
        n_rollout = entries_of_a_rollout(passes, n)
        n_row = BATCH_SIZE // passes.length  # type: ignore[attr-defined]
        return together(orders_of(passes, n_pass, n), n_rollout, n_row)

    def entries_of_a_rollout(passes: Passes, n: int) -> int:
        length = SEQUENCE_LEN if n < SIZE * N_ENV * N_STEP else 1
        passes.length = length  # type: ignore[attr-defined]
        return SIZE * N_ENV * N_STEP // length

    Passes._order_stream, Passes._plan, Passes.permutations = reseeded, one_pass, permutations  # type: ignore
    try:
        yield
    finally:
        Passes._order_stream, Passes._plan, Passes.permutations = own  # type: ignore[method-assign]


def together(orders: list[Tensor], n_rollout: int, n_row: int) -> Tensor:
    """Joins the ranks' orders into one order of all entries: n_row entries of rank 0, n_row of rank 1, and so on.

    Args: orders: of each rank, over its entries (samples or sequences), sorted by rollout, then time, then env;
      n_rollout: entries of one rollout of all ranks.
    """
    mapped = []
    for rank, order in enumerate(orders):
        part, at = order // (n_rollout // SIZE), order % (n_rollout // SIZE)
        mapped.append(part * n_rollout + at // N_ENV * (N_ENV * SIZE) + rank * N_ENV + at % N_ENV)
    n_pass = len(orders[0])
    return torch.stack([x.view(n_pass, -1, n_row) for x in mapped], 2).reshape(n_pass, -1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return int(listener.getsockname()[1])


def hang(ranks: Ranks, path: Path) -> None:
    """Lets rank 1 hang until rank 0's wait for a sum has timed out; then rank 1 has left, and rank 0 waits for a gather."""
    if ranks.rank == 1:
        while not (path / 'late').exists():
            time.sleep(0.05)
        return
    try:
        ranks.sum_(torch.ones(3))
    except RunError as error:
        (path / 'late').write_text(str(error))
    try:
        ranks.gather(1)
    except RunError as error:
        (path / 'gone').write_text(str(error))


def as_rank(path: Path) -> None:
    """Runs the work of one process of torchrun: all cases, then `hang`."""
    for work, timeout in ((train_all, 60.0), (hang, HANG_S)):
        ranks = join('cpu', timeout)
        try:
            work(ranks, path)
        finally:
            ranks.close()


def train_all(ranks: Ranks, path: Path) -> None:
    """Trains every case on this rank and saves the results and those of `operations`."""
    found = {}
    for name, case in {**CASES, **EQUAL_ONLY}.items():
        start = time.perf_counter()
        found[name] = trained(case, ranks)
        found[name]['time'] = torch.tensor(time.perf_counter() - start)
    torch.save({'cases': found, 'operations': operations(ranks)}, path / f'rank_{ranks.rank}.pt')


def operations(ranks: Ranks) -> dict[str, Any]:
    """Returns what this rank gets from each operation of `Ranks`, for numbers whose results are known."""
    rank, generator = ranks.rank, torch.Generator().manual_seed(ranks.rank)
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2) + 10 * rank
    sums = [ranks.sum_(torch.randn(n, generator=generator)) for n in (1, 7, 1000, 100_003) for _ in range(2)]
    strided = ranks.sum_(torch.full((4, 3), float(rank + 1)).t()[:2])
    return {
        'sums': sums,
        'strided': strided,
        'moments': ranks.merge(torch.tensor(3), rows.mean(0), rows.var(0, correction=0)),
        'empty': ranks.merge(torch.tensor(3 * rank), rank * rows.mean(0), rank * rows.var(0, correction=0)),
        'counts': ranks.merge(torch.tensor([3, rank]), rows.mean(0), rows.var(0, correction=0)),
        'gather': ranks.gather({'rank': rank}),
        'steps': steps_of_two(ranks),
        'draws': [(n_draw(seed, Lonely(rank)), n_draw(seed, ranks)) for seed in range(12)],
        'share': [ranks.share(f'of {rank}', root) for root in range(SIZE)],
        'copy': [copy.deepcopy(ranks) is ALONE, copy.deepcopy(RunInfo(ranks=ranks)).ranks is ALONE],
    }


def steps_of_two(ranks: Ranks) -> dict[str, Any]:
    """Takes two steps of a parameter (0, 0): gradients (6, 0) on rank 0 and (0, 8) on rank 1; then NaN on rank 1 alone."""
    own = torch.tensor([[6.0, 0.0], [0.0, 8.0]])[ranks.rank]
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer, seen = FlatAdam([('p', p)], lr=0.1), []
    optimizer.ranks = ranks
    with listening(lambda optimizers, loss: seen.append(optimizers[0].grad.clone())):
        optimizer.grad.copy_(own)
        gradient_ready([optimizer], torch.zeros(()))
        norms = [optimizer.step()]
    moved = p.detach().clone()
    optimizer.grad.fill_(torch.nan if ranks.rank else 1.0)
    norms.append(optimizer.step())
    return {'seen': seen, 'norms': norms, 'moved': moved, 'after': p.detach(), 'skipped': optimizer.count_skipped(9)}


class Lonely(Ranks):
    """A rank of SIZE that never asks the other ranks."""

    size = SIZE

    def __init__(self, rank: int) -> None:
        self.rank = rank


def n_draw(seed: int, ranks: Any) -> int:
    """Returns the number of draws of 4 of 8 samples, each sample in at most 3 draws: at most 8 * 3 / 4 = 6, by chance fewer."""
    section = dict(type='replay', size=8, n_sample=4, update_per_collect=9, max_use=3)
    buffer = ReplayBuffer(validate(ReplayBuffer.config, section), seed=seed)
    buffer.set_ranks(ranks)
    buffer.push({'adv': torch.zeros(8)})
    return len(list(buffer.batches()))


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest absolute difference of each tensor of a state, by name."""
    other_names = 'metric/', 'time', 'learn.intrinsic.carry'  # the carry belongs to each rank's own envs
    names = [name for name in one if not name.startswith(other_names)]
    return {name: float((one[name].double() - other[name].double()).abs().max()) for name in names if one[name].numel()}
