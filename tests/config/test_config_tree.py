"""Text and environment as a tree: positions, duplicates, what is no tree, and where variables land."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from activator.config.tree import ITEMS_MAX, LOADER, RESERVED, Item, read_tree


def plain(item: Item) -> object:
    if item.entries is not None:
        return {key: plain(one) for key, one in item.entries.items()}
    if item.elements is not None:
        return [plain(one) for one in item.elements]
    return item.text


def tree_of(text: str, **environ: str) -> object:
    problems: list[str] = []
    root = read_tree(text, "a", environ, problems)
    assert problems == []
    assert root is not None
    return plain(root)


def problems_of(text: str, items_max: int = ITEMS_MAX, loader: Any = LOADER, **environ: str) -> list[str]:
    problems: list[str] = []
    read_tree(text, "a", environ, problems, items_max, loader)
    return problems


def test_scalars_are_text_as_written() -> None:
    assert tree_of("{a: no, b: 012, c: 1:30, d: ~, e: '~', f: 2001-01-01}") == {
        "a": "no",
        "b": "012",
        "c": "1:30",
        "d": None,
        "e": "~",
        "f": "2001-01-01",
    }


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert tree_of(text) == {}


def test_items_know_their_lines() -> None:
    root = read_tree("a: 1\nb:\n  - x\n  - {c: 2}\n", "f", {}, [])
    assert root is not None
    assert root.entries is not None
    elements = root.entries["b"].elements
    assert elements is not None
    assert [one.where for one in elements] == ["f:3", "f:4"]
    assert root.entries["b"].key_where == "f:2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", 'a:3: found the key "a" again, expected only the one in line 1'),
        ("? [x]\n: 1", "a:1: found a list as a key, expected a word"),
        ("a: [", "a:2: found text that is not YAML"),
        ("hosts: *.example", "a value that begins with * needs quotes"),
        ("a: 1\n---\nb: 2", "a:2: found a second document, expected one"),
        ("a: \x00", "a:1: found text that is not YAML"),
        ("\ud800", "a:1: found text that is not YAML"),
        ("&a [*a]", "a:1: found text that is not YAML (the alias *a has no anchor before it)"),
        ("[" * 60 + "]" * 60, "a:1: found too many values in values"),
    ],
)
def test_what_is_no_tree(text: str, problem: str) -> None:
    (told,) = problems_of(text)
    assert problem in told


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (told,) = problems_of("\n".join(lines), items_max=10_000)
    assert "too many values" in told


@pytest.mark.parametrize("loader", ["SafeLoader", "CSafeLoader"])
@pytest.mark.parametrize("text", ["[" * 1_000, "{a: " * 1_000, "- " * 1_000, "[" * 1_000 + "]" * 1_000])
def test_any_depth_is_answered(loader: str, text: str) -> None:
    (told,) = problems_of(text, loader=getattr(yaml, loader, yaml.SafeLoader))
    assert told.startswith("a:")


@pytest.mark.parametrize(
    ("environ", "tree"),
    [
        pytest.param({"ACTIVATOR_ADMIN": "x"}, {"admin": "x", "list": ["0", "1"], "group": {"key": "k"}}, id="a key"),
        pytest.param({"ACTIVATOR_ADMIN": ""}, {"admin": "", "list": ["0", "1"], "group": {"key": "k"}}, id="empty"),
        pytest.param({"ACTIVATOR_GROUP__KEY": "x"}, {"list": ["0", "1"], "group": {"key": "x"}}, id="nested"),
        pytest.param(
            {"ACTIVATOR_NEW__A__B": "x"},
            {"list": ["0", "1"], "group": {"key": "k"}, "new": {"a": {"b": "x"}}},
            id="new",
        ),
        pytest.param({"ACTIVATOR_LIST__1": "x"}, {"list": ["0", "x"], "group": {"key": "k"}}, id="a place in a list"),
        pytest.param(
            {"ACTIVATOR_LIST__2__A": "x"}, {"list": ["0", "1", {"a": "x"}], "group": {"key": "k"}}, id="one more"
        ),
        pytest.param({"ACTIVATOR_LIST": "[a, b]"}, {"list": ["a", "b"], "group": {"key": "k"}}, id="a list as YAML"),
        pytest.param(
            {"ACTIVATOR_ADMIN": "[::1]:80"}, {"admin": "[::1]:80", "list": ["0", "1"], "group": {"key": "k"}}, id="IPv6"
        ),
        pytest.param(
            {"ACTIVATOR_GROUP__ENVIRONMENT__PATH": "/bin"},
            {"list": ["0", "1"], "group": {"key": "k", "environment": {"PATH": "/bin"}}},
            id="variables of a process keep their case",
        ),
    ],
)
def test_the_environment_is_laid_over_the_file(environ: dict[str, str], tree: object) -> None:
    assert tree_of("{list: ['0', '1'], group: {key: k}}", **environ) == tree


def test_a_place_beyond_the_list_is_told() -> None:
    (told,) = problems_of("list: [a]", ACTIVATOR_LIST__3="x")
    assert told == 'ACTIVATOR_LIST__3: found "3", expected a place in the list, from 0 to 1'


@pytest.mark.parametrize(
    "variable",
    [
        *sorted(RESERVED),
        "ACTIVATOR_SERVICE_HOST",
        "ACTIVATOR_SERVICE_PORT",
        "ACTIVATOR_SERVICE_PORT_HTTP",
        "ACTIVATOR_PORT",
        "ACTIVATOR_PORT_80_TCP",
        "ACTIVATOR_PORT_80_TCP_ADDR",
        "ACTIVATOR_SERVICE_SERVICE_HOST",
        "ACTIVATOR_ADMIN_PORT_8008_TCP_PROTO",
        "ACTIVATOR_A__B_PORT",  # a service a--b
        "PATH",
    ],
)
def test_variables_that_are_no_keys(variable: str) -> None:
    assert tree_of("", **{variable: "x"}) == {}


def test_a_key_that_is_called_port_is_no_variable_of_a_service() -> None:
    assert tree_of("list: [{process: {port: 1}}]", ACTIVATOR_LIST__0__PROCESS__PORT="2") == {
        "list": [{"process": {"port": "2"}}]
    }


def test_an_alias_is_a_copy() -> None:
    text = "{a: &x {k: [1, 2]}, b: *x}"
    assert tree_of(text, ACTIVATOR_B__K__0="9") == {"a": {"k": ["1", "2"]}, "b": {"k": ["9", "2"]}}
