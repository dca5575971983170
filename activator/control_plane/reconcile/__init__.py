"""Writes the objects of each Activation into the cluster: a Service, replicas, a status and events.

A source declares the desired state (`desired.py`), and this package establishes it with as few calls as possible
(docs/reconciling.md). It is below the sources in the layers, so it gets the API's client as a protocol (`api.py`).
"""
