"""The versions of a release agree, and what the release publishes beside the distribution is right."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import activator
from tests.release import problems
from tests.release_files import chart_sbom, check_image, copy_chart, notes
from tests.release_image import base_of, check, usable
from tests.sources import ROOT

REGISTRY = "registry.test:5000/owner"
IMAGE = f"{REGISTRY}/activator:{activator.__version__}"
URL = "https://git.test/blob/v1"
WORKFLOW = ROOT / ".github/workflows/release.yml"
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]


def test_the_versions_agree() -> None:
    assert problems(f"v{activator.__version__}") == []


@pytest.mark.parametrize("tag", ["v9.9.9", activator.__version__, "latest"])
def test_a_tag_that_does_not_match_is_refused(tag: str) -> None:
    assert any("the tag is" in one for one in problems(tag))


# --- the chart ---


def test_the_copied_chart_has_the_image_in_the_registry_and_nothing_else_changed(tmp_path: Path) -> None:
    copy_chart(REGISTRY, tmp_path)
    source, copied = ROOT / "charts/activator", tmp_path / "activator"
    names = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(copied) for path in copied.rglob("*") if path.is_file())
    changed = [str(name) for name in names if (source / name).read_bytes() != (copied / name).read_bytes()]
    assert changed == ["values.yaml"]
    expected = yaml.safe_load((source / "values.yaml").read_text("utf-8"))
    expected["image"]["repository"] = f"{REGISTRY}/activator"
    assert yaml.safe_load((copied / "values.yaml").read_text("utf-8")) == expected


@pytest.mark.parametrize("registry", ["", "Owner/x", "https://registry.test/owner", "registry.test/owner/"])
def test_a_registry_that_no_image_can_have_is_refused(registry: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the variable REGISTRY"):
        copy_chart(registry, tmp_path)


def test_the_image_of_every_container_is_checked() -> None:
    check_image(f'        - image: "{IMAGE}"\n          image: {IMAGE}\n  image:\n    description: a key\n', REGISTRY)
    for wrong in ("activator:1", f"{IMAGE}-rc", f'"{IMAGE}"\n          image: other'):
        with pytest.raises(SystemExit, match="the chart runs"):
            check_image(f"        - image: {wrong}\n", REGISTRY)
    with pytest.raises(SystemExit, match="no image"):
        check_image("kind: Service\n", REGISTRY)


def test_the_sbom_of_the_chart_names_the_image_by_its_digest() -> None:
    digest = "sha256:" + "0f" * 32
    sbom = json.loads(chart_sbom(REGISTRY, digest))
    assert sbom["bomFormat"] == "CycloneDX"
    assert {"specVersion", "serialNumber"} <= sbom.keys()  # without them, actions/attest-sbom rejects the document
    (image,) = sbom["components"]
    assert digest in image["purl"] and image["version"] == activator.__version__
    with pytest.raises(SystemExit, match="the digest"):
        chart_sbom(REGISTRY, "")


# --- the notes ---


def test_the_notes_are_the_section_of_the_tag() -> None:
    changelog = """# Changelog

## 2.0

Newer.

## 1.0

