"""The outputs of the notebooks in examples/: python docs/site/notebooks.py runs them and writes what each cell shows.

Each notebook runs in an empty folder, whose path is cut out of the outputs. Lines of progress are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / 'examples' / 'notebooks'


def executed(path: Path) -> Any:
    """The notebook of a file with the outputs that its cells have now. Raises: CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    environ = {**os.environ, 'PYTHONPATH': str(ROOT)}
    with TemporaryDirectory() as folder:
        place = {'metadata': {'path': folder}}
        NotebookClient(notebook, kernel_name='python3', resources=place, timeout=300).execute(env=environ)
        for cell in notebook.cells:
            if cell.cell_type == 'code':
                cell.metadata.pop('execution', None)  # the times of day
                cell.outputs = [_without_folder(output, folder) for output in cell.outputs if _is_kept(output)]
    return notebook


def _is_kept(output: Any) -> bool:
    """Whether an output is no line of progress and no line of the log."""
    return output.output_type == 'execute_result' or (output.output_type == 'stream' and output.name == 'stdout')


def _without_folder(value: Any, folder: str) -> Any:
    if isinstance(value, str):
        return value.replace(f'{Path(folder).resolve()}/', '').replace(f'{folder}/', '')
    if isinstance(value, dict):
        return type(value)({key: _without_folder(each, folder) for key, each in value.items()})
    return value


def main(names: Sequence[str]) -> None:
    """Runs the notebooks with these names, or all."""
    for path in sorted(NOTEBOOKS.glob('*.ipynb')):
        if not names or path.stem in names:
            notebook = executed(path)
            notebook.metadata['language_info'] = {'name': 'python'}  # without the version of this machine
            nbformat.write(notebook, path)


if __name__ == '__main__':
    main(sys.argv[1:])
