"""What the Prometheus operator takes, as far as the chart makes use of it; Kubernetes' own schemas do not have it.

Source: the API reference of prometheus-operator, monitoring.coreos.com/v1. Strict: what is not listed is refused.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION: Final[Schema] = {"type": "string", "pattern": r"^(0|(\d+(ms|[smhdwy]))+)$"}


def _mapping(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def _kind(name: str, spec: Schema) -> Schema:
    return _mapping(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": name},
        metadata=_mapping(("name", "namespace"), name={"type": "string"}, namespace={"type": "string"}, labels=_TEXTS),
        spec=spec,
    )


_SELECTOR: Final = _mapping((), matchLabels=_TEXTS)
_ENDPOINTS: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": _mapping(
        ("port",),
        port={"type": "string"},
        path={"type": "string"},
        interval=_DURATION,
        honorLabels={"type": "boolean"},
    ),
}
_RULE: Final[Schema] = {
    "oneOf": [
        _mapping(
            ("alert", "expr"),
            alert={"type": "string"},
            expr={"type": "string"},
            **{"for": _DURATION},
            labels=_TEXTS,
            annotations=_TEXTS,
        ),
        _mapping(("record", "expr"), record={"type": "string"}, expr={"type": "string"}, labels=_TEXTS),
    ]
}

SCHEMAS: Final[dict[str, Schema]] = {
    "PodMonitor": _kind(
        "PodMonitor", _mapping(("selector", "podMetricsEndpoints"), selector=_SELECTOR, podMetricsEndpoints=_ENDPOINTS)
    ),
    "ServiceMonitor": _kind(
        "ServiceMonitor", _mapping(("selector", "endpoints"), selector=_SELECTOR, endpoints=_ENDPOINTS)
    ),
    "PrometheusRule": _kind(
        "PrometheusRule",
        _mapping(
            ("groups",),
            groups={
                "type": "array",
                "minItems": 1,
                "items": _mapping(
                    ("name", "rules"), name={"type": "string"}, rules={"type": "array", "minItems": 1, "items": _RULE}
                ),
            },
        ),
    ),
}
