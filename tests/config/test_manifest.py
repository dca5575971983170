"""`activator check` of a file of Kubernetes objects."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from activator.cli import main
from activator.config.manifest import check_manifest
from activator.control_plane.sources.activations.declaration import of_service
from activator.control_plane.sources.activations.objects import AnnotatedService
from lb.registry import names

GOOD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: model}
spec: {whatever: true}
---
apiVersion: activator.dev/v1alpha1
kind: Activation
metadata: {name: model}
spec:
  target: {name: model}
  hosts: [model.example.com]
  containerConcurrency: 1
---
"""
BAD = """\
apiVersion: activator.dev/v1
kind: Activation
metadata: {name: a}
sepc: {}
---
apiVersion: activator.dev/v1alpha1
kind: Activation
metadata: {name: b}
spec:
  target: {name: model}
  containerConcurency: 1
---
apiVersion: activator.dev/v1alpha1
kind: Activation
metadata: {name: b}
spec: {target: {name: model}}
---
apiVersion: activator.dev/v1alpha1
kind: Activation
spec: {target: {name: model}}
"""


def test_a_good_one() -> None:
    found = check_manifest(GOOD, "m.yaml", None)
    assert found is not None
    assert found == (1, 1, [])


def test_every_mistake_has_its_line() -> None:
    found = check_manifest(BAD, "m.yaml", None)
    assert found is not None
    assert found.problems == [
        'm.yaml:1: apiVersion: found "activator.dev/v1", expected activator.dev/v1alpha1',
        'm.yaml:4: found the unknown key "sepc", expected "spec"',
        'm.yaml:1: found none, expected the key "spec"',
        'm.yaml:11: spec: found the unknown key "containerConcurency", expected "containerConcurrency"',
        "m.yaml:15: metadata.name: the Activation default/b is in the file already",
        'm.yaml:18: metadata: found none, expected the key "name"',
    ]


def test_a_file_of_the_activators_own_is_none() -> None:
    assert check_manifest("revisions: []\n", "a.yaml", None) is None
    assert check_manifest("a: [\n", "a.yaml", None) is None
    assert check_manifest("", "a.yaml", None) is None
    assert check_manifest("- a\n---\n- b\n", "a.yaml", None) is None


def test_an_alias_of_another_document_is_none_of_this() -> None:
    found = check_manifest(GOOD + "kind: &x Service\napiVersion: v1\n---\nkind: *x\napiVersion: v1\n", "m.yaml", None)
    assert found is None, "it cannot be read"


def test_the_command(tmp_path: Path, capsys: object) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(BAD)
    assert main(["check", str(good)]) == 0
    assert main(["check", str(bad)]) == 1


def test_the_examples_of_the_documentation_are_good() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    texts = [(docs / name).read_text("utf-8") for name in ("kubernetes.md", "start-kubernetes.md")]
    examples = [block.partition("```")[0] for text in texts for block in text.split("```yaml\n")[1:]]
    assert len(examples) == 4
    found = [check_manifest(example, "the documentation", set(names())) for example in examples]
    counted = [(one.activations, one.others, one.problems) for one in found if one is not None]
    assert counted == [(1, 0, []), (0, 1, []), (1, 0, []), (1, 0, [])]
    service = msgspec.convert(yaml.safe_load(examples[1]), AnnotatedService)
    declaration = of_service(service, frozenset(names()))
    assert declaration is not None
    assert declaration.problems == ()
    assert declaration.declared is not None
    assert declaration.declared.revision.container_concurrency == 10
