"""What Knative's objects mean to the activator: revisions, their pods, and this activator's share of them.

    objects of the API ──► revision_specs, backends, conditions, sharing, cluster_settings (pure)
                                    └──► revision_backends, source ──► changes
    effects of the state worker ──► pod_answers ──► source, mesh_fallback

How the objects are watched stands in `sources/kubernetes/`. Imported in Kubernetes mode only. The contract stands in
`docs/knative.md`, item by item.
"""
