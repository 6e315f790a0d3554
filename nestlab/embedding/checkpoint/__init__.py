"""Checkpoints of tables: full and incremental, by any number of shards, readable without NestLab.

A folder holds `manifest.json` (see `manifest`) and a sub-folder of safetensors files for every shard of every save (see
`parts`). Whoever wants to read a table without NestLab: for each of the manifest's `saves`, in order, take away the
ids in files of role `removed`, then put the ids in files of role `rows`, with weight, state and last_seen, in place of
what they had.

Nothing that is read is executed, and nothing is read before its checksum is right.
"""

from nestlab.embedding.checkpoint.beside import read_beside, write_beside
from nestlab.embedding.checkpoint.loading import load
from nestlab.embedding.checkpoint.manifest import Beside, Manifest, Save, read_manifest
from nestlab.embedding.checkpoint.overview import describe
from nestlab.embedding.checkpoint.publishing import ShardFiles, publish
from nestlab.embedding.checkpoint.saving import confirm, save, save_shard

__all__ = [
    "Beside",
    "Manifest",
    "Save",
    "ShardFiles",
    "confirm",
    "describe",
    "load",
    "publish",
    "read_beside",
    "read_manifest",
    "save",
    "save_shard",
    "write_beside",
]
