"""What handlers log arrives in the log of the supervisor as it was logged, whatever plugins configure."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.system.command import Command

CONFIG = "workers: {count: 1}\nretry: {max_retries: 0}\nlog: {level: info, format: json}\n"
HANDLERS = """
    import logging, subprocess, sys, threading
    from supervisor import handler, hookimpl

    logger = logging.getLogger(__name__)

    @handler
    def speak(job):
        logger.info("hello %s", job.payload)
        logger.debug("unseen")
        logging.getLogger("app.mail").error("two\\nlines")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.exception("no result")
"""


def logged(command: Command, plugin: str, *handlers: str, config: str = CONFIG) -> list[dict[str, Any]]:
    """Run a job of each handler, and return the lines of the log."""
    command.write(config=config, plugins={"p.py": plugin})
    for handler in handlers:
        command.enqueue(handler, handler)
    run = command.run("--drain")
    run.wait(60)
    return [orjson.loads(line) for line in run.log.splitlines()]


def messages(lines: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(line["level"], line["logger"], line["message"]) for line in lines if line["logger"] != "supervisor"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_record_has_its_level_its_logger_its_job_and_its_traceback(command: Command, start: str) -> None:
    config = CONFIG.replace("count: 1", f"count: 1, start: {start}")
    found = [line for line in logged(command, HANDLERS, "speak", config=config) if line["logger"] != "supervisor"]
    assert messages(found) == [
        ("info", "p", "hello speak"), ("error", "app.mail", "two\nlines"), ("error", "root", "no result"),
    ]  # fmt: skip
    assert {(line["job"], line["handler"], line["attempt"], line["worker"]) for line in found} == {(1, "speak", 1, 1)}
    assert "in speak" in found[2]["traceback"] and found[2]["traceback"].endswith(
        "ZeroDivisionError: division by zero\n"
    )


def test_in_text_a_record_is_one_entry_that_names_its_job(command: Command) -> None:
    command.write(config="workers: {count: 1}\n", plugins={"p.py": HANDLERS})
    id = command.enqueue("speak", 5)
    run = command.run("--drain")
    run.wait()
    assert " INFO p: worker 1 (pid " in run.log and f"job={id} handler=speak attempt=1: hello 5\n" in run.log
    assert " ERROR app.mail: worker 1" in run.log and ": two\n    lines\n" in run.log
    assert ": no result\n    Traceback (most recent call last):\n" in run.log


def test_errors_and_failed_hooks_of_workers_are_there_at_level_warning(command: Command) -> None:
    plugin = (
        HANDLERS
        + """
    @hookimpl
    def supervisor_worker_started(worker):
        raise RuntimeError("no database")
    """
    )
    lines = logged(command, plugin, "speak", config=CONFIG.replace("info", "warning"))
    assert [message for _level, _logger, message in messages(lines)] == ["two\nlines", "no result"]
    (hook,) = [line for line in lines if "supervisor_worker_started" in line["message"]]
    assert hook["level"] == "error" and hook["message"].endswith("p.py failed: RuntimeError: no database")
    assert hook["traceback"].endswith("RuntimeError: no database\n")


def test_imports_log_too_and_the_level_of_a_plugin_is_its_own(command: Command) -> None:
    plugin = 'import logging\nlogging.warning("at import")\nlogging.basicConfig(level="ERROR")\n' + HANDLERS.replace(
        "\n    ", "\n"
    )
    lines = logged(command, plugin, "speak")
    of_import = [line for line in lines if line.get("job") is None]  # of another process than the job
    assert messages(of_import) == [("warning", "root", "at import")]
    of_job = [line for line in lines if line.get("job") == 1]
    assert messages(of_job) == [("error", "app.mail", "two\nlines"), ("error", "root", "no result")]


CONFIGURED = {
    "basicConfig at import": 'logging.basicConfig(level="INFO", format="own %(levelname)s %(message)s")',
    "basicConfig to a stream": 'logging.basicConfig(level="INFO", format="own %(levelname)s %(message)s", stream=sys.stdout)',
    "a handler of the root logger": """
        import sys
        own = logging.StreamHandler()
        own.setFormatter(logging.Formatter("own %(levelname)s %(message)s"))
        logging.root.addHandler(own)
    """,
    "a handler of a logger": """
        own = logging.StreamHandler()
        own.setFormatter(logging.Formatter("own %(levelname)s %(message)s"))
        logging.getLogger("app").addHandler(own)
        logging.getLogger("app").setLevel("INFO")
    """,
    "dictConfig": """
        import logging.config
        logging.config.dictConfig({
            "version": 1, "disable_existing_loggers": False, "formatters": {"own": {"format": "own %(levelname)s %(message)s"}},
            "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
            "root": {"handlers": ["own"], "level": "INFO"},
        })
    """,
}  # fmt: skip


@pytest.mark.parametrize("place", ["import", "hook", "job"])
@pytest.mark.parametrize("how", CONFIGURED)
def test_a_plugin_that_configures_logging_gets_its_own_lines_and_each_once(
    command: Command, how: str, place: str
) -> None:
    configure = "\n".join(line.removeprefix("        ") for line in CONFIGURED[how].splitlines())
    indented = "\n".join(f"    {line}" for line in configure.splitlines())
    lines = logged(
        command,
        "import logging, sys\nfrom supervisor import handler, hookimpl\n"
        f"def configure():\n{indented}\n"
        + ("configure()\n" if place == "import" else "")
        + ("@hookimpl\ndef supervisor_worker_started(worker): configure()\n" if place == "hook" else "")
        + "@handler\ndef speak(job):\n"
        + ("    configure()\n" if place == "job" else "")
        + "    logging.getLogger('app.mail').error('said once')\n",
        "speak",
    )
    (line,) = [line for line in lines if "said once" in line["message"]]
    assert line["message"].endswith(": own ERROR said once") and line["job"] == 1


def test_a_handler_made_at_import_writes_under_the_job_that_runs(command: Command) -> None:
    plugin = """
        import logging, sys
        from supervisor import handler
        own = logging.getLogger("own")
        own.propagate = False
        own.addHandler(logging.StreamHandler())
        kept = sys.stdout

        @handler
        def speak(job):
            own.warning("logged by %d", job.id)
            print("printed by", job.id, file=kept)

        @handler
        def replace(job):
            sys.stderr = sys.stdout = open("/dev/null", "w")
    """
    lines = logged(command, plugin, "speak", "speak", "replace", "speak")
    found = [(line["job"], line["message"].rpartition(": ")[2]) for line in lines if " by " in line["message"]]
    assert sorted(found) == sorted((id, f"{how} by {id}") for id in (1, 2, 4) for how in ("logged", "printed"))


def test_of_a_flood_the_loss_is_logged_and_the_next_job_loses_nothing(command: Command) -> None:
    plugin = """
        import logging
        from supervisor import handler
        @handler
        def flood(job):
            for n in range(600):
                logging.error("x" * 10_000)
        @handler
        def quiet(job):
            logging.info("after the flood")
    """
    lines = logged(
        command, plugin, "flood", "quiet", config=CONFIG.replace("info", "warning").replace("warning", "info")
    )
    assert ("info", "root", "after the flood") in messages(lines)
    notices = [line for line in lines if "left out" in line["message"]]
    assert notices and all(line["level"] == "warning" and line["job"] == 1 for line in notices)
    assert len(notices) < 30


def test_what_a_failed_job_has_logged_is_in_its_record(command: Command) -> None:
    plugin = (
        HANDLERS
        + """
    @handler
    def fail(job):
        logger.warning("about to fail")
        raise ValueError
    """
    )
    logged(command, plugin, "fail")
    assert command.job(1)["errors"][0]["stderr"] == "WARNING p: about to fail\n"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_messages_of_jobs_have_their_level_and_their_job_whatever_plugins_configure(
    command: Command, kind: str
) -> None:
    plugin = (
        HANDLERS
        + f"""
    logging.basicConfig(filename="elsewhere.log")

    @handler
    {kind} speaks(job):
        logging.warning("elsewhere")
        job.log("hello %s", job.payload)
        job.log("bad", level=logging.ERROR)
        job.log("unseen", level=logging.DEBUG)
    """
    )
    found = [line for line in logged(command, plugin, "speaks") if line["logger"] != "supervisor"]
    assert messages(found) == [("info", "job", "hello speaks"), ("error", "job", "bad")]
    assert {(line["job"], line["handler"], line["attempt"]) for line in found} == {(1, "speaks", 1)}
    assert "elsewhere" in (command.folder / "elsewhere.log").read_text()


def test_a_record_whose_arguments_do_not_fit_is_named(command: Command) -> None:
    plugin = (
        HANDLERS
        + """
    @handler
    def wrong(job):
        logger.warning("count %d", "three")
    """
    )
    ((level, _logger, message),) = messages(logged(command, plugin, "wrong"))
    assert level == "warning" and "p.py:" in message and "TypeError: %d format" in message


def test_records_of_threads_and_of_processes_of_a_job_arrive_whole(command: Command) -> None:
    plugin = (
        HANDLERS
        + """
    def burst(name):
        for n in range(20):
            logging.warning(name * 10_000)

    @handler
    def many(job):
        import multiprocessing
        others = [threading.Thread(target=burst, args=("t",)), multiprocessing.get_context("fork").Process(target=burst, args=("p",))]
        for other in others:
            other.start()
        subprocess.run(["sh", "-c", "for i in 1 2 3 4 5; do echo from a program >&2; done"])
        for other in others:
            other.join()
    """
    )
    lines = logged(command, plugin, "many")
    found = [message for _level, _logger, message in messages(lines)]
    assert sorted(found) == sorted(["t" * 10_000] * 20 + ["p" * 10_000] * 20)
    assert sum(line["message"].endswith("from a program") for line in lines) == 5
