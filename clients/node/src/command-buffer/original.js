// The original format: one launch.

import { check } from "./errors.js";
import { readText, viewOf } from "./records.js";

/** Returns the launch that bytes of the original format stand for. */
export function decodeOriginal(bytes) {
  const magic = bytes.length >= 10 && Buffer.from(bytes.subarray(0, 6)).toString("latin1") === "UMDCMD";
  check(magic, "original-magic", "other bytes");
  const view = viewOf(bytes);
  const length = view.getUint32(6, true);
  check(length >= 1 && length <= 255, "original-magic", `a name of ${length} bytes`);
  check(bytes.length === 34 + length, "original-size", `${bytes.length} bytes`);
  const name = readText(bytes.subarray(10, 10 + length));
  check(name !== null, "original-name", "not UTF-8");
  const [elementCount, grid, block] = [0, 8, 16].map((at) => view.getBigUint64(10 + length + at, true));
  const right = elementCount < 1n << 62n && grid === (elementCount + 255n) / 256n && block === 256n;
  check(right, "original-geometry", `${elementCount}, ${grid}, ${block}`);
  return { name, elementCount, grid, block };
}
