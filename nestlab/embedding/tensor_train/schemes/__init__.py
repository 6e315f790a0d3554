"""Three ways of computing the same rows and the same gradients of a tensor-train table (see docs/design.md 4.2)."""
