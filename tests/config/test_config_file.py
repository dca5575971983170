"""The whole way: text and environment to a Config, its mistakes, and the defaults that depend on other keys."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.config import file as config_file
from activator.config.model.file import Config
from activator.config.model.pods import Pod
from activator.config.specs import RevisionSpec, resolve_program
from activator.runtime.errors import ConfigError

POLICIES = {"random", "choice-of-2", "round-robin", "least-connections", "first-available"}

WHOLE = """\
listen: [127.0.0.1:8012, "[::1]:8012"]
admin: 127.0.0.1:8008
workers: 1
trailing_fragmentation_threshold: 0.25
access_log: false
limits: {header_bytes: 16KiB, headers: 50, body_bytes: 0, held_bytes: 256MiB, connections: 10_000}
revisions:
  - name: hello
    hosts: [hello.localhost]
    container_concurrency: 10
    policy: round-robin
    max_scale: 100
    trailing_fragmentation_threshold: 0.75
    queue: {depth: 9, timeout: 2m, discipline: fifo}
    timeouts: {total: 300s, first_byte: 500ms, idle: 0, connect: 1.5}
    pods: [127.0.0.1:9001, pod.example:9002]
  - name: app
    namespace: other
    hosts: ["*"]
    process:
      command: [python3, -m, http.server, "{port}", 8000]
      readiness: {http_get: /, interval: 100ms}
      max_scale: 4
      idle: 1h
      environment: {DEBUG: no, LEVEL: 3}
"""

SMALLEST = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1']}]"


def parse(text: str, **environ: str) -> Config:
    return config_file.parse(text, "a.yaml", environ, POLICIES)


def problems_of(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, **environ)
    return caught.value.problems


def resolve(config: Config, processors: int | None = 8) -> list[RevisionSpec]:
    return config_file.resolve(config, lambda limit: f"default for {limit}", processors)


def test_every_key_is_read() -> None:
    config = parse(WHOLE)
    assert config.listen == ["127.0.0.1:8012", "[::1]:8012"]
    assert config.limits.header_bytes == 16 * 1024
    assert config.limits.connections == 10_000
    hello, app = config.revisions
    assert hello.queue.timeout == 120.0
    assert hello.timeouts.first_byte == 0.5
    assert hello.timeouts.connect == 1.5
    assert hello.process is None
    assert app.process is not None
    assert app.process.command == ["python3", "-m", "http.server", "{port}", "8000"]
    assert app.process.idle == 3600.0
    assert app.process.environment == {"DEBUG": "no", "LEVEL": "3"}  # text is what was written, not a YAML boolean


def test_keys_that_are_absent_have_the_defaults_of_config_py() -> None:
    config = parse(SMALLEST)
    assert msgspec.structs.replace(config, revisions=[]) == Config()


def test_resolved_revisions() -> None:
    hello, app = resolve(parse(WHOLE))
    assert (hello.key, app.key) == ("default/hello", "other/app")
    assert (hello.balancing.policy, app.balancing.policy) == ("round-robin", "default for 0")
    assert (hello.balancing.max_scale, app.balancing.max_scale) == (100, 4)
    thresholds = [one.balancing.trailing_fragmentation_threshold for one in (hello, app)]
    assert thresholds == [0.75, 0.25]
    assert (hello.queue.timeout_s, app.queue.timeout_s) == (120.0, None)


def test_a_resolved_revision_crosses_a_socket() -> None:
    """Its values are plain: a `Duration` among them could not be encoded."""
    for spec in resolve(parse(WHOLE)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=RevisionSpec) == spec


def test_max_scale_is_the_number_of_fixed_pods_where_it_is_not_set() -> None:
    config = parse("revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1', '[::1]:2', '127.0.0.1:3']}]")
    assert resolve(config)[0].balancing.max_scale == 3


@pytest.mark.parametrize(
    ("revision", "process", "max_scale", "target"),
    [
        pytest.param("", "", 1, 100, id="no limit: one process serves all"),
        pytest.param("container_concurrency: 10,", "", 8, 10, id="a limit: one per processor"),
        pytest.param("container_concurrency: 10,", ", max_scale: 3, target_concurrency: 5", 3, 5, id="said"),
        pytest.param("", ", min_scale: 2", 2, 100, id="never less than min_scale"),
    ],
)
def test_defaults_of_a_process(revision: str, process: str, max_scale: int, target: int) -> None:
    config = parse(f"revisions: [{{name: a, hosts: [a], {revision} process: {{command: [x]{process}}}}}]")
    settled = resolve_program(config.revisions[0], processors=8)
    assert (settled.max_scale, settled.target_concurrency) == (max_scale, target)
    assert resolve(config)[0].balancing.max_scale == max_scale


def test_hosts_are_resolved_to_what_is_compared() -> None:
    config = parse("revisions: [{name: a, hosts: [A.Example., '*.B.example', bücher.example], pods: ['h:1']}]")
    assert resolve(config)[0].routing.hosts == ("a.example", "*.b.example", "xn--bcher-kva.example")


def test_the_environment_is_laid_over_a_configuration_that_no_file_gave() -> None:
    config = parse(WHOLE)
    assert config_file.overlay(config, {}) == config
    laid_over = config_file.overlay(
        config, {"ACTIVATOR_LIMITS__HEADERS": "7", "ACTIVATOR_REVISIONS__0__POLICY": "mine"}
    )
    assert (laid_over.limits.headers, laid_over.revisions[0].policy) == (7, "mine")
    with pytest.raises(ConfigError, match=r'^ACTIVATOR_ADMIN: admin: found "x", expected host:port'):
        config_file.overlay(config, {"ACTIVATOR_ADMIN": "x"})


def test_every_mistake_is_told_in_the_order_of_the_file() -> None:
    text = """\
