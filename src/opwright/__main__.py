"""``python -m opwright``: the command line."""

from __future__ import annotations

import sys

from opwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
