"""`nestlab doctor`: what is installed, whether it fits together, and what to do about each fault."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

_SIGNS = {"ok": "ok   ", "note": "note ", "fault": "FAULT"}


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("doctor", help="check this installation and machine")
    parser.add_argument("--data-root", metavar="DIR", type=Path, default=Path("datasets"), help="default: datasets")
    parser.add_argument("--results", metavar="DIR", type=Path, default=Path("results"), help="default: results")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Exit status 0 when NestLab is usable, 1 when a fault makes something unusable."""
    import concurrent.futures

    from nestlab.cli import doctor_checks

    live = sys.stderr.isatty() and not args.json
    checks = doctor_checks.checks(args.data_root, args.results)
    findings = []
    # Most of the time goes into interpreters that only import something, so the checks run side by side.
    with concurrent.futures.ThreadPoolExecutor(len(checks)) as pool:
        for check, found in zip(checks, pool.map(lambda check: check(), checks), strict=True):
            findings += found
            if live:
                print(f"\r\x1b[Kchecked {check.__name__.replace('_', ' ')}", end="", file=sys.stderr, flush=True)
    if live:
        print("\r\x1b[K", end="", file=sys.stderr)
    usable = all(finding.state != "fault" for finding in findings)
    if args.json:
        print(json.dumps({"usable": usable, "findings": [dataclasses.asdict(finding) for finding in findings]}))
        return 0 if usable else 1
    for finding in findings:
        print(f"{_SIGNS[finding.state]}  {finding.name:<12}  {finding.text}")
        if finding.remedy:
            print(f"       {'':<12}  → {finding.remedy}")
    print("\nNestLab is usable" if usable else "\nsomething is unusable: see each FAULT and its remedy")
    return 0 if usable else 1
