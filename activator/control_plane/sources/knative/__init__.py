"""The Knative source: revisions, their pods, and this activator's share of the pods, from Knative's objects.

    objects of the API ──► object_handlers ──► source ──► revision_backends ──► changes
        revision_backends: service_backends (slice_index, backends) ──► known_pods ──► shared_pods ──► pod_report
        and revision_specs, conditions, sharing, cluster_settings (pure)
    effects of the state worker ──► pod_answers ──► source, mesh_fallback

`activator/kubernetes/` watches the objects. The package is imported in Kubernetes mode only. `docs/knative.md`
describes the mode; `tests/knative_contract.md` has the contract, item by item.
"""
