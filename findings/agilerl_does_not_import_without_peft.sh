#!/usr/bin/env bash
# AgileRL 2.58.0 as pip installs it cannot be imported: it needs packages that it does not ask for.
#
# One would guess: `pip install agilerl` and then `from agilerl.algorithms.ppo import PPO`, of which nothing concerns language
# models, work; language models are behind the extra `llm`.
# What is: the import ends in ModuleNotFoundError for peft, a package of the extra. With peft installed the same line works.
#
# agilerl 2.58.0, torch 2.13.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check agilerl==2.58.0
cat > "$folder/imports.py" <<'PY'
import sys
from importlib.metadata import requires, version

asked = [text for text in requires('agilerl') if text.startswith('peft')]
print(f'agilerl {version("agilerl")}, torch {version("torch")}; it asks for peft: {asked}')
assert all('extra ==' in text for text in asked)
try:
    from agilerl.algorithms.ppo import PPO
except ModuleNotFoundError as error:
    print('import of PPO:', error)
    assert sys.argv[1] == 'without' and error.name == 'peft', error
else:
    print('import of PPO:', PPO)
    assert sys.argv[1] == 'with'
PY
"$folder/venv/bin/python" -W ignore "$folder/imports.py" without
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check peft
"$folder/venv/bin/python" -W ignore "$folder/imports.py" with
