"""``python -m mipl.cli``."""

import sys

from mipl.cli import main

sys.exit(main())
