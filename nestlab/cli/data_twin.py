"""`nestlab data twin-report`: a synthetic twin beside the real sample, statistic by statistic."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands) -> None:
    parser = commands.add_parser(
        "twin-report", help="compare a synthetic twin with the real sample and published figures"
    )
    parser.add_argument("name", metavar="NAME", help="kuairand-pure, kuairand-27k, criteo-kaggle or criteo-1tb")
    parser.add_argument(
        "--rows", metavar="N", type=int, help="of the twin; default: those published (KuaiRand-Pure), 2 million (27K)"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument(
        "--data-root",
        "--root",
        dest="root",
        metavar="DIR",
        type=Path,
        default=Path("datasets"),
        help="of the real rows",
    )
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab import paths
    from nestlab.data import twin_report

    report = twin_report.twin_report(args.name, paths.data_root(args.root), args.rows, args.seed)
    if args.json:
        print(twin_report.to_json(report))
        return 0
    print(twin_report.table(report).to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    print(twin_report.counted(report))
    return 0
