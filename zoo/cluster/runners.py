"""The runners of a run: from its config and policy to rows that they collect and envs that can be steered."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from zoo.cluster.cargo import Cargo, packed, versions
from zoo.cluster.config import engine_of
from zoo.cluster.engine import Engine
from zoo.cluster.orders import Orders
from zoo.cluster.parcel import Parcel
from zoo.cluster.remote import RemoteRows, Shape
from zoo.cluster.remote_envs import RemoteEnvs
from zoo.cluster.runner import RunnerSpec
from zoo.cluster.weights import WeightLayout, placements
from zoo.config.section import Config, plain
from zoo.core.spaces import Space
from zoo.env.restarts import Restarts
from zoo.policy.base import Policy
from zoo.worker.episode_infos import InfoKeys

logger = logging.getLogger(__name__)


class Runners(NamedTuple):
    """What stands for runners in the learner's process."""

    rows: RemoteRows
    envs: list[RemoteEnvs]


def start_runners(
    engine: Engine,
    run_id: str,
    cfg: Config,
    policy: Policy,
    env: tuple[str, Space, Space],
    infos: InfoKeys,
    restarts: Restarts,
    rank: int = 0,
) -> Runners:
    """Starts the runners of one learner.

    Args: cfg: of this learner, resolved; policy: whose weights they act with, complete; env: name and spaces of the training
      envs; restarts: counts the envs that runners make anew; rank: of the learner.
    Raises: as `Engine.start`; UserError for code that cannot be sent.
    """
    cluster, n_runner = cfg.cluster, cfg.cluster.runner_num
    n_env, n_group = cfg.env.collector_env_num // n_runner, cfg.env.collector_group_num
    acting = policy.acting_state()
    layout, placed = WeightLayout(acting), placements(acting)
    cargo = packed(cargo_of(cfg, policy, infos))
    n_group, n_thread = None if n_group is None else n_group // n_runner, cfg.policy.n_thread or 1
    firsts = [rank * cfg.env.collector_env_num + group * n_env for group in range(n_runner)]
    engine.start(
        [
            RunnerSpec(group, first, n_env, n_group, versions(), layout.digest, cargo, n_thread, placed)
            for group, first in enumerate(firsts)
        ]
    )
    logger.info(_placed(cluster, n_runner, n_env, engine.pids()))
    timeout, limit, start_s = cluster.runner_timeout, cluster.restart_limit, cluster.start_timeout
    orders = Orders(engine, run_id, n_runner, cfg.seed, cluster.max_lag, timeout, limit, start_s, kept)
    reader = policy.device if policy.device.type == 'cuda' else None
    n_step, columns = policy.collect_mode.n_step, tuple(cfg.env.info_columns)
    shape = Shape(n_runner, n_env, n_step, env[1], columns, env[0], reader)
    rows = RemoteRows(engine, orders, layout, shape, cluster.max_lag, restarts)
    return Runners(rows, [RemoteEnvs(engine, orders, group, n_env, env[0], env[1:]) for group in range(n_runner)])


def _placed(cluster: Any, n_runner: int, n_env: int, pids: Mapping[int, tuple[str, int]]) -> str:
    """What runs where, for the log."""
    where = {'inline': 'this process', 'process': 'processes of this machine'}.get(str(engine_of(cluster)), 'Ray')
    hosts: dict[str, list[str]] = {}
    for host, pid in pids.values():
        hosts.setdefault(host, []).append(str(pid))
    places = ', '.join(f'{host} (processes {" ".join(dict.fromkeys(found))})' for host, found in hosts.items())
    lag = cluster.max_lag
    return (
        f'{n_runner} runner{"s" if n_runner > 1 else ""} in {where}, {n_env} env{"s" if n_env > 1 else ""} each, weights at most '
        f'{lag} update{"" if lag == 1 else "s"} old: {places}'
    )


def cargo_of(cfg: Config, policy: Policy, infos: InfoKeys) -> Cargo:
    """What runners make their envs and their policies of."""
    section = plain(policy.cfg)
    device = 'cuda' if cfg.cluster.runner_gpu else 'cpu'
    if device != policy.device.type and 'executor' in section.get('learn', {}):
        section['learn']['executor'] = 'auto'  # what was chosen is for the learner's device
    given: nn.Module | None = None
    if policy.given_model is not None:
        given = copy.deepcopy(policy.model).to('cpu')
    options: dict[str, Any] = {
        'obs_space': policy.obs_space,
        'action_space': policy.action_space,
        'seed': policy.seed,
        'action_mode': cfg.env.action_mode,
        'run': policy.run,
        'model': given,
    }
    made_of = {'class': type(policy), 'cfg': {**section, 'device': device}, 'device': device, 'options': options}
    return Cargo(made_of, plain(cfg.env), InfoKeys(infos.last, infos.step))


def kept(parcel: Parcel) -> Parcel:
    """The parcel with copies of its blocks, which may be the engine's memory."""
    return parcel._replace(blocks={name: block.copy() for name, block in parcel.blocks.items()})
