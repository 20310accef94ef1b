"""Others' measurements as profiles: one file per format, whose name is what users type.

A format is a module of this folder with a function `read(source: Source) -> Imported`.
"""

from profiles.imports.importing import Imported, Source, format_names, import_profile

__all__ = ["Imported", "Source", "format_names", "import_profile"]
