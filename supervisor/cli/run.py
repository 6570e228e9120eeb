"""supervisor run"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from supervisor import telemetry
from supervisor.cli.context import load_settings
from supervisor.cli.imports import without_collections
from supervisor.cli.options import config_option, read_with
from supervisor.cli.standard_streams import STDERR
from supervisor.cli.store_access import private_files, refuse_wrong_folder
from supervisor.config.file_permissions import load_trusted, open_to_others
from supervisor.config.settings import Settings
from supervisor.events import ConfigRefused, ConfigReloaded, Subscriber, SupervisorStarted
from supervisor.text.redaction import Mask
from supervisor.text.units import parse_duration
from supervisor.workers.system import descriptors, linux
from supervisor.workers.system.title import set_title

if TYPE_CHECKING:
    from supervisor.runtime.supervisor import Supervisor


@click.command()
@config_option
@click.option("--drain", is_flag=True, help="Exit once the served queues have no jobs left, and print a report.")
@click.option(
    "--horizon",
    metavar="TIME",
    callback=read_with(parse_duration),
    help="With --drain: leave jobs that are due later than this after the start.",
)
@click.option("--reload", is_flag=True, help="For development: reload when the config or a plugin file changes.")
def run(drain: bool, horizon: float | None, reload: bool) -> int:
    """Run jobs until a signal ends it."""
    if horizon is not None and not drain:
        raise click.UsageError("--horizon goes with --drain")
    if reload and drain:
        raise click.UsageError("--reload goes without --drain, which ends by itself")
    # Until the supervisor handles these, they must not end or stop this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))
    for number in (signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    settings = load_settings(load_trusted)
    refuse_wrong_folder(settings, "nothing was started")
    set_title(" ".join(["supervisor", *sys.argv[1:]]))
    return _drain(settings, horizon) if drain else _run(settings, watch=reload)[0]


def _drain(settings: Settings, horizon: float | None) -> int:
    from supervisor.cli.drain_report import DrainReport, progress

    report = DrainReport()
    with progress(report, shown=sys.stderr.isatty() and settings.log.format == "text") as log_fd:
        code, settings = _run(settings, log_fd, [report], drain=True, horizon=horizon)
    kept = settings.retention.failed
    shown_later = settings.store.kafka is None and (kept is None or kept > report.seconds)
    report.print(failed_are_kept=shown_later)
    return code


def _run(
    settings: Settings,
    log_fd: int = STDERR,
    subscribers: Sequence[Subscriber] = (),
    *,
    watch: bool = False,
    **options: Any,
) -> tuple[int, Settings]:
    """Run a supervisor; return its exit code, and its settings after the last reload."""
    with without_collections():
        from supervisor.runtime.supervisor import Supervisor

    def log_workers(_: SupervisorStarted | ConfigReloaded) -> None:
        logging.getLogger("supervisor").info("%s", supervisor.settings.workers.count_shown)

    def follow_config(_: ConfigReloaded) -> None:
        _configure_log(supervisor.settings, log_fd)
        _warn([_shortage(supervisor.settings)])

    _configure_log(settings, log_fd)
    supervisor = Supervisor(
        settings,
        reload=partial(load_trusted, settings.path),  # the same file, whatever a search would find now
        subscribers=[telemetry.LogSubscriber(), *subscribers],
        **options,
    )
    supervisor.bus.subscribe(follow_config, ConfigReloaded)
    supervisor.bus.subscribe(log_workers, SupervisorStarted, ConfigReloaded)
    _warn([*open_to_others(private_files(settings)), _shortage(settings), _oom_group_warning()])
    try:
        with _reloading(supervisor) if watch else nullcontext():
            code = supervisor.run()
    finally:
        telemetry.stop()
    return code, supervisor.settings


@contextmanager
def _reloading(supervisor: Supervisor) -> Iterator[None]:
    """Send HUP to this process when files of its settings change."""
    from supervisor.runtime.file_watch import FileWatch

    logger = logging.getLogger("supervisor")

    def reload(paths: list[str]) -> None:
        if paths:
            logger.info("changed: %s", ", ".join(paths))
        os.kill(os.getpid(), signal.SIGHUP)

    watch = FileWatch(supervisor.settings, reload, partial(logger.error, "run --reload: %s"))
    supervisor.bus.subscribe(lambda _: watch.follow(supervisor.settings), ConfigReloaded, ConfigRefused)
    try:
        yield
    finally:
        watch.close()


def _oom_group_warning() -> str | None:
    setting = linux.oom_group()
    return setting and (
        f"{setting} is 1: if one worker runs out of memory, the kernel kills the supervisor and all workers with it; set it to 0, "
        "by OOMPolicy=continue in a systemd unit or singleProcessOOMKill: true of the kubelet"
    )


def _shortage(settings: Settings) -> str | None:
    return descriptors.shortage(settings.workers.most, settings.workers.count_keys)


def _warn(warnings: Iterable[str | None]) -> None:
    for warning in filter(None, warnings):
        logging.getLogger("supervisor").warning("%s", warning)


def _configure_log(settings: Settings, fd: int) -> None:
    telemetry.configure(settings.log.level, settings.log.format, fd, Mask(settings.secrets))
