"""SplitMix64's finaliser: a bijection of 64 bits that leaves no structure in structured numbers, such as ids.

Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from numba import uint64

from nestlab.jit import inlined

GOLDEN = uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: the generator's step


def mixed(x):
    """Of uint64, a number in a kernel or an array of any shape; the same shape."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


mix = inlined(mixed)  # for kernels
