"""`python -m tests.benchmarks` measures all; names of rows measure those."""

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
from tests.benchmarks.contender import installed
from tests.benchmarks.peers.catalogue import PEERS, SUPERVISOR
from tests.benchmarks.run import Row, Run

ROWS = (
    "drain",
    "in_memory",
    "enqueue",
    "latency",
    "timeouts",
    "kills",
    "claims",
    "backlog",
    "footprint",
    "mixed",
    "fairness",
    "postgres",
)
# Contenders that are no queues of their own stand beside the peers of the catalogue: they have a store of ours, or none.
OTHERS = {"pebble": "Pebble"}


def main(words: Sequence[str]) -> int:
    options = _options(words)
    names = None if options.peers is None else {name for name in options.peers.split(",") if name != "none"}
    strangers = sorted(names - {*OTHERS, *(peer.name for peer in PEERS)}) if names else []
    if unknown := [name for name in options.rows if name not in ROWS]:
        print(f"no benchmark {', '.join(unknown)}; expected some of {', '.join(ROWS)}", file=sys.stderr)
        return 2
    if strangers:
        print(f"no peer {', '.join(strangers)}; expected some of {_peers()}, or none", file=sys.stderr)
        return 2
    run = Run(1 if options.quick else options.rounds, names, options.quick)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers are stopped on the way out
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
    """The machine and the versions, without which no figure means anything."""
    machine = f"{os.cpu_count()} CPUs ({_cpu()}), {platform.system()} {platform.release()}, Python {platform.python_version()}"
    programs = {name: installed(name) for peer in (SUPERVISOR, *PEERS) for name in peer.distributions}
    programs |= {name: installed(name) for name in OTHERS}
    having = [f"{name} {version}" for name, version in {**programs, **servers.versions()}.items() if version]
    missing = [name for name, version in programs.items() if not version]
    lines = [machine, ", ".join(having)]
    return "\n".join(lines + ([f"not installed: {', '.join(missing)} (pip install -e '.[bench]')"] if missing else []))


def _cpu() -> str:
    """The model, as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _peers() -> str:
    return ", ".join([*(peer.name for peer in PEERS), *OTHERS])


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measures this project and its peers."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"some of {', '.join(ROWS)}; all if none")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured, in turn (3)")
    parser.add_argument("--peers", metavar="NAME,...", help=f"some of {_peers()}; or none; all if not given")
    parser.add_argument("--quick", action="store_true", help="one round of little work: the figures mean nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all values, for programs")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables, to paste")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
