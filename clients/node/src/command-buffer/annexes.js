// Events, patches and debug text.

import { check } from "./errors.js";
import { readRecords, readText } from "./records.js";
import { sizeOf } from "./page.js";

const SIGNAL = 3;

/** Returns the events. */
export function readEvents({ header, bytes, sections }, commands, page) {
  const events = readRecords(bytes, sections.EVENTS, page.records.EVENTS);
  check(events.length === header.event_count, "event-count", `${events.length}, not ${header.event_count}`);
  events.forEach(({ kind, signal, command, reserved }, index) => {
    check(kind === SIGNAL, "event-kind", `${kind}`, index);
    check(reserved === 0, "event-reserved", `${reserved}`, index);
    check(index === 0 || signal > events[index - 1].signal, "event-order", `${signal}`, index);
    check(command < commands.length, "event-command", `${command}`, index);
  });
  return events;
}

const KINDS = { 1: { size: 4, integer: true }, 2: { size: 8, integer: true }, 3: { size: 4 }, 4: { size: 8 } };

/** Returns the patches. */
export function readPatches({ bytes, sections }, commands, page) {
  const patches = readRecords(bytes, sections.PATCHES, page.records.PATCHES);
  const places = patches.length ? patchable(commands) : new Map();
  let end = -1;
  patches.forEach(({ data_offset: offset, kind, addend }, index) => {
    const found = KINDS[kind];
    check(found, "patch-kind", `${kind}`, index);
    check(found.integer || addend === 0n, "patch-addend", `${addend}`, index);
    check(offset >= end, "patch-order", `${offset}`, index);
    end = offset + found.size;
    const type = places.get(offset);
    check(type, "patch-place", `${offset}`, index);
    const fits = sizeOf(type) === found.size && !(found.integer && type === "f64");
    check(fits, "patch-kind", `${kind} for ${type}`, index);
  });
  return patches;
}

/** Returns the types of the numbers that patches may write, by their place in DATA. */
function patchable(commands) {
  const places = new Map();
  for (const { kernel, dataAt } of commands) {
    for (const { type, at, count, patchable: may } of kernel?.layout.fields ?? []) {
      if (!may) continue;
      for (let i = 0; i < (count ?? 1); i++) places.set(dataAt + 32 + at + i * sizeOf(type), type);
    }
  }
  return places;
}

/** Returns [op, node, source] of each command; none without DEBUG. */
export function readDebug({ bytes, sections }, commands, page) {
  const { start, size, stride } = sections.DEBUG;
  if (!size) return [];
  const count = commands.length;
  check(size >= count * stride, "debug-size", `${size} bytes`);
  const records = readRecords(bytes, { start, stride, count }, page.records.DEBUG);
  let at = start + count * stride;
  const take = (length, index) => {
    check(length <= start + size - at, "debug-size", "its text is missing", index);
    const text = readText(bytes.subarray(at, at + length));
    check(text !== null, "text-encoding", "debug text is not UTF-8", index);
    at += length;
    return text;
  };
  const texts = records.map((record, index) => {
    check(record.reserved === 0, "debug-reserved", `${record.reserved}`, index);
    return [record.op_length, record.node_length, record.source_length].map((length) => take(length, index));
  });
  check(at === start + size, "debug-size", `${start + size - at} bytes are left`);
  return texts;
}
