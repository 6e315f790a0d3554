"""`nestlab data reorder`: ids in an order that suits tensor-train tables, saved beside the prepared data."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands) -> None:
    parser = commands.add_parser("reorder", help="an order of ids for tensor-train tables, beside the prepared data")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--mode", default="communities", help="communities (default), frequency or none")
    parser.add_argument(
        "--inside", default="tree", help="order inside a community: as in its tree (default), or by frequency"
    )
    parser.add_argument(
        "--features", metavar="A,B", help="which; default: those with more than --min-ids ids in the training split"
    )
    parser.add_argument("--min-ids", metavar="N", type=int, default=1000, help="default: 1000")
    parser.add_argument("--batch", metavar="N", type=int, default=512, help="samples that occur together; default: 512")
    parser.add_argument(
        "--head", metavar="SHARE", type=float, default=0.05, help="of the ids, kept by frequency; default: 0.05"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0)
    parser.add_argument("--effect", action="store_true", help="count the prefixes of batches of 4,096 as well")
    parser.add_argument(
        "--root", "--data-root", metavar="DIR", type=Path, default=Path("datasets"), help="default: datasets"
    )
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    from nestlab.data import commands
    from nestlab.data.reorder import ReorderOptions

    options = ReorderOptions(
        mode=args.mode,
        inside=args.inside,
        features=tuple(args.features.split(",")) if args.features else None,
        min_ids=args.min_ids,
        batch=args.batch,
        head=args.head,
        seed=args.seed,
    )
    dataset, id_map = commands.reorder(args.name, args.root, options=options)
    print(f"{dataset.info.title}\n{args.mode}: {id_map.folder}")
    for entry in id_map.manifest["features"]:
        print(_line(entry))
    if not id_map.features:
        print(f"no feature has more than {options.min_ids:,} ids; name some with --features, or lower --min-ids")
    if args.effect:
        _show_effect(dataset, id_map, args.mode)
    return 0


def _line(entry: dict) -> str:
    """E.g. `C3: rows 0 … 46,118 (45,645 ids, 473 spare; 40,112 ids in training, communities: 17)`."""
    told = f"{entry['known']:,} ids, {entry['spare']:,} spare; {entry['trained']:,} ids in training"
    if "communities" in entry:
        told += f", communities: {entry['communities']:,}"
    return f"{entry['feature']}: rows 0 … {entry['rows'] - 1:,} ({told})"


def _show_effect(dataset, id_map, mode: str) -> None:
    from nestlab.data.reorder_effect import effect

    for feature in id_map.features:
        for split in ("train", "heldout"):
            frame = effect(dataset, feature, {mode: id_map}, split=split)
            print(f"\n{feature}, {split}: distinct rows and prefixes an id\n{frame.to_string(index=False)}")
