"""Revisions of a cluster without Knative: declared by Activations, or by annotated Services, beside a workload.

`docs/kubernetes.md` is the guide for users; `mode.py` connects the parts.
"""
