"""The engine: it claims jobs, sends them to workers, settles their outcomes, and recovers the leases that others have lost.

`coordinator` wires the parts. A job passes through `fetcher`, `fairness` (the queue buffers), `leases` and `committer`; the
other parts decide when and how much, and see jobs only where something went wrong.

Three words say how a job goes back unharmed:

* *release*: from this supervisor to the store. No retry is counted.
* *reclaim*: from a worker to this supervisor. Jobs that were sent and have not been started are reclaimed.
* *requeue*: into the queue buffer of this supervisor, in front of the jobs that wait there. Reclaimed jobs are requeued.
"""
