"""Tables of docs/coming_from.md: `python -m zoo.tools.importers.page docs/coming_from.md` writes them again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from zoo.config.names import names
from zoo.tools.importers import cleanrl, di_engine, rllib, sb3
from zoo.tools.importers.conversion import KeyRow

START = '<!-- tables: python -m zoo.tools.importers.page docs/coming_from.md -->'
END = '<!-- end of tables -->'


def tables() -> str:
    """Returns a table of each library's keys, and a table of all other names that error messages know."""
    names_of: dict[str, list[str]] = {}  # by sentence
    for name, entry in names().items():
        names_of.setdefault(entry.sentence(), []).append(name)
    rows = {'`, `'.join(same): sentence for sentence, same in names_of.items()}
    parts = [
        _table('DI-engine: main_config', di_engine.MAIN_ROWS),
        _table('DI-engine: create_config', di_engine.CREATE_ROWS),
        _pairs('DI-engine: policy.other.replay_buffer', 'key', 'here', _cells(di_engine.TABLES['replay_buffer'])),
        _pairs('DI-engine: env types', 'type', 'env', _cells(di_engine.ENV_IDS, empty='`env.env_id` names it')),
        _table('stable-baselines3 and rl-zoo3', sb3.ROWS),
        *(_table(f'stable-baselines3: {name}', key_rows) for name, key_rows in sb3.OF_ALGORITHM.items() if key_rows),
        _table('stable-baselines3: policy_kwargs', sb3.KWARGS_ROWS),
        _table('CleanRL', cleanrl.ROWS),
        _table('RLlib', rllib.ROWS),
        _pairs('All other names that error messages know', 'there', 'here', rows),
    ]
    return '\n'.join(parts)


def with_tables(text: str) -> str:
    """Returns the text of the page with current tables."""
    before, _, rest = text.partition(START)
    return f'{before}{START}\n\n{tables()}\n{END}{rest.partition(END)[2]}'


def _table(title: str, rows: Mapping[str, KeyRow]) -> str:
    return _pairs(title, 'there', 'here', {name: row.shown() for name, row in rows.items()})


def _cells(names: Mapping[str, str], empty: str = '') -> dict[str, str]:
    cells = {}
    for name, here in names.items():
        if not here:
            cells[name] = empty
        elif ' ' in here:
            cells[name] = here
        else:
            cells[name] = f'`{here}`'
    return cells


def _pairs(title: str, left: str, right: str, rows: Mapping[str, str]) -> str:
    lines = [f'| `{name}` | {text.replace("|", " or ")} |' for name, text in rows.items()]
    return '\n'.join([f'### {title}', '', f'| {left} | {right} |', '|---|---|', *lines, ''])


if __name__ == '__main__':
    page = Path(sys.argv[1])
    page.write_text(with_tables(page.read_text(encoding='utf-8')), encoding='utf-8')
