// Kernels, slots, refs and commands: every index and length against its cursor.

import { check } from "./errors.js";
import { checkZero, pad8 } from "./frame.js";
import { readRecords, readText } from "./records.js";

export const LARGE = 1n << 62n;
const SLOT = { ARGUMENT: 0, ARENA: 1, CONSTANT: 2, HANDLE: 3 };
const WRITE = 2;

/** Returns the kernels of a buffer, each with its row and type arguments. */
export function readKernels({ header, bytes, sections }, page) {
  const { limits } = page;
  const records = readRecords(bytes, sections.KERNELS, page.records.KERNELS);
  check(records.length <= limits.kernels, "limit-kernels", `${records.length}`);
  const strings = sections.STRINGS;
  let cursor = 0;
  const kernels = records.map((record, index) => {
    const { name_offset: offset, name_length: length } = record;
    check(length <= limits.name, "limit-name", `${length}`, index);
    check(offset === cursor && length <= strings.size - cursor, "name-cursor", `${offset}`, index);
    const name = readText(bytes.subarray(strings.start + cursor, strings.start + cursor + length));
    cursor += length;
    return readKernel(record, name, header, page, index);
  });
  check(cursor === strings.size, "strings-rest", `${strings.size - cursor} bytes`);
  return kernels;
}

function readKernel(record, name, header, { limits, rows, types }, index) {
  check(record.binding_count <= limits.refs, "limit-refs", `${record.binding_count}`, index);
  check(record.parameter_size <= limits.parameters, "limit-parameters", `${record.parameter_size}`, index);
  check(record.reserved === 0, "kernel-reserved", `${record.reserved}`, index);
  const row = rows.get(`${name} ${record.abi}`);
  check(row, "kernel-unknown", `${name} ${record.abi}`, index);
  check(record.digest === row.digest, "kernel-digest", `${record.digest}`, index);
  check(record.binding_count === row.operands.length, "kernel-bindings", `${record.binding_count}`, index);
  const DETERMINISTIC = 4;
  check(row.deterministic || !(header.flags & DETERMINISTIC), "kernel-deterministic", name, index);
  const given = record.types.map((number) => types.find((type) => type.number === number));
  record.types.forEach((number, i) => {
    const allowed = i < row.types.length ? row.types[i].allowed.includes(given[i]) : number === 0;
    check(allowed, "kernel-types", `${number} at ${i}`, index);
  });
  const named = new Map(row.types.map((parameter, i) => [parameter.name, given[i]]));
  return {
    name, row, abi: record.abi, parameterSize: record.parameter_size, sizes: null,
    types: row.types.map((_, i) => given[i]),
    operandTypes: row.operands.map((operand) => operand.fixed ?? named.get(operand.type)),
  }; // prettier-ignore
}

/** Returns the slots, and where the commands' data begins in DATA. */
export function readSlots({ header, bytes, sections }, page) {
  const slots = readRecords(bytes, sections.SLOTS, page.records.SLOTS);
  check(slots.length <= page.limits.slots, "limit-slots", `${slots.length}`);
  check(slots.length === header.slot_count, "slot-count", `${slots.length}, not ${header.slot_count}`);
  const handles = new Set();
  let [kind, cursor] = [0, 0];
  slots.forEach((slot, index) => {
    checkSlot(slot, kind, index);
    if (slot.kind === SLOT.CONSTANT) cursor = checkConstant(slot, cursor, bytes, sections.DATA, index);
    if (slot.kind === SLOT.HANDLE) {
      check(slot.value !== 0n && !handles.has(slot.value), "slot-handle", `${slot.value}`, index);
      handles.add(slot.value);
    }
    kind = slot.kind;
  });
  return { slots, dataStart: cursor };
}

function checkSlot(slot, last, index) {
  const { kind, access, alignment, alias_group: group, min_size: least, value, length } = slot;
  check(kind <= SLOT.HANDLE, "slot-kind", `${kind}`, index);
  check(kind >= last, "slot-order", `${kind} after ${last}`, index);
  check(!(kind === SLOT.ARENA && last === SLOT.ARENA), "slot-arena", "a second arena", index);
  check(access <= (kind === SLOT.CONSTANT ? 1 : 3), "slot-access", `${access}`, index);
  const power = alignment > 0 && (alignment & (alignment - 1)) === 0;
  check(power && alignment <= 4096, "slot-alignment", `${alignment}`, index);
  const owned = kind === SLOT.ARENA || kind === SLOT.CONSTANT;
  check(!(owned && group), "slot-alias", `${group}`, index);
  check(length < LARGE && least < LARGE && !(owned && least > length), "slot-size", `${least} of ${length}`, index);
  const valued = kind === SLOT.CONSTANT || kind === SLOT.HANDLE;
  check((valued || value === 0n) && (owned || length === 0n), "slot-value", `${value}, ${length}`, index);
}

