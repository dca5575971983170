"""The documentation leads somewhere: every link, every path of the code, and every page within two clicks."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest
import yaml

from tests.sources import ROOT

DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
CHART = ROOT / "charts/activator/README.md"
PAGES = [*OTHERS, CHART, *DOCS]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"```.*?```", re.DOTALL)
CODE_PATH = re.compile(r"`((?:activator|lb|tests|bench|charts|examples)/[\w./-]+)`")


def prose(page: Path) -> str:
    return CODE.sub("", page.read_text("utf-8"))


def links(page: Path) -> list[tuple[Path, str]]:
    """Where the page leads within the repository: a file and an anchor."""
    found = []
    for target in LINK.findall(prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            found.append((Path(os.path.normpath(page.parent / path)) if path else page, anchor))
    return found


def anchors(page: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    titles = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(target), f"{target} has no section {anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_of_the_code_exists(page: Path) -> None:
    for path in CODE_PATH.findall(prose(page)):
        assert list(ROOT.glob(path.rstrip("/."))), f"{path} does not exist"


def test_every_page_is_two_clicks_from_the_readme() -> None:
    first = {ROOT / "README.md", *(target for target, _ in links(ROOT / "README.md"))}
    second = {target for page in first if page.suffix == ".md" for target, _ in links(page)}
    assert [page for page in PAGES if page not in first | second] == []


def test_documents_are_named_by_links() -> None:
    """`docs/x.md` as a bare word cannot be followed."""
    bare = re.compile(r"(?<!\[)`(?:docs/)?(?:decisions/)?[a-z-]+\.md`")
    assert [(page.name, word) for page in PAGES for word in bare.findall(prose(page))] == []


def test_the_site_has_every_page() -> None:
    hooks = runpy.run_path(str(ROOT / "docs/site_hooks.py"))["PAGES"]
    assert {ROOT / source for source in hooks.values()} == {*OTHERS, CHART}
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- (?:.+: )?([\w/.-]+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted([*hooks, *(page.relative_to(ROOT / "docs").as_posix() for page in DOCS)])


def test_the_glossary_has_the_terms_of_the_code() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(terms) >= 30
    assert len(terms) == len(set(terms))


def test_the_hooks_before_a_commit_are_the_linters_of_the_makefile() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    entries = " ".join(hook["entry"] for hook in local["hooks"])
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert f".venv/bin/{tool}" in entries
        assert tool in (ROOT / "Makefile").read_text("utf-8")
