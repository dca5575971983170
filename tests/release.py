"""Whether the versions of a release agree: `python -m tests.release [TAG]`; without a tag, that of the program.

The tag, the program, the chart, the image that the chart runs and the newest heading of the CHANGELOG have one version.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import yaml

import activator
from tests.sources import ROOT

CHANGELOG_LINES_MAX: Final = 150


def problems(tag: str) -> list[str]:
    """Return what does not have the version of the tag."""
    version = activator.__version__
    chart = yaml.safe_load((ROOT / "charts/activator/Chart.yaml").read_text("utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    heading = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    found = {
        "the tag": tag.removeprefix("v"),
        "`version` in charts/activator/Chart.yaml": str(chart["version"]),
        "`appVersion` in charts/activator/Chart.yaml": str(chart["appVersion"]),
        "the first heading of CHANGELOG.md": heading[1] if heading else "missing",
    }
    wrong = [f"{what} is {one}, expected {version}" for what, one in found.items() if one != version]
    if not tag.startswith("v"):
        wrong.append(f"the tag is {tag}, expected v{version}")
    lines = changelog.count("\n")
    if lines > CHANGELOG_LINES_MAX:
        wrong.append(f"CHANGELOG.md has {lines} lines, expected at most {CHANGELOG_LINES_MAX}")
    return wrong


if __name__ == "__main__":
    found = problems(sys.argv[1] if len(sys.argv) > 1 else f"v{activator.__version__}")
    if found:
        raise SystemExit("\n".join(f"release: {one}" for one in found))
    print(f"release: every version is {activator.__version__}")
