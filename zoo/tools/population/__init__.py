"""Populations: many runs that learn from each other, by selection, copies and mutations; their lineage is on disk."""

from zoo.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.tools.population.evolution': 'evolve',
        'zoo.tools.population.mutation': 'MUTATION_REGISTRY Mutation',
        'zoo.tools.population.population': 'Population PopulationMember',
        'zoo.tools.population.selection': 'SELECTION_REGISTRY',
    },
)
