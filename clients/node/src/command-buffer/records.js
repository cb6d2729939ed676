// Records of fixed layout.

import { sizeOf } from "./page.js";

const READERS = {
  u8: (view, at) => view.getUint8(at),
  u16: (view, at) => view.getUint16(at, true),
  u32: (view, at) => view.getUint32(at, true),
  u64: (view, at) => view.getBigUint64(at, true),
  i64: (view, at) => view.getBigInt64(at, true),
  f64: (view, at) => view.getFloat64(at, true),
};

/** Returns a view of bytes. */
export const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** Returns the number of a type at a place; numbers of 64 bits are BigInt. */
export const readNumber = (view, at, type) => READERS[type](view, at);

/** Returns a record's fields as an object. */
export function readRecord(bytes, at, { fields }) {
  const view = viewOf(bytes);
  const result = {};
  for (const { name, type, at: offset, count } of fields) {
    const start = at + offset;
    result[name] =
      count === null
        ? readNumber(view, start, type)
        : Array.from({ length: count }, (_, i) => readNumber(view, start + i * sizeOf(type), type));
  }
  return result;
}

/** Returns all records of a section. */
export function readRecords(bytes, { start, stride, count }, record) {
  return Array.from({ length: count }, (_, index) => readRecord(bytes, start + index * stride, record));
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Returns a text, null when the bytes are not UTF-8. */
export function readText(bytes) {
  try {
    return UTF8.decode(bytes);
  } catch {
    return null;
  }
}
