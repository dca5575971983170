"""What types cannot say: addresses, hosts, names, what excludes what."""

from __future__ import annotations

import pytest

from activator.config.checks import canonical_host, split_address
from activator.config.file import parse, resolve
from activator.config.specs import DisciplineSpec, RuleSpec
from activator.messages import SetRevision, decode, encode
from activator.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:65535", ("::1", 65_535)),
        ("localhost:1", ("localhost", 1)),
        ("a-b.example:443", ("a-b.example", 443)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "80",
            ":80",
            "h",
            "h:",
            "h:0",
            "h:65536",
            "h:-1",
            "h:8 0",
            "h:٣",
            "::1:80",
            "[::1]",
            "[h]:80",
            "[]:80",
        ),
        *("1.2.3:80", "1.2.3.4.5:80", "256.0.0.1:80", "http://h:80", "h/x:80", "a b:80", "-h:80", "h..h:80", "h\n:80"),
    ],
)
def test_no_addresses(text: str) -> None:
    assert split_address(text) is None


def test_a_listener_may_leave_the_port_to_the_kernel() -> None:
    assert split_address("127.0.0.1:0", lowest_port=0) == ("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("A.Example", "a.example"),
        ("a.example.", "a.example"),
        ("*", "*"),
        ("*.A.example", "*.a.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("bücher.example", "xn--bcher-kva.example"),
    ],
)
def test_hosts(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    "text", ["", "a:80", "http://a", "a/b", "*a", "a.*", "*.*", "*.", "a b", "a..b", "1.2.3", "é" * 99]
)
def test_no_hosts(text: str) -> None:
    assert canonical_host(text) is None


def revision(more: str, name: str = "a", source: str = "pods: ['p:1']", hosts: str = "[a]") -> str:
    return f"{{name: {name}, hosts: {hosts}, {source}, {more}}}"


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a", {}, {"random", "round-robin", "weighted", "consistent-hash"})
    return caught.value.problems


