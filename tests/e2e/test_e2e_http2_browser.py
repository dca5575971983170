"""A browser (Chromium) over TLS: it agrees on HTTP/2, loads a page of many parts at once, and posts a body."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import trustme

from tests.e2e.conftest import RunActivator
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import configured

PARTS = 60
BODY_BYTES = 300_000
BROWSER_S = 60.0

PAGE = f"""<!doctype html><title>page</title><pre id=told></pre><script>
(async () => {{
  const parts = await Promise.all(Array.from({{length: {PARTS}}}, async (_, number) =>
    (await (await fetch('/part/' + number)).text()) === 'part ' + number));
  const sent = new Uint8Array({BODY_BYTES}).fill(120);
  const echoed = await (await fetch('/echo', {{method: 'POST', body: sent}})).text();
  const protocols = performance.getEntries().map(entry => entry.nextHopProtocol).filter(Boolean);
  document.querySelector('#told').textContent = JSON.stringify({{
    parts: parts.filter(Boolean).length, echoed: echoed === '{BODY_BYTES}', protocols: [...new Set(protocols)]}});
}})();
</script>"""


def serve(side: PodSide) -> None:
    while True:
        asked = side.request()
        if asked.target.startswith("/part/"):
            side.answer(f"part {asked.target[6:]}".encode())
        elif asked.target == "/echo":
            side.answer(str(len(asked.body)).encode())
        else:
            side.answer(PAGE.encode(), "Content-Type: text/html\r\n")


def test_a_page_of_many_parts(tmp_path: Path, run_activator: RunActivator, need_program: Callable[[str], str]) -> None:
    chromium = need_program("chromium")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    ours = trustme.CA().issue_cert("localhost")
    ours.private_key_pem.write_to_path(str(key))
    certificate.write_bytes(b"".join(blob.bytes() for blob in ours.cert_chain_pems))
    listen = {"address": "127.0.0.1:0", "certificate": str(certificate), "key": str(key)}
    with ScriptedPod(serve) as pod:
        revision = {"name": "page", "hosts": ["*"], "pods": [pod.address]}
        activator = run_activator(configured([revision], listen=listen))
        command = [
            chromium,
            "--headless",
            "--no-sandbox",  # root has none
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"https://localhost:{activator.port}/",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_S, check=False)
        told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout)
        assert told is not None, done.stdout + done.stderr
        assert told[1] == f'{{"parts":{PARTS},"echoed":true,"protocols":["h2"]}}'
        activator.wait_idle()
