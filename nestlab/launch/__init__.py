"""Ranks as processes: which one this is, and how several are started from a script or notebook."""

from nestlab.launch.environment import Place, environment
from nestlab.launch.local import launch

__all__ = ["Place", "environment", "launch"]
