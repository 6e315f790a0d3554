"""`nestlab data fetch`, `prepare`, `describe`, `synth`, `reorder`: raw data, Parquet, statistics, twins, orders."""

from __future__ import annotations

import argparse
from pathlib import Path

from nestlab.cli import data_fetch, data_reorder, data_twin
from nestlab.errors import UserError

_KINDS = (
    "criteo",
    "kuairand",
    "criteo-synth",
    "kuairand-synth",
    "kuairand-pure",
    "kuairand-27k",
    "criteo-kaggle",
    "criteo-1tb",
)


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("data", help="fetch, prepare, describe, synthesise and reorder data sets")
    metavar = "fetch|prepare|describe|synth|reorder|twin-report"
    commands = parser.add_subparsers(dest="data_command", metavar=metavar, required=True)
    prepare = commands.add_parser("prepare", help="raw files to Parquet, once")
    prepare.add_argument("name", metavar="NAME")
    prepare.add_argument("--file", metavar="F", type=Path, help="the raw file; default: found under the root")
    prepare.add_argument("--duplicates", choices=("keep", "drop"), help="KuaiRand: copies of a row; default: keep")
    prepare.add_argument("--logs", choices=("standard", "random", "both"), help="KuaiRand; default: standard")
    prepare.add_argument(
        "--convention",
        metavar="C",
        help="Criteo: number the categories too, as training does under dlrm, mlperf, x4_001 or criteo_x1",
    )
    prepare.add_argument(
        "--days", metavar="D", help="Criteo 1TB: which days, such as 0-2,5; default: all that are there"
    )
    describe = commands.add_parser("describe", help="statistics of a data set")
    describe.add_argument("name", metavar="NAME")
    describe.add_argument(
        "--batch", metavar="B", default="256,1024,4096,16384", help="sizes of batches, for reuse of keys"
    )
    describe.add_argument(
        "--rows", metavar="N", type=int, default=200_000, help="whose look-ups count; default: 200000"
    )
    describe.add_argument("--figure", metavar="FILE", type=Path, help="draw misses over the size of a cache: png, svg")
    for command in (prepare, describe):
        command.add_argument(
            "--root", "--data-root", metavar="DIR", type=Path, default=Path("datasets"), help="default: datasets"
        )
    synth = commands.add_parser("synth", help="write a synthetic twin in the exact file format")
    synth.add_argument("kind", metavar="KIND", choices=_KINDS, help=", ".join(_KINDS))
    synth.add_argument("--rows", metavar="N", type=int, required=True)
    synth.add_argument("--seed", metavar="S", type=int, default=0)
    synth.add_argument("--out", metavar="DIR", type=Path, required=True)
    data_fetch.add_parser(commands)
    data_reorder.add_parser(commands)
    data_twin.add_parser(commands)
    prepare.set_defaults(main=main_prepare)
    describe.set_defaults(main=main_describe)
    synth.set_defaults(main=main_synth)


def main_prepare(args: argparse.Namespace) -> int:
    from nestlab.data import commands
    from nestlab.data.stages import told

    dataset = commands.prepare(args.name, args.root, file=args.file, options=_options(args))
    info = dataset.info
    hashes = f"fingerprint {info.fingerprint[:16]}, content {dataset.prepared.content[:16]}"
    print(f"{info.title}\n{info.rows:,} rows, {hashes}")
    print(f"convention: {info.convention}")
    if dataset.sizes:
        print(f"vocabulary: {sum(dataset.sizes.values()):,} numbers of {len(dataset.sizes)} features")
    for stage, facts in dataset.manifest["stages"].items():
        print(told(stage, facts))
    for name, count in info.counts.items():
        print(f"{name}: {count:,}")
    for line in _rejects(dataset):
        print(line)
    return 0


def main_describe(args: argparse.Namespace) -> int:
    from nestlab.data import commands
    from nestlab.data.access import AccessOptions

    if not all(size.strip().isdecimal() for size in args.batch.split(",")):
        raise UserError(f"--batch {args.batch}: write numbers of samples, such as 256,4096")
    sizes = tuple(int(size) for size in args.batch.split(","))
    access = AccessOptions(rows=args.rows, table_rows=max(args.rows, AccessOptions.table_rows), batches=sizes)
    for title, frame in commands.describe(args.name, args.root, access=access, figure=args.figure).items():
        if len(frame):
            print(f"{title}\n{_upright(frame).to_string()}\n")
    if args.figure:
        print(f"figure: {args.figure}")
    return 0


def main_synth(args: argparse.Namespace) -> int:
    from nestlab.data import commands

    for path in commands.synth(args.kind, args.out, args.rows, args.seed):
        print(path)
    return 0


def _rejects(dataset) -> list[str]:
    """Why lines were set aside, and where they are kept; nothing where none were."""
    from nestlab.data import rejects

    manifest = dataset.manifest
    reasons = {f"rejected, {reason}": count for reason, count in manifest["rejected"].items()}
    for reason, count in manifest.get("rejected_in_tables", {}).items():
        reasons[f"rejected in feature tables, {reason}"] = count
    lines = [f"{reason}: {count:,}" for reason, count in reasons.items()]
    return [*lines, f"rejected lines: {dataset.prepared.folder / rejects.NAME}"] if lines else []


def _options(args: argparse.Namespace):
    """The options of the data set's kind where any is given; None leaves it its defaults."""
    from nestlab.data import CriteoOptions, KuaiRandOptions

    kinds = {
        "kuairand": ("KuaiRand", KuaiRandOptions, ("duplicates", "logs")),
        "criteo": ("Criteo", CriteoOptions, ("convention", "days")),
    }
    for kind, (title, make, names) in kinds.items():
        given = {name: value for name in names if (value := getattr(args, name)) is not None}
        if given and not args.name.startswith(kind):
            raise UserError(f"--{next(iter(given))} is an option of {title}, which '{args.name}' is not")
        if given:
            return make(**given)
    return None


def _upright(frame):
    """A table of one row reads better as a column."""
    return frame.T.rename(columns={0: ""}) if len(frame) == 1 else frame
