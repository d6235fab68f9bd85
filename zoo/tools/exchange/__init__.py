"""Exchange of models with other libraries: their files become policies and runs of zoo."""

from zoo.tools.exchange.cleanrl import of_cleanrl
from zoo.tools.exchange.load import Imported, import_model, import_policy
from zoo.tools.exchange.sb3 import read_sb3

__all__ = ['Imported', 'import_model', 'import_policy', 'of_cleanrl', 'read_sb3']
