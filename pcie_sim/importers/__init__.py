"""Other people's formats -> facts and specs: one file per format with ``sniff()`` and ``read()``."""

from pcie_sim.importers.imported import FORMATS, Format, Imported, Launch, formats, read_any
from pcie_sim.importers.source import Remark, SourceText, read_source, source_of

__all__ = ["FORMATS", "Format", "Imported", "Launch", "Remark", "SourceText", "formats", "read_any", "read_source", "source_of"]
