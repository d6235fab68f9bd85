#!/usr/bin/env bash
# PettingZoo 1.27: make() takes the kind before the id, ids need their namespace, waterworld and MPE are gone.
#
# One would guess: pettingzoo.make('tictactoe_v3') or make('classic/tictactoe-v3'), as gymnasium.make, for each env in the
# interface that one asks for; and that `from pettingzoo.sisl import waterworld_v4` works, as in all examples with this env.
# What is: make(kind, id) has two required arguments, 'aec' or 'parallel' first. The namespace must be there; -v3, _v3 and no
# version are all fine. There are two registries: envs of turns that cannot be played in parallel (tictactoe, connect_four,
# ..., eight in all) are not in that of 'parallel', and the error says "not found", not "not parallel".
# pettingzoo 1.25.0 has waterworld_v4 and pursuit_v4, and no make. In 1.27.0 waterworld is gone, with no note in the
# ImportError; pursuit_v4 is still imported without an error, and its parallel_env() raises that it is v5 now; MPE is in the
# package mpe2, whose envs make() does not know.
#
# pettingzoo 1.25.0 and 1.27.0, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 1.25.0 1.27.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/python" -m pip install -q --disable-pip-version-check \
    "pettingzoo==$version" gymnasium==1.4.0 numpy==2.4.6 pygame-ce==2.5.8 pymunk==7.3.1 scipy==1.17.1
done
cat > "$folder/names.py" <<'PY'
from importlib.metadata import version

import pettingzoo


def tried(statement):
    """The kind of the error of a statement, None if it has none."""
    try:
        exec(statement, {})
    except Exception as error:  # any: the kind is what is shown
        print(f'  {statement}: {type(error).__name__}: {str(error).partition(" (")[0]}')
        return type(error).__name__
    print(f'  {statement}: works')
    return None


def made(*args):
    """The class of the env that make returns, or the kind of its error."""
    try:
        result = type(pettingzoo.make(*args)).__name__
    except Exception as error:  # any: the kind is what is shown
        result = type(error).__name__
    print(f'  make{args}: {result}')
    return result


print('pettingzoo', version('pettingzoo'))
waterworld = tried('from pettingzoo.sisl import waterworld_v4; waterworld_v4.parallel_env()')
import_v4 = tried('from pettingzoo.sisl import pursuit_v4')
v4 = tried('from pettingzoo.sisl import pursuit_v4; pursuit_v4.parallel_env()')
v5 = tried('from pettingzoo.sisl import pursuit_v5; pursuit_v5.parallel_env()')
if version('pettingzoo') == '1.25.0':
    assert (waterworld, import_v4, v4, v5) == (None, None, None, 'ImportError') and not hasattr(pettingzoo, 'make')
else:
    assert (waterworld, import_v4, v4, v5) == ('ImportError', None, 'DeprecatedEnv', None)
    assert made('classic/tictactoe-v3') == 'TypeError'
    assert made('classic/tictactoe-v3', 'aec') == 'ValueError'
    assert made('aec', 'tictactoe-v3') == 'NameNotFound'
    for name in ('classic/tictactoe-v3', 'classic/tictactoe_v3', 'classic/tictactoe'):
        assert made('aec', name) == 'OrderEnforcingWrapper'
    assert made('parallel', 'classic/tictactoe-v3') == 'NameNotFound'
    assert made('parallel', 'classic/rps-v2') == 'aec_to_parallel_wrapper'
    assert made('parallel', 'mpe/simple_spread-v3') == 'NamespaceNotFound'
    only_turns = sorted(set(pettingzoo.aec_registry) - set(pettingzoo.parallel_registry))
    print('  only as envs of turns:', *only_turns)
    assert len(only_turns) == 8 and set(pettingzoo.parallel_registry) < set(pettingzoo.aec_registry)
PY
for version in 1.25.0 1.27.0; do
  "$folder/$version/bin/python" -W ignore "$folder/names.py" 2>&1 | grep -v '^pygame'
done
