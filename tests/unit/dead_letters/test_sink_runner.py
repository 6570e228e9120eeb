"""One sink's calls: in order, each with its own answer, whenever the answer comes. On a loop whose clock jumps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from supervisor.dead_letters.sink_runner import PUBLISH_SECONDS, SinkRunner
from tests.unit.dead_letters.test_publisher import JumpingLoop

FAR = float("inf")


class SlowCaller:
    """Makes a call at once, and gives its answer `seconds` after that of the call before."""

    def __init__(self, loop: JumpingLoop, seconds: float) -> None:
        self.loop = loop
        self.seconds = seconds
        self.free_at = 0.0

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        answer = self.loop.create_future()
        self.free_at = max(self.free_at, self.loop.time()) + self.seconds
        self.loop.call_at(self.free_at, self._answer, work, answer)
        return answer

    def _answer(self, work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    def end(self) -> None:
        pass


class Taking:
    def publish(self, dead_letters: Any) -> Iterable[int]:
        return [dead_letter["id"] for dead_letter in dead_letters]

    def close(self) -> None:
        pass


class Raising(Taking):
    def publish(self, dead_letters: Any) -> Iterable[int]:
        raise OSError("connection timed out")


@pytest.fixture
def play() -> Any:
    loop = JumpingLoop()
    yield lambda scene: loop.run_until_complete(scene(loop))
    loop.close()


def runner(loop: JumpingLoop, seconds: float, sink: Any) -> SinkRunner:
    return SinkRunner("slow", sink, lambda _: SlowCaller(loop, seconds))


async def begun(work: Coroutine[Any, Any, frozenset[int]]) -> asyncio.Task[frozenset[int]]:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


def test_a_sink_that_raises_when_nobody_waits_for_it_any_more_is_no_fault_of_the_supervisor(play: Any) -> None:
    async def scene(loop: JumpingLoop) -> None:
        faults: list[Any] = []
        loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
        slow = runner(loop, PUBLISH_SECONDS + 5.0, Raising())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await slow.publish([{"id": 1}], FAR)
            await asyncio.sleep(10.0)
        del slow
        gc.collect()
        assert faults == []

    play(scene)


def test_each_publish_that_waited_for_an_earlier_one_has_its_own_answer(play: Any) -> None:
    async def scene(loop: JumpingLoop) -> None:
        slow = runner(loop, 0.3, Taking())
        publishes = [await begun(slow.publish([{"id": id}], FAR)) for id in (1, 2, 3)]
        assert await asyncio.gather(*publishes) == [{1}, {2}, {3}]

    play(scene)
