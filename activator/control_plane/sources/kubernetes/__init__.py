"""The Kubernetes API: lists and watches, decoded into typed structs. Imported in Kubernetes mode only.

What Knative's objects mean stands beside this package, in `sources/`; here stands how they are watched.
`docs/kubernetes-api.md` describes how it behaves.
"""
