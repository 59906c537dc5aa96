"""One colour a meaning, in every chart, table and terminal; Okabe and Ito's palette, safe for colour-blind eyes.

Computation is blue, communication runs from pale over orange (exposed) to vermilion (blocking), so that the eye goes to
what lengthens the step.

Source: Okabe and Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from typing import Final

PARTS: Final[dict[str, str]] = {
    "data": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "blocking": "#D55E00",
    "optimizer": "#009E73",
    "other": "#9AA0A6",
}
"""The parts of a step, in the order in which they are drawn and listed."""

PART_LABELS: Final[dict[str, str]] = {
    "data": "data",
    "forward": "forward",
    "backward": "backward compute",
    "blocking": "blocking communication",
    "optimizer": "optimizer",
    "other": "other",
}

TEXT_ON_PART: Final[dict[str, str]] = {
    "data": "black",
    "forward": "black",
    "backward": "white",
    "blocking": "white",
    "optimizer": "white",
    "other": "black",
}

HIDDEN: Final = "#A8987C"
"""Communication with compute beside it."""
EXPOSED: Final = "#E69F00"
"""Communication alone, while nothing waits for it."""
BLOCKING: Final = PARTS["blocking"]
"""Communication that lengthens the step."""
WAITING: Final = "#9AA0A6"
"""A bucket that is ready, but not under way."""
PREDICTED: Final = "#CC79A7"
MEASURED: Final = "#0072B2"
NEUTRAL: Final = "#7A8290"
"""Lines, marks and axis text: readable on white and on near-black."""
GRID: Final = "rgba(122, 130, 144, 0.22)"
