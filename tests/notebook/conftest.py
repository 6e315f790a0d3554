"""Makes `driving`, the tests' own helper, importable from every test of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
