"""Options of a CUDA device: what is read, what is refused."""

from __future__ import annotations

import pytest

from umd_core.errors import AttributeValueError, UnsupportedError
from umd_cuda.options import Options, parse


def test_options_are_read() -> None:
    assert parse("cuda", "") == Options()
    assert parse("cuda", "1?memory=2GiB&sync=1&replay=0") == Options(1, 2 << 30, True, False)
    assert parse("cuda", "?queues=32").queues == 32
    assert parse("cuda", "0?atomics=1").atomics


@pytest.mark.parametrize(
    "text", ["0?memory=lots", "0?sync=2", "0?seed=1", "0?replay=", "0?queues=0", "0?queues=33", "0?queues=8KiB"]
)
def test_wrong_options_are_refused(text: str) -> None:
    with pytest.raises(AttributeValueError, match="would be right"):
        parse("cuda", text)


def test_an_ordinal_is_a_number() -> None:
    with pytest.raises(UnsupportedError, match="'first'"):
        parse("cuda", "first")
