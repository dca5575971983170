"""The recipes of docs/cookbook.md, each run as it stands there; only the ports of listeners are others.

Programs that are not here (model servers, Jupyter) have a stand-in of the same name on PATH, with the same words.
"""

from __future__ import annotations

import datetime as dt
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
import yaml
from websockets.sync.client import connect

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, ask, request
from tests.e2e.running import PROGRAMS, Activator, cli, eventually, figures
from tests.e2e.test_e2e_servers import free_port
from tests.e2e.test_e2e_tls import Files, trusting

ROOT: Final = Path(__file__).resolve().parents[2]
RECIPES: Final = dict(
    re.findall(r"```yaml\n# recipe: ([^\n]*)\n(.*?)```", (ROOT / "docs/cookbook.md").read_text(), re.DOTALL)
)

APP = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    said = {name.decode(): value.decode() for name, value in scope["headers"]}
    body = f"app {scope['path']} {said.get('x-forwarded-for')} {said.get('x-forwarded-proto')}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
"""
API = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"api {environ['PATH_INFO']} {environ['HTTP_X_FORWARDED_PREFIX']}".encode()]
"""
CHAT = """
import sys
from websockets.sync.server import serve

def echo(connection):
    for message in connection:
        connection.send("you said " + message)

serve(echo, "127.0.0.1", int(sys.argv[1])).serve_forever()
"""
GREETER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc  # type: ignore[import-untyped]

def service(name, method, answer):
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer(request))
    return grpc.method_handlers_generic_handler(name, {method: handler})

