"""Features come and go: which ids get a row, and which rows are given up. See docs/design.md 4.2.

Decisions depend on the stream of keys and labels alone, in batch order: never on timing, tiers or look-ahead.
"""

from nestlab.embedding.features.rules import FeatureRules

__all__ = ["FeatureRules"]
