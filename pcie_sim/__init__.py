"""pcie-sim: which parallelism wins on this PCIe box, by how much, at which concurrency, and why."""

__version__ = "0.1.0"
