// Reads command buffers, as docs/command-buffer.md defines them.

import { readDebug, readEvents, readPatches } from "./annexes.js";
import { openFrame } from "./frame.js";
import { checkLaunch, resolveKernels } from "./launch.js";
import { readPage } from "./page.js";
import { readCommands, readKernels, readRefs, readSlots } from "./structure.js";

export { DecodeError } from "./errors.js";
export { isOriginal } from "./frame.js";
export { decodeOriginal } from "./original.js";

const UNLIMITED = 1n << 62n;
let page;

/**
 * Returns what a command buffer holds, once every rule has been checked.
 *
 * @param {Uint8Array} source the encoded command buffer
 * @param {{maxWork?: bigint}} [options] element operations allowed in one launch
 * @throws {DecodeError} a rule is broken
 */
export function decode(source, { maxWork = UNLIMITED } = {}) {
  page ??= readPage();
  const bytes = Uint8Array.from(source);
  const frame = openFrame(bytes, page);
  const kernels = readKernels(frame, page);
  const { slots, dataStart } = readSlots(frame, page);
  const refs = readRefs(frame, slots, page);
  const commands = readCommands(frame, { kernels, slots, refs, dataStart }, page);
  resolveKernels(kernels, commands);
  commands.forEach((command, index) => command.kernel && checkLaunch(command, index, slots, page, maxWork));
  return {
    version: frame.header.version, flags: frame.header.flags, compat: frame.header.compat,
    kernels, slots, commands,
    events: readEvents(frame, commands, page),
    patches: readPatches(frame, commands, page),
    debug: readDebug(frame, commands, page),
  }; // prettier-ignore
}
