"""`nestlab data fetch`: a data set from its home, resumable, checked and unpacked."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands) -> None:
    parser = commands.add_parser("fetch", help="download a data set, check it and unpack it")
    parser.add_argument("name", metavar="NAME", help="kuairand-pure, -1k, -27k, criteo-kaggle or criteo-1tb")
    parser.add_argument("--mirror", metavar="URL", help="a folder on a server that has the files under their own names")
    parser.add_argument("--keep-archive", action="store_true", help="keep the archive once it is unpacked")
    parser.add_argument("--days", metavar="D", help="criteo-1tb: which days, such as 0-6,23")
    parser.add_argument("--unpack", action="store_true", help="criteo-1tb: unpack the days; default: leave them gzip")
    parser.add_argument(
        "--root", "--data-root", metavar="DIR", type=Path, default=Path("datasets"), help="default: datasets"
    )
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab.data import commands, fetch
    from nestlab.data.fetch_catalogue import parse_days

    options = fetch.FetchOptions(
        mirror=args.mirror,
        keep_archive=args.keep_archive,
        unpack=args.unpack,
        days=tuple(parse_days(args.days)) if args.days is not None else None,
    )
    for each in fetch.fetch(args.name, args.root, options=options, tell=commands.to_stderr()):
        state = f"sha256 {each.sha256}" if each.new else "was there already"
        print(f"{each.path}: {state}")
    return 0
