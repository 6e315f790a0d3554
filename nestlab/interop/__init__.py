"""Bridges to other libraries.

Nothing else in NestLab imports torchrec: it needs matching binaries, and seconds to load.
"""
