"""``python -m pcie_sim``."""

from __future__ import annotations

import sys

from pcie_sim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
