"""What the end-to-end tests share: an activator that is ended, and judged, when its test or module is over."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.knative_cluster import Cluster
from tests.e2e.running import PATIENCE_S, WORKERS, Activator

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RunActivator = Callable[..., Activator]


one_worker = pytest.mark.skipif(WORKERS > 1, reason="it is about what each worker has for itself")

# Of 127.0.0.0/8, one for each cluster, by turns: processes of pytest-xdist beside each other never have the same one.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_NETS = itertools.cycle(range(20 + _PROCESS, 255, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


# The files that take longest, the longest first: with `--dist loadfile --no-loadscope-reorder` none begins when
# all others are done.
LONGEST = ("test_e2e_members.py", "test_e2e_programs.py", "test_e2e_cluster_members.py", "test_e2e_one_truth.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture
def run_activator(tmp_path: Path) -> Iterator[RunActivator]:
    """`run_activator(configuration)` or `run_activator(arguments=[...])`: one that serves."""
    yield from runner(tmp_path)


@pytest.fixture(scope="module")
def run_shared_activator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunActivator]:
    """The same for all tests of a module."""
    yield from runner(tmp_path_factory.mktemp("activator"))


def next_net() -> int:
    """The second number of addresses in 127.0.0.0/8 that no other cluster of this run has."""
    return next(_NETS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own."""
    made = Cluster(tmp_path, next_net())
    yield made
    made.close()


def runner(folder: Path) -> Iterator[RunActivator]:
    """Yield the function of `run_activator`; end what it has started."""
    running: list[Activator] = []

    def run(
        configuration: dict[str, Any] | None = None,
        arguments: list[str] | None = None,
        prefix: Sequence[str] = (),
        timeout_s: float = PATIENCE_S,
        **variables: str,
    ) -> Activator:
        if configuration is not None:
            path = folder / f"activator{len(running)}.yaml"
            path.write_text(json.dumps(configuration, indent=1))  # JSON is YAML
            arguments = ["-c", str(path)]
        assert arguments is not None
        activator = Activator(arguments, folder, prefix, **variables)
        running.append(activator)
        return activator.wait_serving(timeout_s)

    try:
        yield run
    finally:
        problems = []
        for activator in running:
            try:
                activator.close()
            except AssertionError as error:
                problems.append(str(error))
        assert not problems, "\n".join(problems)


@pytest.fixture(scope="module")
def browser(need_program: Callable[[str], str]) -> Iterator[Browser]:
    """Chromium, without its sandbox: the tests may run as root."""
    from playwright.sync_api import sync_playwright  # it takes long, and few tests need it

    switches = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=need_program("chromium"), args=switches)
        yield chromium
        chromium.close()
