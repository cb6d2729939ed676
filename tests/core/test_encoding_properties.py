"""Bytes and command buffers are two forms of one thing; no other bytes are accepted, however they are damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.encoded_bytes import repaired
from tests.core.encoding_samples import SAMPLES, encoded
from tests.core.random_buffers import command_buffers, damaged
from tests.core.test_decoder_rules import V1_CASES
from umd_core.commands import CommandBuffer, Dispatch, Mark
from umd_core.encoding import LIBRARY_LIMITS, bulk_launches, decode, encode, validate
from umd_core.encoding.annexes import read_debug, read_events, read_patches
from umd_core.encoding.bulk import Bulk
from umd_core.encoding.decode import UNLIMITED_WORK, check_bulk, check_tables
from umd_core.encoding.launches import check_launches
from umd_core.encoding.structure import check_structure
from umd_core.encoding.tables import Tables, resolve_kernels
from umd_core.errors import DecodeError

Verdict = tuple[str, str, int, int] | None
"""What a validator says: rule, section, index, offset; None when it accepts."""


@pytest.fixture(autouse=True, scope="module")
def every_launch_in_bulk() -> Iterator[None]:
    """Lets `bulk_launches` check even a single launch, which it would leave to `launches`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_launches, "FEWEST_LAUNCHES", 1)
        yield


def one_by_one(tables: Tables) -> None:
    check_structure(tables)
    check_launches(tables, UNLIMITED_WORK)


def in_bulk(tables: Tables) -> None:
    check_bulk(tables, UNLIMITED_WORK)


def verdict(raw: bytes, check: Callable[[Tables], None]) -> Verdict:
    try:
        tables = check_tables(raw, LIBRARY_LIMITS)
        check(tables)
        read_events(tables)
        read_patches(tables)
        read_debug(tables)
    except DecodeError as error:
        return error.rule, error.section, error.index, error.offset
    return None


def check_agreement(raw: bytes) -> Verdict:
    """Checks that both validators say the same, and that what they accept is canonical."""
    said = verdict(raw, one_by_one)
    assert verdict(raw, in_bulk) == said
    if said is None:
        assert encode(decode(raw)) == raw
    else:
        with pytest.raises(DecodeError) as caught:
            validate(raw)
        assert caught.value.rule == said[0]
    return said


@settings(max_examples=100)
@given(command_buffers())
def test_decode_gives_back_what_was_encoded(cb: CommandBuffer) -> None:
    raw = encode(cb)
    decoded = decode(raw)
    assert decoded.raw == raw
    assert encode(decoded) == raw
    decoded.raw = None
    assert decoded == cb


@settings(max_examples=80)
@given(command_buffers())
def test_the_bulk_validator_accepts_valid_buffers(cb: CommandBuffer) -> None:
    tables = check_tables(encode(cb), LIBRARY_LIMITS)
    bulk = Bulk(tables)
    first = bulk.first_dispatches()
    assert first is not None
    resolve_kernels(tables, first)
    with_program = {kernel for kernel, record in enumerate(cb.kernels) if "program" in record.index_of}
    one_by_one = [at for at, c in enumerate(cb.commands) if isinstance(c, Dispatch) and c.kernel in with_program]
    assert bulk_launches.doubtful_launches(bulk, UNLIMITED_WORK) == one_by_one


@settings(max_examples=200)
@given(st.data())
def test_damaged_buffers_are_refused_or_canonical(data: st.DataObject) -> None:
    raw = encode(data.draw(command_buffers(most=4)))
    check_agreement(data.draw(damaged(raw)))


@settings(max_examples=200)
@given(st.data())
def test_damaged_negative_cases_are_refused_or_canonical(data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(V1_CASES))
    check_agreement(data.draw(damaged(seed.raw, most=2)))


@pytest.mark.parametrize("sample", SAMPLES)
@settings(max_examples=60)
@given(st.data())
def test_damaged_samples_are_refused_or_canonical(sample: str, data: st.DataObject) -> None:
    check_agreement(data.draw(damaged(encoded(sample), most=2)))


@settings(max_examples=200)
@given(st.binary(max_size=300))
@example(b"UMDCMD")
@example(b"UMDCMD\0\1" + bytes(56))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    for candidate in (raw, repaired(raw), repaired(b"UMDCMD\0\1\x40\0" + raw)):
        with pytest.raises(DecodeError):
            decode(candidate)


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_truncation_is_refused(sample: str) -> None:
    raw = encoded(sample)
    for length in range(len(raw)):
        for candidate in (raw[:length], repaired(raw[:length])):
            with pytest.raises(DecodeError):
                decode(candidate)


@pytest.mark.parametrize("sample", ["add", "adamw_patched", "newer_minor"])
def test_every_changed_byte_is_refused_or_canonical(sample: str) -> None:
    raw = encoded(sample)
    accepted = 0
    for at in range(len(raw)):
        for value in {255, raw[at] ^ 1, raw[at] ^ 0x80} - {raw[at]}:
            changed = raw[:at] + bytes([value]) + raw[at + 1 :]
            accepted += check_agreement(repaired(changed)) is None
            with pytest.raises(DecodeError):  # the checksums notice what was not repaired
                decode(changed)
    assert accepted  # a queue, a label and the like may be anything


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_is_decoded_from_a_private_copy(kind: Callable[[bytearray], bytes]) -> None:
    source = bytearray(encoded("every_command"))
    cb = decode(kind(source))
    source[:] = bytes(len(source))
    assert isinstance(cb.commands[0], Mark)
    assert cb.raw == encode(cb) == encoded("every_command")