function checkConstant({ value, length }, cursor, bytes, data, index) {
  check(value === BigInt(cursor) && length <= BigInt(data.size - cursor), "constant-cursor", `${value}`, index);
  const end = cursor + Number(length);
  check(pad8(end) <= data.size, "constant-cursor", "its padding is missing", index);
  checkZero(bytes, data.start + end, data.start + pad8(end), "data-padding", index);
  return pad8(end);
}

/** Returns the refs; checks them and the slots' min_size. */
export function readRefs({ bytes, sections }, slots, page) {
  const refs = readRecords(bytes, sections.REFS, page.records.REFS);
  const ends = slots.map(() => 0n);
  refs.forEach((ref, index) => {
    const slot = slots[ref.slot];
    check(slot, "ref-slot", `${ref.slot}`, index);
    check(
      ref.access >= 1 && ref.access <= 3 && (ref.access & ~slot.access) === 0,
      "ref-access",
      `${ref.access}`,
      index,
    );
    check(ref.offset + ref.length <= slot.min_size, "ref-range", `${ref.offset} + ${ref.length}`, index);
    if (ref.offset + ref.length > ends[ref.slot]) ends[ref.slot] = ref.offset + ref.length;
  });
  slots.forEach((slot, i) => check(slot.min_size === ends[i], "slot-min-size", `${slot.min_size}, not ${ends[i]}`, i));
  return refs;
}

const NOP = 0, DISPATCH = 1, COPY = 2, FILL = 3, UPDATE = 4, BARRIER = 5, MARK = 8, END = 127; // prettier-ignore
const NAMES = { [NOP]: "NOP", [DISPATCH]: "DISPATCH", [COPY]: "COPY", [FILL]: "FILL", [UPDATE]: "UPDATE", [BARRIER]: "BARRIER", [MARK]: "MARK" }; // prettier-ignore
const ACCESSES = { [COPY]: [WRITE, 1], [FILL]: [WRITE], [UPDATE]: [WRITE] };

/** Returns the commands but END, each with its refs, deps and data; uses REFS, DEPS and DATA up. */
export function readCommands(frame, { kernels, slots, refs, dataStart }, page) {
  const { header, bytes, sections } = frame;
  const records = readRecords(bytes, sections.COMMANDS, page.records.COMMANDS);
  const deps = readRecords(bytes, sections.DEPS, page.records.DEPS).map(({ command }) => command);
  check(records.length <= page.limits.commands, "limit-commands", `${records.length}`);
  check(records.length === header.command_count, "command-count", `${records.length}, not ${header.command_count}`);
  const data = bytes.subarray(sections.DATA.start, sections.DATA.start + sections.DATA.size);
  const state = { kernels, slots, refs, deps, data, page, cursors: { ref: 0, dep: 0, data: dataStart }, dispatched: 0 };
  const commands = records.map((record, index) => readCommand(record, index, records.length, state));
  const { cursors } = state;
  check(records.length > 0, "command-end", "there is no END");
  check(cursors.ref === refs.length, "refs-rest", `${refs.length - cursors.ref}`);
  check(cursors.dep === deps.length, "deps-rest", `${deps.length - cursors.dep}`);
  check(cursors.data === data.length, "data-rest", `${data.length - cursors.data}`);
  check(state.dispatched === kernels.length, "kernel-unused", `${kernels.length - state.dispatched}`);
  return commands.slice(0, -1);
}

function readCommand(record, index, count, state) {
  const { op } = record;
  checkOpcode(op, index);
  check((op === END) === (index === count - 1), "command-end", `opcode ${op}`, index);
  const named = op === DISPATCH || op === FILL || op === MARK;
  const clean = record.flags === 0 && record.reserved === 0 && record.arg1 === 0 && (named || record.arg0 === 0);
  check(clean && !(op === END && (record.queue || record.dep_count)), "command-reserved", "", index);
  const command = { op: NAMES[op], queue: record.queue, arg0: record.arg0 };
  command.refs = takeRefs(record, index, state);
  command.deps = takeDeps(record, index, state);
  command.dataAt = state.cursors.data;
  command.data = takeData(record, index, state);
  CHECKS[op]?.(command, record, index, state);
  return command;
}