workers: 0
treshold: 3
limits: {header_bytes: 32KB, body_byte: 1}
limits: {}
revisions:
  - name: a
    hosts: [a:80]
    polcy: x
    pods: [nowhere]
"""
    keys = ", ".join(sorted(Config.__struct_fields__))
    address = "expected host:port such as 127.0.0.1:8080 or [::1]:8080, or unix:/path"
    assert problems_of(text, ACTIVATOR_FOO="1") == [
        'a.yaml:1: workers: found "0", expected a whole number from 1 to 256, or auto',
        f'a.yaml:2: found the unknown key "treshold", expected one of {keys}',
        'a.yaml:3: limits.header_bytes: found "32KB", expected a size such as 32KiB or 1MiB: write 32KiB',
        'a.yaml:3: limits: found the unknown key "body_byte", expected "body_bytes"',
        'a.yaml:4: found the key "limits" again, expected only the one in line 3',
        'a.yaml:7: revisions[0].hosts[0]: found "a:80", expected a host name without a port, *.suffix or *',
        'a.yaml:8: revisions[0]: found the unknown key "polcy", expected "policy"',
        f'a.yaml:9: revisions[0].pods[0]: found "nowhere", {address}',
        f'ACTIVATOR_FOO: found the unknown key "foo", expected one of {keys}',
    ]


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "activator.yaml"
    path.write_text(SMALLEST, "utf-8")
    assert config_file.load(str(path), {}, POLICIES) == parse(SMALLEST)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "cannot be read: No such file or directory", id="absent"),
        pytest.param(b"listen: \xff\xfe", "found bytes that are not UTF-8", id="not UTF-8"),
        pytest.param(b"listen: [", "not YAML", id="not YAML"),
    ],
)
def test_load_tells_what_is_wrong_with_a_file(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "activator.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        config_file.load(str(path), {})
    assert caught.value.problems[0].startswith(f"{path}:")


def test_load_refuses_a_path_that_is_none() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config_file.load("a\0b", {})


WORDS = st.sampled_from(
    [
        *("listen", "admin", "workers", "limits", "revisions", "name", "hosts", "pods", "process", "command", "queue"),
        *("timeout", "environment", "readiness", "http_get", "kubernetes", "access_log", "min_scale", "max_scale"),
        *("127.0.0.1:80", "[::1]:80", "*", "*.a", "5s", "1KiB", "-1", "0", "1e400", "null", "true", "~", "", "<<", "é"),
    ]
)
TREES = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)


def answers(text: str, environ: dict[str, str]) -> None:
    """Any text gives a Config, which then resolves, or a ConfigError with a line per problem; nothing else."""
    try:
        config = config_file.parse(text, "a.yaml", environ, POLICIES)
    except ConfigError as error:
        problems = error.problems
    else:
        problems = []
        assert len(resolve(config)) == len(config.revisions)
        assert config.revisions or config.kubernetes is not None  # else there is nobody to serve
    assert all(problem and "\n" not in problem for problem in problems)


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("0\n\n0", {}),  # a text of two lines
        (SMALLEST, {"ACTIVATOR_LISTEN": "\n"}),
        ('{"a\\nb": 1}', {}),  # a key of two
        ("listen:\nkubernetes:\nprocess:\nrevisions:", {}),  # nothing where something is expected
        ("kubernetes:", {}),  # nor is that a cluster
        ("kubernetes:\nrevisions: [{name: a, hosts: [a], probe:, tls:, process:, hash_on:}]", {}),
    ],
)
def test_a_mistake_is_one_line_whatever_was_written(text: str, environ: dict[str, str]) -> None:
    answers(text, environ)
    with pytest.raises(ConfigError):
        parse(text, **environ)


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    answers(text, {})


@given(st.text(alphabet="[]{}:,-&*!|>?'\"%@ab \n\t#<~0"))
def test_any_punctuation_is_answered(text: str) -> None:
    answers(text, {})


@given(TREES)
@example({"kubernetes": {}})  # its revisions are the cluster's
def test_any_tree_is_answered(tree: object) -> None:
    answers(msgspec.yaml.encode(tree).decode(), {})


@given(
    st.fixed_dictionaries({"name": WORDS, "hosts": TREES, "pods": TREES}, optional={"process": TREES, "queue": TREES})
)
def test_any_revision_is_answered(revision: dict[str, object]) -> None:
    answers(msgspec.yaml.encode({"revisions": [revision]}).decode(), {})


@given(
    st.dictionaries(
        st.lists(WORDS | st.sampled_from(["0", "1", "7", "x"]), min_size=1, max_size=4).map(
            lambda parts: "ACTIVATOR_" + "__".join(parts).upper()
        ),
        WORDS | st.text() | TREES.map(lambda tree: msgspec.json.encode(tree).decode()),
    )
)
def test_any_environment_is_answered(environ: dict[str, str]) -> None:
    answers(SMALLEST, environ)
    answers("", environ)


ZONES = """
zone: env:NODE_ZONE
revisions:
  - {name: a, hosts: [a], prefer_zone: true, pods: ["h:1", {address: "h:2", zone: eu-1b}]}
  - {name: b, hosts: [b], pods: ["h:1"]}
