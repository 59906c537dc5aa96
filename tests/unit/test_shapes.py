from __future__ import annotations

import pytest

from advisor.readers.shapes import count_elements, find_dtype


@pytest.mark.parametrize(
    ("input_dims", "elements"),
    [
        ("[[512, 4], []]", 2048),
        ("[[[10], [2, 3]], []]", 16),
        ("[[]]", 1),
        ("[[[]], []]", 1),
        ("[]", -1),
        ("", -1),
        ("[5]", -1),
        ("[[[1], 2]]", -1),
        ('[["4"]]', -1),
        ("[[1, ", -1),
        ("{}", -1),
        ("[[-4]]", -1),
        ("[[4294967296, 4294967296]]", -1),
        ("[" * 100_000, -1),
    ],
)
def test_elements_of_the_first_argument(input_dims: str, elements: int) -> None:
    assert count_elements(input_dims) == elements


@pytest.mark.parametrize(
    ("input_type", "dtype"),
    [
        ('["float", ""]', "float32"),
        ('["c10::BFloat16"]', "bfloat16"),
        ('["TensorList", ""]', ""),
        ("[1]", ""),
        ("[]", ""),
        ("", ""),
    ],
)
def test_dtype_of_the_first_argument(input_type: str, dtype: str) -> None:
    assert find_dtype(input_type) == dtype
