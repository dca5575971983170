"""spin goes through every state of the model of hand-over (handover.pml), within bounds: the protocol holds in all of
them, and each mistake that is made on purpose is found.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

MODEL: Final = Path(__file__).with_name("handover.pml")
BOUNDS: Final = ("EPOCHS=1", "CUTS=1", "ASKS=2")  # a few seconds
DEEP_BOUNDS: Final = (  # some minutes, and 5 GB
    ("EPOCHS=2", "KILLS=1", "JOINS=1"),
    ("EPOCHS=2", "LIMIT=2"),
    ("EPOCHS=2", "CUTS=1"),
    ("EPOCHS=2", "CUTS=1", "KILLS=1", "JOINS=1"),
    ("EPOCHS=2", "ASKS=2", "ROOM=9"),
    ("N=2", "EPOCHS=3", "CUTS=2", "ASKS=2", "ROOM=9"),
)
WITH_CUTS: Final = {"FORGETS_ON_UNLINK", "NO_SECOND_REGISTER", "NAMES_ENDED"}
MISTAKES: Final = re.findall(r"^  ([A-Z]+(?:_[A-Z]+)+) ", MODEL.read_text("utf-8"), re.MULTILINE)

NeedProgram = Callable[[str], str]
Found = dict[str, str]


@pytest.fixture(name="search")
def _search(need_program: NeedProgram, tmp_path: Path) -> Callable[..., Found]:
    """`search(*defined)`: what spin says of the model with these macros."""
    spin, gcc = need_program("spin"), need_program("gcc")

    def search(*defined: str, optimized: str = "-O1") -> Found:
        macros = [f"-D{one}" for one in defined]
        _run(tmp_path, spin, "-a", *macros, str(MODEL))
        _run(tmp_path, gcc, "-w", optimized, "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=6000", "-o", "pan", "pan.c")
        said = _run(tmp_path, "./pan", "-m500000")
        assert "Search not completed" not in said or "errors: 1" in said, said
        figures = re.search(r"errors: (\d+)\s+(\d+) states, stored", said)
        assert figures is not None, said
        broken = re.search(r"pan:1: (.*) \(at depth", said)
        return {"errors": figures[1], "states": figures[2], "broken": broken[1] if broken else ""}

    return search


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hand_over_keeps_the_limit_and_serves_all(search: Callable[..., Found]) -> None:
    found = search(*BOUNDS)
    assert found["errors"] == "0", found["broken"]
    assert int(found["states"]) > 5_000


@pytest.mark.deep
@pytest.mark.parametrize("bounds", DEEP_BOUNDS, ids=" ".join)
def test_hand_over_within_wider_bounds(search: Callable[..., Found], bounds: tuple[str, ...]) -> None:
    found = search(*bounds, optimized="-O2")
    print(f"{' '.join(bounds)}: {int(found['states']):,} states")
    assert found["errors"] == "0", found["broken"]


def test_there_are_mistakes() -> None:
    assert len(MISTAKES) == 12


@pytest.mark.deep
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(search: Callable[..., Found], mistake: str) -> None:
    cuts = f"CUTS={int(mistake in WITH_CUTS)}"
    found = search("EPOCHS=2", cuts, mistake, optimized="-O0")  # gcc takes longer than the search does
    assert found["broken"].startswith("assertion violated")
