"""`python -m nestlab.benchmarks NAME [--json]`: what `nestlab bench` does, without the command line around it."""

from __future__ import annotations

import argparse
import json
import sys

from nestlab import benchmarks
from nestlab.errors import UserError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nestlab.benchmarks")
    parser.add_argument("name", help=", ".join(benchmarks.names()))
    parser.add_argument("--json", action="store_true", help="exactly one JSON object on standard output")
    arguments = parser.parse_args()
    try:
        result = benchmarks.run(arguments.name)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(result))
        return 0
    for row in result["rows"]:
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    print("summary: " + "  ".join(f"{key}={value}" for key, value in result["summary"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
