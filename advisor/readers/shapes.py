"""How much an event moves, from the shapes of its arguments: the raw texts of `Input Dims` and `Input type`."""

from __future__ import annotations

import math

import msgspec

from advisor.readers.names import name_dtype

_TENSOR_LIST = "TensorList"


def count_elements(input_dims: str, input_type: str = "") -> int:
    """Elements of the first argument (a tensor or a list of tensors); -1 where unknown.

    Example: `[[512, 4], []]` -> 2048, `[[[10], [2, 3]], []]` -> 16, `[[]]` -> 1, a scalar unless `input_type` says
    that it is a list of tensors: torch 1.13 to 2.1 wrote no sizes of those.
    """
    first = _decode_first(input_dims)
    if not isinstance(first, list) or (not first and _decode_first(input_type) == _TENSOR_LIST):
        return -1
    tensors = first if first and isinstance(first[0], list) else [first]
    if not all(isinstance(tensor, list) and all(isinstance(size, int) for size in tensor) for tensor in tensors):
        return -1
    elements = sum(math.prod(tensor) for tensor in tensors)
    return elements if 0 <= elements < 2**63 else -1


def find_shape(input_dims: str) -> tuple[int, ...] | None:
    """The shape of the first argument, a tensor; None where unknown.

    Example: `[[512, 4], []]` -> (512, 4).
    """
    first = _decode_first(input_dims)
    if not isinstance(first, list):
        return None
    sizes = tuple(size for size in first if isinstance(size, int))
    return sizes if len(sizes) == len(first) else None


def find_dtype(input_type: str) -> str:
    """The dtype of the first argument under torch's name; "" where unknown."""
    word = _decode_first(input_type)
    return name_dtype(word) if isinstance(word, str) and word != _TENSOR_LIST else ""


def _decode_first(text: str) -> object:
    """The first element of a JSON list; None where there is none."""
    try:
        words = msgspec.json.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    return words[0] if isinstance(words, list) and words else None
