"""Tools on top of the library: the command, runs as data, sweeps, other libraries' configs, export, media, imitation.

The library imports nothing from this folder. What its own methods need of it, such as `Policy.export`, is registered in
TOOL_REGISTRY, and the readers of other libraries' configs in CONFIG_READER_REGISTRY, both of `zoo.core.registry`.
"""

from zoo.core.lazy import lazy_names

__getattr__, __dir__, _ = lazy_names(__name__, {})  # its modules are imported at first use
