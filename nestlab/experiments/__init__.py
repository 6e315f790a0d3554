"""One module a study: what is varied, and the function that a notebook calls."""

import os

from nestlab.host import short_spin

# A study's modules are the first of ours that a notebook or a command imports, and torch is not loaded yet.
os.environ.update(short_spin())
