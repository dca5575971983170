"""Upgrades: a process of the activator hands everything over to a new one, and finishes the requests that it has.

The steps, with the messages of `messages.py`:
  1. The old process starts the new one and offers its listening sockets. The new one reads the configuration, binds
     what else it needs, starts its workers and reports `Prepared`. Until then the old one continues unchanged.
  2. The old process stops starting and stopping programs, and sends their state. The new one takes them over without
     touching them, builds its model, and reports `Adopted`.
  3. The old process sends `Commit`: from now on its data planes are workers of the new process, in which they own
     nothing: they ask for slots and finish their requests. The new one serves and reports `Serving`.

If the new process fails before step 3, the old one continues. After it, each can finish without the other.
"""
