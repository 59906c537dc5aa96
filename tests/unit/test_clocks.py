from __future__ import annotations

import numpy as np
import pytest

from advisor.clocks import Clock, find_median, find_spread, fit_clock

EPOCH_NS = 1_711_964_646_416_788_012


def test_a_few_moments_give_the_median_offset() -> None:
    assert fit_clock([100, 200, 300], [600, 702, 900]) == Clock(502)
    assert Clock(502).measure_offset(EPOCH_NS) == 502


@pytest.mark.parametrize("drift", [1e-5, -1e-5])
def test_a_clock_that_gains_is_told_by_the_first_and_the_last_moments(drift: float) -> None:
    # 20 collectives a second, 10 µs gained a second, and one end that is 3 ms late
    reference = [EPOCH_NS + k * 50_000_000 for k in range(60)]
    own = [t + 5_000_000 + round(drift * (t - EPOCH_NS)) + 3_000_000 * (k == 31) for k, t in enumerate(reference)]
    clock = fit_clock(reference, own)
    assert clock.drift == pytest.approx(drift, rel=0.001)
    errors = [clock.measure_offset(o) - (o - r) for k, (o, r) in enumerate(zip(own, reference, strict=True)) if k != 31]
    assert max(map(abs, errors)) <= 50


def test_noise_is_no_drift() -> None:
    reference = np.arange(60) * 1_000_000
    noise = np.random.default_rng(0).normal(0, 5_000, 60)
    clock = fit_clock(reference.tolist(), (reference + 7_000_000 + np.rint(noise).astype(int)).tolist())
    assert clock.drift == 0
    assert abs(clock.offset_ns - 7_000_000) < 3_000


def test_medians_are_exact_from_the_epoch_on() -> None:
    times = np.array([EPOCH_NS, EPOCH_NS + 1, EPOCH_NS + 2, EPOCH_NS + 9])
    assert find_median(times[:3]) == EPOCH_NS + 1
    assert find_spread(times) == 2  # from EPOCH + 2 (1.5 rounds to even): 2, 1, 0 and 7
    assert find_spread(times[:0]) == 0
