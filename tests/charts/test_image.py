"""The Dockerfile, as far as that can be told without Docker: what it says, and (deep) what its commands do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from activator.cli import _parser, bound
from activator.config.model.file import Config
from tests.charts.chart_files import ROOT
from tests.charts.renditions import objects, of_kind

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, the first of which is its FROM."""
    found: list[list[Instruction]] = []
    for line in (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if word.isupper() and found:
            found[-1].append((word, rest))
    return found


def of(stage: list[Instruction], word: str) -> list[str]:
    return [rest for name, rest in stage if name == word]


BUILD, RUNTIME = stages()


def test_both_stages_have_the_same_python() -> None:
    """The environment of the first is used by the second."""
    assert of(BUILD, "FROM")[0].removesuffix(" AS build") == of(RUNTIME, "FROM")[0]


def test_the_base_may_be_pinned_and_no_processor_is_named() -> None:
    """The digest is an argument, empty by default; a pinned one must be that of the list of all platforms."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.findall(r"^ARG (.*)", text, re.MULTILINE) == ["PYTHON_VERSION=3.11", "PYTHON_DIGEST="]
    for stage in (BUILD, RUNTIME):
        (base,) = of(stage, "FROM")
        assert base.startswith("python:${PYTHON_VERSION}-slim-bookworm${PYTHON_DIGEST}")
    instructions = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert re.search(r"amd64|arm64|x86_64|aarch64|--platform", instructions) is None


def test_what_it_serves_can_be_reached_from_without() -> None:
    (environment,) = of(RUNTIME, "ENV")
    variables = dict(word.split("=", 1) for word in environment.split())
    (port,) = of(RUNTIME, "EXPOSE")
    assert bound(Config(), variables).listen == f"0.0.0.0:{port}"
    said = Config(listen=["127.0.0.1:9000"])
    assert bound(said, variables) is said
    assert bound(Config(), {}).listen == f"127.0.0.1:{port}"


def test_its_health_is_asked_by_its_own_command() -> None:
    (check,) = of(RUNTIME, "HEALTHCHECK")
    options, _, command = check.partition(" CMD ")
    words = json.loads(command)
    assert words[0] == "activator"
    parsed = _parser().parse_args(words[1:])
    assert parsed.admin == f"http://{Config().admin}"
    assert {word.partition("=")[0] for word in options.split()} == {"--interval", "--timeout", "--start-period"}


def test_it_has_every_feature() -> None:
    assert any('"${wheel}[all]"' in run for run in of(BUILD, "RUN"))


def test_the_last_stage_runs_nothing_and_is_nobody() -> None:
    assert of(RUNTIME, "RUN") == []
    assert of(RUNTIME, "COPY") == ["--from=build /opt/activator /opt/activator"]
    assert json.loads(of(RUNTIME, "ENTRYPOINT")[0]) == ["activator"]
    assert json.loads(of(RUNTIME, "CMD")[0]) == ["run"]


def test_the_chart_runs_it_as_the_user_that_it_has() -> None:
    context = of_kind(objects({}), "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert of(RUNTIME, "USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]


def test_what_is_copied_is_there_and_is_all_that_is_sent() -> None:
    copied = {name for rest in of(BUILD, "COPY") for name in rest.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    assert [line for line in ignored if line and line[0] not in "#!"] == [
        "*",
        "**/__pycache__",
        "**/*.so",
        "lb/.compiled",
    ]


@pytest.mark.deep
def test_the_commands_of_the_first_stage_give_a_compiled_activator(
    tmp_path: Path, need_program: Callable[[str], str]
) -> None:
    """Each RUN but the system's packages, with the image's folders below one of our own."""
    need_program("gcc")
    for name in ("src", "wheels", "opt"):
        (tmp_path / name).mkdir()
    for rest in of(BUILD, "COPY"):
        *names, _ = rest.split()
        for name in names:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.so", ".compiled")
                shutil.copytree(ROOT / name, tmp_path / "src" / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, tmp_path / "src" / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACTIVATOR_", "PYTHON"))}
    commands = [one for one in of(BUILD, "RUN") if not one.startswith("apt-get ")]
    assert len(commands) == 5
    for command in commands:
        moved = re.sub(r"(?<=[ ^])/(wheels|opt)/", rf"{tmp_path}/\1/", " " + command).strip()
        moved = moved.replace("--wheel-dir /wheels", f"--wheel-dir {tmp_path}/wheels")
        answer = subprocess.run(
            ["sh", "-ec", moved],
            cwd=tmp_path / "src",
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert answer.returncode == 0, f"{command}\n{answer.stdout[-2000:]}{answer.stderr[-2000:]}"
    installed = tmp_path / "opt" / "activator"
    assert not list(installed.glob("lib/*/site-packages/pip"))
    said = subprocess.run(
        [installed / "bin" / "activator", "version"],
        cwd=tmp_path / "opt",
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.strip().endswith("(compiled)")
