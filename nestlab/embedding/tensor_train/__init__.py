"""Tensor-train tables: M × N weights as a few small cores (see docs/design.md 4.2)."""
