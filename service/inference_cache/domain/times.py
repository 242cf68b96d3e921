"""Times of reports and events: from the wire's microseconds to the index's milliseconds.

Producers' clocks are not trusted: a time before the epoch or after now is moved to the nearest of the two. Now is
the handling server's, which follows the index's clock.
"""

from __future__ import annotations


def clamp_us(timestamp_us: int, now_ms: int) -> tuple[int, bool]:
    """Return a reported time in milliseconds, and whether it had to be moved.

    Args:
        timestamp_us: microseconds since the epoch; 0 = now.
        now_ms: the present, in milliseconds since the epoch.

    >>> clamp_us(0, 5), clamp_us(3999, 5), clamp_us(6000, 5), clamp_us(-1, 5)
    ((5, False), (3, False), (5, True), (0, True))
    """
    if timestamp_us == 0:
        return now_ms, False
    if timestamp_us < 0:
        return 0, True
    time_ms = timestamp_us // 1000
    return (now_ms, True) if time_ms > now_ms else (time_ms, False)


def fence_ms(timestamp_us: int, now_ms: int) -> tuple[int | None, bool]:
    """Return the fence of a removal, and whether its time had to be moved.

    What is stored at or before the fence goes. A removal without a time (0) has no fence: everything goes. A time
    before the epoch is an unusable one and fences at 0, so that garbage never wipes what is newer.

    >>> fence_ms(0, 5), fence_ms(3000, 5), fence_ms(-1, 5)
    ((None, False), (3, False), (0, True))
    """
    if timestamp_us == 0:
        return None, False
    return clamp_us(timestamp_us, now_ms)


def floor_to_grid(time_ms: int, grid_ms: int) -> int:
    """Return the last step of the grid at or before a time; neighbours in time then share one stored interval.

    >>> floor_to_grid(1234, 100)
    1200
    """
    return time_ms - time_ms % grid_ms


def silent_at_ms(now_ms: int, liveness_ttl_ms: int) -> int | None:
    """Return the newest last sign of life of a replica that is silent, ``None`` when nobody is (a TTL of 0).

    Silent is who gave none for longer than the TTL: exactly as long is not longer, other than with expiry.

    >>> silent_at_ms(1000, 100), silent_at_ms(1000, 0)
    (899, None)
    """
    return now_ms - liveness_ttl_ms - 1 if liveness_ttl_ms > 0 else None


def expired_at_ms(now_ms: int, ttl_ms: int) -> int:
    """Return the newest time that no longer counts: what is exactly as old as the TTL is expired."""
    return now_ms - ttl_ms
