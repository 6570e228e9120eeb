"""supervisor init"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from supervisor.cli.context import UserMistake, current_context, echo
from supervisor.cli.exit_codes import DONE
from supervisor.config.loading import SEARCHED
from supervisor.config.settings import VARIABLE

CONFIG = """\
# Every key has a default: write only those that you change. `supervisor check` finds mistakes in this file.
store: sqlite:///jobs.db      # a file beside this one; postgresql://user@host/database for several machines
plugins: [plugins]            # folders, files or modules with handlers
workers:
  timeout: 5m                 # how long one attempt of a job may run; a handler can have its own
  #count: 2                   # processes that run jobs; by default one for each CPU
retry:
  max_retries: 3              # then the job is a dead letter, see `supervisor dlq list`
"""
PLUGIN = '''\
"""The first handlers of this project. Every Python file in this folder is a plugin."""

import logging

from supervisor import Job, handler

logger = logging.getLogger(__name__)


@handler(timeout="30s", max_retries=5)
def thumbnail(path: str, width: int = 200, *, job: Job) -> str:
    """Its parameters are the keys of the payload, and their types are checked. `job` is the job itself."""
    logger.info("attempt %d of job %d", job.attempt, job.id)
    return f"{path} in {width} pixels"
'''
FILES = {"plugins/thumbnails.py": PLUGIN, "supervisor.yaml": CONFIG}
EXAMPLE = """thumbnail '{"path": "cat.png"}'"""
FILE_MODE, FOLDER_MODE = 0o644, 0o755  # whatever the umask: root refuses code that others can change


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> int:
    """Write a small config and a first plugin into DIR, which is the current folder by default.

    Nothing is overwritten.
    """
    if current_context().config is not None:
        raise click.UsageError("init reads no config: expected init [DIR] without -c")
    there = [name for name in dict.fromkeys((*SEARCHED, *FILES)) if os.path.lexists(folder / name)]
    if there:
        raise UserMistake(f"{folder / there[0]} exists already: nothing was written; init is for a new project")
    for name, text in FILES.items():
        _write(folder / name, text)
    echo(f"wrote {', '.join(str(folder / name) for name in FILES)}")
    if os.environ.get(VARIABLE):
        echo(f"Warning: ${VARIABLE} is set, so commands use {os.environ[VARIABLE]} without -c", err=True)
    steps = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    steps += [f"supervisor call {EXAMPLE}", f"supervisor enqueue {EXAMPLE}", "supervisor run --drain"]
    echo("\n".join(["next:", *(f"    {step}" for step in steps)]))
    return DONE


def _write(file: Path, text: str) -> None:
    """Write a new file. Raises UserMistake, also if there is one now."""
    try:
        for folder in reversed(file.parents):  # with `parents=True`, mkdir would give its mode to the last one only
            folder.mkdir(FOLDER_MODE, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(file, "w", encoding="utf-8", opener=lambda path, _: os.open(path, flags, FILE_MODE)) as new:
            new.write(text)
    except OSError as error:
        raise UserMistake(f"{error.filename or file}: {error.strerror}") from None
