"""Single precision, as the wire carries it and existing gateways compute with it.

Python's floats are double precision. A product or sum of two float32 values, computed in double precision and then
rounded by :func:`f32`, is exactly the float32 result.
"""

from __future__ import annotations

import math
import struct

_FLOAT = struct.Struct("f")
_pack, _unpack = _FLOAT.pack, _FLOAT.unpack

EXACT_INTEGERS = 2**24
"""Up to here every integer is a float32 value."""


def f32(value: float) -> float:
    """Return the nearest float32 value; what is too large becomes infinite.

    >>> f32(0.1)
    0.10000000149011612
    """
    (rounded,) = _unpack(_pack(value))
    return rounded  # type: ignore[no-any-return]


def finite(value: float) -> float:
    """Return a reported rate as it is stored: a float32 value, NaN, infinities and what overflows as 0.

    >>> finite(float("nan")), finite(float("-inf")), finite(-2.0)
    (0.0, 0.0, -2.0)
    """
    rounded = f32(value)
    return rounded if math.isfinite(rounded) else 0.0