A line
and its rest ([a
page](docs/a.md#b), [site](https://c.test)).

### Added
- One
  item.
- Two.
  - Within
    two.

## 0.1

Older.
"""
    assert notes(changelog, "v1.0", URL) == (
        f"A line and its rest ([a page]({URL}/docs/a.md#b), [site](https://c.test)).\n"
        "\n### Added\n- One item.\n- Two.\n  - Within two."
    )
    assert notes(changelog, "v0.1", URL) == "Older."
    for tag in ("v3.0", "v1", "v1.0.0"):
        with pytest.raises(SystemExit, match="no section"):
            notes(changelog, tag, URL)


def test_this_version_has_notes_and_their_links_lead_somewhere() -> None:
    text = notes((ROOT / "CHANGELOG.md").read_text("utf-8"), f"v{activator.__version__}", URL)
    assert len(text) < 125_000  # GitHub's limit
    assert "\n## " not in text
    paths = re.findall(r"\]\(([^)#]+)", text)
    assert paths
    for path in paths:
        assert (ROOT / path.removeprefix(f"{URL}/")).is_file()


# --- the image ---

ENGINE = """#!{python}
import sys
words = " ".join(sys.argv[1:])
answers = {answers}
for start, (code, output) in answers.items():
    if words.startswith(start):
        print(output)
        sys.exit(code)
"""


def engine(folder: Path, **changes: tuple[int, str]) -> str:
    """Write a program that answers as Docker would; `changes`: other answers, by how the command begins."""
    answers = {
        "run --rm": (0, "activator 1.2.3 (compiled)"),
        "run --detach": (0, "c0ffee"),
        "exec c0ffee python": (0, "200"),
        "inspect": (0, "0"),
        **changes,
    }
    path = folder / "engine"
    path.write_text(ENGINE.format(python=sys.executable, answers=answers), "utf-8")
    path.chmod(0o755)
    return str(path)


def test_an_image_that_serves_is_right(tmp_path: Path) -> None:
    assert check(engine(tmp_path), "image") == "activator 1.2.3 (compiled)"


@pytest.mark.parametrize(
    ("command", "answer", "problem"),
    [
        ("run --rm", (0, "activator 1.2.3 (plain Python)"), "expected a compiled activator"),
        ("run --rm", (125, "no such image"), "exit code 125"),
        ("exec c0ffee python", (1, "refused"), "did not answer a request: refused"),
        ("exec c0ffee activator", (3, "no admin port"), "exit code 3"),
        ("inspect", (0, "137"), "exit code 137 after SIGTERM"),
    ],
)
def test_an_image_that_does_not_is_refused(command: str, answer: tuple[int, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=problem):
        check(engine(tmp_path, **{command: answer}), "image", start_s=0.0)


def test_an_engine_is_used_if_it_works(tmp_path: Path) -> None:
    works = engine(tmp_path)
    assert usable([str(tmp_path / "none"), works]) == works
    assert usable([engine(tmp_path, info=(1, "no daemon"))]) == ""


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    name = base_of(text).removeprefix("docker.io/library/")
    stages = re.findall(r"^FROM (\S+)", text.replace("${PYTHON_VERSION}", "3.11"), re.MULTILINE)
    assert stages == [f"{name}${{PYTHON_DIGEST}}"] * 2


# --- the workflow ---


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def needed(job: str) -> set[str]:
    """Return all jobs that come before this one."""
    needs = JOBS[job].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*map(needed, direct))


@pytest.mark.parametrize("job", ["image", "publish", "site"])
def test_nothing_is_published_before_the_wheels_and_the_sdist(job: str) -> None:
    assert {"check", "wheels", "sdist"} <= needed(job)


def test_only_these_jobs_may_write() -> None:
    assert {name for name, job in JOBS.items() if "write" in job.get("permissions", {}).values()} == {
        "image",
        "publish",
        "site",
    }


def test_the_chart_is_checked_before_the_image_is_pushed() -> None:
    steps = JOBS["image"]["steps"]
    (packaged,) = (at for at, step in enumerate(steps) if "helm package" in step.get("run", ""))
    (pushed,) = (at for at, step in enumerate(steps) if step.get("id") == "push")
    (chart,) = (at for at, step in enumerate(steps) if "helm push" in step.get("run", ""))
    assert packaged < pushed < chart
    for word in ("release_files.py chart", "helm package build/chart/activator", "release_files.py image"):
        assert word in steps[packaged]["run"]


def test_image_and_chart_have_a_provenance_and_an_sbom() -> None:
    used = [(step["uses"].partition("@")[0], step["with"]) for step in JOBS["image"]["steps"] if "with" in step]
    proven = [given["subject-name"] for name, given in used if name == "actions/attest-build-provenance"]
    assert [name.rpartition("}}")[2] for name in proven] == ["/activator", "/charts/activator"]
    (build,) = (given for name, given in used if name == "docker/build-push-action")
    assert build["sbom"] is True  # of the image
    (sbom,) = (given for name, given in used if name == "actions/attest-sbom")
    assert sbom["subject-name"] == proven[1] and f"> {sbom['sbom-path']}" in commands("image")


def test_the_notes_of_the_release_are_those_of_the_changelog() -> None:
    text = commands("publish")
    assert "release_files.py notes" in text
    assert "--notes-file notes.md" in text and "--generate-notes" not in text
    steps = JOBS["publish"]["steps"]
    (written,) = (at for at, step in enumerate(steps) if "> notes.md" in step.get("run", ""))
    (uploaded,) = (at for at, step in enumerate(steps) if "pypi-publish" in step.get("uses", ""))
    assert written < uploaded  # a missing section publishes nothing
