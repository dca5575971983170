"""What Knative's objects mean to the activator: revisions, their pods, and this activator's share of them.

    objects of the API ──► object_handlers ──► source ──► revision_backends ──► changes
        revision_backends: service_backends (slice_index, backends) ──► known_pods ──► shared_pods ──► pod_report
        and revision_specs, conditions, sharing, cluster_settings (pure)
    effects of the state worker ──► pod_answers ──► source, mesh_fallback

How the objects are watched stands in `activator/kubernetes/`. Imported in Kubernetes mode only. The contract stands in
`docs/knative.md`, item by item.
"""
