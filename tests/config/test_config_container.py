"""`container` and `containers`: what is taken, and the one line that a mistake gets."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from activator.config.engines import engine_path, socket_path
from activator.config.file import parse, resolve
from activator.config.machine_checks import machine_problems
from activator.config.programs import split_volume, volumes_of
from activator.config.tree import read_tree
from activator.control_plane.scaling.rule import process_rule
from activator.runtime.errors import ConfigError
from tests.sources import ROOT


def problems_of(container: str, more: str = "", above: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(f"{above}\nrevisions: [{{name: a, hosts: [a], container: {container}{more}}}]", "f", {})
    return caught.value.problems


@pytest.mark.parametrize(
    ("container", "more", "problem"),
    [
        ("{}", "", "set `image`, or `existing`"),
        ("{image: x, existing: y}", "", "set `image`, or `existing`"),
        ("{existing: y, volumes: [a:/b]}", "", "`volumes` has no effect with `existing`"),
        ("{existing: y, max_scale: 2}", "", "there cannot be 2 copies with `existing`, one container"),
        ("{image: x, name: n}", ", scaling: {max: 3}", "there cannot be 3 copies with `name`, one container"),
        ("{image: x, network: host, min_scale: 2}", "", "with `network: host`"),
        ("{image: x, pull: sometimes}", "", "missing or never or always"),
        ("{image: x, volumes: [a]}", "", "SOURCE:/TARGET"),
        ("{image: x, devices: [dri]}", "", "a path such as /dev/dri"),
        ("{image: x, memory: 1KiB}", "", "at least 6MiB"),
        ("{image: x, stop: {signal: TERM}}", "", "a name such as SIGINT"),
        ("{image: x, engine: 'tcp://1.2.3.4:2375'}", "", "a unix socket such as unix:/var/run/docker.sock"),
        ("{image: x, address: public}", "", "published or own"),
        ("{image: x, labels: {activator.x: y}}", "", "the activator's own"),
        ("{image: x, environment: {'a=b': c}}", "", "names of variables"),
        ("{image: x, name: 'a b'}", "", "letters, digits, `.`, `_` and `-`, a letter or digit first"),
        ("{image: x, min_scale: 3, max_scale: 2}", "", "more than `max_scale: 2`"),
        ("{image: x, readiness: {log: '['}}", "", "a regular expression"),
        ("{image: x}", ", pods: ['h:1']", "set `pods` or `container`, not both"),
        ("{image: x}", ", process: {command: [x]}", "set `container` or `process`, not both"),
        ("{image: x}", ", probe: {path: /x}", "use `container.readiness`"),
        ("{image: x, idle: 1m}", ", scaling: {scale_to_zero_grace: 2m}", "`container.idle` and"),
        ("{image: x, command: [serve, '{socket}']}", "", "has no {socket}: use {port}"),
        ("{image: x, readiness: {command: [ask, '{socket}']}}", "", "has no {socket}: use {port}"),
        ("{image: x, sleep: {command: [z], wake: [w, '{socket}']}}", "", "has no {socket}: use {port}"),
        ("{image: x, hooks: {before_stop: [{command: [w, '{socket}']}]}}", "", "has no {socket}: use {port}"),
        (
            "{image: x, hooks: {before_stop: [{http_post: /z}]}}",
            ", proxy_protocol: v1",
            "`http_post` of `hooks` is sent without a PROXY protocol header: use `command`",
        ),
        ("{image: x, port: 9000-9010}", "", "expected a whole number from 1 to 65535"),
        ("{image: x, lifetime: request}", "", 'unknown key "lifetime"'),
        ("{image: x, socket: true}", "", 'unknown key "socket"'),
        (
            "{image: x, sleep: {http_post: /z, wake: /w}}",
            ", proxy_protocol: v1",
            "`sleep.http_post` is sent without a PROXY protocol header",
        ),
        ("{image: x, gpus: 1}", "", "container.gpus: list the GPUs of this machine"),
    ],
)
def test_a_mistake_is_one_line(container: str, more: str, problem: str) -> None:
    problems = problems_of(container, more)
    assert len(problems) == 1, problems
    assert problem in problems[0] and problems[0].startswith("f:2: revisions[0]")


def test_two_revisions_cannot_have_one_container() -> None:
    with pytest.raises(ConfigError, match="is the container of"):
        parse(
            "revisions: [{name: a, hosts: [a], container: {existing: x}},"
            " {name: b, hosts: [b], container: {existing: x}}]",
            "f",
            {},
        )


def test_a_container_is_scaled_as_a_process() -> None:
    config = parse(
        "revisions: [{name: a, hosts: [a], container: {image: x, max_scale: 3, idle: 5s}, container_concurrency: 2},"
        " {name: b, hosts: [b], container: {existing: y}, container_concurrency: 2}]",
        "f",
        {},
    )
    rules = [process_rule(one, 8) for one in config.revisions]
    assert [(rule.max, rule.target, rule.scale_to_zero_grace_s) for rule in rules] == [(3, 2.0, 5.0), (1, 2.0, 60.0)]
    assert [spec.balancing.max_scale for spec in resolve(config, lambda _: "random", 8)] == [3, 1]


def test_which_engine_there_is(tmp_path: Path) -> None:
    assert socket_path("unix:/a") == socket_path("unix:///a") == "/a"
    assert [socket_path(one) for one in ("unix:a", "tcp://a", "/a", "unix://a")] == [None] * 4
    assert engine_path("unix:/a", {"DOCKER_HOST": "unix:///b"}) == "/a"
    assert engine_path("", {"DOCKER_HOST": "unix:///b", "CONTAINER_HOST": "unix:///c"}) == "/b"
    assert engine_path("", {"CONTAINER_HOST": "unix:///c"}) == "/c"
    with pytest.raises(ConfigError, match="DOCKER_HOST: ssh://me: only unix sockets"):
        engine_path("", {"DOCKER_HOST": "ssh://me"})
    if not os.path.exists("/var/run/docker.sock") and not os.path.exists("/run/podman/podman.sock"):
        (tmp_path / "podman").mkdir()
        (tmp_path / "podman" / "podman.sock").touch()
        assert engine_path("", {"XDG_RUNTIME_DIR": str(tmp_path)}) == f"{tmp_path}/podman/podman.sock"


def test_volumes_are_paths_or_names(tmp_path: Path) -> None:
    text = "[{name: a, hosts: [a], container: {image: x, volumes: ['$D/m:/m:ro', cache:/c]}}]"
    container = parse(f"revisions: {text}", "f", {}).revisions[0].container
    assert container is not None
    (tmp_path / "m").mkdir()
    assert volumes_of(container, {"D": str(tmp_path)}) == [f"{tmp_path}/m:/m:ro", "cache:/c"]
    with pytest.raises(ConfigError, match="there is no /nowhere/m"):
        volumes_of(container, {"D": "/nowhere"})
    assert [split_volume(one) for one in ("a", "a:b", ":/b", "a:/b:c:d")] == [None] * 4


def test_the_examples_of_the_page_are_fine() -> None:
    page = (ROOT / "docs/containers.md").read_text("utf-8")
    examples = re.findall(r"^```yaml\n(revisions:.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        assert parse(example, "docs/containers.md", {}).revisions[0].container is not None


def test_check_tells_an_engine_that_is_away_once(tmp_path: Path) -> None:
    text = (
        f"containers: {{engine: 'unix:{tmp_path}/none.sock'}}\n"
        "revisions: [{name: a, hosts: [a], container: {image: x}}, {name: b, hosts: [b], container: {existing: x}}]"
    )
    root = read_tree(text, "f", {}, [])
    assert root is not None
    problems = machine_problems(parse(text, "f", {}), root, {})
    assert len(problems) == 1
    assert "none.sock cannot be reached: No such file or directory" in problems[0]
