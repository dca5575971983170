"""For mkdocs: pages from files outside docs/, and links that lead there.

The repository is written to be read in place, so README.md links to docs/x.md and docs/x.md to ../charts/…. On the site
these files are pages of their own, or, if they are no pages (a source file), the link becomes its text. A link to a
file that does not exist stays as it is, and `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Files outside docs/, by the page that they become.
PAGES: Final = {
    "index.md": "README.md",
    "chart.md": "charts/activator/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    return _LINK.sub(lambda link: relinked(link, here), markdown)


def relinked(link: re.Match[str], page: str) -> str:
    """Return the link as the site needs it, in the page `page`."""
    source = PAGES.get(page, f"docs/{page}")
    target = os.path.normpath(os.path.join(os.path.dirname(source), link["target"]))
    page_of = {source: page for page, source in PAGES.items()}
    if target in page_of:
        wanted = page_of[target]
    elif target.startswith("docs/"):
        wanted = target.removeprefix("docs/")
    elif (ROOT / target).exists():
        return link["text"]
    else:
        return link[0]
    return f"[{link['text']}]({os.path.relpath(wanted, os.path.dirname(page) or '.')}{link['anchor'] or ''})"
