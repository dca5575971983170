"""Several processes that serve as one: workers, each a data plane with an event loop of its own.

The parent has the control plane, the listening sockets and the admin port, and carries no requests. What it says to its
workers, and they to it and to each other, are messages over socket pairs:

    parent:  pool.py      starts, watches and replaces workers (worker_process.py) by forking.py
             fan_out.py   makes many data planes one for the control plane
             sockets.py   the listening sockets, one for each place
    worker:  process.py   a worker's own program, forked from fork_server.py
             peers.py     its links to the other workers, for the slots of revisions with a limit
    both:    messages.py, wire.py

With `workers: 1` there is none of this: the data plane is in the process of the control plane (`alone.py`).
"""
