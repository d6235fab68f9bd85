"""The evaluations of a run: the main one and those of policy.eval.sets, shared out over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zoo.core.ranks import Ranks
from zoo.core.seeding import stream
from zoo.run.parts import MAIN, Parts
from zoo.worker.evaluation import Evaluation


def play_evaluations(
    parts: Parts, seed: int, env_step: int, stop: Callable[[], bool], ranks: Ranks
) -> Evaluation | None:
    """This rank's share of the episodes of all evaluations, from seeds that depend on the run's seed and the env step.

    Args: stop: asked during the episodes, of one process alone: one of several ranks would leave the others waiting.
    Returns: None if `stop` said so before all episodes had ended.
    """
    is_alone = ranks.size == 1
    found: dict[str, Evaluation] = {}
    for name, evaluator in {MAIN: parts.evaluator, **parts.evaluation_sets}.items():
        words = *((name,) if name != MAIN else ()), *(() if is_alone else (ranks.rank,))
        part = evaluator.evaluate(stream(seed, 'evaluate', env_step, *words), stop if is_alone else lambda: False)
        if part is None:
            return None
        found[name] = part
    return found.pop(MAIN)._replace(sets=found)


def joined_evaluations(parts: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of ranks as one: their episodes, those of the first rank first."""
    n_each = [len(part.returns) for part in parts]
    keys = dict.fromkeys(key for part in parts for key in part.infos)
    infos = {
        key: [x for part, n in zip(parts, n_each, strict=True) for x in part.infos.get(key, [float('nan')] * n)]
        for key in keys
    }
    cut = [x for part, n in zip(parts, n_each, strict=True) for x in (part.cut or [False] * n)]
    return Evaluation(
        [x for part in parts for x in part.returns],
        [x for part in parts for x in part.lengths],
        cut,
        infos,
        {name: joined_evaluations([part.sets[name] for part in parts]) for name in parts[0].sets},
    )
