"""One throttler over many members: which member owns a revision, and what members say to each other about its slots.

A *member* is a data plane: a worker process, or that of another replica. Each revision with a limit has one *owner*
among the members; its throttler counts every slot that any member uses. The others *borrow*: they ask the owner for a
slot, and send the request to the pod themselves.

Everything here is plain methods and plain data: no I/O, no clock but the one handed in. `member.py` is the way in.
"""