GOOD = revision("")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listen: 'h:1'", "a:1: revisions: at least one revision is required, or `kubernetes`"),
        ("revisions: []", "a:1: revisions: at least one revision is required, or `kubernetes`"),
        (f"listen: []\nrevisions: [{GOOD}]", "a:1: listen: found an empty list, expected at least one address"),
        (
            f"listen: ['h:1', 'h:1']\nrevisions: [{GOOD}]",
            'a:1: listen[1]: "h:1" is in the list already: use each address once',
        ),
        (
            f"listen: ['h:1', '127.0.0.1:80']\nadmin: 127.0.0.1:80\nrevisions: [{GOOD}]",
            'a:2: admin: "127.0.0.1:80" cannot be listened on beside `listen`, which has "127.0.0.1:80": use another',
        ),
        (f"listen: 0.0.0.0:80\nadmin: 127.0.0.1:80\nrevisions: [{GOOD}]", 'beside `listen`, which has "0.0.0.0:80"'),
        (f"listen: 127.0.0.1:8008\nrevisions: [{GOOD}]", 'a:1: admin: "127.0.0.1:8008" cannot be listened on'),
        (f"admin: h\nrevisions: [{GOOD}]", 'a:1: admin: found "h", expected host:port'),
        (
            f"admin: 0.0.0.0:8008\nrevisions: [{GOOD}]",
            "write `admin: {listen: 0.0.0.0:8008, token: file:/etc/activator/admin-token}`, or `insecure: true` in the",
        ),
        (f"admin: {{listen: '[::]:8008'}}\nrevisions: [{GOOD}]", '"[::]:8008" lets other machines control'),
        (f"admin: {{listen: 10.0.0.1:8008, token: ''}}\nrevisions: [{GOOD}]", '"10.0.0.1:8008" lets other machines'),
        (f"admin: {{listen: h:1, insecure: false}}\nrevisions: [{GOOD}]", '"h:1" lets other machines control'),
        (f"admin: {{listen: h}}\nrevisions: [{GOOD}]", 'admin.listen: found "h", expected host:port'),
        (f"admin: {{listen: 'h:1', address: unix:/a, insecure: true}}\nrevisions: [{GOOD}]", "not both"),
        (
            f"admin: {{listen: 127.0.0.1:1, mode: '0660'}}\nrevisions: [{GOOD}]",
            "`mode` applies to Unix sockets only, and 127.0.0.1:1 is not one: remove it",
        ),
        (
            "admin: 127.0.0.1:1\nrevisions: [{name: a, hosts: [a], pods: ['localhost:2', '127.0.0.1:1']}]",
            'pods[1]: "127.0.0.1:1" is the address of `admin`: clients would reach that port',
        ),
        (
            "push: {listen: '127.0.0.1:3'}\nrevisions: [{name: a, hosts: [a], pods: ['127.0.0.1:3']}]",
            'pods[0]: "127.0.0.1:3" is the address of `push`: clients would reach that port',
        ),
        (
            f"limits: {{header_bytes: 0}}\nrevisions: [{GOOD}]",
            'a:1: limits.header_bytes: found "0", expected more than 0',
        ),
        (
            f"revisions: [{revision('')}, {revision('', hosts='[b]')}]",
            'revisions[1].name: "default/a" is the name of revisions[0] already: use each name',
        ),
        (f"revisions: [{revision('', name='a/b')}]", 'revisions[0].name: found "a/b", expected letters'),
        (
            f"revisions: [{revision('')}, {revision('', name='b', hosts='[A.]')}]",
            'revisions[1].hosts[0]: "A." leads to revisions[0] already, which takes the same requests: set `match`, or',
        ),
        (f"revisions: [{revision('', hosts='[a, a]')}]", "revisions[0].hosts[1]"),
        (
            f"revisions: [{revision('', hosts='[]')}]",
            "revisions[0].hosts: found an empty list, expected at least one host",
        ),
        ("revisions: [{name: a, pods: ['h:1']}]", "revisions[0].hosts: `hosts` is required: the hosts"),
        (
            f"revisions: [{revision('', source='pods: []')}]",
            "revisions[0]: set `pods`, `process` or `container`, or `push.listen`",
        ),
        (f"revisions: [{revision('process: {command: [x]}')}]", "revisions[0]: set `pods` or `process`, not both"),
        (f"""revisions: [{revision("", source="pods: ['h:1', 'h:1']")}]""", "revisions[0].pods[1]"),
        (
            f"revisions: [{revision('policy: robin')}]",
            'revisions[0].policy: found "robin", expected one of consistent-hash, random, round-robin',
        ),
        (
            f"revisions: [{revision('policy: no_such_package:Policy')}]",
            "revisions[0].policy: found policy 'no_such_package:Policy' cannot be loaded: No module named",
        ),
        (
            f"revisions: [{revision('policy: consistent-hash, hash_on: {header: X, cookie: y}')}]",
            "revisions[0].hash_on: `hash_on` requires exactly one of `header` and `cookie`",
        ),
        (
            f"revisions: [{revision('policy: consistent-hash, hash_on: {}')}]",
            "hash_on: `hash_on` requires exactly one of",
        ),
        (
            f"revisions: [{revision('policy: consistent-hash, hash_on: {head: X}')}]",
            'hash_on: found the unknown key "head", expected "header"',
        ),
        (
            f"revisions: [{revision('policy: consistent-hash, hash_on: ip')}]",
            'revisions[0].hash_on: found "ip", expected client_ip, {header: NAME} or {cookie: NAME}',
        ),
        (
            f"revisions: [{revision('policy: consistent-hash, hash_on: {cookie: a b}')}]",
            'hash_on.cookie: found "a b", expected the name of a cookie',
        ),
        (
            f"revisions: [{revision('policy: random, hash_on: client_ip')}]",
            "hash_on: `hash_on` requires `policy: consistent-hash`, and it is random",
        ),
        (
            f"revisions: [{revision('hash_on: client_ip')}]",
            "hash_on: `hash_on` requires `policy: consistent-hash`, and no policy is set",
        ),
        (
            f"""revisions: [{revision("policy: random", source="pods: [{address: 'h:1', weight: 2}]")}]""",
            "pods[0].weight: `weight` requires `policy: weighted`, and it is random",
        ),
        (
            f"""revisions: [{revision("policy: weighted", source="pods: [{address: 'h:1', weight: 1001}]")}]""",
            'pods[0].weight: found "1001", expected a whole number from 0 to 1000',
        ),
        (
            f"""revisions: [{revision("policy: weighted", source="pods: ['h:1', {address: h}]")}]""",
            'revisions[0].pods[1].address: found "h", expected host:port',
        ),
        (f"""revisions: [{revision("policy: weighted", source="pods: [{weight: 1}]")}]""", 'the key "address"'),
        (
            f"""revisions: [{revision("policy: weighted", source="pods: ['h:1', {address: 'h:1'}]")}]""",
            'revisions[0].pods[1].address: "h:1" is in the list already',
        ),
        *(
            (
                f"revisions: [{revision('', source=f'pods: [{one!r}, {again!r}]')}]",
                f'revisions[0].pods[1]: "{again}" is in the list already: list each pod once',
            )
            for one, again in (
                ("h:1", "H.:01"),
                ("[::1]:80", "[0:0::1]:080"),
                ("10.0.0.1:80", "[::ffff:10.0.0.1]:80"),
            )
        ),
        (
            f"zone: eu west\nrevisions: [{GOOD}]",
            'a:1: zone: found "eu west", expected at most 63 letters, digits, dots, dashes and underscores, such as eu',
        ),
        (f"zone: {'a' * 64}\nrevisions: [{GOOD}]", "a:1: zone: found "),
        (f"zone: 'env:'\nrevisions: [{GOOD}]", 'zone: found "env:", expected env: and the name of an environment'),
        (f"zone: 'env:A B'\nrevisions: [{GOOD}]", 'zone: found "env:A B", expected env: and the name of'),
        (
            f"revisions: [{revision('prefer_zone: true')}]",
            "revisions[0].prefer_zone: `prefer_zone` requires `zone`, the zone of this activator",
        ),
        (
            f"zone: a\nrevisions: [{revision('prefer_zone: true', source='process: {command: [x]}')}]",
            "prefer_zone: `prefer_zone` is for pods of other machines, and `process` has none: remove it",
        ),
        (
            f"""zone: a\nrevisions: [{revision("policy: random", source="pods: [{address: 'h:1', zone: b}]")}]""",
            "pods[0].zone: `zone` requires `prefer_zone: true`",
        ),
        (
            f"""zone: a\nrevisions: [{revision("prefer_zone: true", source="pods: [{address: 'h:1', zone: '-'}]")}]""",
            'pods[0].zone: found "-", expected at most 63 letters',
        ),
        (f"revisions: [{revision('slow_start: -1s')}]", 'slow_start: found "-1s", expected a duration'),
        (f"revisions: [{revision('queue: {discipline: lifo}')}]", 'discipline: found "lifo", expected one of fifo'),
        (f"revisions: [{revision('timeouts: {connect: 0}')}]", 'timeouts.connect: found "0", expected more than 0'),
        (
            f"revisions: [{revision('', source='process: {command: []}')}]",
            "process.command: found none, expected a program",
        ),
        (
            f"revisions: [{revision('', source='process: {command: [x], min_scale: 3, max_scale: 2}')}]",
            "process.min_scale: 3 is more than `max_scale: 2`: lower it, or raise `max_scale`",
        ),
        (f"revisions: [{revision('', source='process: {command: [x], readiness: {http_get: x}}')}]", "begins with /"),
        (f"revisions: [{revision('', source='process: {command: [x], environment: {A=B: x}}')}]", "names of variables"),
        (f"metrics: {{knative: {{protocol: grpc}}}}\nrevisions: [{GOOD}]", "metrics.knative.protocol: found"),
        (f"metrics: {{knative: {{endpoint: here}}}}\nrevisions: [{GOOD}]", "an address such as 0.0.0.0:9090"),
        (
            f"metrics: {{knative: {{protocol: http/protobuf, endpoint: ':9090'}}}}\nrevisions: [{GOOD}]",
            "metrics.knative.endpoint: found",
        ),
        (f"metrics: {{knative: {{export_interval: 0s}}}}\nrevisions: [{GOOD}]", "expected more than 0s"),
        (f"log: {{format: xml}}\nrevisions: [{GOOD}]", "log.format: found"),
        (f"log: {{levels: {{state: loud}}}}\nrevisions: [{GOOD}]", "log.levels.state: found"),
        (f"log: {{levels: {{nobody: debug}}}}\nrevisions: [{GOOD}]", "expected parts out of access_log"),
        (f"tracing: {{exporter: zipkin}}\nrevisions: [{GOOD}]", 'tracing.exporter: found "zipkin", expected one of'),
        (f"tracing: {{endpoint: collector:4318}}\nrevisions: [{GOOD}]", "expected a URL such as http://127.0.0.1:4318"),
        (f"tracing: {{endpoint: 'http://a:0'}}\nrevisions: [{GOOD}]", "expected a URL such as http://127.0.0.1:4318"),
        (f"tracing: {{sampling_rate: 2}}\nrevisions: [{GOOD}]", "tracing.sampling_rate: found"),
        (
            f"access_log: true\nrevisions: [{GOOD}]",
            'a:1: access_log: found "true", expected false, json, common, kn',
        ),
        (f"access_log: jsn\nrevisions: [{GOOD}]", 'a:1: access_log: found "jsn", expected json, common, knative, or a'),
        (f"access_log: '{{stat}}'\nrevisions: [{GOOD}]", "expected fields out of time, client, method"),
        (f"access_log: '{{status.real}}'\nrevisions: [{GOOD}]", "expected fields out of time, client, method"),
        (f"access_log: '{{status:9}}'\nrevisions: [{GOOD}]", "expected fields out of time, client, method"),
        (f"access_log: '{{status'\nrevisions: [{GOOD}]", "expected names of fields in braces"),
        (f'access_log: "{{status}}\\n"\nrevisions: [{GOOD}]', "expected one line of printable characters"),
        ("kubernetes: {mode: k8s}", 'a:1: kubernetes.mode: found "k8s", expected knative'),
        ("kubernetes: {sharing: all}", 'a:1: kubernetes.sharing: found "all", expected none or knative'),
        ("kubernetes: {reconcile_interval: 0}", "kubernetes.reconcile_interval: found"),
        ("kubernetes: {autoscaler: 'http://x'}", "expected ws://host:port"),
        (
            f"listen: {{address: 'h:1', certificate: c, key: k}}\nrevisions: [{GOOD}]",
            "listen.certificate: found c: No such file or directory",
        ),
        *(
            (f"revisions: [{revision(f'{key}: -1')}]", f'{key}: found "-1", expected a whole number of at least 0')
            for key in ("container_concurrency", "max_scale")
        ),
        *(
            (f"{file}revisions: [{revision(f'adaptive_concurrency: {{{bounds}}}, {more}')}]", problem)
            for file, bounds, more, problem in [
                ("", "min: 0", "", 'adaptive_concurrency.min: found "0", expected'),
                ("", "min: 9, max: 3", "", 'adaptive_concurrency.max: found "3", expected at least `min`'),
                (
                    "",
                    "min: 9",
                    "container_concurrency: 5",
                    "adaptive_concurrency: it is for revisions without `container_concurrency`: remove one of the two",
                ),
                ("workers: 2\n", "min: 9", "", "adaptive_concurrency: it requires `workers: 1` and no `members`"),
                ("workers: auto\n", "min: 9", "", "adaptive_concurrency: it requires `workers: 1` and no `members`"),
            ]
        ),
        *(
            (f"revisions: [{revision(f'queue: {{{queue}}}')}]", problem)
            for queue, problem in [
                ("depth: -1", 'queue.depth: found "-1", expected a whole number of at least 0'),
                (
                    "discipline: fair",
                    "queue.header: `discipline: fair` requires `header`, the request header with the key",
                ),
                ("discipline: priority, header: ''", "queue.header: `discipline: priority` requires `header`"),
                ("discipline: priority, header: 'X Y'", 'queue.header: found "X Y", expected the name of a request'),
                (
                    "header: X",
                    "`header` requires `discipline: priority` or `discipline: fair` or `discipline: priority-fair`",
                ),
                (
                    "ageing: 5s",
                    "`ageing` requires `discipline: priority` or `discipline: priority-fair`, and it is fifo",
                ),
                ("discipline: priority, header: X, ageing: 0", 'queue.ageing: found "0", expected more than 0'),
                ("discipline: priority, header: X, default: 8", "queue.default: found"),
                (
                    "discipline: priority, header: X, weights: {a: 2}",
                    "`weights` requires `discipline: fair` or `discipline: priority-fair`, and it is priority",
                ),
                ("discipline: fair, header: X, weights: {a: 0}", "queue.weights.a: found"),
                ("admission: clever", 'queue.admission: found "clever", expected one of off, predictive'),
                (
                    "target_wait: 30s, timeout: 30s",
                    'queue.target_wait: found "30s", expected less than `timeout` (30 s), which ends every wait',
                ),
                ("target_wait: 90s", 'queue.target_wait: found "90s", expected less than `timeout` (60 s)'),
                ("target_interval: 5s", "queue.target_interval: `target_interval` requires `target_wait`"),
                ("request_timeout_max: 5s", "`request_timeout_max` requires `request_timeout: true`"),
                ("rules: [{path_prefix: x, exempt: true}]", "queue.rules[0].path_prefix: found"),
                ("rules: [{path_prefix: /x}]", "queue.rules[0]: a rule requires `exempt: true` or `charge`"),
                ("rules: [{methods: [get], exempt: true}]", 'queue.rules[0].methods: found "get", expected methods'),
                (
                    "rules: [{charge: 5}]",
                    "`charge` requires `discipline: fair` or `discipline: priority-fair`, and it is fifo",
                ),
                (
                    "discipline: priority-fair, header: X",
                    "queue.key_header: `discipline: priority-fair` requires `key_header`, the request header with the",
                ),
                (
                    "discipline: priority-fair, key_header: X",
                    "queue.header: `discipline: priority-fair` requires `header`, the request header with the level",
                ),
                ("discipline: fair, header: X, key_header: Y", "`key_header` requires `discipline: priority-fair`"),
                ("rules: [{charge: 5, exempt: true}]", "rules[0].charge: `charge` has no effect with `exempt: true`"),
                (f"rules: [{', '.join(['{exempt: true}'] * 33)}]", "queue.rules: found 33, expected at most 32"),
            ]
        ),
    ],
)
def test_one_mistake_is_told_once(text: str, problem: str) -> None:
    problems = problems_of(text)
    assert len(problems) == 1, problems
    assert problem in problems[0]


