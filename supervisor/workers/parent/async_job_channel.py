"""The supervisor's side of the jobs of one async worker: each frame has one job, and frames end in any order."""

from __future__ import annotations

import os
from collections.abc import Collection

from supervisor.jobs import Lease
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK
from supervisor.workers.parent.job_channel import FORGED_PERMITS, JobChannel
from supervisor.workers.system import linux

MAX_FRAME = (1 << 32) - 1


class AsyncJobChannel(JobChannel):
    """A JobChannel whose permits are the numbers of frames, and may be taken and reclaimed one by one."""

    last_frame = 0

    def send_job(self, lease: Lease) -> int:
        """Send the job in a frame of its own, and return the number of the frame."""
        self.last_frame = self.last_frame % MAX_FRAME + 1
        self._put([self.last_frame])
        if self._sends:
            self._write(wire.encode_frame(self.last_frame, [lease]))
        return self.last_frame

    def cancel(self, frame: int) -> None:
        """Cancel the job of the frame, if it is running."""
        self._write(wire.encode_cancel(frame))

    def untaken_frames(self, sent: Collection[int]) -> set[int]:
        """Return those of the frames `sent` whose permits the worker has not taken, without taking them from it for long."""
        if self._ends is None or not linux.bytes_waiting(self._ends.permits):
            return set()
        frames = self._take(sent)
        self._put(frames)
        return set(frames)

    def reclaim_frames(self, wanted: Collection[int], sent: Collection[int]) -> set[int]:
        """Reclaim the permits of the wanted frames that the worker has not taken, and return these frames."""
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
