"""Who we are to the API: files, service accounts, plug-ins, and what is read anew when."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme
import uvloop

from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import KUBE_CREDENTIALS_AGE_S, KUBE_RENEW_MIN_S, Credentials
from activator.kubernetes.errors import (
    CredentialsError,
    RefusedError,
    UnreachableError,
    WatchCutError,
)
from activator.kubernetes.resources import CONFIG_MAPS, Selection
from activator.runtime import lean_import
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import (
    Cluster,
    fake_cluster,
    on_a_loop,
    until,
    watching,
    write_config,
)
from tests.manual_clock import ManualClock

PATH = CONFIG_MAPS.collection("default")


async def can_list(cluster: Cluster) -> bool:
    try:
        await cluster.client.list_page(PATH, {})
        return True
    except RefusedError as refused:
        if refused.status == 401:
            return False
        raise


@asynccontextmanager
async def known_by_file(folder: Path) -> AsyncIterator[tuple[Cluster, Path]]:
    """A cluster that wants the token "first", and the file that says so to its client."""
    file = folder / "token"
    file.write_text("first\n")
    async with fake_cluster(folder, {"tokenFile": str(file)}) as cluster:
        cluster.server.token = "first"
        yield cluster, file


@on_a_loop
async def test_a_token(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path, {"token": "secret"}) as cluster:
        cluster.server.token = "secret"
        assert await can_list(cluster)
        cluster.server.token = "another"
        assert not await can_list(cluster)


@on_a_loop
async def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    async with known_by_file(tmp_path) as (cluster, file):
        assert await can_list(cluster)
        file.write_text("second\n")
        cluster.clock.pass_time(KUBE_CREDENTIALS_AGE_S)
        cluster.server.token = "second"
        assert await can_list(cluster)
        assert ("list", "401") not in cluster.client.requests_total


@on_a_loop
async def test_what_cannot_be_read_again_leaves_the_old_as_it_is(tmp_path: Path) -> None:
    async with known_by_file(tmp_path) as (cluster, file):
        assert await can_list(cluster)
        file.unlink()
        cluster.clock.pass_time(KUBE_CREDENTIALS_AGE_S)
        assert await can_list(cluster)
        cluster.server.token = "second"
        cluster.clock.pass_time(KUBE_RENEW_MIN_S)
        with pytest.raises(CredentialsError):
            await can_list(cluster)
        file.write_text("second")
        cluster.clock.pass_time(KUBE_RENEW_MIN_S)
        assert await can_list(cluster)
        assert cluster.client.requests_total == {
            ("list", "200"): 3,
            ("list", "401"): 1,
            ("list", "credentials"): 1,
        }


@on_a_loop
async def test_after_a_401_everything_is_read_anew_but_not_in_a_storm(tmp_path: Path) -> None:
    async with known_by_file(tmp_path) as (cluster, file):
        assert await can_list(cluster)
        file.write_text("second")
        cluster.server.token = "second"
        assert not await can_list(cluster)  # read a moment ago: not yet
        cluster.clock.pass_time(KUBE_RENEW_MIN_S)
        assert await can_list(cluster)
        assert cluster.client.requests_total == {("list", "200"): 2, ("list", "401"): 2}


@on_a_loop
async def test_a_watch_outlives_the_token_that_it_began_with(tmp_path: Path) -> None:
    async with known_by_file(tmp_path) as (cluster, file):
        stream = await cluster.client.watch(CONFIG_MAPS.collection(), {"resourceVersion": "100"})
        cluster.server.token = "second"
        file.write_text("second")
        cluster.clock.pass_time(KUBE_CREDENTIALS_AGE_S)
        assert await can_list(cluster)
        cluster.server.create("configmaps", {"metadata": {"name": "a"}})
        assert len(await stream.lines()) == 1
        stream.close()


def plugin(folder: Path, expires: str) -> dict[str, object]:
    """A credential plug-in that gives another token each time, and counts."""
    script = folder / "plugin.py"
    script.write_text(
        textwrap.dedent(f"""
            import json, pathlib
            count = pathlib.Path({str(folder / "count")!r})
            number = int(count.read_text()) + 1 if count.exists() else 1
            count.write_text(str(number))
            status = {{"token": f"token-{{number}}"}}
            if {expires!r}:
                status["expirationTimestamp"] = {expires!r}
            version = "client.authentication.k8s.io/v1"
            print(json.dumps({{"apiVersion": version, "kind": "ExecCredential", "status": status}}))
        """)
    )
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(script)]}}


@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")  # kubernetes_asyncio, on Python 3.12
@pytest.mark.parametrize(("expires", "runs"), [("", 1), ("2999-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00Z", 2)])
@on_a_loop
async def test_a_plugin_is_run_again_when_what_it_gave_expires(tmp_path: Path, expires: str, runs: int) -> None:
    async with fake_cluster(tmp_path, plugin(tmp_path, expires)) as cluster:
        cluster.server.token = "token-1"
        assert await can_list(cluster)
        cluster.server.token = f"token-{runs}"
        cluster.clock.pass_time(KUBE_CREDENTIALS_AGE_S)
        assert await can_list(cluster)
        assert (tmp_path / "count").read_text() == str(runs)
        assert ("list", "401") not in cluster.client.requests_total


@pytest.mark.filterwarnings("ignore:datetime.datetime.utc:DeprecationWarning")
@on_a_loop
async def test_a_plugin_is_run_again_after_a_401(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path, plugin(tmp_path, "")) as cluster:
        cluster.server.token = "token-1"
        assert await can_list(cluster)
        cluster.server.token = "token-2"
        cluster.clock.pass_time(KUBE_RENEW_MIN_S)
        assert await can_list(cluster)


@on_a_loop
async def test_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's loader, on files of our own: a token that is replaced is used after a minute, or after a 401."""
    lean_import.prepare("kubernetes_asyncio")
    from kubernetes_asyncio.config import incluster_config

    authority = trustme.CA().cert_pem
    authority.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("first")
    load = incluster_config.load_incluster_config
    files = {"token_filename": str(tmp_path / "token"), "cert_filename": str(tmp_path / "ca.crt")}
    monkeypatch.setattr("kubernetes_asyncio.config.load_incluster_config", lambda **more: load(**files, **more))
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    clock = ManualClock()
    credentials = Credentials(environ, clock.now)
    session = await credentials.session()
    assert session.configuration.host == "https://[fd00::1]:443"
    assert await session.configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
    (tmp_path / "token").write_text("second")
    (tmp_path / "ca.crt").unlink()
    authority.write_to_path(str(tmp_path / "ca.crt"))  # as a kubelet does with each rotation
    os.utime(tmp_path / "ca.crt", (1.0, 1.0))
    await credentials.refresh()
    assert await session.configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
    clock.pass_time(KUBE_RENEW_MIN_S)
    assert await credentials.renew()
    assert await session.configuration.get_api_key_with_prefix("BearerToken") == "Bearer second"
    assert not await credentials.renew()
    assert credentials.renewals_total == 1
    assert [credentials.transport_changed] == [False], "the same authority: connections stay"
    (tmp_path / "token").write_text("third")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    clock.pass_time(KUBE_CREDENTIALS_AGE_S)
    await credentials.refresh()
    assert await session.configuration.get_api_key_with_prefix("BearerToken") == "Bearer third"
    assert credentials.transport_changed
    await session.close()


