"""Coverage-guided fuzzing of everything that reads bytes of a peer: `make fuzz SECONDS=60`.

    python -m tests.fuzz --minimise     writes tests/corpora from what the fuzzer has found so far

Rules
  1. A target is a property test. Hypothesis makes its arguments from the fuzzer's bytes (`fuzz_one_input`), so a find
     is a failing example of that test, and stays in hypothesis' database until it passes. A find of a property of any
     bytes is in build/fuzz only.
  2. The code is plain Python, of which atheris counts the edges.
  3. A target's corpus is in build/fuzz/NAME, and the next run goes on from it. A small part that reaches the same edges
     is committed as tests/corpora/NAME.txt, one input a line (base64); `tests/test_corpora.py` replays it.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

OneInput = Callable[[bytes], bytes | None]

ROOT = Path(__file__).resolve().parents[1]
CORPORA = ROOT / "build" / "fuzz"
COMMITTED = ROOT / "tests" / "corpora"
INPUTS_MAX = 64  # committed, of each target
INPUT_MAX_BYTES = 1_024

TARGETS = [
    "codec.http1.test_wire_properties:test_any_bytes_as_requests",
    "codec.http1.test_wire_properties:test_any_bytes_as_responses",
    "codec.http1.test_wire_properties:test_a_request_that_repeats_another_is_read_like_a_first_one",
    "codec.http1.test_wire_properties:test_a_response_that_repeats_another_is_read_like_a_first_one",
    "codec.http1.test_wire_fields:test_a_request_block_is_what_llhttp_would_have_delivered",
    "codec.http1.test_wire_fields:test_trailers_are_what_llhttp_would_have_delivered",
    "codec.http1.test_wire_lenient:test_any_old_shape_of_a_head_is_what_it_was",
    "codec.http2.test_http2_frames:test_any_bytes_give_no_exception",
    "codec.http2.test_http2_frames:test_a_server_is_told_the_same_however_the_bytes_are_cut",
    "codec.http2.test_http2_frames:test_so_is_a_client",
    "codec.http2.test_http2_frames:test_h2_refuses_what_we_refuse",
    "codec.http2.test_hpack_oracle:test_any_block_is_judged_alike",
    "codec.http2.test_hpack_huffman:test_random_bytes",
    "codec.test_proxy_protocol:test_whatever_comes_it_is_one_of_three",
    "codec.test_proxy_protocol:test_it_agrees_with_another_parser_wherever_it_is_cut",
    "codec.test_json_field:test_any_bytes_end_in_the_same_way_however_they_are_cut",
    "codec.test_json_values:test_where_a_nested_value_ends",
    "config.test_config_file:test_any_text_is_answered",
    "config.test_config_file:test_any_tree_is_answered",
    "config.test_config_file:test_any_environment_is_answered",
    "data_plane.proxy.test_activity:test_bytes_that_are_no_frames_do_no_harm",
    "data_plane.headers.test_origin:test_no_claim_whatever_breaks_a_head",
    "members.test_handshake:test_whatever_is_changed_on_the_way_is_noticed",
    "runtime.test_certificates:test_a_malformed_hello_raises_nothing",
    "workers.test_frames:test_no_bytes_raise_anything_else",
    "workers.test_frames:test_no_changed_frame_raises_anything_else",
]


class Outcome(NamedTuple):
    """The outcome of one target. `find`: the error that ended it, "" if there was none."""

    executions: int
    edges: int
    find: str


def name_of(target: str) -> str:
    return target.rpartition(":")[2].removeprefix("test_")


def property_of(target: str) -> OneInput:
    """Import the property test of a target, as a function of the fuzzer's bytes. Raises AttributeError without one.

    It returns the part of the bytes that it has used; None: they are not valid. A property of any bytes gets them as
    they are: hypothesis would make a longer string of two bytes for each of its own, and mostly of none.
    """
    module, _, name = target.partition(":")
    handle = getattr(importlib.import_module(f"tests.{module}"), name).hypothesis
    strategies = list(handle._given_kwargs.values())
    if len(strategies) != 1 or getattr(getattr(strategies[0], "function", None), "__name__", "") != "binary":
        fuzz_one_input: OneInput = handle.fuzz_one_input
        return fuzz_one_input
    any_bytes = re.fullmatch(r"binary\(max_size=(\d+)\)", repr(strategies[0]))
    assert any_bytes is not None, strategies
    size = int(any_bytes[1])

    def one_input(data: bytes) -> bytes:
        handle.inner_test(data[:size])
        return data[:size]

    return one_input


def functions() -> Iterator[FunctionType]:
    """Yield the loaded functions of the program; atheris's hook of imports does not see its modules (lb/world.py)."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {"activator", "lb"}:
            for holder in (module, *(one for one in vars(module).values() if isinstance(one, type))):
                if getattr(holder, "__module__", name) == name:
                    yield from (one for one in vars(holder).values() if isinstance(one, FunctionType))


def committed(target: str) -> list[bytes]:
    """The committed inputs of a target."""
    path = COMMITTED / f"{name_of(target)}.txt"
    return [base64.b64decode(line) for line in path.read_text("ascii").split()] if path.exists() else []


def write_committed(target: str, inputs: Iterable[bytes]) -> None:
    COMMITTED.mkdir(exist_ok=True)
    lines = "".join(base64.b64encode(one).decode("ascii") + "\n" for one in sorted(inputs))
    (COMMITTED / f"{name_of(target)}.txt").write_text(lines, "ascii")


