"""The engine: it claims jobs, sends them to workers, settles their outcomes, and recovers the leases that others have lost.

`coordinator` wires the parts. A job passes through `fetcher`, `fairness` (the queue buffers), `leases` and `committer`. The
other parts decide when and how much, and see jobs only where something went wrong.

There are three ways for a job to go back unharmed:

* *release*: from this supervisor to the store. No retry is counted.
* *reclaim*: from a worker to this supervisor. Only jobs that were sent and have not started are reclaimed.
* *requeue*: into a queue buffer of this supervisor, in front of the jobs there. Reclaimed jobs are requeued.
"""
