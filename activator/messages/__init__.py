"""All messages between the control plane and the data plane, and the channel that carries them.

Rules
  1. A message is plain data that can be encoded and sent through a socket; it does not refer to objects of either
     plane. `encode` and `decode` prove that in the tests.
  2. *Changes* go to the state worker, from sources (discovery, probes) and from the data plane (observations of
     requests). *Effects* go from the state worker to the data plane; *Load* comes back from it.
  3. A change names the pod by identity. If it is about a slot, it also has the slot's generation; if it is an
     observation of a pod, it has the pod's epoch: both show that a change is late. The state worker numbers epochs:
     each effect that gives a pod a slot or another state has a new one, and reports about the pod have the epoch that
     was valid at that time.
"""

from __future__ import annotations

from activator.messages.changes import (
    Change,
    LeasesOrphaned,
    Listed,
    PodFailedChecks,
    PodGone,
    PodRefused,
    PodSeen,
    PodServed,
    PodUnplaced,
    Probed,
    QueueStalled,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SlotDrained,
    SlotForgotten,
    SlotView,
    Sweep,
    TableSeen,
    TrialEnded,
)
from activator.messages.channel import (
    DirectChannel,
    ToData,
    decode,
    encode,
)
from activator.messages.commands import (
    AnnounceDrain,
    Command,
    Drain,
    SetHealth,
    SetPending,
    ShowOutput,
    SpeakKnative,
)
from activator.messages.effects import (
    DropRevision,
    Effect,
    FailRevision,
    FreeSlot,
    PlacePod,
    ProbeOrder,
    PumpQueue,
    RebuildPods,
    RebuildRevision,
    ReclaimLeases,
    SentRevision,
    SetPod,
    SetProbes,
    SetRevision,
    StartProbe,
    StopProbe,
    WithdrawPod,
)
from activator.messages.message import (
    PUSH,
    Message,
    PodStatus,
)
from activator.messages.reports import (
    ANSWER_OUTCOMES,
    Drained,
    FromData,
    Load,
    PodDrained,
    PodTaken,
    RevisionEnded,
    ToControl,
)
from activator.messages.statistics import (
    DataPlaneStatistics,
    Http2Statistics,
    RevisionStatistics,
    TableStatistics,
    TrafficStatistics,
)

__all__ = [
    "ANSWER_OUTCOMES",
    "PUSH",
    "AnnounceDrain",
    "Change",
    "Command",
    "DataPlaneStatistics",
    "DirectChannel",
    "Drain",
    "Drained",
    "DropRevision",
    "Effect",
    "FailRevision",
    "FreeSlot",
    "FromData",
    "Http2Statistics",
    "LeasesOrphaned",
    "Listed",
    "Load",
    "Message",
    "PlacePod",
    "PodDrained",
    "PodFailedChecks",
    "PodGone",
    "PodRefused",
    "PodSeen",
    "PodServed",
    "PodStatus",
    "PodTaken",
    "PodUnplaced",
    "ProbeOrder",
    "Probed",
    "PumpQueue",
    "QueueStalled",
    "RebuildPods",
    "RebuildRevision",
    "ReclaimLeases",
    "RevisionBroken",
    "RevisionEnded",
    "RevisionFailed",
    "RevisionGone",
    "RevisionRecovered",
    "RevisionSet",
    "RevisionStatistics",
    "SentRevision",
    "SetHealth",
    "SetPending",
    "SetPod",
    "SetProbes",
    "SetRevision",
    "ShowOutput",
    "SlotDrained",
    "SlotForgotten",
    "SlotView",
    "SpeakKnative",
    "StartProbe",
    "StopProbe",
    "Sweep",
    "TableSeen",
    "TableStatistics",
    "ToControl",
    "ToData",
    "TrafficStatistics",
    "TrialEnded",
    "WithdrawPod",
    "decode",
    "encode",
]
