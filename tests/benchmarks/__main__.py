"""`python -m tests.benchmarks` measures all rows, or those that are named."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from tests.benchmarks import servers
from tests.benchmarks.distributions import installed_version
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Row, Run

ROWS = (
    "drain",
    "watched",
    "in_memory",
    "enqueue",
    "start",
    "latency",
    "timeouts",
    "kills",
    "claims",
    "limited_claims",
    "backlog",
    "payloads",
    "lists",
    "queues",
    "footprint",
    "mixed",
    "fairness",
    "keys",
    "limits",
    "unique",
    "groups",
    "async_jobs",
    "postgres",
    "kafka",
)
# Contenders that are no job queues, and so are not in the catalogue.
OTHERS = {"pebble": "Pebble"}
# Those that their row installs for a Python of their own.
ELSEWHERE = ("pyrallel-consumer",)


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    names = None if options.peers is None else {name for name in options.peers.split(",") if name != "none"}
    unknown_peers = sorted(names - {*OTHERS, *ELSEWHERE, *(peer.name for peer in PEERS)}) if names else []
    if unknown := [name for name in options.rows if name not in ROWS]:
        print(f"no benchmark {', '.join(unknown)}; expected some of {', '.join(ROWS)}", file=sys.stderr)
        return 2
    if unknown_peers:
        print(f"no peer {', '.join(unknown_peers)}; expected some of {_peers()}, or none", file=sys.stderr)
        return 2
    run = Run(1 if options.quick else options.rounds, names, options.quick)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the exit stops servers and workers
    print(heading(), end="\n\n", flush=True)
    for name in options.rows or ROWS:
        row = cast(Row, importlib.import_module(f"tests.benchmarks.{name}"))
        row.run(run)
    if options.json:
        options.json.write_text(json.dumps({"heading": heading(), "tables": [table.json() for table in run.tables]}))
    if options.markdown:
        options.markdown.write_text("\n\n".join([heading(), *(table.markdown() for table in run.tables)]) + "\n")
    return 1 if run.failed else 0


def heading() -> str:
    """Return the machine and the versions, which belong to every figure."""
    machine = f"{os.cpu_count()} CPUs ({_cpu()}), {platform.system()} {platform.release()}, Python {platform.python_version()}"
    programs = {name: installed_version(name) for peer in (SUPERVISOR, *PEERS) for name in peer.distributions}
    programs |= {name: installed_version(name) for name in OTHERS}
    present = [f"{name} {version}" for name, version in {**programs, **servers.versions()}.items() if version]
    missing = [name for name, version in programs.items() if not version]
    lines = [machine, ", ".join(present)]
    return "\n".join(lines + ([f"not installed: {', '.join(missing)} (pip install -e '.[bench]')"] if missing else []))


def _cpu() -> str:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _peers() -> str:
    return ", ".join([*(peer.name for peer in PEERS), *OTHERS, *ELSEWHERE])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measures this project and its peers."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}; all if none")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="number of measurements of each contender (3)"
    )
    parser.add_argument("--peers", metavar="NAME,...", help=f"some of {_peers()}; or none; all if not given")
    parser.add_argument("--quick", action="store_true", help="one round of little work; the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all values, for programs")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables, to paste")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
