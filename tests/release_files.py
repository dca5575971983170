"""What a release publishes and no build makes: the chart with the place of its image, its SBOM, the release notes.

    python -I tests/release_files.py chart REGISTRY FOLDER     copies the chart to FOLDER, to run REGISTRY/activator
    python -I tests/release_files.py sbom REGISTRY DIGEST      prints the chart's SBOM; DIGEST is that of the image
    python -I tests/release_files.py notes TAG URL             prints the section of the tag in CHANGELOG.md
    python -I tests/release_files.py image FILE REGISTRY        fails unless the manifests in FILE run that image

It uses the standard library only, so that jobs of the release need no environment.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "charts/activator"
REPOSITORY: Final = re.compile(r"^(image:\n(?:  .*\n)*?  repository: )activator$", re.MULTILINE)
REGISTRY: Final = re.compile(
    r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*"
)  # HOST[:PORT][/OWNER], as references of images have it
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")  # a link within the repository
BLOCK: Final = re.compile(r"\s*(- |#)")  # a list item or a heading: it begins a line of its own


def copy_chart(registry: str, folder: Path) -> None:
    """Copy the chart to `folder`/activator, its `image.repository` in `registry`."""
    if not REGISTRY.fullmatch(registry):
        raise SystemExit(f"the registry is {registry!r}, expected HOST/OWNER in lower case (the variable REGISTRY)")
    target = folder / "activator"
    shutil.copytree(CHART, target)
    values = target / "values.yaml"
    text, count = REPOSITORY.subn(rf"\g<1>{registry}/activator", values.read_text("utf-8"))
    if count != 1:
        raise SystemExit("charts/activator/values.yaml: `image.repository` is not `activator`")
    values.write_text(text, "utf-8")


def chart_version() -> str:
    found = re.search(r"^version: (\S+)", (CHART / "Chart.yaml").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit("charts/activator/Chart.yaml has no version")
    return found[1]


def chart_sbom(registry: str, digest: str) -> str:
    """Return the CycloneDX document of the chart, which consists of templates and one image."""
    if not DIGEST.fullmatch(digest):
        raise SystemExit(f"the digest is {digest!r}, expected sha256: and 64 digits")
    version = chart_version()
    chart = f"pkg:oci/activator@{version}?repository_url={registry}/charts/activator"
    image = f"pkg:oci/activator@{digest}?repository_url={registry}/activator&tag={version}"
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, chart + image)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "activator",
                "version": version,
                "description": "Helm chart",
                "bom-ref": "chart",
            }
        },
        "components": [
            {
                "type": "container",
                "name": f"{registry}/activator",
                "version": version,
                "purl": image,
                "bom-ref": "image",
            }
        ],
        "dependencies": [{"ref": "chart", "dependsOn": ["image"]}, {"ref": "image", "dependsOn": []}],
    }
    return json.dumps(document, indent=2)


def notes(changelog: str, tag: str, url: str) -> str:
    """Return the section of `tag`, one line for each paragraph and list item; links lead to files below `url`.

    GitHub breaks the lines of release notes where the text does, and does not follow relative links.
    """
    version = tag.removeprefix("v")
    found = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section {version}")
    lines: list[str] = []
    for line in found[1].strip().splitlines():
        if line and lines and lines[-1] and not BLOCK.match(line) and not lines[-1].startswith("#"):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return LINK.sub(rf"]({url}/\1)", "\n".join(lines))


def check_image(manifests: str, registry: str) -> None:
    """Check that all containers of the rendered chart run the released image in `registry`."""
    image = f"{registry}/activator:{chart_version()}"
    used = re.findall(r"^ +(?:- )?image: *[\"']?([^\"'\s]+)", manifests, re.MULTILINE)
    if set(used) != {image}:
        raise SystemExit(f"the chart runs {sorted(set(used)) or 'no image'}, expected {image}")


def main() -> None:
    commands: dict[str, Callable[[str, str], str | None]] = {
        "chart": lambda registry, folder: copy_chart(registry, Path(folder)),
        "sbom": chart_sbom,
        "notes": lambda tag, url: notes((ROOT / "CHANGELOG.md").read_text("utf-8"), tag, url),
        "image": lambda file, registry: check_image(Path(file).read_text("utf-8"), registry),
    }
    if len(sys.argv) != 4 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    text = commands[sys.argv[1]](*sys.argv[2:])
    if text is not None:
        print(text)


if __name__ == "__main__":
    main()
