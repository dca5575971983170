"""Who has answered, as the effects tell it, against a walk over all pods of the model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.config.specs import RevisionSpec
from activator.control_plane.sources.pod_answers import PodAnswers, cluster_pod
from activator.messages import (
    DropRevision,
    PlacePod,
    PodRefused,
    RebuildPods,
    RebuildRevision,
    RevisionBroken,
    SetPod,
    TrialEnded,
    WithdrawPod,
)
from lb.tracker import PENDING, QUARANTINED, READY, RECOVERING
from tests.control_plane.sources.knative.knative_fakes import KEY, Cluster, endpoint, endpoint_slice, revision

IPS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")

STEPS = st.one_of(
    st.tuples(st.just("list"), st.dictionaries(st.sampled_from(IPS), st.booleans())),
    st.tuples(st.just("answer"), st.sampled_from(IPS)),
    st.tuples(st.just("silence"), st.sampled_from(IPS)),
    st.tuples(st.just("refuse"), st.sampled_from(IPS)),
    st.tuples(st.just("pass"), st.sampled_from(IPS)),
    st.tuples(st.just("break"), st.just("")),
    st.tuples(st.just("drop"), st.just("")),
)


def in_states(cluster: Cluster, *states: int) -> set[str]:
    record = cluster.joined.worker.model.revisions.get(KEY)
    return set() if record is None else {pod.identity for pod in record.pods.values() if pod.state() in states}


@given(st.lists(STEPS, max_size=25), st.sampled_from([1, 100]))
def test_answers_are_those_of_the_model_whatever_happens(steps: list[tuple[str, object]], at_once: int) -> None:
    cluster = Cluster()
    cluster.joined.worker.model.renewed_at_once = at_once
    answers, do = cluster.source.answers, cluster.joined.do
    known = endpoint_slice()
    cluster.see(revision(limit=1), known)
    for what, value in steps:
        ip = str(value)
        if what == "list":
            assert isinstance(value, dict)
            former, known = known, endpoint_slice(*(endpoint(one, ready) for one, ready in value.items()))
            cluster.see(revision(limit=1))
            cluster.see(known, old=former)
        elif what == "answer":
            cluster.answer(ip)
        elif what == "silence":
            cluster.answering.discard(ip)
        elif what == "refuse":
            do(PodRefused(KEY, f"pod-{ip}", 0, True))
        elif what == "pass":
            do(TrialEnded(KEY, f"pod-{ip}", 0, True))
        elif what == "break":
            do(RevisionBroken(KEY, "a test"))
        else:
            cluster.miss(revision(limit=1))
        cluster.turn()
        assert answers.proven(KEY) == in_states(cluster, READY, RECOVERING, QUARANTINED)
        assert answers.has_pod(KEY) == answers.has_answer(KEY) == bool(in_states(cluster, READY, RECOVERING))


def test_the_first_answer_and_the_loss_of_the_last_are_told_once_and_a_service_is_no_pod() -> None:
    turned: list[str] = []
    answers = PodAnswers(turned.append)
    service = cluster_pod("10.96.0.1:80")
    answers.applied(PlacePod(KEY, service, "10.96.0.1:80", READY, 1, 1, 1))
    assert (answers.has_answer(KEY), answers.has_pod(KEY), answers.proven(KEY)) == (True, False, set())
    answers.applied(PlacePod(KEY, "p1", "10.0.0.1:80", PENDING, 1, 1, 1))
    assert len(turned) == 1
    for identity in ("p1", "p2"):
        answers.applied(SetPod(KEY, identity, READY, 1, 1, 1))
    assert len(turned) == 2 and answers.proven(KEY) == {"p1", "p2"}
    answers.applied(SetPod(KEY, "p1", QUARANTINED, 1, 1, 2))
    answers.applied(WithdrawPod(KEY, "p2", 1.0))
    assert len(turned) == 3 and answers.proven(KEY) == {"p1"} and not answers.has_pod(KEY)
    answers.applied(WithdrawPod(KEY, service, 1.0))
    assert len(turned) == 4 and not answers.has_answer(KEY)
    answers.applied(DropRevision(KEY))
    assert turned == [KEY] * 4 and answers.proven(KEY) == set()


def test_of_a_table_that_is_made_anew_in_parts_the_last_one_counts() -> None:
    turned: list[str] = []
    answers = PodAnswers(turned.append)
    spec = RevisionSpec(key=KEY)
    for identity in ("p1", "p2"):
        answers.applied(PlacePod(KEY, identity, "10.0.0.1:80", READY, 1, 1, 1))
    answers.applied(RebuildRevision(spec, (), "", complete=False))
    answers.applied(RebuildPods(KEY, (PlacePod(KEY, "p1", "10.0.0.1:80", READY, 1, 1, 1),), 0, complete=False))
    assert (turned, answers.proven(KEY)) == ([KEY], {"p1", "p2"})
    answers.applied(RebuildPods(KEY, (PlacePod(KEY, "p3", "10.0.0.3:80", PENDING, 1, 1, 1),), 1, complete=True))
    assert (turned, answers.proven(KEY)) == ([KEY], {"p1"})
    answers.applied(RebuildRevision(spec, (), "", complete=False))
    answers.applied(DropRevision(KEY))
    answers.applied(RebuildPods(KEY, (PlacePod(KEY, "p1", "10.0.0.1:80", READY, 1, 1, 1),), 0, complete=True))
    assert (turned, answers.proven(KEY)) == ([KEY] * 2, set())
    answers.applied(RebuildRevision(spec, (PlacePod(KEY, "p1", "10.0.0.1:80", READY, 1, 1, 1),), ""))
    answers.applied(RebuildRevision(spec, (), ""))
    assert (turned, answers.has_answer(KEY)) == ([KEY] * 4, False)
