"""Export of a policy to a file that other programs run: raw observations in, actions of the env out."""

from zoo.tools.export.acting import Port
from zoo.tools.export.write import FORMATS, Exported, export_policy, exporting, format_of

__all__ = ['FORMATS', 'Exported', 'Port', 'export_policy', 'exporting', 'format_of']