@on_a_loop
async def test_another_server_or_certificate_means_other_connections(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as old, fake_cluster(tmp_path) as new:
        write_config(tmp_path, old.server.url)  # `new` wrote the file last; `old`'s client has not read it yet
        assert await can_list(old)
        stream = await old.client.watch(CONFIG_MAPS.collection(), {"resourceVersion": "100"})
        write_config(tmp_path, new.server.url)
        old.clock.pass_time(KUBE_CREDENTIALS_AGE_S)
        assert await can_list(old)
        assert old.server.verbs() == ["list", "watch"] and new.server.verbs() == ["list"]
        with pytest.raises(WatchCutError):
            await stream.lines()
        stream.close()


def test_over_tls_with_a_client_certificate_on_the_loop_of_the_program(tmp_path: Path) -> None:
    """As on a cluster: an authority of its own, a certificate for us, uvloop."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("activator@example.org")

    def base64_of(*blobs: trustme.Blob) -> str:
        return base64.b64encode(b"".join(blob.bytes() for blob in blobs)).decode()

    async def story() -> None:
        server = FakeApiServer()
        server.tls = context
        await server.start()
        server.create("configmaps", {"metadata": {"name": "a"}})
        user = {
            "client-certificate-data": base64_of(*ours.cert_chain_pems),
            "client-key-data": base64_of(ours.private_key_pem),
        }
        clock = ManualClock()
        for trusted in (authority, trustme.CA()):
            trust = {"certificate-authority-data": base64_of(trusted.cert_pem)}
            config = write_config(tmp_path, server.url, user, trust)
            client = KubeClient(Credentials({"KUBECONFIG": config}, clock.now), "activator/test")
            if trusted is authority:
                cluster = Cluster(server, client, clock)
                async with watching(cluster, Selection(CONFIG_MAPS)) as (_, handler):
                    server.cut_next_line = True
                    server.create("configmaps", {"metadata": {"name": "b"}})
                    await until(partial(handler.was_told, "+", "b"))
            else:
                with pytest.raises(UnreachableError, match="certificate verify failed"):
                    await client.list_page(PATH, {})
            await client.close()
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (None, {}),
        ("not: [a configuration", {}),
        ("{}", {}),
        (None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}),
    ],
)
@on_a_loop
async def test_what_cannot_be_read_is_one_kind_of_error(
    tmp_path: Path, text: str | None, environ: dict[str, str]
) -> None:
    file = tmp_path / "broken"
    if text is not None:
        file.write_text(text)
    named = {} if environ else {"KUBECONFIG": str(file)}
    with pytest.raises(CredentialsError):
        await Credentials({**environ, **named}, ManualClock().now).session()
