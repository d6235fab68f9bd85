"""Returns of variants of PPO and PPG and of the plain policies; writes benchmarks/results/variants.md.

    python benchmarks/variants.py [--only Hopper ...] [--seeds 5] [--workers 2] [--force] [--table]

All rows of a comparison have the same env, env steps, seeds and settings, except for what the row names; trpo and npg have the
settings of their own configs. Beyond the bundled configs nothing was tuned for either side. A run is done as in
benchmarks/learning.py: one process, one thread, the whole budget, then greedy episodes of the last policy. Raw numbers stay in
results/variants_raw/; a run with a record there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from learning import is_done, run_child
from learning_rows import HOPPER_BEFORE

from report import REPO, RESULTS, table, versions_line

RAW = RESULTS / 'variants_raw'
COLUMNS = (
    'comparison',
    'what the run has',
    'seeds',
    'greedy return of the last policy: interquartile mean [95% interval]',
    'mean return of all evaluations on the way',
    'chance to beat the first row',
    'env steps',
    'wall time of a run',
)
KL_RATE = 'policy.learn.learning_rate={"start":3.0e-4,"kl_target":0.008}'
Record = dict[str, Any]  # of a run, as learning.py writes it


class Comparison(NamedTuple):
    """Rows of one comparison. rows: {label: bundled config and overrides}, the plain policy first."""

    rows: dict[str, str]
    n_seed: int = 5


def robots(name: str) -> Comparison:
    """Comparison of plain PPO, SPO, and a learning rate that follows the KL divergence."""
    return Comparison(
        {
            'ppo': name,
            'surrogate spo': f'{name} policy.learn.surrogate=spo',
            'learning rate follows the KL': f'{name} {KL_RATE}',
        }
    )


def natural(name: str, env: str, *more: str) -> Comparison:
    """A natural gradient step in a trust region next to plain PPO, with the policy settings of ant_trpo."""
    return Comparison({'ppo': name, 'trpo': ' '.join((f'{TRPO} env.id={env}', *more))})


def stale(name: str, n_sample: int, decay: float, *more: str) -> Comparison:
    """Comparison of samples up to 1, 2, 4 or 8 rollouts old, with the clip of PPO and with that of PPO-EWMA.

    n_sample: samples of a rollout and of a draw; decay: of the average, whose centre of mass is one rollout's gradient steps.
    """
    rows = {}
    for age in (1, 2, 4, 8):
        ring = f'buffer.size={(age + 1) * n_sample} buffer.max_staleness={age}'
        rows[f'samples up to {age} rollouts old'] = ' '.join((name, ring, *more))
        ewma = f'policy.learn.proximal={{"type":"ewma","decay":{decay}}}'
        rows[f'up to {age} rollouts old, proximal ewma'] = ' '.join((name, ring, ewma, *more))
    return Comparison(rows)


def published(name: str, alpha: float) -> Comparison:
    """Plain PPO and variants of it in examples/. alpha: of RPO, as its authors chose it for the env."""
    rows = {f'rpo, alpha {alpha}': f'--import=examples/rpo.py policy.learn.options=[{{"type":"rpo","alpha":{alpha}}}]'}
    own = 'policy.learn.options=[{0}] policy.learn.penalties=[{0}]'
    rows['pfo'] = f'--import=examples/pfo.py {own.format("pfo")}'
    normalised = 'policy.learn.adv_norm=minibatch'  # as the authors of CHAIN have it, whose penalty follows the loss
    rows['advantages normalised'] = normalised
    rows['chain, advantages normalised'] = (
        f'--import=examples/chain.py {own.format("chain")} policy.learn.compile=off {normalised}'
    )
    return Comparison({'ppo': name, **{label: f'{name} {words}' for label, words in rows.items()}})


def delayed(ppg: str) -> Comparison:
    """PPG with two networks and with one, and DCPG, which has one. ppg: a bundled config of PPG, or with overrides."""
    shared = f'{ppg} policy.model.arch=shared'
    dcpg = f'{ppg} --import=examples/dcpg.py policy.type=dcpg policy.model.arch=shared'
    return Comparison({'ppg': ppg, 'ppg, one network': shared, 'dcpg': dcpg})


FLAG = 'mountaincar_continuous_ppo policy.model.log_std_init=0.0'  # std exp(0) = 1: some seeds never find the flag
LANDER = (
    'policy.type=ppo_offpolicy policy.collect.n_step=128 buffer.n_sample=2048 '
    'buffer.update_per_collect=4 max_env_step=300000'
)

DOOR_PPG = (  # as tiny_bricks_ppg
    'minigrid_doorkey_6x6_ppo policy.type=ppg policy.learn.aux_freq=16 '
    'policy.learn.actor_epoch_per_collect=4 policy.learn.critic_epoch_per_collect=4'
)


def minatar(game: str) -> Comparison:
    """Comparison of three policies on a game of MinAtar, a fifth of the steps that are usual."""
    names = ('ppo', 'ppg', 'dna')
    return Comparison({name: f'minatar_{name} env.kwargs.game={game} max_env_step=1000000' for name in names}, n_seed=3)


TRPO = 'ant_trpo env.kwargs={}'  # with all observations of the env, as in ant_ppo

# rollouts half as long as those of swimmer_ppo, since trpo takes only one step of the policy for each
SWIMMER = (
    'env.collector_env_num=4 policy.collect.n_step=1024 policy.collect.discount_factor=0.9999 '
    'policy.collect.gae_lambda=0.98'
)

COMPARISONS: dict[str, Comparison] = {
    'Hopper': robots(HOPPER_BEFORE),
    'Walker2d': robots('walker2d_ppo'),
    'HalfCheetah, number of envs': Comparison(
        {
            '8 envs of 256 steps': 'halfcheetah_ppo env.collector_env_num=8 policy.collect.n_step=256',
            '64 envs of 32 steps': 'halfcheetah_ppo',
        },
        n_seed=10,
    ),
    'CartPole, old samples': stale('cartpole_ppo_offpolicy', 1024, 0.976),  # 10 draws of 4 minibatches
    'CartPole, natural gradient': Comparison({'ppo': 'cartpole_ppo', 'trpo': 'cartpole_trpo', 'npg': 'cartpole_npg'}),
    'Ant, natural gradient': Comparison({'ppo': 'ant_ppo', 'trpo': TRPO}),
    'Hopper, natural gradient': natural(HOPPER_BEFORE, 'Hopper-v5'),
    'Walker2d, natural gradient': natural('walker2d_ppo', 'Walker2d-v5'),
    'Swimmer, natural gradient': natural('swimmer_ppo', 'Swimmer-v5', SWIMMER),
    'LunarLander, old samples': stale('lunarlander_ppo', 2048, 0.992, LANDER),  # 4 draws of 32 minibatches
    'LunarLander, sliding memory': Comparison(
        {
            'ppg': 'lunarlander_ppg max_env_step=500000',
            'ppg_reloaded': 'lunarlander_ppg_reloaded max_env_step=500000',
        }
    ),
    'Acrobot, critic as classifier': Comparison(
        {
            'ppo': 'acrobot_hl_gauss_ppo policy.learn.value_loss=mse exp_name=acrobot_ppo',
            'hl_gauss': 'acrobot_hl_gauss_ppo',
        }
    ),
    'MountainCarContinuous, color of the noise': Comparison(
        {
            'white': FLAG,
            'noise_color 0.5': f'{FLAG} policy.model.noise_color=0.5',
            'noise_color 1': f'{FLAG} policy.model.noise_color=1.0',
        },
        n_seed=10,
    ),
    'tiny bricks': Comparison(
        {
            'ppo': 'tiny_bricks_ppo max_env_step=500000',
            'ppg': 'tiny_bricks_ppg max_env_step=500000',
            'dna': 'tiny_bricks_dna max_env_step=500000',
        }
    ),
    'MiniGrid DoorKey 6x6': Comparison(
        {
            'ppo': 'minigrid_doorkey_6x6_ppo',
            'dna': 'minigrid_doorkey_6x6_dna',
            'dna, both lambdas 0.95': 'minigrid_doorkey_6x6_dna policy.collect.gae_lambda=0.95',
        }
    ),
    'Hopper, published variants': published(HOPPER_BEFORE, 0.01),
    'Walker2d, published variants': published('walker2d_ppo', 0.5),
    'tiny bricks, delayed critic': delayed('tiny_bricks_ppg max_env_step=500000'),
    'MiniGrid DoorKey 6x6, delayed critic': delayed(DOOR_PPG),
    'MiniGrid KeyCorridor S3R2, sparse reward': Comparison(
        {'ppo': 'minigrid_keycorridor_s3r2_ppo', 'intrinsic rnd': 'minigrid_keycorridor_s3r2_rnd_ppo'}
    ),
    **{f'MinAtar {game}': minatar(game) for game in ('asterix', 'breakout', 'freeway', 'seaquest', 'space_invaders')},
}


def records_of(comparison: Comparison, records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of a comparison by label of the row, sorted by seed; rows without records are left out."""
    ordered = sorted(records, key=lambda record: record['seed'])
    found = {label: [r for r in ordered if r['config'] == name] for label, name in comparison.rows.items()}
    return {label: runs for label, runs in found.items() if runs}


