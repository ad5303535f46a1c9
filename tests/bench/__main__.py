"""`make bench`: every figure of README, taken side by side on this machine; one table, one JSON file."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from rich.console import Console

from .instruments.harness import Bench

#: In the order of the table. Each is a module with `run(bench)`.
PARTS = (
    "limit",
    "clients",
    "plugin",
    "claims",
    "partitions",
    "batches",
    "buffer",
    "several",
    "latency",
    "deployed",
    "growth",
    "sweeping",
    "cold_start",
    "model",
    "spark_pipeline",
    "spark_drain",
)
RESULT = Path("build/bench/bench.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="of every measurement (default: 5)")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="X",
        help="data of the Spark parts, times X; 100: a million rows",
    )
    parser.add_argument("--output", type=Path, default=RESULT, metavar="FILE", help=f"default: {RESULT}")
    options = parser.parse_args()
    console = Console()
    bench = Bench(console, repetitions=options.repetitions, scale=options.scale, output=options.output)
    for name in PARTS:
        if name in options.only:
            importlib.import_module(f".{name}", __package__).run(bench)
            bench.write(options.output)
    console.print(bench.table())
    console.print(f"Every number: {options.output}", highlight=False)


if __name__ == "__main__":
    main()
