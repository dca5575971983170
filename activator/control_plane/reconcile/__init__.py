"""What the activator writes into a cluster for each Activation: a Service, replicas, a status and events.

A source says what is wanted (`desired.py`); this package makes it so with as few calls as possible
(docs/reconciling.md). It stands below the sources, so it gets the API's client as a protocol (`api.py`).
"""
