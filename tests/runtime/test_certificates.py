"""The certificate of a listener, looked at in the worst moments; what serves with it stands in the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import trustme

from activator.config.model import Tls
from activator.runtime.certificates import ServerCertificate


def write(tls: Tls) -> None:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(tls.key)
    issued.cert_chain_pems[0].write_to_path(tls.certificate)


class Overtaken(ServerCertificate):
    """Its files are good whenever they are tried."""

    def problem(self) -> str:
        return ""


def test_files_that_change_while_they_are_looked_at(tmp_path: Path) -> None:
    """They were good when they were tried, and are not when they are loaded: nothing is raised; the next look helps."""
    tls = Tls("127.0.0.1:0", str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    write(tls)
    served = Overtaken(tls)
    whole = Path(tls.key).read_bytes()
    Path(tls.key).write_bytes(b"half of a key")
    served.look()
    assert (served.reloads_total, served.refused_total) == (0, 1)
    Path(tls.key).write_bytes(whole)
    served.look()
    assert (served.reloads_total, served.refused_total) == (1, 1)
