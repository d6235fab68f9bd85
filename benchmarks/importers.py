"""How many configs of other libraries `zoo convert` translates, counted over their own files.

    python benchmarks/importers.py di-engine FOLDER     # a folder with DI-engine's dizoo, of its wheel or its repository
    python benchmarks/importers.py cleanrl FOLDER       # a folder with CleanRL's scripts
    python benchmarks/importers.py sb3 FOLDER           # rl-zoo3's hyperparams
    python benchmarks/importers.py rllib                # PPOConfig objects of the installed ray[rllib]
    python benchmarks/importers.py di-engine FOLDER --write     # the count also goes to benchmarks/results/importers.md

Counted are configs of the algorithms that a library has for PPO and PPG (of rl-zoo3 also RecurrentPPO, A2C and TRPO). A config
*converts* if the translated config resolves, or if all that it lacks is a package, a game or an env to be named by the user;
else its reasons are printed. Files of DI-engine are run without its imports, those of the others are read.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from report import RESULTS, git_commit, table, today, without_folders, write_json
from zoo.config.section import ConfigError, value_at
from zoo.run.config import resolve_config
from zoo.tools.importers import convert
from zoo.tools.importers.convert import pair_of, run_without_imports
from zoo.tools.importers.files import read_yaml
from zoo.tools.importers.sb3 import OF_ALGORITHM

NEEDS = (
    'names the module',
    'env.game is missing',
    'env.id is missing',
    'registers such ids',
    "unknown update option 'rpo'",
)
"""Parts of sentences about what a user adds to a translated config: a package, a game, an env, the file of an option."""
WORDS = {'di-engine': ('ppo', 'ppg'), 'cleanrl': ('ppo', 'ppg', 'rpo')}


class Case(NamedTuple):
    """A config of another library. name: of its file and block; config: for `convert`, with `options`."""

    name: str
    config: Any
    options: dict[str, Any]


def of_di_engine(folder: Path) -> Iterator[Case]:
    """Configs whose policy.type has ppo or ppg in its name, and files named so whose code fails."""
    for path in sorted(folder.rglob('*config*.py')):
        text = path.read_text(encoding='utf-8', errors='replace')
        if 'main_config' not in text:
            continue
        kind = _kind_of(path)
        if any(word in kind for word in WORDS['di-engine']):
            yield Case(str(path.relative_to(folder)), path, {})


def _kind_of(path: Path) -> str:
    """The policy that a file of DI-engine names; the name of the file if its code fails, as where a simulator is missing."""
    try:
        pair = pair_of(vars(run_without_imports(path)))
    except Exception:  # any error of foreign code
        return path.stem
    return str(value_at(pair[1], 'policy.type')) if pair else ''


def of_cleanrl(folder: Path) -> Iterator[Case]:
    """Scripts that are named after PPO, PPG or RPO."""
    for path in sorted(folder.rglob('*.py')):
        if path.stem.startswith(WORDS['cleanrl']):
            yield Case(path.name, path, {})


def of_rl_zoo3(folder: Path) -> Iterator[Case]:
    """Blocks of the files of all algorithms that are translated."""
    for path in sorted(folder.rglob('*.yml')):
        if path.stem in OF_ALGORITHM:
            for name in read_yaml(path):
                yield Case(f'{path.stem}: {name}', path, {'name': str(name)})


def of_rllib(folder: Path | None) -> Iterator[Case]:
    """Objects that the installed RLlib makes."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    def base(env: str = 'CartPole-v1') -> Any:
        return PPOConfig().environment(env)

    memory = DefaultModelConfig(use_lstm=True, max_seq_len=20)
    objects = {
        'plain': base(),
        'batch of a learner': base().training(train_batch_size_per_learner=2048),
        'LSTM': base().env_runners(num_env_runners=5, num_envs_per_env_runner=2).rl_module(model_config=memory),
        'continuous': base('Pendulum-v1').training(lr=3e-4, vf_clip_param=1e4, minibatch_size=64),
    }
    for name, config in objects.items():
        yield Case(name, config, {})


CASES = {'di-engine': of_di_engine, 'cleanrl': of_cleanrl, 'sb3': of_rl_zoo3, 'rllib': of_rllib}


def reasons(case: Case) -> list[str]:
    """Why a config is not translated; [] if it converts."""
    try:
        config = convert(case.config, **case.options).config
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    try:
        resolve_config(config)
    except ConfigError as error:
        return [problem for problem in error.problems if not any(words in problem for words in NEEDS)]
    return []


def write(library: str, counts: Counter[str], total: Counter[str], refused: dict[str, str]) -> None:
    """Adds the counts of a library to those of the other ones, and writes the table. Args: refused: {config: its reason}."""
    path = RESULTS / 'importers.json'
    found = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    found[library] = {'date': today(), 'commit': git_commit(), 'counts': {k: [counts[k], total[k]] for k in total}}
    found[library]['refused'] = refused
    write_json(path, found)
    rows = [
        [name, group or 'all', f'{n} of {n_all}', data['commit'][:8]]
        for name, data in found.items()
        for group, (n, n_all) in data['counts'].items()
    ]
    text = (
        '# Configs of other libraries that zoo convert translates\n\n`python benchmarks/importers.py` counts them.\n\n'
    )
    text += table(['library', 'file', 'convert', 'commit'], rows) + '\n'
    for name, data in found.items():
        if data.get('refused'):
            text += f'\n## What of {name} is refused, and why\n\n'
            text += table(['config', 'its first reason'], [list(each) for each in data['refused'].items()]) + '\n'
    (RESULTS / 'importers.md').write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('library', choices=CASES)
    parser.add_argument('folder', nargs='?', type=Path)
    parser.add_argument('--write', action='store_true')
    args = parser.parse_args()
    if args.library != 'rllib' and (args.folder is None or not args.folder.is_dir()):
        sys.exit(f'{args.folder} is no folder; name the one with the files of {args.library}')
    logging.disable(logging.CRITICAL)
    counts, total = Counter[str](), Counter[str]()
    refused: dict[str, str] = {}
    for case in CASES[args.library](args.folder):
        why = reasons(case)
        group = case.name.partition(':')[0] if args.library == 'sb3' else ''
        total[group] += 1
        counts[group] += not why
        if why:  # the table needs no folder of this machine
            refused[case.name] = without_folders(why[0]).replace(f'{args.folder}/', '').replace('|', '\\|')
        for line in why:
            print(f'{case.name}: {line}')
    for group in total:
        print(f'{args.library} {group}: {counts[group]} of {total[group]} convert'.replace(' :', ':'))
    if args.write:
        write(args.library, counts, total, refused)


if __name__ == '__main__':
    main()
