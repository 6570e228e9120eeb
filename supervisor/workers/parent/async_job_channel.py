"""The supervisor's side of the jobs of one async worker: each job is a frame of its own, and they end in any order."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from supervisor.jobs import LEASE_PAYLOAD, Lease
from supervisor.workers import wire_protocol as wire
from supervisor.workers.channels import CHUNK
from supervisor.workers.parent.job_channel import FORGED_PERMITS, JobChannel
from supervisor.workers.parent.output_reader import ASYNC_HOLD_SECONDS
from supervisor.workers.run_times import FRAME_BYTES
from supervisor.workers.system import linux

MAX_FRAME = (1 << 32) - 1


class AsyncJobChannel(JobChannel):
    """A JobChannel whose permits are the numbers of frames, and may be taken and reclaimed one by one.

    The jobs of one turn of the loop are written together, since a write costs more than all else that is done for a job.
    """

    hold_seconds = ASYNC_HOLD_SECONDS

    def __init__(self, *of_channel: Any) -> None:
        super().__init__(*of_channel)
        self._last_frame = 0
        self._cancels = 0
        self._gathered: list[Lease] = []  # with the numbers up to the last

    def send_job(self, lease: Lease) -> int:
        """Send the job, and return its number, which is that of a frame."""
        if self._last_frame == MAX_FRAME:
            self._send_gathered()
            self._last_frame = 0
        if not self._gathered:
            self._loop.call_soon(self._send_gathered)
        self._gathered.append(lease)
        self._last_frame += 1
        return self._last_frame

    def _send_gathered(self) -> None:
        """Write the permits first: the worker looks for them when it gets the jobs."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            first = self._last_frame - len(gathered) + 1
            self._put(range(first, first + len(gathered)))
            if self._sends:
                self._write(_encoded(first, gathered))

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
        self._restore(frames)
        return set(frames)

    def reclaim_frames(self, wanted: Collection[int], sent: Collection[int]) -> set[int]:
        """Reclaim the permits of the wanted frames that the worker has not taken, and return these frames."""
        self._send_gathered()
        frames = self._take(sent)
        reclaimed = [frame for frame in frames if frame in wanted]
        self._restore([frame for frame in frames if frame not in wanted])
        for frame in reclaimed:  # it must not be started by the permit of a later frame with the same number
            self.cancel(frame)
        return set(reclaimed)

    def _take(self, sent: Collection[int]) -> list[int]:
        frames = wire.decode_permits(self._read_permits())
        if {*frames} - {*sent}:
            self._owner.channel_broken(FORGED_PERMITS)
            return []
        return frames

    def _restore(self, frames: Collection[int]) -> None:
        """Write permits again, and have the worker look for them: it may have done so in vain meanwhile."""
        self._put(frames)
        if frames and self._sends:
            self._write(wire.encode_frame(0, ()))

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

    def has_outcomes(self) -> bool:
        """Return True: that no outcome has come does not show which of the jobs has written a line. Only its mark does."""
        return True


def _encoded(first: int, leases: Sequence[Lease]) -> bytes:
    """Return one line for all jobs; a line for each if they are large: the first one need not wait for the others."""
    if sum([len(lease[LEASE_PAYLOAD]) for lease in leases]) <= FRAME_BYTES:
        return wire.encode_frame(first, leases)
    return b"".join([wire.encode_frame(frame, (lease,)) for frame, lease in enumerate(leases, first)])


assert CHUNK % wire.PERMIT_BYTES == 0
