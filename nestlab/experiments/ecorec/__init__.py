"""The experiments of `notebooks/40_ecorec.ipynb`: tensor-train tables, three ways of multiplying them, and slices."""
