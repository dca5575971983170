"""A cluster without Knative: revisions that are declared by Activations, or by annotated Services, beside a workload.

`docs/kubernetes.md` says what a user does; `mode.py` puts it together.
"""
