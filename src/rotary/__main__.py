"""``python -m rotary`` is the command ``rotary``."""

import sys

from rotary.cli.main import main

sys.exit(main())
