"""`python -m nestlab.cli`, for where the script is not on the path."""

import sys

from nestlab.cli import main

sys.exit(main())
