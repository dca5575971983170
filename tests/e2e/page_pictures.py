"""Pictures of the live page and the waiting page in each of their states, and how two of them are compared.

Rules
  1. A picture that is kept was looked at by somebody; `make pictures` writes them anew.
  2. Two pictures are the same where no more than CELLS_MAX cells of CELL_PX pixels differ visibly. So how a font is
     drawn in detail does not count; that a word, a mark or a colour is another one does.
  3. Pictures are compared where text has the widths that it had when they were made: with other fonts each line breaks
     elsewhere, and the comparison is skipped.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page

from tests.sources import ROOT

CELL_PX: Final = 8
CELL_DIFFERENCE: Final = 12  # of 255, in the mean of a cell and of its colours: antialiasing makes less
CELLS_MAX: Final = 3
WRITES: Final = "ACTIVATOR_WRITE_PICTURES"
FOLDER: Final = ROOT / "docs" / "figures" / "page"
WIDTHS: Final = FOLDER / "widths.json"

_WIDTHS = """() => ['14px system-ui, sans-serif', '600 16px system-ui, sans-serif', '12px monospace'].map(font => {
    const context = document.createElement('canvas').getContext('2d');
    context.font = font;
    return Math.round(context.measureText('Requests wait for 12 pods').width * 10) / 10;
})"""
_COMPARE = """async ([one, other, cell, most]) => {
    const [left, right] = await Promise.all([one, other].map(async data => {
        const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + data)).blob());
        const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
    }));
    if (left.width !== right.width || left.height !== right.height)
        return [`${left.width} x ${left.height} is ${right.width} x ${right.height} now`];
    const wide = Math.ceil(left.width / cell), sums = new Map();
    for (let place = 0; place < left.data.length; place++) {
        const pixel = place >> 2, x = pixel % left.width, y = (pixel - x) / left.width;
        const key = Math.floor(y / cell) * wide + Math.floor(x / cell);
        const difference = Math.abs(left.data[place] - right.data[place]);
        if (difference) sums.set(key, (sums.get(key) || 0) + difference);
    }
    return [...sums].filter(([, sum]) => sum / (cell * cell * 3) > most)
        .map(([key]) => `${(key % wide) * cell}, ${Math.floor(key / wide) * cell}`);
}"""


def widths(page: Page) -> list[float]:
    """Of some words in the fonts of the pages, in pixels."""
    found: list[float] = page.evaluate(_WIDTHS)
    return found


def differences(page: Page, kept: bytes, taken: bytes) -> list[str]:
    """Where they differ, as `x, y`; `page` calculates."""
    parts = [base64.b64encode(one).decode() for one in (kept, taken)]
    found: list[str] = page.evaluate(_COMPARE, [*parts, CELL_PX, CELL_DIFFERENCE])
    return found


def compare(calculator: Page, name: str, taken: bytes, folder: Path) -> None:
    """Fail if the picture is not the one that is kept; `folder` gets what was taken."""
    path = FOLDER / f"{name}.png"
    if os.environ.get(WRITES) == "1":
        path.write_bytes(taken)
        WIDTHS.write_text(json.dumps(widths(calculator)) + "\n")
        return
    if widths(calculator) != json.loads(WIDTHS.read_text()):
        pytest.skip("this machine has other fonts than that of the pictures")
    found = differences(calculator, path.read_bytes(), taken)
    if len(found) > CELLS_MAX:
        (folder / f"{name}.png").write_bytes(taken)
        pytest.fail(
            f"{name}: {len(found)} cells are not as in {path}, the first at {found[0]}; now: {folder / path.name}. "
            "If it is as it should be: make pictures"
        )