function checkOpcode(op, index) {
  check(!(op >= 0x80 && op <= 0xef), "opcode-vendor", `${op}`, index);
  check(!(op >= 0xf0 && op <= 0xfe), "opcode-experimental", `${op}`, index);
  check(op in NAMES || op === END, "opcode-unknown", `${op}`, index);
}

function takeRefs({ op, first_ref: first, ref_count: count, arg0 }, index, { refs, kernels, cursors }) {
  check(first === cursors.ref && count <= refs.length - first, "ref-cursor", `${first}`, index);
  if (op === DISPATCH) check(arg0 < kernels.length, "kernel-index", `${arg0}`, index);
  const wanted = op === DISPATCH ? kernels[arg0].row.operands.map(({ access }) => access) : (ACCESSES[op] ?? []);
  check(count === wanted.length, "ref-count", `${count}, not ${wanted.length}`, index);
  const own = refs.slice(first, first + count);
  own.forEach((ref, i) => check(ref.access === wanted[i], "ref-access", `${ref.access}, not ${wanted[i]}`, first + i));
  cursors.ref += count;
  return own;
}

function takeDeps({ first_dep: first, dep_count: count }, index, { deps, cursors, page }) {
  check(count <= page.limits.deps, "limit-deps", `${count}`, index);
  check(first === cursors.dep && count <= deps.length - first, "dep-cursor", `${first}`, index);
  const own = deps.slice(first, first + count);
  own.forEach((dep, i) => check(dep < index && (i === 0 || dep > own[i - 1]), "dep-order", `${dep}`, first + i));
  cursors.dep += count;
  return own;
}

const LAUNCH_SIZE = 32;
const LENGTHS = {
  [DISPATCH]: (length, { arg0 }, { kernels }) => length === LAUNCH_SIZE + kernels[arg0].parameterSize,
  [FILL]: (length) => length === 8,
  [UPDATE]: () => true,
  [MARK]: () => true,
};

function takeData(record, index, state) {
  const { op, data_offset: offset, data_length: length } = record;
  const { cursors, data, page } = state;
  check(LENGTHS[op]?.(length, record, state) ?? length === 0, "data-length", `${length}`, index);
  if (op === UPDATE) check(length <= page.limits.update, "limit-update", `${length}`, index);
  if (op === MARK) check(length <= page.limits.name, "limit-name", `${length}`, index);
  const start = cursors.data;
  check(offset * 8 === start && pad8(length) <= data.length - start, "data-cursor", `${offset}`, index);
  checkZero(data, start + length, start + pad8(length), "data-padding", index);
  cursors.data += pad8(length);
  return data.subarray(start, start + length);
}

const CHECKS = {
  [DISPATCH]: (command, { arg0 }, index, state) => {
    check(arg0 <= state.dispatched, "kernel-order", `${arg0} before ${state.dispatched}`, index);
    state.dispatched = Math.max(state.dispatched, arg0 + 1);
    command.kernel = state.kernels[arg0];
  },
  [COPY]: ({ refs: [into, from] }, record, index, { slots }) => {
    check(into.length === from.length, "copy-length", `${into.length}, ${from.length}`, index);
    check(!overlap(into, from, slots), "copy-overlap", "the refs overlap", index);
  },
  [FILL]: ({ refs: [ref], data }, { arg0 }, index, { slots }) => {
    check([1, 2, 4, 8].includes(arg0) && ref.length % BigInt(arg0) === 0n, "fill-size", `${arg0}`, index);
    const aligned = ref.offset % BigInt(arg0) === 0n && slots[ref.slot].alignment % arg0 === 0;
    check(aligned, "ref-alignment", `${ref.offset}`, index);
    checkZero(data, arg0, 8, "data-padding", index);
  },
  [UPDATE]: ({ refs: [ref], data }, record, index) =>
    check(ref.length === BigInt(data.length), "update-length", `${ref.length}`, index),
  [MARK]: (command, record, index) => {
    command.label = readText(command.data);
    check(command.label !== null, "text-encoding", "the label is not UTF-8", index);
  },
};

/** Returns whether two refs have a byte of one memory in common. */
export function overlap(a, b, slots) {
  const group = slots[a.slot].alias_group;
  const together = a.slot === b.slot || (group !== 0 && group === slots[b.slot].alias_group);
  return together && a.length > 0n && b.length > 0n && a.offset < b.offset + b.length && b.offset < a.offset + a.length;
}