def test_an_unreadable_part_does_not_hide_the_rest() -> None:
    problems = problems_of(
        "revisions: [{name: [], hosts: 5, pods: {}, policy: x}, foo, {name: b, hosts: [b], pods: [h]}]"
    )
    assert len(problems) == 6, problems


def test_headers_may_name_a_revision_that_has_no_host() -> None:
    config = parse("{trust_revision_headers: true, revisions: [{name: a, pods: ['h:1']}]}", "a", {})
    assert config.revisions[0].hosts == []


@pytest.mark.parametrize(
    "admin",
    [
        "127.0.0.1:1",
        "localhost:1",
        "'[::1]:1'",
        "unix:/run/a.sock",
        "{token: t}",
        "{listen: '0.0.0.0:1', token: t}",
        "{listen: '0.0.0.0:1', token: 'file:/nowhere'}",
        "{listen: '0.0.0.0:1', insecure: true}",
        "{listen: unix:/run/a.sock, mode: '0660'}",
        "{address: unix:/run/a.sock}",
        "{listen: ''}",
    ],
)
def test_an_admin_port_that_is_safe_or_meant(admin: str) -> None:
    parse(f"admin: {admin}\nrevisions: [{GOOD}]", "a", {})


def test_admin_may_be_switched_off() -> None:
    assert parse(f"admin: ''\nrevisions: [{GOOD}]", "a", {}).admin == ""