def table_rows(key: str, comparison: Comparison, records: Sequence[Record]) -> list[list[str]]:
    """A row of the table for each row of a comparison that has records."""
    from zoo.tools.results.statistics import interval, iqm, probability_of_improvement

    found = records_of(comparison, records)
    first = next(iter(comparison.rows))
    plain = [run['return_mean'] for run in found.get(first, [])]
    rows = []
    for label, runs in found.items():
        means = np.array([run['return_mean'] for run in runs])
        low, high = interval(means)
        claims = len(runs) > 1  # a single run has neither interval nor chance
        on_the_way = [np.mean([value for _, value in run['curve']]) for run in runs if run['curve']]
        walls = [run['wall_s'] for run in runs]
        rows.append(
            [
                key,
                label,
                str(len(runs)),
                f'{iqm(means):.2f} [{low:.2f}, {high:.2f}]' if claims else f'{means[0]:.2f}',
                f'{np.mean(on_the_way):.2f}' if on_the_way else '-',
                f'{probability_of_improvement(means, plain):.2f}' if claims and plain and label != first else '-',
                f'{max(run["env_step"] for run in runs):,}',
                f'{min(walls):.0f} to {max(walls):.0f} s',
            ]
        )
    return rows


def write_table() -> None:
    """Rebuilds variants.md from the raw files."""
    records = [json.loads(path.read_text()) for path in sorted(RAW.glob('*.json'))]
    rows = [row for key, comparison in COMPARISONS.items() for row in table_rows(key, comparison, records)]
    episodes = ' or '.join(map(str, sorted({len(record['returns']) for record in records})))
    facts = {key: sorted({str(record[key]) for record in records}) for key in ('machine', 'date', 'commit')}
    stale = {
        key
        for key, comparison in COMPARISONS.items()
        for record in records
        if record['config'] in comparison.rows.values() and not is_done(record['config'], record['seed'], RAW)
    }
    text = [
        '# Variants beside plain PPO and PPG\n',
        'All rows of a comparison have the same env, env steps, seeds and settings, but for what the second column names; '
        'trpo and npg have the settings of their own configs, `ant_trpo` (with all observations of Ant-v5), `cartpole_trpo` and '
        '`cartpole_npg`. Beyond the bundled configs, some of which were tuned on other seeds (`learning_tuning.md`), nothing was '
        'tuned for either side; only the bins of hl_gauss were chosen to fit its returns. '
        'A run has one process and one thread; after the last env step its policy acts '
        f'greedily for {episodes} episodes on seeds that training never saw. The interval is a bootstrap over seeds, rough with '
        'so few; a chance of .5 is a tie, and with 5 seeds each one below .1 or above .9 is unlikely to be luck. Wall times are '
        'those of a shared machine, where some runs were paused.\n',
        table(COLUMNS, rows),
        *(f'- {key}: {"; ".join(values)}' for key, values in facts.items()),
        f'- versions: {"; ".join(sorted({versions_line(record["versions"]) for record in records}))}',
        '- command: `python benchmarks/variants.py`; raw numbers and curves: `variants_raw/`',
        *([f'- measured with older configs: {"; ".join(sorted(stale))}'] if stale else []),
    ]
    (RESULTS / 'variants.md').write_text('\n'.join(text) + '\n', encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--only',
        nargs='+',
        choices=list(COMPARISONS),
        metavar='NAME',
        default=list(COMPARISONS),
        help='comparisons to run',
    )
    parser.add_argument('--seeds', type=int, help='seeds 0 .. N-1; default: as many as the comparison asks for')
    parser.add_argument('--workers', type=int, default=2, help='processes at a time')
    parser.add_argument('--force', action='store_true', help='run again what is there')
    parser.add_argument('--table', action='store_true', help='only rebuild variants.md from the raw files')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    jobs = [
        (name, seed)
        for key in args.only
        for seed in range(args.seeds or COMPARISONS[key].n_seed)
        for name in COMPARISONS[key].rows.values()
    ]
    todo = [] if args.table else [job for job in dict.fromkeys(jobs) if args.force or not is_done(*job, RAW)]
    RAW.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.workers) as pool:
        done = list(pool.map(partial(run_child, folder=RAW), todo))
    write_table()
    return 0 if all(done) else 1


if __name__ == '__main__':
    sys.path.insert(0, str(REPO))
    sys.exit(main())
