"""`cluster`: a story's cluster, the fake one and, where there is one, a real one (tests/kube/real.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.activation_cluster import ActivationCluster
from tests.e2e.conftest import next_net
from tests.e2e.real_activation_cluster import RealActivationCluster
from tests.e2e.story_cluster import StoryCluster
from tests.kube import real
from tests.kubernetes.fake_nodes import Settings

MakeCluster = Callable[..., StoryCluster]


def skip_without_pods() -> None:
    """Skips the test where there is no real API server, or pods cannot have addresses."""
    if not real.IS_THERE:
        pytest.skip(real.WHY_NOT)
    if why := real.why_no_pod_network():
        pytest.skip(why)


@pytest.fixture(params=["fake", "real"] if real.IS_THERE else ["fake"])
def make_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeCluster]:
    """`make_cluster(settings)`: closed when the test is over."""
    with ExitStack() as stack:

        def make(settings: Settings | None = None) -> StoryCluster:
            made: StoryCluster
            if request.param == "real":
                skip_without_pods()
                made = RealActivationCluster(tmp_path, settings)
            else:
                made = ActivationCluster(tmp_path, next_net(), settings)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> StoryCluster:
    return make_cluster()
