"""The rows of a run's metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Returns all rows, read as standard JSON: NaN and Infinity are refused."""

    def refuse(word: str) -> None:
        raise ValueError(f'{word} is not JSON')

    text = (run_dir / 'metrics.jsonl').read_text()
    assert text == '' or text.endswith('\n')
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
