"""The supervisor's side of the jobs of one async worker: each frame has one job, and frames end in any order."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from supervisor.jobs import Lease
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK
from supervisor.workers.parent.job_channel import FORGED_PERMITS, JobChannel
from supervisor.workers.system import linux

MAX_FRAME = (1 << 32) - 1


class AsyncJobChannel(JobChannel):
    """A JobChannel whose permits are the numbers of frames, and may be taken and reclaimed one by one.

    The jobs of one turn of the loop are written together, since a write costs more than all else that is done for a job.
    """

    def __init__(self, *of_channel: Any) -> None:
        super().__init__(*of_channel)
        self._last_frame = 0
        self._cancels = 0
        self._gathered: dict[int, bytes] = {}  # by the number of the frame

    def send_job(self, lease: Lease) -> int:
        """Send the job in a frame of its own, and return the number of the frame."""
        frame = self._last_frame = self._last_frame % MAX_FRAME + 1
        if not self._gathered:
            self._loop.call_soon(self._send_gathered)
        self._gathered[frame] = wire.encode_frame(frame, [lease])
        return frame

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        if gathered:
            self._put(gathered)
            if self._sends:
                self._write(b"".join(gathered.values()))

    def cancel(self, frame: int, *, of_job: bool = False) -> int:
        """Cancel the task of the frame, if it is running; return the number of this order."""
        self._send_gathered()
        self._write(wire.encode_cancel(frame, of_job=of_job))
        self._cancels += 1
        return self._cancels

    def untaken_frames(self, sent: Collection[int]) -> set[int]:
        """Return those of the frames `sent` whose permits the worker has not taken, without taking them from it for long."""
        self._send_gathered()
        if self._ends is None or not linux.bytes_waiting(self._ends.permits):
            return set()
        frames = self._take(sent)
        self._put(frames)
        return set(frames)

    def reclaim_frames(self, wanted: Collection[int], sent: Collection[int]) -> set[int]:
        """Reclaim the permits of the wanted frames that the worker has not taken, and return these frames."""
        self._send_gathered()
        frames = self._take(sent)
        reclaimed = [frame for frame in frames if frame in wanted]
        self._put([frame for frame in frames if frame not in wanted])
        for frame in reclaimed:  # it must not be started by the permit of a later frame with the same number
            self.cancel(frame)
        return set(reclaimed)

    def _take(self, sent: Collection[int]) -> list[int]:
        frames = wire.decode_permits(self._read_permits())
        if {*frames} - {*sent}:
            self._owner.channel_broken(FORGED_PERMITS)
            return []
        return frames

    def _put(self, frames: Collection[int]) -> None:
        if self._ends is None or not frames:
            return
        permits = wire.encode_permits([*frames])
        try:
            put = os.write(self._ends.permits_put, permits)
        except BlockingIOError:
            put = 0
        if put < len(permits):  # a job has filled the pipe
            self._owner.channel_broken(FORGED_PERMITS)

    def running(self) -> int | None:
        return None


assert CHUNK % 4 == 0
