"""`python -m tests.benchmarks` runs all; names run those."""

from __future__ import annotations

import sys

from tests.benchmarks import drain, footprint, latency, timeouts

ALL = {"drain": drain.run, "latency": latency.run, "timeouts": timeouts.run, "footprint": footprint.run}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; expected some of {', '.join(ALL)}", file=sys.stderr)
        return 2
    for name in names or ALL:
        ALL[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