server = grpc.server(ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((
    service("grpc.health.v1.Health", "Check", lambda request: bytes([8, 1])),
    service("helloworld.Greeter", "SayHello", lambda request: b"hello " + request),
))
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
"""


class Kitchen:
    """A folder with all that the recipes name, and PATH to the stand-ins."""

    def __init__(self, folder: Path, run_activator: RunActivator) -> None:
        self.folder = folder
        self._run = run_activator
        for name in ("app", "docs", "api", "start", "site", "notebooks", "models", "bin"):
            (folder / name).mkdir()
        (folder / "app" / "app.py").write_text(APP)
        (folder / "api" / "api.py").write_text(API)
        (folder / "start" / "index.php").write_text("<?php echo 'start ' . $_SERVER['REQUEST_URI'];")
        (folder / "docs" / "index.html").write_text("the docs")
        (folder / "site" / "index.html").write_text("the site")
        (folder / "chat.py").write_text(CHAT)
        (folder / "greeter.py").write_text(GREETER)
        (folder / "report.py").write_text((PROGRAMS / "once.py").read_text())
        (folder / "sorry.html").write_text("<p>sorry</p>")
        self.files = Files(folder)
        for name in ("llama-server", "vllm", "ollama", "jupyter"):
            shim = folder / "bin" / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {PROGRAMS}/stand_in.py {name} "$@"\n')
            shim.chmod(0o755)
        self.path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(self, recipe: str, **variables: str) -> Activator:
        """The recipe as it stands, on other ports."""
        file = self.folder / "activator.yaml"
        file.write_text(RECIPES[recipe])
        variables = {"PATH": self.path, "HOME": str(self.folder), "ACTIVATOR_ADMIN": "127.0.0.1:0", **variables}
        variables.setdefault("ACTIVATOR_LISTEN", "127.0.0.1:0")
        return self._run(arguments=["-c", str(file)], **variables)


@pytest.fixture
def kitchen(tmp_path: Path, run_activator: RunActivator) -> Kitchen:
    return Kitchen(tmp_path, run_activator)


def chat(activator: Activator, model: str) -> dict[str, Any]:
    answer = ask(activator.address, request("/v1/chat/completions", "POST", body=json.dumps({"model": model}).encode()))
    assert answer.status == 200, answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


def navigation(host: str, path: str = "/") -> bytes:
    return request(path, host=host, headers="Accept: text/html\r\nSec-Fetch-Mode: navigate\r\n")


def text(answer: Answer) -> str:
    assert answer.status == 200, answer
    return answer.body.decode()


def test_a_model_server(kitchen: Kitchen) -> None:
    activator = kitchen.run("model server")
    found = chat(activator, "any")
    assert found["program"] == "llama-server"
    assert found["directory"] == f"{kitchen.folder}/models", "~ is the home directory"


def test_several_models_on_one_gpu(kitchen: Kitchen) -> None:
    activator = kitchen.run("models on one GPU")
    for model in ("llama-3-8b", "qwen-32b", "llama-3-8b"):
        assert f"{model}.gguf" in chat(activator, model)["words"]
        loaded = [name for name, one in activator.revisions().items() if one["processes"]["processes"]]
        assert len(loaded) == 1
    listed = json.loads(text(ask(activator.address, request("/v1/models"))))
    assert [one["id"] for one in listed["data"]] == ["llama-3-8b", "qwen-32b"]


def test_three_models_with_two_keys(kitchen: Kitchen) -> None:
    activator = kitchen.run("models with keys", ALICE_KEY="alices-secret", BOB_KEY="bobs-secret")

    def status(model: str, key: str) -> int:
        body = json.dumps({"model": model}).encode()
        fields = f"Authorization: Bearer {key}\r\n" if key else ""
        return ask(activator.address, request("/v1/chat/completions", "POST", headers=fields, body=body)).status

    def loaded() -> list[str]:
        return [name for name, one in activator.revisions().items() if one["processes"]["processes"]]

    assert [status("small", ""), status("large", "bobs-secret"), status("large", "nobodys-secret")] == [401, 403, 401]
    assert loaded() == []
    assert [status(model, "bobs-secret") for model in ("small", "embed")] == [200, 200]
    assert status("large", "alices-secret") == 200
    assert sorted(loaded()) == ["embed", "large"], "one at a time, and the one that is excepted"
    for key, names in (("bobs-secret", ["small", "embed"]), ("alices-secret", ["small", "large", "embed"])):
        listed = ask(activator.address, request("/v1/models", headers=f"X-Api-Key: {key}\r\n"))
        assert [one["id"] for one in json.loads(text(listed))["data"]] == names
    assert ask(activator.address, request("/v1/models")).status == 401


def test_a_file_of_llama_swap(kitchen: Kitchen) -> None:
    (theirs,) = re.findall(
        r"```yaml\n# recipe of llama-swap\n(.*?)```", (ROOT / "docs/cookbook.md").read_text(), re.DOTALL
    )
    (kitchen.folder / "config.yaml").write_text(theirs)
    done = cli("import", "llama-swap", str(kitchen.folder / "config.yaml"))
    assert done.returncode == 0, done.stderr
    RECIPES["from llama-swap"] = done.stdout
    activator = kitchen.run("from llama-swap")
    for model, file in (("llama", "llama.gguf"), ("qwen", "qwen.gguf"), ("gpt-4o-mini", "llama.gguf")):
        assert file in chat(activator, model)["words"]
    assert len([name for name, one in activator.revisions().items() if one["processes"]["processes"]]) == 1


def test_ollama_and_vllm(kitchen: Kitchen) -> None:
    port = str(free_port())  # another Ollama may be here
    activator = kitchen.run(
        "Ollama and vLLM",
        ACTIVATOR_REVISIONS__1__PROCESS__PORT=port,
        ACTIVATOR_REVISIONS__1__PROCESS__ENVIRONMENT=json.dumps({"OLLAMA_HOST": f"127.0.0.1:{port}"}),
    )
    assert (chat(activator, "gpt-4o-mini")["program"], chat(activator, "gpt-4o-mini")["model"]) == (
        "vllm",
        "llama-3-8b",
    )
    assert chat(activator, "gemma3:4b")["program"] == "ollama"


def test_a_team_with_quotas(kitchen: Kitchen) -> None:
    """Two requests at a time, 60 a minute, and what is used outlasts a restart."""
    settings = {
        "ALICE_KEY": "alices-secret-key",
        "BOB_KEY": "bobs-secret-key",
        "ACTIVATOR_STATE": str(kitchen.folder / "state.db"),
    }

    def asked(activator: Activator, key: str, **more: Any) -> Answer:
        body = json.dumps({"model": "small", **more}).encode()
        fields = f"Authorization: Bearer {key}\r\n"
        return ask(activator.address, request("/v1/chat/completions", "POST", headers=fields, body=body))

    activator = kitchen.run("quotas", **settings)
    assert asked(activator, "bobs-secret-key", max_tokens=600_000).header("x-ratelimit-limit-tokens") == "1000000"
    left = [asked(activator, "alices-secret-key").header("x-ratelimit-remaining-requests") for _ in range(3)]
    assert left[0] == "59" and int(left[2]) in range(57, 60)
    assert asked(activator, "nobodys-secret-key").status == 401
    # The stand-in reports no tokens, so that Bob's first request counts as reserved.
    assert asked(activator, "bobs-secret-key", max_tokens=600_000).reason == "quota_exceeded"
    activator.signal(signal.SIGTERM)
    activator.process.wait(20.0)
    again = kitchen.run("quotas", **settings)
    assert asked(again, "bobs-secret-key", max_tokens=600_000).reason == "quota_exceeded"
    assert asked(again, "bobs-secret-key", max_tokens=300_000).status == 200


def test_a_web_app(kitchen: Kitchen) -> None:
    activator = kitchen.run("web app")
    first = ask(activator.address, navigation("app.localhost"))
    assert (first.status, first.reason) == (503, "starting")
    eventually(lambda: ask(activator.address, navigation("app.localhost")).status == 200)
    assert text(ask(activator.address, request("/x", host="app.localhost"))).startswith("app /x")


def test_jupyter(kitchen: Kitchen) -> None:
    activator = kitchen.run("Jupyter")
    with connect(f"ws://{activator.address}/api/kernels/1/channels", proxy=None, close_timeout=0.2):
        assert activator.revision("jupyter")["in_flight"] == 1
    assert json.loads(text(ask(activator.address, navigation("any", "/lab"))))["words"][0] == "lab"


@pytest.mark.deep
def test_a_real_jupyter_calculates(kitchen: Kitchen, need_program: Callable[[str], str]) -> None:
    """Lab with a kernel, asked over a WebSocket as a notebook does it (`pip install jupyterlab ipykernel`)."""
    jupyter = need_program("jupyter-lab")
    path = f"{Path(jupyter).parent}:{os.environ['PATH']}"
    (kitchen.folder / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')
    activator = kitchen.run("Jupyter", PATH=path, JUPYTER_TOKEN="sesame", JUPYTER_CONFIG_DIR=str(kitchen.folder))
    client = httpx.Client(base_url=f"http://{activator.address}", headers={"Authorization": "token sesame"}, timeout=60)
    with client:
        assert "version" in client.get("/api").json()
        kernel = client.post("/api/kernels", json={}).json()["id"]
        asked = {
            "header": {"msg_id": "1", "msg_type": "execute_request", "username": "", "session": "1", "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {"code": "print(6 * 7)", "silent": False},
            "channel": "shell",
        }
        channels = f"ws://{activator.address}/api/kernels/{kernel}/channels?token=sesame"
        with connect(channels, proxy=None, open_timeout=60, close_timeout=0.2) as socket_:
            socket_.send(json.dumps(asked))
            while json.loads(said := socket_.recv(timeout=60)).get("msg_type") != "stream":
                pass
            assert json.loads(said)["content"]["text"] == "42\n"
            assert activator.revision("jupyter")["in_flight"] == 1
        assert client.delete(f"/api/kernels/{kernel}").status_code == 204


class Backend(http.server.BaseHTTPRequestHandler):
    """One of ten. Each server counts its requests, and how many it had at one time."""

    def do_GET(self) -> None:
        backend = self.server
        assert isinstance(backend, Backends.Server)
        with backend.lock:
            backend.served += 1
            backend.now += 1
            backend.most = max(backend.most, backend.now)
        time.sleep(0.02)
        with backend.lock:
            backend.now -= 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class Backends:
    """Ten servers on the addresses of the recipe."""

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 100

        def __init__(self, host: str, port: int) -> None:
            super().__init__((host, port), Backend)
            self.lock = threading.Lock()
            self.served = self.now = self.most = 0

    def __init__(self, addresses: list[str]) -> None:
        places = [(host, int(port)) for host, _, port in (one.partition(":") for one in addresses)]
        self.all = {address: self.Server(*place) for address, place in zip(addresses, places, strict=True)}
        for one in self.all.values():
            threading.Thread(target=one.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        for one in self.all.values():
            one.shutdown()
            one.server_close()

    def served(self) -> dict[str, int]:
        return {address: one.served for address, one in self.all.items()}


def test_ten_backends(kitchen: Kitchen) -> None:
    addresses = yaml.safe_load(RECIPES["ten backends"])["revisions"][0]["pods"]
    backends = Backends(addresses)
    third = addresses[2]
    try:
        activator = kitchen.run("ten backends")
        activator.wait_ready_pods("api", 10)

        def load(count: int) -> None:
            with ThreadPoolExecutor(100) as clients:
                answers = list(clients.map(lambda _: ask(activator.address, request()).status, range(count)))
            assert answers == [200] * count

        load(400)
        assert all(backends.served().values())
        with ThreadPoolExecutor(1) as beside:
            loading = beside.submit(load, 400)
            assert cli("drain-pod", "api", third, "--admin", f"http://{activator.admin}").returncode == 0
            loading.result()
        before = backends.served()
        load(200)
        after = backends.served()
        assert [address for address in addresses if after[address] == before[address]] == [third]
        assert cli("enable-pod", "api", third, "--admin", f"http://{activator.admin}").returncode == 0
        load(400)
        assert backends.served()[third] > after[third]
        assert max(one.most for one in backends.all.values()) <= 8
        shown = {slot["address"]: slot["responses"] for slot in activator.slots("api")}
        shown.pop(third)  # counts anew since it was put back
        assert shown == {address: count for address, count in backends.served().items() if address != third}
    finally:
        backends.close()


def test_tools_by_path(kitchen: Kitchen, need_program: Callable[[str], str]) -> None:
    need_program("php")
    activator = kitchen.run("tools by path")
    assert text(ask(activator.address, request("/docs/"))) == "the docs"
    assert text(ask(activator.address, request("/api/v1"))) == "api /v1 /api"
    assert text(ask(activator.address, request("/other"))) == "start /other"


def test_a_service_of_systemd(kitchen: Kitchen) -> None:
    activator = kitchen.run("systemd")
    assert text(ask(activator.address, request())) == "the site"
    done = cli("install-service", "--print", "-c", str(kitchen.folder / "activator.yaml"))
    assert done.returncode == 0, done.stderr
    assert "ListenStream=127.0.0.1:8080" in done.stdout
    assert f"-c {kitchen.folder}/activator.yaml" in done.stdout


def test_tls(kitchen: Kitchen) -> None:
    listeners = yaml.safe_load(RECIPES["TLS"])["listen"]
    listeners[0], listeners[1]["address"] = "127.0.0.1:0", "127.0.0.1:0"
    activator = kitchen.run("TLS", ACTIVATOR_LISTEN=json.dumps(listeners))
    secure = activator.wait_log(r" serving on (.+)").split(", ")[1].split(" ")[0]
    with httpx.Client(http2=True, verify=trusting(), trust_env=False) as client:
        answer = client.get(f"https://{secure}/")
    assert (answer.http_version, answer.text) == ("HTTP/2", "app / 127.0.0.1 https")


@pytest.fixture
def caddy_or_nginx(
    request: pytest.FixtureRequest, kitchen: Kitchen, need_program: Callable[[str], str]
) -> Iterator[tuple[str, int]]:
    """The address of the activator that it leads to, and its own port: the activator is started after it."""
    port, behind = free_port(), free_port()
    folder = kitchen.folder / "front"
    folder.mkdir()
    if request.param == "caddy":
        (folder / "Caddyfile").write_text(
            f"{{\n admin off\n auto_https off\n}}\nhttp://app.example.com:{port} {{\n"
            f" bind 127.0.0.1\n reverse_proxy 127.0.0.1:{behind}\n}}\n"
        )
        command = [need_program("caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    else:
        server = re.search(r"```nginx\n(.*?)```", (ROOT / "docs/cookbook.md").read_text(), re.DOTALL)
        assert server is not None
        inner = server[1].replace("server {", f"server {{ listen 127.0.0.1:{port};").replace(":8080", f":{behind}")
        paths = " ".join(
            f"{one}_temp_path {folder}/{one};" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(
            f"{user} daemon off; pid {folder}/pid; error_log stderr crit; events {{}} http {{ {paths} {inner} }}"
        )
        command = [need_program("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        eventually(lambda: is_open(port), "it listens")
        yield f"127.0.0.1:{behind}", port
    finally:
        process.terminate()
        process.wait(20)


def is_open(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("caddy_or_nginx", ["caddy", "nginx"], indirect=True)
def test_behind_another_proxy(kitchen: Kitchen, caddy_or_nginx: tuple[str, int]) -> None:
    address, port = caddy_or_nginx
    kitchen.run("behind another proxy", ACTIVATOR_LISTEN=address)
    answer = ask(f"127.0.0.1:{port}", request("/x", host="app.example.com"))
    assert text(answer) == "app /x 127.0.0.1, 127.0.0.1 http"


def test_working_hours(kitchen: Kitchen) -> None:
    """At any hour at which this runs: only the hours are others."""
    now = dt.datetime.now(dt.UTC)
    scaling = yaml.safe_load(RECIPES["working hours"])["revisions"][0]["scaling"]
    scaling["schedule"][0] |= {
        "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "from": f"{now - dt.timedelta(hours=1):%H:%M}",
        "until": f"{now + dt.timedelta(hours=2):%H:%M}",
        "time_zone": "UTC",
    }
    activator = kitchen.run("working hours", ACTIVATOR_REVISIONS__0__SCALING=json.dumps(scaling))
    eventually(lambda: figures(activator)["processes"] == 2, "both are kept warm")


def test_websockets(kitchen: Kitchen) -> None:
    activator = kitchen.run("WebSockets")
    with connect(f"ws://{activator.address}/", proxy=None) as client:
        client.send("hello")
        assert client.recv() == "you said hello"
        assert activator.revision("chat")["in_flight"] == 1


def test_grpc(kitchen: Kitchen) -> None:
    activator = kitchen.run("gRPC")
    with grpc.insecure_channel(activator.address) as channel:
        assert channel.unary_unary("/helloworld.Greeter/SayHello")(b"you", timeout=20.0) == b"hello you"


def test_a_static_fallback(kitchen: Kitchen) -> None:
    (kitchen.folder / "app" / "app.py").write_text("raise SystemExit('no database')\n")
    activator = kitchen.run("static fallback")
    answer = ask(activator.address, navigation("any"))
    assert (answer.status, answer.reason, answer.body) == (503, "revision_failed", b"<p>sorry</p>")
    activator.may_log_errors = True


def test_every_recipe_has_a_test() -> None:
    asked = set(re.findall(r'kitchen\.run\(\s*"([^"]+)"', Path(__file__).read_text()))
    asked.add("containers")  # in test_e2e_containers.py, where the engine is
    asked.discard("from llama-swap")  # which `activator import` makes
    assert asked == set(RECIPES) - {"from llama-swap"}


def test_a_batch_tool(kitchen: Kitchen) -> None:
    listeners = yaml.safe_load(RECIPES["batch tool"])["listen"]
    front = listeners[1]["address"] = f"unix:{kitchen.folder}/report.sock"
    activator = kitchen.run("batch tool", ACTIVATOR_LISTEN=json.dumps(["127.0.0.1:0", listeners[1]]))
    runs = [text(ask(address, request())) for address in (activator.address, front, front)]
    assert len(set(runs)) == 3, "each run answers one request"
