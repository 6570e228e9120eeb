"""Print what is measured, and exit with 1 if a limit is passed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.house import job_path, shape, words

SHOWN = 8


def main(arguments: Sequence[str]) -> int:
    wrong = [
        _print("lines of a file", shape.files(), shape.MAX_FILE_LINES),
        _print("lines of a function", shape.functions(), shape.MAX_FUNCTION_LINES),
        _print("methods of a class", shape.classes(), shape.MAX_METHODS),
    ]
    print(f"\nlines in supervisor/: {shape.total_lines()}")
    circles = shape.circles()
    print(f"\ncircles of imports: {len(circles)}")
    for circle in circles:
        print("  " + " ".join(circle))
    found = list(words.findings())
    print(f"\nwords that the project does not use: {len(found)}")
    for finding in found if "--all" in arguments else found[:SHOWN]:
        print(f"  {finding}")
    way = [] if "--quick" in arguments else job_path.files_entered()
    print(f"\nfiles on one job's way: {len(way)}, at most {job_path.MAX_FILES}")
    for file in way:
        print(f"  {file}")
    return 1 if any(wrong) or circles or found or len(way) > job_path.MAX_FILES else 0


def _print(what: str, measured: Sequence[shape.Measured], limit: int) -> bool:
    over = [each for each in measured if each.size > limit]
    print(f"\n{what}: at most {limit}; {len(over)} over it")
    for each in (over or measured)[:SHOWN] if len(over) <= SHOWN else over:
        print(f"  {each}")
    return bool(over)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
