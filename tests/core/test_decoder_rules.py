"""Every decoder rule has a buffer that breaks it and nothing else, and the error says where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.core.broken_buffers import F32, Case, K, header, one, parameters, two
from tests.core.broken_commands import annex_cases, command_cases
from tests.core.broken_frames import frame_cases, kernel_cases, original_cases, ref_cases, slot_cases
from tests.core.broken_launches import launch_cases
from tests.core.buffer_builder import Build
from tests.core.chain_samples import WELL_FORMED, chained
from tests.core.encoded_bytes import section_start
from tests.core.encoding_samples import encoded
from umd_core.commands import READ, WRITE, Dispatch, Flag, Nop, Ref
from umd_core.encoding import bulk_launches, decode, decode_original, encode, validate
from umd_core.encoding import frame as frame_module
from umd_core.encoding.decode import check_bulk, check_tables
from umd_core.encoding.rules import RULES
from umd_core.errors import DecodeError, Status
from umd_core.kernels import BY_NAME, KERNELS

CASES = [
    *frame_cases(), *kernel_cases(), *slot_cases(), *ref_cases(), *command_cases(), *annex_cases(), *launch_cases(),
    *original_cases(),
]  # fmt: skip
ELSEWHERE = {"host-order", "kernel-deterministic"}
"""Rules with a test of their own below."""


def refusal(case: Case) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        _ = decode_original(case.raw) if case.section == "ORIGINAL" else decode(case.raw, case.limits, case.max_work)
    return caught.value


@pytest.fixture(autouse=True, scope="module")
def every_launch_in_bulk() -> Iterator[None]:
    """Lets `bulk_launches` check even a single launch, which it would leave to `launches`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_launches, "FEWEST_LAUNCHES", 1)
        yield


def test_every_rule_has_a_negative_case() -> None:
    assert {case.rule for case in CASES} | ELSEWHERE == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(CASES)])
def test_the_error_names_the_rule_and_the_place(case: Case) -> None:
    error = refusal(case)
    assert (error.rule, error.section, error.index, error.offset) == (
        case.rule, case.section, case.index, case.offset,
    ), str(error)  # fmt: skip
    assert error.status == Status.BAD_BYTES
    assert RULES[error.rule]
    assert str(error).startswith(f"rule {case.rule}: ")


V1_CASES = [case for case in CASES if case.section != "ORIGINAL"]


@pytest.mark.parametrize("case", V1_CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(V1_CASES)])
def test_validate_and_the_bulk_path_agree(case: Case) -> None:
    with pytest.raises(DecodeError) as validated:
        validate(case.raw, case.limits, case.max_work)
    assert (validated.value.rule, validated.value.offset) == (case.rule, case.offset)
    if case.section in ("EVENTS", "PATCHES", "DEBUG"):
        return  # these are read after the commands, one by one in any case
    with pytest.raises(DecodeError) as in_bulk:
        check_bulk(check_tables(case.raw, case.limits), case.max_work)
    assert (in_bulk.value.rule, in_bulk.value.offset) == (case.rule, case.offset)


def test_the_unbroken_buffers_are_accepted() -> None:
    for cb in (two(), one(Nop()), two(parameters(b_offset=15, b_strides=(-1,)))):
        assert encode(decode(encode(cb))) == encode(cb)


def test_big_endian_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "BYTE_ORDER", "big")
    with pytest.raises(DecodeError) as caught:
        decode(encoded("add"))
    assert caught.value.rule == "host-order"


def test_a_deterministic_buffer_refuses_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(BY_NAME["elementwise_neg_kernel"], name="test_random_order_kernel", deterministic=False)
    monkeypatch.setitem(KERNELS, (row.name, row.abi), row)
    build = Build()
    x, y = build.slot(), build.slot()
    rec = row.record([F32], (1,))
    build.kernels[rec] = 0
    values = {"extents": (4,), "x_offset": 0, "x_strides": (1,), "out_offset": 0, "out_strides": (1,)}
    refs = (Ref(x, READ, 0, 16), Ref(y, WRITE, 0, 16))
    build.add(Dispatch(0, (1, 1, 1, 256, 1, 1, 0), rec.pack(**values), refs))
    assert decode(encode(build.done())).kernels == [rec]
    raw = encode(build.done(flags=int(Flag.DETERMINISTIC)))
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    error = caught.value
    assert (error.rule, error.section, error.index) == ("kernel-deterministic", "KERNELS", 0)
    assert error.offset == section_start(raw, K.KERNELS)


def test_version_errors_name_both_versions() -> None:
    raw = header("version", "version", 0x0203).raw
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    assert caught.value.facts()["writer"] == "2.3"
    assert caught.value.facts()["reader"] == "1.0"


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(DecodeError, match="in-buffer wait, bit 40") as caught:
        decode(header("incompatible-feature", "incompat", 1 << 40 | 4).raw)
    assert caught.value.facts()["features"] == ["in-buffer wait", "bit 40"]


def test_a_well_formed_program_is_accepted() -> None:
    assert decode(encode(chained(WELL_FORMED))).commands == chained(WELL_FORMED).commands
