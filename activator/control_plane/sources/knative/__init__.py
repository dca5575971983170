"""What Knative's objects mean to the activator: revisions, their pods, and this activator's share of them.

    objects of the API ──► revision_specs, backends, sharing, cluster_settings (pure) ──► knative_source ──► changes

How the objects are watched stands in `sources/kubernetes/`. Imported in Kubernetes mode only. The contract stands in
`docs/knative.md`, item by item.
"""
