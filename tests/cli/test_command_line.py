"""What a user types: suggestions, help with examples, files to begin with, and completion in a shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from activator.cli import SHELLS, _parser, main
from activator.command_line import actions_of
from activator.config.file import parse
from activator.config.manifest import check_manifest
from activator.starters import SITUATIONS, file_for, starter
from lb.registry import names

USAGE = 2
HELP_COLUMNS = 90


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code, and what was written to standard output and to standard error."""
    try:
        code = main(list(words))
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], 'activator: there is no command "stauts": did you mean "status"? ('),
        (
            ["reload"],
            'activator: there is no command "reload": `kill -HUP PID` makes an activator read its file again, ',
        ),
        (
            ["run", "--"],
            "activator: no command after `--`: add the program to start, as in `activator run -- python3 -m",
        ),
        (["member-ended", "x"], "activator member-ended: argument SEAT: x: expected the number of a seat; "),
        (["xyzzy"], 'activator: there is no command "xyzzy" (run, demo, '),
        (["status", "--jsn"], 'activator status: unknown option "--jsn": did you mean "--json"?'),
        (["init", "modles"], 'activator init: there is no situation "modles": did you mean "models"?'),
        (["demo", "foo"], 'activator demo: unexpected argument "foo"'),
        (
            ["run", "python3", "app.py"],
            'activator run: unexpected argument "python3": put the command to start after `--`',
        ),
        (["logs"], "activator logs: the following arguments are required: NAME; `activator logs --help`"),
        (["logs", "-n", "some", "app"], "activator logs: argument -n/--lines: some: expected a number of lines; "),
    ],
)
def test_a_typing_mistake_is_one_line_that_says_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = typed(capsys, *words)
    assert (code, out, err.count("\n")) == (USAGE, "", 1)
    assert err.startswith(said)


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_the_version(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, _ = typed(capsys, *words)
    assert code == 0 and re.fullmatch(r"activator \d+\.\d+\.\d+ \((compiled|plain Python)\)\n", out)


def test_each_command_has_examples_that_its_parser_takes(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = typed(capsys, "--help")
    commands = re.findall(r"^    ([a-z-]+)", out, re.MULTILINE)
    assert {"run", "status", "init", "completion"} <= set(commands)
    for command in commands:
        _, out, _ = typed(capsys, command, "--help")
        assert f"activator {command}" in out.partition("examples:")[2], command
        assert max(map(len, out.splitlines())) <= HELP_COLUMNS, command
        assert typed(capsys, "help", command) == (0, out, ""), command


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(capsys, "help") == typed(capsys, "--help")
    code, _, err = typed(capsys, "help", "stauts")
    assert code == USAGE and err.startswith('activator help: there is no command "stauts": did you mean "status"? (')


def test_every_argument_has_a_description() -> None:
    parser = _parser()
    assert [action.dest for action in actions_of(parser) if not action.help and action.metavar != "COMMAND"] == []


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_file_to_begin_with_is_valid_and_commented(situation: str) -> None:
    text = starter(situation)
    assert text.startswith("# ")
    assert "docs/" not in text, "an installed activator has no docs"
    if situation == "cluster":
        found = check_manifest(text, "f.yaml", set(names()))
        assert found is not None and (found.problems, found.activations) == ([], 1)
    else:
        assert parse(text, "f.yaml", {}, set(names())).revisions


def test_a_file_to_begin_with_replaces_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for situation in ("program", "cluster"):
        code, out, _ = typed(capsys, "init", situation)
        path = Path(file_for(situation))
        assert code == 0 and f"wrote {path}" in out and path.read_text("utf-8") == starter(situation)
    code, _, err = typed(capsys, "init", "models")
    assert (code, err) == (
        3,
        "activator: activator.yaml: the file exists; replace it with --force, or name another with -o\n",
    )
    assert Path("activator.yaml").read_text("utf-8") == starter("program")
    assert typed(capsys, "init", "models", "--force")[0] == 0
    assert Path("activator.yaml").read_text("utf-8") == starter("models")
    assert typed(capsys, "init", "backends", "-o", "-")[1] == starter("backends")
    assert typed(capsys, "init", "program", "-o", "")[0] == 3
    _, out, _ = typed(capsys, "init", "program", "-o", "my site.yaml")
    advice = "activator check 'my site.yaml' && activator run -c 'my site.yaml'\n"
    assert out.endswith(f"wrote my site.yaml; edit it, then: {advice}")
    assert f"#   {advice}" in Path("my site.yaml").read_text("utf-8")
    assert "activator.yaml" not in Path("my site.yaml").read_text("utf-8")
    code, _, err = typed(capsys, "init", "program", "-o", "missing/f.yaml")
    assert (code, err) == (3, "activator: missing/f.yaml: cannot be written: No such file or directory\n")


def test_the_models_are_valid_where_their_program_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, server = str(tmp_path / "f.yaml"), tmp_path / "llama-server"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed(capsys, "init", "models", "-o", path)[0] == 0
    code, _, err = typed(capsys, "check", path)
    assert code == 1 and "llama-server" in err
    assert "The commands need llama-server of llama.cpp on the PATH" in Path(path).read_text("utf-8")
    assert typed(capsys, "init", "cluster", "-o", path, "--force")[0] == 0
    assert typed(capsys, "check", path) == (0, f"{path}: fine, 1 Activation, 0 other objects\n", "")
    assert typed(capsys, "init", "models", "-o", path, "--force")[0] == 0
    server.write_text("#!/bin/sh\n", "utf-8")
    server.chmod(0o755)
    assert typed(capsys, "check", path) == (0, f"{path}: fine, 2 revisions\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_knows_the_commands_and_is_valid(
    capsys: pytest.CaptureFixture[str], shell: str, tmp_path: Path
) -> None:
    code, out, _ = typed(capsys, "completion", shell)
    assert code == 0
    for word in ("install-service", "member-ended", "models"):
        assert word in out
    if shutil.which(shell) is not None:
        script = tmp_path / "script"
        script.write_text(out, "utf-8")
        subprocess.run([shell, "-n", str(script)], check=True, timeout=30.0)


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    _, out, _ = typed(capsys, "completion", "bash")
    ask = """
        COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
        {function} activator "${{COMP_WORDS[-1]}}" ""; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    function = re.search(r"complete .*-F (\w+) activator", out)
    assert function is not None
    for words, wanted in (("activator sta", "status"), ("activator status --js", "--json")):
        script = out + ask.format(words=words, last=len(words.split()) - 1, function=function[1])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=30.0)
        assert wanted in done.stdout.split()
