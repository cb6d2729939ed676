"""Every rule that an encoded command buffer keeps, by id. `DecodeError.rule` is one of these."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A rule: its id, where it is checked, and what must hold."""

    id: str
    section: str
    text: str


_RULES = (
    # the frame, in the order of checking
    Rule("host-order", "HEADER", "the host is little-endian"),
    Rule("limit-total-size", "HEADER", "the buffer is not longer than the limit"),
    Rule("original-format", "HEADER", "the bytes are not of the original format: `UMDCMD` and a version below 0x0100"),
    Rule("header-short", "HEADER", "the buffer has at least 64 bytes"),
    Rule("magic", "HEADER", "it begins with `UMDCMD`"),
    Rule("version", "HEADER", "the major version is 1"),
    Rule("header-size", "HEADER", "header_size is 64; from 1.1 on a multiple of 8, 64 to 256, within the buffer"),
    Rule("total-size", "HEADER", "total_size is the length of the buffer"),
    Rule("header-checksum", "HEADER", "header_crc is the CRC-32 of bytes 0 to 59"),
    Rule("body-checksum", "HEADER", "body_crc is the CRC-32 of every byte from 64 on"),
    Rule("incompatible-feature", "HEADER", "incompat is 0"),
    Rule("header-flags", "HEADER", "flags has no bit but 1, 2 and 4"),
    Rule("header-reserved", "HEADER", "the header's reserved field is 0"),
    # the section table
    Rule("limit-sections", "HEADER", "there are not more sections than the limit"),
    Rule("section-table", "HEADER", "the section table lies within the buffer"),
    Rule("section-order", "SECTIONS", "kinds rise strictly from 1 on"),
    Rule("section-reserved", "SECTIONS", "there is no SIGNATURE section"),
    Rule("section-unknown", "SECTIONS", "a section of unknown kind is OPTIONAL"),
    Rule("section-flags", "SECTIONS", "flags are 1 for DEBUG and unknown kinds, 0 for the others"),
    Rule("section-offset", "SECTIONS", "each section begins where the one before and its padding end"),
    Rule("section-empty", "SECTIONS", "no section is empty"),
    Rule("section-size", "SECTIONS", "each section with its padding lies within the buffer"),
    Rule("section-padding", "SECTIONS", "padding to 8 bytes is zero"),
    Rule("section-stride", "SECTIONS", "stride is the record's size; from 1.1 on up to 256 where records may grow"),
    Rule("section-records", "SECTIONS", "size is a multiple of stride (but for DEBUG and unknown kinds)"),
    Rule("trailing-bytes", "SECTIONS", "nothing follows the last section"),
    # kernels
    Rule("limit-kernels", "KERNELS", "there are not more kernels than the limit"),
    Rule("limit-name", "KERNELS", "no kernel's name or mark's label is longer than the limit"),
    Rule("limit-refs", "KERNELS", "no kernel has more operands than the limit"),
    Rule("limit-parameters", "KERNELS", "no parameter block is larger than the limit"),
    Rule("name-cursor", "KERNELS", "each name begins where the one before ends and lies within STRINGS"),
    Rule("kernel-reserved", "KERNELS", "reserved is 0"),
    Rule("kernel-unknown", "KERNELS", "(name, abi) is a row of the kernel table"),
    Rule("kernel-digest", "KERNELS", "digest is the row's"),
    Rule("kernel-types", "KERNELS", "the type arguments are ones that the row allows, the rest zero"),
    Rule("kernel-bindings", "KERNELS", "binding_count is the row's number of operands"),
    Rule("kernel-deterministic", "KERNELS", "under flag DETERMINISTIC every kernel is deterministic"),
    Rule("strings-rest", "STRINGS", "the names use STRINGS up"),
    # slots and constants
    Rule("limit-slots", "SLOTS", "there are not more slots than the limit"),
    Rule("slot-count", "SLOTS", "slot_count of the header is the number of records"),
    Rule("slot-kind", "SLOTS", "kind is 0 to 3"),
    Rule("slot-order", "SLOTS", "kinds do not fall"),
    Rule("slot-arena", "SLOTS", "there is at most one arena"),
    Rule("slot-access", "SLOTS", "access is 0 to 3, and 0 or 1 for a constant"),
    Rule("slot-alignment", "SLOTS", "alignment is a power of two, 1 to 4096"),
    Rule("slot-alias", "SLOTS", "alias_group is 0 for arena and constants"),
    Rule(
        "slot-size",
        "SLOTS",
        "length and min_size are below 2^62; min_size is not above the length of arena or constant",
    ),
    Rule("slot-value", "SLOTS", "value and length are 0 where the kind gives them no meaning"),
    Rule("slot-handle", "SLOTS", "a handle is not 0, and no two slots have the same"),
    Rule("slot-min-size", "SLOTS", "min_size is the largest offset + length over the slot's refs, 0 without refs"),
    Rule("constant-cursor", "SLOTS", "each constant begins where the one before and its padding end, within DATA"),
    # refs
    Rule("ref-slot", "REFS", "slot is the index of a slot"),
    Rule("ref-access", "REFS", "access is what opcode or kernel does, and within the slot's"),
    Rule("ref-range", "REFS", "offset + length is not above the slot's min_size"),
    Rule("ref-alignment", "REFS", "offset and the slot's alignment are multiples of the element or pattern size"),
    Rule("refs-rest", "REFS", "the commands use REFS up"),
    # commands
    Rule("limit-commands", "COMMANDS", "there are not more commands than the limit"),
    Rule("command-count", "COMMANDS", "command_count of the header is the number of records"),
    Rule("ref-cursor", "COMMANDS", "first_ref is the number of refs so far, and the command's own lie within REFS"),
    Rule("dep-cursor", "COMMANDS", "first_dep is the number of deps so far, and the command's own lie within DEPS"),
    Rule("data-cursor", "COMMANDS", "data_offset is where the data so far ends; the command's own lies within DATA"),
    Rule("command-reserved", "COMMANDS", "flags, reserved, arg1 and unnamed fields are 0"),
    Rule("opcode-vendor", "COMMANDS", "no opcode is a vendor's (0x80 to 0xEF): each needs an incompat bit"),
    Rule("opcode-experimental", "COMMANDS", "no opcode is experimental (0xF0 to 0xFE)"),
    Rule("opcode-unknown", "COMMANDS", "the opcode is a known one"),
    Rule("command-end", "COMMANDS", "END is there once, as the last command"),
    Rule("kernel-index", "COMMANDS", "a dispatch names a kernel"),
    Rule("kernel-order", "COMMANDS", "kernels stand in the order of their first dispatch"),
    Rule("ref-count", "COMMANDS", "the command has the refs of its opcode or kernel"),
    Rule("data-length", "COMMANDS", "data_length is what the opcode or kernel wants"),
    Rule("limit-deps", "COMMANDS", "no command has more deps than the limit"),
    Rule("limit-update", "COMMANDS", "no UPDATE is longer than the limit"),
    Rule("copy-length", "COMMANDS", "both refs of a COPY are equally long"),
    Rule("copy-overlap", "COMMANDS", "the refs of a COPY do not overlap"),
    Rule("fill-size", "COMMANDS", "the pattern has 1, 2, 4 or 8 bytes and the ref a multiple of them"),
    Rule("update-length", "COMMANDS", "the ref of an UPDATE is as long as its data"),
    Rule("text-encoding", "COMMANDS", "labels and debug text are UTF-8"),
    Rule("dep-order", "DEPS", "deps are below their command's index and rise strictly"),
    Rule("deps-rest", "DEPS", "the commands use DEPS up"),
    Rule("data-padding", "DATA", "padding after a constant, pattern, label or update is zero"),
    Rule("data-rest", "DATA", "constants and commands use DATA up"),
    # kernels, once their array lengths are known
    Rule("kernel-unused", "KERNELS", "every kernel is dispatched"),
    Rule("kernel-sizes", "KERNELS", "the first dispatch's array lengths are ones that the row allows"),
    Rule("kernel-parameters", "KERNELS", "parameter_size is the size of the row's block with these lengths"),
    Rule("kernel-duplicate", "KERNELS", "no two kernels have the same name, abi, type arguments and array lengths"),
    # events, patches, debug
    Rule("event-count", "EVENTS", "event_count of the header is the number of records"),
    Rule("event-kind", "EVENTS", "kind is 3"),
    Rule("event-reserved", "EVENTS", "reserved is 0"),
    Rule("event-order", "EVENTS", "signals rise strictly"),
    Rule("event-command", "EVENTS", "the command exists and is not END"),
    Rule("patch-kind", "PATCHES", "kind is 1 to 4 and fits the field: U32 and U64 patch integers; sizes are equal"),
    Rule("patch-addend", "PATCHES", "addend is 0 for BITS32 and BITS64"),
    Rule("patch-order", "PATCHES", "offsets rise and patches do not overlap"),
    Rule("patch-place", "PATCHES", "the patch covers one patchable field of a dispatch's parameters"),
    Rule("debug-size", "DEBUG", "one record for each command but END, and exactly their text"),
    Rule("debug-reserved", "DEBUG", "reserved is 0"),
    # memory safety of every launch
    Rule("launch-reserved", "DATA", "the launch block's reserved field is 0"),
    Rule("parameter-padding", "DATA", "padding in a parameter block is zero"),
    Rule("parameter-sizes", "DATA", "all dispatches of a kernel have the same array lengths"),
    Rule("parameter-range", "DATA", "the numbers of the block, and what is formed of them, stay below 2^62"),
    Rule("parameter-window", "DATA", "window strides and dilations are at least 1"),
    Rule("parameter-program", "DATA", "the program of an elementwise chain is well-formed"),
    Rule("launch-work", "DATA", "the work of a launch is not above the limit"),
    Rule("touched-range", "DATA", "every operand's touched bytes lie within its ref"),
    Rule("launch-injective", "DATA", "no two elements of a written operand coincide, unless the kernel is atomic"),
    Rule("launch-geometry", "DATA", "the launch block is what the row's geometry gives"),
    Rule("launch-alias", "DATA", "a written ref overlaps another ref only as an exact alias that the row declares"),
    # the original format
    Rule("original-magic", "ORIGINAL", "it begins with `UMDCMD` and the name's length, 1 to 255"),
    Rule("original-size", "ORIGINAL", "three u64 follow the name, and nothing else"),
    Rule("original-name", "ORIGINAL", "the name is UTF-8"),
    Rule("original-geometry", "ORIGINAL", "the count is below 2^62, grid is ceil(count / 256), block is 256"),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _RULES}
