"""Each case runs in a new interpreter: what has been imported stays."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(code: str) -> None:
    """Run `code` in plain Python; it must print "fine" and nothing else."""
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr


def test_kubernetes_without_models() -> None:
    run("""
        import sys
        from activator.runtime import lean_import
        lean_import.prepare("kubernetes_asyncio")
        from kubernetes_asyncio.config import load_kube_config
        from kubernetes_asyncio.client import ApiClient, Configuration
        heavy = [name for name in sys.modules if ".models." in name or ".api." in name or "dynamic" in name]
        assert not heavy, heavy
        assert len([name for name in sys.modules if name.startswith("kubernetes_asyncio")]) < 25
        from kubernetes_asyncio.client import V1Pod, CoreV1Api
        assert V1Pod(kind="Pod").kind == "Pod" and CoreV1Api
        import kubernetes_asyncio.client
        assert kubernetes_asyncio.client.models.V1Pod is V1Pod
        assert kubernetes_asyncio.client.ApiClient is ApiClient
        import kubernetes_asyncio
        assert kubernetes_asyncio.__version__ and kubernetes_asyncio.watch.Watch
        try:
            kubernetes_asyncio.nothing
        except AttributeError:
            print("fine")
    """)


def test_aiohttp_without_its_client() -> None:
    run("""
        import sys
        from importlib.metadata import version
        from activator.runtime import lean_import
        lean_import.prepare("aiohttp")
        import activator.admin.server
        import aiohttp
        assert not {"aiohttp.client", "aiohttp.connector"} & set(sys.modules)
        server = aiohttp.web
        assert aiohttp.__version__ == version("aiohttp") and aiohttp.hdrs.METH_GET == "GET"
        from aiohttp import ClientSession  # executes the package
        assert aiohttp.ClientSession is ClientSession and aiohttp.web is server
        assert aiohttp.__version__ == version("aiohttp") and "ClientSession" in aiohttp.__all__
        try:
            aiohttp.nothing
        except AttributeError:
            print("fine")
    """)


def test_threads_that_ask_while_the_package_is_executed_wait_for_it() -> None:
    run("""
        import sys, threading
        from activator.runtime import lean_import
        lean_import.prepare("aiohttp")
        lean_import.prepare("kubernetes_asyncio")
        import aiohttp, kubernetes_asyncio.client
        sys.setswitchinterval(1e-6)
        found = []
        threads = [threading.Thread(target=lambda: found.append(aiohttp.ClientSession)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [aiohttp.ClientSession] * 8, found
        assert kubernetes_asyncio.client.__version__
        print("fine")
    """)


def test_what_was_imported_before_stays_as_it_is() -> None:
    run("""
        import kubernetes_asyncio
        from activator.runtime import lean_import
        lean_import.prepare("kubernetes_asyncio")
        assert kubernetes_asyncio.client.CoreV1Api
        assert "__getattr__" not in kubernetes_asyncio.client.__dict__
        print("fine")
    """)
