"""What local programs are started with: expanded paths, files of variables, programs that are there."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.config.file import parse
from activator.config.machine_checks import machine_problems
from activator.config.model.kinds import Secret
from activator.config.model.programs import Process
from activator.config.programs import (
    ENV_FILE_BYTES_MAX,
    check_program,
    directory_of,
    expand,
    parse_env,
    parse_processors,
    read_env_file,
    variables_of,
)
from activator.config.tree import read_tree
from activator.runtime.errors import ConfigError
from activator.runtime.secret_text import read_secret

ENVIRON = {"HOME": "/home/ann", "MODEL": "small", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("/srv/model", "/srv/model"),
        ("~", "/home/ann"),
        ("~/m", "/home/ann/m"),
        ("a~/m", "a~/m"),
        ("~root/x", os.path.expanduser("~root") + "/x"),
        ("/srv/$MODEL/x", "/srv/small/x"),
        ("/srv/${MODEL}x$EMPTY", "/srv/smallx"),
        ("/srv/$$MODEL", "/srv/$MODEL"),
        ("/srv/$-x$", "/srv/$-x$"),
        ("~/$MODEL", "/home/ann/small"),
    ],
)
def test_paths(text: str, expanded: str) -> None:
    assert expand(text, ENVIRON) == expanded


@pytest.mark.parametrize(
    ("text", "told"), [("/srv/$NO", "the variable NO is not set"), ("~nobody-here/x", "no such user")]
)
def test_paths_that_cannot_be_expanded(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand(text, ENVIRON)
    assert told in str(caught.value)
    assert text in str(caught.value)


FILE = """\
# a comment
A=1
export B=two words   # and a comment
  C = spaced
D='single $A # "x" \\n'
E="double \\"x\\" \\n \\$A \\q" # comment
F=
G=#nothing
H=a#b
I=a=b
"""


def test_a_file_of_variables() -> None:
    assert parse_env(FILE, "x") == {
        "A": "1",
        "B": "two words",
        "C": "spaced",
        "D": 'single $A # "x" \\n',
        "E": 'double "x" \n $A \\q',
        "F": "",
        "G": "",
        "H": "a#b",
        "I": "a=b",
    }
    assert parse_env(FILE.replace("\n", "\r\n"), "x") == parse_env(FILE, "x")


def test_mistakes_have_their_line_and_show_no_value() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_env('A=1\nsecret\nB=\'secret\n2C=secret\nD="secret" secret\nE=\0secret\n', ".env")
    problems = caught.value.problems
    assert [problem.partition(": ")[0] for problem in problems] == [".env:2", ".env:3", ".env:4", ".env:5", ".env:6"]
    assert "secret" not in str(caught.value)


@given(
    st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text("ab $#'\\t=\\\\\"!é", max_size=12))
)
def test_what_a_shell_quotes_is_read_as_the_shell_reads_it(variables: dict[str, str]) -> None:
    """Values without a single quote, in single quotes: as they are."""
    kept = {name: value.replace("'", "") for name, value in variables.items()}
    assert parse_env("\n".join(f"{name}='{value}'" for name, value in kept.items()), "x") == kept


@pytest.mark.parametrize(
    "text", ["A=1", "export A=1", "A='b c'", 'A="b c"', 'A="b \\"c\\" \\$d"', "A=b # c", "A=", "A='#'"]
)
def test_the_same_as_a_shell(text: str) -> None:
    said = subprocess.run(["sh", "-c", text + '\nprintf %s "$A"'], capture_output=True, text=True, check=True).stdout
    assert parse_env(text, "x") == {"A": said}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (ENV_FILE_BYTES_MAX + 1))
    (tmp_path / "bytes").write_bytes(b"A=1\nB=\xff\n")
    for name, told in (
        ("absent", "cannot be read: No such file"),
        ("pipe", "is not a file"),
        ("large", "has more than 262144 bytes"),
        ("bytes", "bytes:2: found bytes that are not UTF-8"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_env_file(str(tmp_path / name))
        assert told in str(caught.value), name
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfA=1\n")
    assert read_env_file(str(tmp_path / "bom")) == {"A": "1"}


def test_which_variable_wins(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=file\nB=file\nC=file\n")
    process = Process(["x"], environment={"C": Secret("configured")}, env_file=".env", directory="$HERE")
    environ = {"HERE": str(tmp_path), "A": "own", "D": "own"}
    directory = directory_of(process, environ)
    found = variables_of(process, directory, environ)
    assert found == {"HERE": str(tmp_path), "A": "file", "B": "file", "C": "configured", "D": "own"}


def test_the_activators_own_settings_are_not_passed_on(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ACTIVATOR_LIMITS__HEADER_BYTES=9\n")
    process = Process(["x"], environment={"ACTIVATOR_LOG__LEVEL": Secret("debug")}, env_file=".env")
    environ = {
        "ACTIVATOR_ADMIN__TOKEN": "hidden",
        "ACTIVATOR_PUSH__TOKEN": "hidden",
        "ACTIVATOR_SERVICE_HOST": "10.0.0.1",
    }
    assert variables_of(process, str(tmp_path), environ) == {
        "ACTIVATOR_SERVICE_HOST": "10.0.0.1",
        "ACTIVATOR_LIMITS__HEADER_BYTES": "9",
        "ACTIVATOR_LOG__LEVEL": "debug",
    }, "what was written for the program counts"


def test_programs(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="it is not executable; make it so"):
        check_program([str(program)], "", {})
    program.chmod(0o755)
    check_program([str(program)], "", {})
    check_program(["./tool"], str(tmp_path), {})  # as exec does: it begins at the working directory
    check_program(["tool"], "", {"PATH": str(tmp_path)})  # the program's own PATH counts
    with pytest.raises(ConfigError, match=r"there is no such program in the PATH; write \./tool"):
        check_program(["tool"], str(tmp_path), {"PATH": "/nowhere"})
    with pytest.raises(ConfigError, match="there is no such program in the PATH; check its spelling"):
        check_program(["tool"], "", {"PATH": "/nowhere"})
    with pytest.raises(ConfigError, match="no such file"):
        check_program(["./tool"], "", {})
    with pytest.raises(ConfigError, match="it is a directory"):
        check_program([str(tmp_path)], "", {})


def test_what_check_finds_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("nonsense\n")
    text = f"""\
