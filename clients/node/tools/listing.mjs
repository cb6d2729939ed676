// Reads command buffers from stdin, each after its length as a u32, and answers each with one JSON line: what it holds, or
// the rule that it breaks. For comparing this decoder with others.

import { DecodeError, decode } from "../src/command-buffer/index.js";

const hex = (bytes) => Buffer.from(bytes).toString("hex");

function listing({ version, flags, compat, kernels, slots, commands, events, patches, debug }) {
  return {
    version, flags, compat,
    kernels: kernels.map(({ name, abi, types, sizes }) => [name, abi, types.map(({ number }) => number), sizes]),
    slots: slots.map((s) => [s.kind, s.access, s.alias_group, s.alignment, s.min_size, s.value, s.length]),
    commands: commands.map((command) => [
      command.op, command.queue, command.deps,
      command.refs.map(({ slot, access, offset, length }) => [slot, access, offset, length]),
      ...details(command, kernels),
    ]),
    events: events.map(({ signal, command }) => [signal, command]),
    patches: patches.map((p) => [p.data_offset, p.kind, p.symbol, p.addend]),
    debug,
  }; // prettier-ignore
}

function details({ op, kernel, launch, parameters, data, arg0, label }, kernels) {
  if (op === "DISPATCH") return [kernels.indexOf(kernel), Object.values(launch).slice(0, 7), hex(parameters)];
  if (op === "FILL") return [hex(data.subarray(0, arg0))];
  if (op === "UPDATE") return [hex(data)];
  return op === "MARK" ? [arg0, label] : [];
}

const line = (value) => JSON.stringify(value, (_, item) => (typeof item === "bigint" ? item.toString() : item));

/** Returns the answer to one buffer. */
function answer(bytes) {
  try {
    return line(listing(decode(bytes)));
  } catch (error) {
    if (!(error instanceof DecodeError)) throw error;
    return line({ refused: error.rule });
  }
}

let input = Buffer.alloc(0);
for await (const chunk of process.stdin) {
  input = Buffer.concat([input, chunk]);
  while (input.length >= 4 && input.length >= 4 + input.readUInt32LE(0)) {
    const end = 4 + input.readUInt32LE(0);
    process.stdout.write(`${answer(input.subarray(4, end))}\n`);
    input = input.subarray(end);
  }
}
