"""Handler `checksum`: {"path": "report.pdf", "algorithm": "sha256"} -> {"path", "algorithm", "digest", "size"}."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from supervisor import Job, Reject, handler

ALGORITHMS = sorted(name for name in hashlib.algorithms_guaranteed if not name.startswith("shake"))


@handler
def checksum(job: Job) -> dict[str, Any]:
    """Read the file in parts, so that its size does not matter. The default of `algorithm` is sha256."""
    task = job.payload if isinstance(job.payload, dict) else {}
    path, algorithm = task.get("path"), task.get("algorithm", "sha256")
    if not isinstance(path, str) or not path:
        raise Reject(f"path: expected the path of a file, got {path!r}")
    if algorithm not in ALGORITHMS:
        raise Reject(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, algorithm).hexdigest()
            return {"path": path, "algorithm": algorithm, "digest": digest, "size": file.seek(0, os.SEEK_CUR)}
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise Reject(f"path: {path!r} is no file: {error}") from None
