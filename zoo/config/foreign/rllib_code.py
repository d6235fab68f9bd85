"""Reads the settings of RLlib's PPO from code that builds a PPOConfig or a dict; it is never run."""

from __future__ import annotations

import ast
from typing import Any

from zoo.config.foreign.files import Name, keywords_of_calls, literal, words_of

_CALLS = {
    name: ('env',) if name == 'environment' else ('framework',) if name == 'framework' else ()
    for name in 'environment framework training rollouts env_runners resources evaluation debugging reporting learners '
    'experimental api_stack exploration'.split()
}


def is_chain(tree: ast.Module) -> bool:
    """Whether a file builds a PPOConfig, or an old-style dict for RLlib's PPO."""
    return bool({'PPOConfig', 'PPOTrainer'} & words_of(tree))


def settings_of(tree: ast.Module) -> dict[str, Any]:
    """The literal settings of a file: the arguments of the PPOConfig's methods, or its dict `config`.

    The criteria `stop` of RunConfig(stop=...) or tune.run(stop=...) are among them; None if they are no literals.
    """
    found = keywords_of_calls(tree, _CALLS)
    for node in _assigned(tree, 'config'):
        try:
            value = literal(node)
        except ValueError:
            continue
        found = {**value, **found} if isinstance(value, dict) else found
    given = [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == 'stop'
    ]
    for node in given:
        found.setdefault('stop', _criteria(tree, node))
    return found


def _assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """The dicts and calls that a variable is set to."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    is_of = [node for node in nodes if any(getattr(target, 'id', '') == name for target in node.targets)]
    return [node.value for node in is_of if isinstance(node.value, ast.Dict | ast.Call)]


def _criteria(tree: ast.Module, node: ast.expr) -> dict[str, Any] | None:
    if isinstance(node, ast.Name):
        node = next(iter(_assigned(tree, node.id)), node)
    if not isinstance(node, ast.Dict):
        return None
    try:
        return {_key(key): literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    except ValueError:
        return None


def _key(node: ast.expr) -> str:
    """The metric of a criterion: of f'{A}/{B}' the last part; names in capitals are those of RLlib's own constants."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[-1]
    if isinstance(node, ast.FormattedValue):
        node = node.value
    key = literal(node)
    return str(key).lower() if isinstance(key, Name) else str(key)
