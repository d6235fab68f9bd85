"""Tools on top of the library: the command, runs as data, sweeps, other libraries' configs, export, media, imitation.

The library imports nothing from this folder. For its own methods that need a tool, such as `Policy.export`, it looks up
this table by `zoo.core.registry.tool`.
"""

from zoo.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.tools.export': 'export_policy',
        'zoo.tools.importers.convert': (
            'check_pair config_of_pair=translated how_to_convert is_main_config needs_di_engine pair_of run_without_imports'
        ),
        'zoo.tools.media.recording': 'Videos',
        'zoo.tools.media.video': 'video_preview=preview',
        'zoo.tools.results.plot': 'html_of_run plot_run',
    },
)
