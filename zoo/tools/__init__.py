"""Tools on top of the library: the command, runs as data, sweeps, other libraries' configs, export, media, imitation.

The library imports nothing from this folder. For its own methods that need a tool, such as `Policy.export`, it looks up
this table by `zoo.core.registry.tool`.
"""

from zoo.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        'Videos': 'zoo.tools.media.recording:Videos',
        'check_pair': 'zoo.tools.importers.convert:check_pair',
        'config_of_pair': 'zoo.tools.importers.convert:translated',
        'export_policy': 'zoo.tools.export:export_policy',
        'html_of_run': 'zoo.tools.results.plot:html_of_run',
        'how_to_convert': 'zoo.tools.importers.convert:how_to_convert',
        'is_main_config': 'zoo.tools.importers.convert:is_main_config',
        'needs_di_engine': 'zoo.tools.importers.convert:needs_di_engine',
        'pair_of': 'zoo.tools.importers.convert:pair_of',
        'plot_run': 'zoo.tools.results.plot:plot_run',
        'run_without_imports': 'zoo.tools.importers.convert:run_without_imports',
        'video_preview': 'zoo.tools.media.video:preview',
    },
)
