"""The sharing of one revision's slots between members: ownership, and the messages about slots.

A *member* is a data plane: that of a worker process, or of another replica. Each revision with a limit has one *owner*
among the members, whose throttler counts every slot that any member uses. The others *borrow*: they ask the owner for a
slot, and send the request to the pod themselves.

This package has plain methods and plain data: no I/O, and no clock but the one passed in. `member.py` is its entry.
"""
