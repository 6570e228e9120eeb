"""The command line. `main` is the entry point of the `supervisor` command."""

from __future__ import annotations

import signal
import sys

from supervisor import __version__
from supervisor.cli.exit_codes import MISTAKE
from supervisor.cli.standard_streams import code_after_output, install_streams

EXIT_TIMEOUT = 3.0  # seconds, for threads and exit functions of plugins


def main() -> None:
    """Run the command that the arguments of this process name, and exit with its code."""
    if problem := platform_problem(sys.platform):
        sys.stderr.write(f"Error: {problem}\n")
        sys.exit(MISTAKE)
    # A KeyboardInterrupt while a C extension is imported can crash the interpreter. No command needs one: a change is
    # durable as soon as it is made, and `run` has a handler of its own.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The program that starts this one may have blocked TERM, which would not arrive, or may ignore SIGCHLD: then the kernel
    # drops the exit statuses of subprocesses.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    install_streams()
    if sys.argv[1:] == ["--version"]:  # answered without click, whose import takes longer than all the rest
        print(f"supervisor {__version__}", flush=True)
        sys.exit(code_after_output(None))
    from supervisor.cli.imports import without_collections

    with without_collections():
        from supervisor.cli.app import run_command_line
        from supervisor.workers.system.interpreter import end_within

    end_within(EXIT_TIMEOUT, run_command_line())


def platform_problem(platform: str) -> str | None:
    """Return why the command can't run on this `sys.platform`, or None if it can."""
    return None if platform == "linux" else f"supervisor runs on Linux only; this system is {platform}"
