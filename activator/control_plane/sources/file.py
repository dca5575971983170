"""The configuration file as a source: the revisions that it declares, and their fixed pods.

Fixed pods are the addresses that the file lists, the addresses of its names, and those of a file of pods (fixed_pods/).
They are probed until they answer; afterwards requests, probes and health checks determine their state.
"""

from __future__ import annotations

from collections.abc import Callable

from activator.config.model.file import Config
from activator.config.model.revision import Revision
from activator.config.specs import RevisionSpec
from activator.control_plane.sources.fixed_pods.source import FixedPods
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.sources.source import Source
from activator.control_plane.sources.unreachable import UnreachableRevisions
from activator.messages import Change, Load, RevisionGone, RevisionSet


class FileSource(Source):
    """The revisions of the file.

    `processes` runs those that have a command, `fixed_pods` knows the pods of the others, `unreachable` judges them.
    """

    def __init__(
        self,
        submit: Callable[[Change], None],
        processes: ProcessSource,
        fixed_pods: FixedPods,
        unreachable: UnreachableRevisions,
    ) -> None:
        self._submit = submit
        self._processes = processes
        self.fixed_pods = fixed_pods
        self._unreachable = unreachable
        self._declared: dict[str, tuple[RevisionSet, Revision]] = {}  # by key

    def configure(self, config: Config, specs: list[RevisionSpec]) -> None:
        """Replace the declared revisions by those of the file; pods that stay are not touched."""
        revisions = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
        declared = {spec.key: (RevisionSet(spec), revisions[spec.key]) for spec in specs}
        leaving = [key for key in self._declared if key not in declared]
        changed = [key for key, declaration in declared.items() if self._declared.get(key, declaration) != declaration]
        self._declared = declared  # first: a change that a full queue drops below is resubmitted from here
        for key in leaving:
            self._processes.drop_revision(key)
            self.fixed_pods.drop_revision(key)
            self._unreachable.forget(key)
            self._submit(RevisionGone(key))
        for key, (revision_set, revision) in declared.items():
            self._submit(revision_set)
            self.fixed_pods.set_revision(key, revision)
            if self.fixed_pods.has_pods(key):
                self._unreachable.patience_s[key] = float(revision.timeouts.unreachable)
            else:
                self._unreachable.patience_s.pop(key, None)
        self._processes.configure(config, revisions)
        for key in changed:
            self._unreachable.recover(key)

    def receive_load(self, load: Load) -> None:
        self._unreachable.receive_load(load)
        if load.queued or load.key in self._unreachable.causes:
            self.fixed_pods.expedite(load.key)

    def declares(self, key: str) -> bool:
        return key in self._declared

    def resubmit(self, key: str) -> None:
        self._submit(self._declared[key][0])
        self.fixed_pods.resubmit(key)
        self._unreachable.resubmit(key)
        self._processes.resubmit(key)  # after the revision: pods of an unknown revision are ignored