"""


@pytest.mark.parametrize(
    ("environ", "zone"),
    [
        ({"NODE_ZONE": "eu-1a"}, "eu-1a"),
        ({"NODE_ZONE": " eu-1a\n"}, "eu-1a"),
        ({"NODE_ZONE": ""}, ""),
        ({"NODE_ZONE": "eu-1a", "ACTIVATOR_ZONE": "eu-1c"}, "eu-1c"),
        ({"ACTIVATOR_ZONE": ""}, ""),
    ],
)
def test_the_zone_of_the_activator(environ: dict[str, str], zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file, a variable that it names, or the variable of the key, which may all be empty."""
    monkeypatch.delenv("NODE_ZONE", raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    config = config_file.parse(ZONES, "a", environ)
    assert config.revisions[0].pods == ["h:1", Pod("h:2", zone="eu-1b")]
    specs = config_file.resolve(config, lambda _: "random")
    assert [spec.balancing.zone for spec in specs] == [zone, ""], "only where it is asked for"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (None, " is not set: set it, empty if there is no zone"),
        ("eu west", " has another value than a zone: expected at most 63 letters, digits"),
        ("a" * 64, " has another value than a zone: expected at most 63 letters, digits"),
    ],
)
@pytest.mark.parametrize("used", [True, False])
def test_a_variable_with_no_zone(found: str | None, problem: str, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a mistake even if no revision of the file uses it: those of a cluster may."""
    text = ZONES if used else ZONES.replace("prefer_zone: true, ", "").replace(", zone: eu-1b", "")
    config = config_file.parse(text, "a", {})
    monkeypatch.delenv("NODE_ZONE", raising=False)
    if found is not None:
        monkeypatch.setenv("NODE_ZONE", found)
    with pytest.raises(ConfigError) as caught:
        config_file.resolve(config, lambda _: "random")
    (line,) = caught.value.problems
    assert line.startswith("zone: the environment variable NODE_ZONE" + problem)
    assert found is None or found not in line


def test_balancing_of_one_revision() -> None:
    """Every form of the keys, from the file and from the environment."""
    text = """
revisions:
  - name: a
    hosts: [a]
    policy: weighted
    slow_start: 30s
    pods: ["h:1", {address: "h:2", weight: 3}, {address: "h:3"}]
  - {name: b, hosts: [b], policy: consistent-hash, hash_on: {header: X-User}, pods: ["h:1"]}
  - {name: c, hosts: [c], policy: consistent-hash, hash_on: client_ip, pods: ["h:1"]}
  - {name: d, hosts: [d], policy: consistent-hash, pods: ["h:1"]}
"""
    environ = {
        "ACTIVATOR_REVISIONS__2__HASH_ON": "{cookie: session}",
        "ACTIVATOR_REVISIONS__0__PODS__2__WEIGHT": "0",
        "ACTIVATOR_REVISIONS__1__SLOW_START": "2m",
    }
    known = {"weighted", "consistent-hash"}
    config = config_file.parse(text, "a", environ, known)
    assert config.revisions[0].pods == ["h:1", Pod("h:2", 3), Pod("h:3", 0)]
    specs = config_file.resolve(config, lambda _: "random")
    assert [spec.balancing.hash_on for spec in specs] == ["", "header:X-User", "cookie:session", ""]
    assert [spec.balancing.slow_start_s for spec in specs] == [30.0, 120.0, 0.0, 0.0]
    assert specs[0].balancing.max_scale == 0, "names may stand for any number of pods"
    assert config_file.overlay(config, {}, known) == config
