// The tables of docs/command-buffer.md: records, limits, types and kernel rows. The page is the definition of the format,
// so nothing in it is written down a second time here.

import { readFileSync } from "node:fs";

import { ROOT } from "../files.js";
import { readKernelRows } from "./rows.js";

const SIZES = { u8: 1, u16: 2, u32: 4, u64: 8, i64: 8, f64: 8 };

/** Returns the size in bytes of a number's type. */
export const sizeOf = (type) => SIZES[type];

/** Returns the lines between the marks of a generated part. */
function generated(text, name) {
  const start = text.indexOf(`<!-- generated: ${name} -->`);
  if (start < 0) throw new Error(`the page has no part ${name}`);
  return text
    .slice(text.indexOf("-->", start) + 3, text.indexOf("<!-- end -->", start))
    .trim()
    .split("\n");
}

/** Returns the cells of a table, without its head; code marks are dropped. */
function table(text, name) {
  return generated(text, name)
    .slice(2)
    .map((line) =>
      line
        .replaceAll("\\|", "\u0000")
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.replaceAll("\u0000", "|").replaceAll("`", "").trim()),
    );
}

/** Returns a record's fields: name, type, place, and how many there are of them. */
function record(text, name) {
  const fields = table(text, name).map(([at, type, field]) => {
    const [, base, count] = /^(\w+?)(?:\[(\d+)\])?$/.exec(type);
    return { name: field, type: base, at: Number(at), count: count === undefined ? null : Number(count) };
  });
  const last = fields.at(-1);
  return { fields, size: last.at + SIZES[last.type] * (last.count ?? 1) };
}

/** Returns what the page says. */
export function readPage(text = readFileSync(`${ROOT}docs/command-buffer.md`, "utf8")) {
  const records = {};
  for (const name of [
    "HEADER",
    "SECTION",
    "KERNELS",
    "SLOTS",
    "COMMANDS",
    "REFS",
    "DEPS",
    "EVENTS",
    "LAUNCH",
    "PATCHES",
    "DEBUG",
  ]) {
    records[name] = record(text, name);
  }
  const sections = new Map(
    table(text, "sections").map(([kind, name, stride, flags, grows]) => [
      Number(kind),
      { name, stride: Number(stride), flags: Number(flags), grows: grows === "yes" },
    ]),
  );
  const limits = Object.fromEntries(table(text, "limits").map(([name, library]) => [name, Number(library)]));
  const types = table(text, "types").map(([number, name, size]) => ({
    number: Number(number),
    name,
    size: BigInt(size),
  }));
  const sets = Object.fromEntries(table(text, "sets").map(([name, members]) => [name, members.split(", ")]));
  const rows = readKernelRows(table(text, "elementwise"), generated(text, "kernels"), { types, sets });
  const primitives = new Map(
    table(text, "primitives").map(([token, name, count, result]) => [
      Number(token),
      { name, count: Number(count), isTruth: result === "truth" },
    ]),
  );
  return { records, sections, limits, types, rows, primitives };
}