revisions:
  - name: a
    hosts: [a]
    process:
      command: [no-such-program]
      directory: /no/such
  - name: b
    hosts: [b]
    process:
      directory: {tmp_path}
      env_file: .env
      command: [no-such-program]
  - {{name: c, hosts: [c], pods: ['h:1']}}
"""
    root = read_tree(text, "f", {}, [])
    assert root is not None
    problems = machine_problems(parse(text, "f", {}), root, {"PATH": "/bin"})
    told_of_directory = "cannot start in /no/such: no such directory; create it, or correct `directory`"
    told_of_program = "cannot start no-such-program: there is no such program in the PATH; "
    told_of_program += "check its spelling, or give its whole path"
    assert problems == [
        "f:6: revisions[0].process.directory: " + told_of_directory,
        f"f:11: revisions[1].process.env_file: {tmp_path}/.env:1: expected KEY=VALUE",
        "f:12: revisions[1].process.command: " + told_of_program,
    ]


def test_a_command_in_one_text_is_shown_as_a_list() -> None:
    text = """revisions: [{name: a, hosts: [a], process: {command: "python app.py '--x=a b' {port}"}}]"""
    with pytest.raises(ConfigError) as caught:
        parse(text, "f", {})
    (problem,) = caught.value.problems
    assert problem.endswith(""", expected a list: [python, app.py, --x=a b, '{port}']""")
    assert shlex.split("python app.py '--x=a b' {port}") == ["python", "app.py", "--x=a b", "{port}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-3,6", [0, 1, 2, 3, 6]),
        (" 1 - 2 , 1", [1, 2]),
        ("2-2", [2]),
        ("", None),
        ("a", None),
        ("3-1", None),
        ("-1", None),
        ("1-", None),
        ("1,,2", None),
        ("99999", None),
        ("\u0661", None),
    ],
)
def test_lists_of_processors(text: str, expected: list[int] | None) -> None:
    assert parse_processors(text) == expected


def test_a_variable_that_a_secret_was_read_from_is_not_passed_on() -> None:
    environ = {"TOKEN_OF_THIS_TEST": "hidden", "OTHER": "shown"}
    assert variables_of(Process(["x"]), "", environ) == environ
    assert read_secret("env:TOKEN_OF_THIS_TEST", "admin.token", environ) == "hidden"
    assert variables_of(Process(["x"]), "", environ) == {"OTHER": "shown"}
