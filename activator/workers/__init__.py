"""Several processes that serve as one: workers, each a data plane with its own event loop.

The parent has the control plane, the listening sockets and the admin port, and carries no requests. The parent and its
workers, and the workers among themselves, exchange messages over socket pairs:

    parent:  pool.py               all workers as one data plane
             lifecycle.py          starts, watches and replaces workers (worker_process.py) by forking.py
             worker_members.py     links the workers, and announces them as members
             socket_assignment.py  which worker serves which of the listening sockets (sockets.py)
             fan_out.py            sends effects to all workers, and merges their reports
             pool_inspection.py    what the admin port asks workers
    worker:  process.py            the program of a worker, forked from fork_server.py
             peers.py              its links to the other workers, for the slots of revisions with a limit
    both:    messages.py, wire.py

With `workers: 1` the data plane runs in the process of the control plane (`alone.py`), and nothing of this is used.
"""
