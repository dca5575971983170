"""The Kubernetes API: lists and watches, decoded into typed structs. Imported in Kubernetes mode only.

`docs/kubernetes-api.md` describes its behaviour. What the objects mean is in `control_plane/sources/`.
"""
