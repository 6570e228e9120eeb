"""Supervisors with different sinks share a store: each dead letter gets to every sink that it is owed to."""

from __future__ import annotations

import re
import signal

from tests.system.command import Command, wait_for
from tests.system.test_dead_letters import JOBS, TWO, dead_letters, fail, offers, touch, wait_delivered, wait_offered

ONE = "workers: {count: 2}\ndlq: {sinks: [{type: recording, name: a, file: a}]}\n"


def write(command: Command, config: str = ONE) -> None:
    command.write(config=config, plugins=JOBS)
    (command.folder / "two.yaml").write_text(TWO)


def test_a_deploy_that_adds_a_sink_leaves_it_nothing_out(command: Command) -> None:
    """The supervisor without the sink goes on, and claims dead letters of the one that has it."""
    write(command)
    command.run().logged("supervisor started")
    new = command.run(config="two")
    new.logged("supervisor started")
    ids = fail(command, 60)
    wait_delivered(command, ids, timeout=30)
    failed_there = {int(id) for id in re.findall(r"job=(\d+) handler=fails attempt 1 failed", new.log)}
    assert failed_there <= set(offers(command, "b"))
    assert set(offers(command, "a")) == set(ids)


def test_a_sink_that_was_removed_is_waited_for_until_it_is_dropped(command: Command) -> None:
    write(command)
    touch(command, "b.down")
    before = command.run(config="two")
    ids = fail(command, 3)
    wait_offered(command, "a", ids)
    before.logged("dead letter not accepted by sink b")
    refused = command.call("dlq", "drop-sink", "b", config="two")
    assert (refused.code, "sink b: a running supervisor has it" in refused.err) == (2, True)
    before.signal(signal.SIGTERM)
    before.wait()
    after = command.run()
    after.logged("supervisor started")
    (new,) = fail(command, 1)
    wait_delivered(command, [new])
    assert {command.job(id)["dead_letter"] for id in ids} == {"pending"}
    assert [command.job(id)["missing_sinks"] for id in [*ids, new]] == [["b"], ["b"], ["b"], []]
    why = "3 pending dead letters wait for sink b, which no running supervisor has: start one that has it"
    reason = (
        "its dead letter waits for sink b, which no running supervisor has: start one that has it, or drop it with:"
    )
    for name in ("jobs", "dlq"):
        assert f"{reason} supervisor dlq drop-sink b" in command.ask(name, "show", str(ids[0]))
    for command_line in (("dlq", "list"), ("status",)):
        assert f"{why}, or drop it with: supervisor dlq drop-sink b" in command.ask(*command_line)
    assert why not in command.ask("dlq", "show", str(new))
    sinks = [{"sink": "a", "pending": 0, "supervisors": 1}, {"sink": "b", "pending": 3, "supervisors": 0}]
    assert command.status()["sinks"] == sinks
    wait = f"{why.partition(':')[0]}: the config has it, so start or restart a supervisor"
    shown = command.call("dlq", "show", str(ids[0]), config="two").out
    assert "the config has it, so start or restart a supervisor" in shown and "drop-sink" not in shown
    for command_line in (("dlq", "list"), ("status",)):
        assert wait in (shown := command.call(*command_line, config="two").out) and "drop-sink" not in shown
    refused = command.call("dlq", "drop-sink", "b", config="two")
    assert (refused.code, "sink b is in " in refused.err and "two.yaml; remove it there first" in refused.err) == (
        2,
        True,
    )
    assert command.ask("dlq", "drop-sink", "b") == "dropped sink b: 3 dead letters waited for it\n"
    assert {command.job(id)["dead_letter"] for id in ids} == {"delivered"}
    assert command.status()["sinks"] == sinks[:1]
    again = command.call("dlq", "drop-sink", "b")
    assert (again.code, again.err) == (2, "Error: no pending dead letter waits for sink 'b'\n")
    assert offers(command, "b") == {}


def test_a_drain_leaves_dead_letters_to_sinks_that_it_has_not_got(command: Command) -> None:
    write(command, ONE + "shutdown: {grace: 1s}\n")
    touch(command, "b.down")
    before = command.run(config="two")
    (id,) = fail(command, 1)
    before.logged("dead letter not accepted by sink b")
    before.kill()
    drained = command.call("run", "--drain")
    assert (drained.code, "left behind: 1 dead letters for other sinks" in drained.out) == (4, True), drained
    (command.folder / "b.down").unlink()
    assert command.call("run", "--drain", config="two").code == 0
    assert command.job(id)["dead_letter"] == "delivered"
    assert [dead_letter["id"] for dead_letter in dead_letters(command, "b")] == [id]
    assert command.call("run", "--drain").code == 0


def test_a_drain_is_complete_once_the_only_sink_is_removed_and_dropped(command: Command) -> None:
    write(command)
    touch(command, "a.down")
    before = command.run()
    (id,) = fail(command, 1)
    before.logged("dead letter not accepted by sink a")
    before.kill()
    command.write(config="workers: {count: 1}\nshutdown: {grace: 1s}\n", plugins=JOBS)
    assert command.call("run", "--drain").code == 4
    assert command.ask("dlq", "drop-sink", "a") == "dropped sink a: 1 dead letter waited for it\n"
    assert command.job(id)["dead_letter"] == "delivered"
    assert command.call("run", "--drain").code == 0


def test_a_new_sink_gets_the_dead_letters_of_an_earlier_supervisor_that_are_still_pending(command: Command) -> None:
    write(command)
    touch(command, "a.down")
    before = command.run()
    (id,) = fail(command, 1)
    before.logged("dead letter not accepted by sink a")
    before.signal(signal.SIGTERM)
    before.wait()
    command.run(config="two")
    wait_offered(command, "b", [id])
    (command.folder / "a.down").unlink()
    wait_delivered(command, [id], timeout=30)

    def once() -> None:
        assert offers(command, "a") == offers(command, "b") == {id: 1}

    wait_for(once)
