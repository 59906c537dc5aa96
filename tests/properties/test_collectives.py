from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from advisor.collectives import Collective, match_collectives
from advisor.common_order import find_common_order

WORDS = st.text("ABC", max_size=8)


@given(WORDS, WORDS)
def test_the_common_order_is_a_longest_one(left: str, right: str) -> None:
    pairs = find_common_order(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    subsequences = ({"".join(some) for n in range(len(w) + 1) for some in combinations(w, n)} for w in (left, right))
    assert len(pairs) == max(len(word) for word in set.intersection(*subsequences))


@given(
    st.lists(st.tuples(st.integers(20, 90), st.integers(0, 15)), min_size=3, max_size=12),
    st.integers(-(10**9), 10**18),
    st.data(),
)
def test_a_missing_member_and_another_clock_invent_no_skew(
    rows: list[tuple[int, int]], offset: int, data: st.DataObject
) -> None:
    """All of different sizes, in time order: (distance to the one before, lateness of rank 1)."""
    first, second, now = [], [], 0
    for size, (gap, late) in enumerate(rows):
        now += gap + 20

        def of(rank: int, start: int, end: int, size: int = size) -> Collective:
            return Collective(rank, None, None, "0", "all_reduce", "float32", size, 4 * size, start, start, end)

        first.append(of(0, now - 20, now))
        second.append(of(1, now - 20 + late + offset, now + offset))
    missing = data.draw(st.integers(0, len(rows) - 1))
    owner = data.draw(st.sampled_from([first, second]))
    del owner[missing]
    matched = match_collectives([first, second], world_size=2)
    assert sum(match.complete for match in matched) == len(rows) - 1
    for match in matched:
        if match.complete:
            assert match.transfer_ns == 20 - rows[match.members[0].num_elements][1]
