"""The number of wanted pods."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Count, Duration, Positive, doc

TARGET_CONCURRENCY: Final = 100  # per pod, if the revision has no limit
TARGET_RPS: Final = 200  # per pod, with `metric: rps`
STABLE_WINDOW_S: Final = 60.0
PROCESS_STABLE_WINDOW_S: Final = 10.0  # a process starts quickly, so stopping one too early costs little
PANIC_WINDOW_SHARE: Final = 0.1  # share of the stable window, rounded to whole seconds
SCALING_WINDOW_MAX_S: Final = 3600.0  # for the stable window, the scale-down delay and the retention of the last pod
SCALE_TO_ZERO_GRACE_S: Final = 60.0
SCHEDULE_MAX: Final = 32  # entries per revision
METRIC_CONCURRENCY: Final = "concurrency"
METRIC_RPS: Final = "rps"
SCALING_METRICS: Final = (METRIC_CONCURRENCY, METRIC_RPS)
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Utilization = Annotated[float, msgspec.Meta(ge=0.01, le=1.0)]
Target = Annotated[float, msgspec.Meta(ge=0.01)]
PanicThreshold = Annotated[float, msgspec.Meta(ge=1.1, le=10.0)]
ScaleRate = Annotated[float, msgspec.Meta(ge=1.01, le=10_000.0)]


class ScheduledScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours with a minimum number of pods."""

    min: Annotated[Positive, doc("The minimum number of pods in these hours, also without load.", 2)]
    from_: Annotated[str, doc("The time at which it begins, `HH:MM`.", "08:00")] = msgspec.field(
        name="from", default="00:00"
    )
    until: Annotated[
        str,
        doc(
            "The time at which it ends, `HH:MM`: on the next day if not later than `from`; the same as `from`: 24 "
            "hours.",
            "18:30",
        ),
    ] = "00:00"
    days: Annotated[
        list[Annotated[str, doc("A day of the week.", "mon", words=WEEKDAYS)]],
        doc("The days on which it begins.", ["mon", "tue", "wed", "thu", "fri"]),
    ] = msgspec.field(default_factory=lambda: [*WEEKDAYS])
    time_zone: Annotated[str, doc("The IANA name of the time zone.", "Europe/Berlin")] = "UTC"


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of pods, by load. Names and rules are those of Knative's autoscaler ([scaling](scaling.md))."""

    min: Annotated[Count, doc("The number of pods that always run.", 1)] = 0
    max: Annotated[
        Count, doc("The highest number of pods. 0: as `process.max_scale`; without a process, no bound.", 10)
    ] = 0
    metric: Annotated[
        str,
        doc(
            "`concurrency`: requests that are present at the same time. `rps`: requests per second.",
            METRIC_RPS,
            words=SCALING_METRICS,
        ),
    ] = METRIC_CONCURRENCY
    target: Annotated[
        Target | None,
        doc(
            "The target value of the metric per pod. Not set: `container_concurrency`, or "
            f"{TARGET_CONCURRENCY} if that is 0; with `metric: rps` {TARGET_RPS}.",
            10,
        ),
    ] = None
    utilization: Annotated[
        Utilization, doc("The share of the target that is used, to leave capacity for more requests.", 0.7)
    ] = 1.0
    stable_window: Annotated[
        Duration | None,
        doc(
            "The time over which the load is averaged; whole seconds. Not set: "
            f"{PROCESS_STABLE_WINDOW_S:.0f} s for processes, else {STABLE_WINDOW_S:.0f} s.",
            "60s",
        ),
    ] = None
    panic_window: Annotated[
        Duration | None,
        doc(
            "The shorter time over which a sudden rise of the load is detected; whole seconds. Not set: a tenth of "
            "`stable_window`, at least 1 s.",
            "6s",
        ),
    ] = None
    panic_threshold: Annotated[
        PanicThreshold,
        doc(
            "Panic begins when the average over the panic window needs this multiple of the ready pods. In panic the "
            "number does not fall until the load has been below this for `stable_window`.",
            1.5,
        ),
    ] = 2.0
    scale_up_rate: Annotated[
        ScaleRate, doc("One decision (every 2 s) raises the number to at most this multiple of the ready pods.", 10)
    ] = 1000.0
    scale_down_rate: Annotated[
        ScaleRate, doc("One decision (every 2 s) lowers the number to at least the ready pods divided by this.", 4)
    ] = 2.0
    scale_down_delay: Annotated[
        Duration, doc("The number falls only to the largest number that was wanted in this time.", "5m")
    ] = Duration(0.0)
    initial_scale: Annotated[
        Count, doc("The number of pods of a new revision, until that many have been ready.", 1)
    ] = 0
    activation_scale: Annotated[Positive, doc("The minimum number of pods while there is load.", 2)] = 1
    scale_to_zero_grace: Annotated[
        Duration | None,
        doc(
            "The time without a request after which the number falls to `min`. Not set: `process.idle`; without a "
            f"process {SCALE_TO_ZERO_GRACE_S:.0f} s.",
            "5m",
        ),
    ] = None
    last_pod_retention: Annotated[
        Duration, doc("How long the last pod stays after that, before the number falls to zero.", "10m")
    ] = Duration(0.0)
    burst: Annotated[
        bool | None,
        doc(
            "If true, the number rises at once with more requests than the targets of the present pods, without an "
            "average. Not set: true for processes with `metric: concurrency`, else false.",
            False,
        ),
    ] = None
    schedule: Annotated[
        list[ScheduledScale],
        doc(
            f"Minimum numbers of pods by weekday and time, at most {SCHEDULE_MAX}. The largest that applies counts.",
            [{"min": 2, "from": "08:00", "until": "18:00", "days": ["mon", "fri"], "time_zone": "Europe/Berlin"}],
        ),
    ] = []