def test_any_policy_is_taken_where_none_are_known() -> None:
    assert parse(f"revisions: [{revision('policy: mine')}]", "a", {}).revisions[0].policy == "mine"


def test_a_queue_with_all_its_keys() -> None:
    queue = (
        "queue: {depth: 5, bytes: 1MiB, timeout: 5s, request_timeout: true, request_timeout_max: 1m, "
        "admission: predictive, discipline: fair, header: X-Tenant, weights: {a: 3}, "
        "rules: [{path_prefix: /healthz, methods: [GET], exempt: true}, {path_prefix: /batch, charge: 5}]}"
    )
    (spec,) = resolve(parse(f"revisions: [{revision(queue)}]", "a", {}), lambda limit: "random")
    assert spec.queue.discipline == DisciplineSpec("fair", key_header="X-Tenant", weights={"a": 3})
    assert spec.queue.rules == (RuleSpec("/healthz", ("GET",), True), RuleSpec("/batch", charge=5))
    assert (spec.queue.depth, spec.queue.bytes, spec.queue.timeout_s) == (5, 2**20, 5.0)
    assert (spec.queue.request_timeout, spec.queue.request_timeout_max_s) == (True, 60.0)
    assert spec.queue.admission == "predictive"
    assert decode(encode(SetRevision(spec))) == SetRevision(spec), "it goes between the parts"