def corpus_of(target: str) -> Path:
    """The folder of a target's corpus, with what is committed of it."""
    corpus = CORPORA / name_of(target)
    corpus.mkdir(parents=True, exist_ok=True)
    for one in committed(target):
        (corpus / hashlib.sha1(one).hexdigest()).write_bytes(one)  # as libFuzzer names them
    return corpus


def run_libfuzzer(target: str, options: list[str]) -> None:
    """Run one target in this process, which libFuzzer ends."""
    atheris: Any = importlib.import_module("atheris")  # `make fuzz` installs it
    one_input = property_of(target)
    for function in functions():
        atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


def fuzz(target: str, seconds: int) -> None:
    """Fuzz one target in this process."""
    corpus = corpus_of(target)
    options = [
        f"-max_total_time={seconds}",
        "-timeout=60",
        f"-max_len={INPUT_MAX_BYTES}",
        "-len_control=0",
        f"-artifact_prefix={corpus}-",
    ]
    run_libfuzzer(target, [*options, str(corpus)])


# --- the committed corpora ---


def canonical(target: str) -> dict[bytes, Path]:
    """The valid inputs of a target's corpus, each as short as hypothesis can say it, with a file of it."""
    one_input = property_of(target)
    folder = CORPORA / ".minimised" / name_of(target)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found: dict[bytes, Path] = {}
    for path in sorted(corpus_of(target).iterdir()):
        try:
            used = one_input(path.read_bytes())
        except Exception as error:
            print(f"{path}: {error!r}", file=sys.stderr)  # a find that is not mended
            continue
        if used is not None and len(used) <= INPUT_MAX_BYTES:
            found[used] = folder / hashlib.sha1(used).hexdigest()
            found[used].write_bytes(used)
    return found


def covering(features: dict[bytes, set[int]], most: int = INPUTS_MAX) -> list[bytes]:
    """A few inputs that reach nearly all features of all: each is the one that adds most, of equals the shortest."""
    left = set().union(*features.values()) if features else set()
    chosen: list[bytes] = []
    while left and len(chosen) < most:
        best = max(features, key=lambda one: (len(features[one] & left), -len(one), one))
        chosen.append(best)
        left -= features[best]
    return chosen


def features_in(control: str, paths: list[Path]) -> dict[Path, set[int]]:
    """Read what libFuzzer's merge has written about the inputs: the features (edges with counts) that each reaches."""
    found: dict[Path, set[int]] = {}
    for index, numbers in re.findall(r"^FT (\d+)((?: \d+)*)$", control, re.MULTILINE):
        found[paths[int(index)]] = {int(number) for number in numbers.split()}
    return found


def minimise(target: str) -> int:
    """Write the committed corpus of a target anew; the number of its inputs."""
    inputs = canonical(target)
    paths = list(inputs.values())
    control = CORPORA / ".minimised" / f"{name_of(target)}.merge"
    control.write_text("\n".join([str(len(paths)), "0", *map(str, paths)]) + "\n")
    command = [sys.executable, "-m", "tests.fuzz", "--merge", str(control), "--within", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    reached = features_in(control.read_text(), paths)
    assert len(reached) == len(paths), done.stderr[-2_000:]
    chosen = covering({one: reached[path] for one, path in inputs.items()})
    write_committed(target, chosen)
    print(f"{len(paths):>6,} {len(chosen):>6}  {target}", flush=True)
    return len(chosen)


def outcome_of(code: int, output: str) -> Outcome:
    """Read what libFuzzer and Python have written."""
    counts = [int(number) for number in re.findall(r"^#(\d+)\s", output, re.MULTILINE)]
    edges = [int(number) for number in re.findall(r" cov: (\d+) ", output)]
    errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Group)\b.*|^==\d+== ?ERROR.*", output, re.MULTILINE)
    find = "" if code == 0 else (errors[0] if errors else f"exit code {code}")
    return Outcome(max(counts, default=0), max(edges, default=0), find)


def run(target: str, seconds: int) -> Outcome:
    """Run one target in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(seconds), "--within", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    outcome = outcome_of(done.returncode, done.stdout + done.stderr)
    print(f"{outcome.executions:>10,} {outcome.edges:>7,}  {target} {outcome.find}".rstrip(), flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzz the readers of peers' bytes, guided by coverage")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--at-once", type=int, default=2, help="targets at once (2)")
    parser.add_argument("--within", metavar="TARGET", help="run one target in this process")
    parser.add_argument("--minimise", action="store_true", help="write the committed corpora anew")
    parser.add_argument("--merge", metavar="FILE", help="with --within: a control file of libFuzzer's merge")
    parser.add_argument("part", nargs="*", help="only targets whose names have one of these parts")
    options = parser.parse_args()
    if options.within and options.merge:
        run_libfuzzer(options.within, ["-merge_inner=1", f"-merge_control_file={options.merge}"])
    elif options.within:
        fuzz(options.within, options.seconds)
    chosen = [one for one in TARGETS if not options.part or any(part in one for part in options.part)]
    if options.minimise:
        print("inputs committed  target")
        return 0 if all(minimise(target) for target in chosen) else 1
    print("executions   edges  target, find")
    with ThreadPoolExecutor(options.at_once) as pool:
        outcomes = list(pool.map(lambda target: run(target, options.seconds), chosen))
    finds = sum(1 for outcome in outcomes if outcome.find)
    print(f"{sum(one.executions for one in outcomes):,} executions of {len(chosen)} targets, {finds} finds")
    return 1 if finds or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
