// Header and section table: what a buffer consists of.

import { crc32 } from "node:zlib";

import { check } from "./errors.js";
import { readRecord } from "./records.js";

const HEADER_SIZE = 64;
const ALL_FLAGS = 7;
const LARGEST = 256;
const SIGNATURE = 0xffff;

/** Returns n rounded up to a multiple of 8. */
export const pad8 = (n) => Math.ceil(n / 8) * 8;

/** Throws unless bytes [from, to) are zero. */
export function checkZero(bytes, from, to, rule, index) {
  for (let at = from; at < to; at++) check(bytes[at] === 0, rule, () => `byte ${at} is ${bytes[at]}`, index);
}

/** Returns header and sections (by name) of a buffer. Sections that are not there are empty. */
export function openFrame(bytes, page) {
  const header = readHeader(bytes, page);
  return { header, bytes, sections: readSections(bytes, header, page) };
}

function readHeader(bytes, { records, limits }) {
  check(bytes.length <= limits.total_size, "limit-total-size", `${bytes.length} bytes`);
  check(!isOriginal(bytes), "original-format", "one launch in the original format");
  check(bytes.length >= HEADER_SIZE, "header-short", `${bytes.length} bytes`);
  const header = readRecord(bytes, 0, records.HEADER);
  check(Buffer.from(header.magic).toString("latin1") === "UMDCMD", "magic", "other bytes");
  check(header.version >> 8 === 1, "version", `${header.version >> 8}.${header.version & 255}`);
  const size = header.header_size;
  const fits =
    header.version === 0x100 ? size === HEADER_SIZE : size % 8 === 0 && size >= HEADER_SIZE && size <= LARGEST;
  check(fits && size <= bytes.length, "header-size", `${size}`);
  check(header.total_size === BigInt(bytes.length), "total-size", `${header.total_size}`);
  check(header.header_crc === crc32(bytes.subarray(0, 60)), "header-checksum", "damaged");
  check(header.body_crc === crc32(bytes.subarray(HEADER_SIZE)), "body-checksum", "damaged");
  check(header.incompat === 0n, "incompatible-feature", `bits ${header.incompat}`);
  check((header.flags & ~ALL_FLAGS) === 0, "header-flags", `${header.flags}`);
  check(header.reserved === 0, "header-reserved", `${header.reserved}`);
  check(header.section_count <= limits.sections, "limit-sections", `${header.section_count}`);
  return header;
}

/** Returns whether bytes are of the original format. */
export function isOriginal(bytes) {
  return bytes.length >= 8 && Buffer.from(bytes.subarray(0, 6)).toString("latin1") === "UMDCMD" && bytes[7] === 0;
}

function readSections(bytes, header, page) {
  const entry = page.records.SECTION;
  let cursor = header.header_size + header.section_count * entry.size;
  check(cursor <= bytes.length, "section-table", `${header.section_count} entries`);
  const sections = Object.fromEntries(
    [...page.sections.values()].map(({ name, stride }) => [name, { start: 0, size: 0, stride, count: 0 }]),
  );
  let last = 0;
  for (let index = 0; index < header.section_count; index++) {
    const found = readRecord(bytes, header.header_size + index * entry.size, entry);
    check(found.kind > last, "section-order", `kind ${found.kind} after ${last}`, index);
    last = found.kind;
    const known = checkKind(found, header, page, index);
    check(found.offset === BigInt(cursor), "section-offset", `${found.offset}, not ${cursor}`, index);
    check(found.size > 0n, "section-empty", "", index);
    const room = BigInt(bytes.length - cursor);
    check(found.size <= room && pad8(Number(found.size)) <= Number(room), "section-size", `${found.size}`, index);
    const size = Number(found.size);
    checkZero(bytes, cursor + size, cursor + pad8(size), "section-padding", index);
    if (known) sections[known.name] = cut(known, found, cursor, size, index);
    cursor += pad8(size);
  }
  check(cursor === bytes.length, "trailing-bytes", `${bytes.length - cursor}`);
  return sections;
}

function checkKind(found, header, page, index) {
  check(found.kind !== SIGNATURE, "section-reserved", "SIGNATURE", index);
  const known = page.sections.get(found.kind);
  check(known || found.flags === 1, "section-unknown", `kind ${found.kind}`, index);
  if (!known) return null;
  check(found.flags === known.flags, "section-flags", `${found.flags}`, index);
  const { stride } = known;
  const grown = header.version > 0x100 && known.grows && found.stride >= stride && found.stride <= LARGEST;
  check(found.stride === stride || grown, "section-stride", `${found.stride}`, index);
  return known;
}

function cut(known, { stride }, start, size, index) {
  check(known.name === "DEBUG" || size % stride === 0, "section-records", `${size} bytes of ${stride}`, index);
  return { start, size, stride, count: Math.floor(size / stride) };
}
