"""What two sequences have in common, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence


def find_common_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence, the earliest where there are several.

    Row i, an integer, has bit j clear where the first i of `left` have one more in common with the first j + 1 of
    `right` than with the first j.

    Example: "abcabc" and "abcbc" share "abcbc": [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4)].

    **Source**: Hyyrö, Bit-parallel LCS-length computation revisited (2004).
    """
    places: dict[Hashable, int] = defaultdict(int)
    for j, item in enumerate(right):
        places[item] |= 1 << j
    everywhere = (1 << len(right)) - 1
    rows = [everywhere]
    for item in left:
        shared = rows[-1] & places[item]
        rows.append(((rows[-1] + shared) | (rows[-1] - shared)) & everywhere)
    pairs = []
    i, j = len(left), len(right)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
