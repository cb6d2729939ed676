// Parameter blocks, and the memory safety of launches.

import { check } from "./errors.js";
import { readNumber, readRecord, viewOf } from "./records.js";
import { sizeOf } from "./page.js";
import { checkProgram } from "./program.js";
import { LARGE, overlap } from "./structure.js";

const GROUP = 256n;
const abs = (x) => (x < 0n ? -x : x);
const max1 = (x) => (x > 1n ? x : 1n);
const sum = (numbers) => numbers.reduce((total, x) => total + x, 0n);
const product = (numbers) => numbers.reduce((total, x) => total * x, 1n);
const least = (a, b) => (a < b ? a : b);
const ceil = (n, by) => (n + by - 1n) / by;

/** Returns the fields of a row's block with given array lengths, and the block's size. */
function layoutOf(row, sizes) {
  const lengths = new Map(row.sizes.map(({ name }, i) => [name, sizes[i]]));
  const length = (name) => (name === null ? null : (lengths.get(name) ?? Number(name)));
  const extents = new Map(row.extents.map((extent) => [extent.name, length(extent.size)]));
  const fields = [
    ...row.sizes.map(({ name }) => ({ name, type: "u32", count: null })),
    ...row.extents.map(({ name, size }) => ({ name, type: "u64", count: length(size) })),
    ...row.operands.flatMap(({ name, box }) => {
      const count = box.reduce((total, extent) => total + (extents.get(extent) ?? 1), 0);
      const strides = box.length ? [{ name: `${name}_strides`, type: "i64", count }] : [];
      return [{ name: `${name}_offset`, type: "i64", count: null }, ...strides];
    }),
    ...row.fields.map(({ name, type, size, patchable }) => ({ name, type, count: length(size), patchable })),
  ];
  let at = 0;
  for (const field of fields) {
    const size = sizeOf(field.type);
    at = Math.ceil(at / size) * size;
    field.at = at;
    at += size * (field.count ?? 1);
  }
  return { fields, size: Math.ceil(at / 8) * 8 };
}

/** Finds each kernel's array lengths, from its first dispatch. */
export function resolveKernels(kernels, commands) {
  for (const { kernel, data } of commands) {
    if (!kernel || kernel.sizes) continue;
    const index = kernels.indexOf(kernel);
    const block = data.subarray(32);
    const count = kernel.row.sizes.length;
    check(block.length >= 4 * count, "kernel-parameters", `${block.length} bytes`, index);
    kernel.sizes = kernel.row.sizes.map((_, i) => viewOf(block).getUint32(4 * i, true));
    kernel.row.sizes.forEach(({ allowed }, i) =>
      check(allowed.includes(kernel.sizes[i]), "kernel-sizes", `${kernel.sizes[i]}`, index),
    );
    kernel.layout = layoutOf(kernel.row, kernel.sizes);
    check(kernel.layout.size === kernel.parameterSize, "kernel-parameters", `${kernel.parameterSize}`, index);
  }
  const seen = new Set();
  kernels.forEach((kernel, index) => {
    const key = JSON.stringify([kernel.name, kernel.abi, kernel.types.map(({ number }) => number), kernel.sizes]);
    check(!seen.has(key), "kernel-duplicate", kernel.name, index);
    seen.add(key);
  });
}

/** Returns a block's numbers by field: BigInt for 64-bit integers. Checks its padding and array lengths. */
export function readParameters({ row, sizes, layout }, block, index) {
  const view = viewOf(block);
  const numbers = {};
  let end = 0;
  for (const { name, type, at, count } of layout.fields) {
    checkPadding(block, end, at, index);
    end = at + sizeOf(type) * (count ?? 1);
    const read = (i) => readNumber(view, at + i * sizeOf(type), type);
    numbers[name] = count === null ? read(0) : Array.from({ length: count }, (_, i) => read(i));
  }
  checkPadding(block, end, layout.size, index);
  row.sizes.forEach(({ name }, i) => check(numbers[name] === sizes[i], "parameter-sizes", `${numbers[name]}`, index));
  return numbers;
}

function checkPadding(block, from, to, index) {
  for (let at = from; at < to; at++) check(block[at] === 0, "parameter-padding", `byte ${at}`, index);
}

/** Checks a dispatch, and gives it its launch block and parameters. */
export function checkLaunch(command, index, slots, page, maxWork) {
  const { kernel, data, refs } = command;
  const launch = readRecord(data, 0, page.records.LAUNCH);
  check(launch.reserved === 0, "launch-reserved", `${launch.reserved}`, index);
  command.launch = launch;
  command.parameters = data.subarray(32);
  const numbers = readParameters(kernel, command.parameters, index);
  const boxes = kernel.row.operands.map((operand, i) => boxOf(operand, numbers, kernel.operandTypes[i].size));
  refs.forEach((ref, i) => {
    const { size } = boxes[i];
    const aligned = ref.offset % size === 0n && BigInt(slots[ref.slot].alignment) % size === 0n;
    check(aligned, "ref-alignment", `operand ${i}`, index);
  });
  checkRange(kernel.row, numbers, boxes, index);
  checkWindows(kernel.row, numbers, index);
  if (numbers.program) checkProgram(numbers.program, page.primitives, index);
  boxes.forEach((box, i) => checkBox(box, kernel.row, i, refs[i], index));
  const work = sum(kernel.row.work.map((group) => product(group.flatMap((name) => numbers[name]))));
  check(work <= maxWork, "launch-work", `${work}`, index);
  checkGeometry(kernel.row, numbers, launch, index);
  checkAliases(command, boxes, slots, index);
}

function boxOf({ name, box }, numbers, size) {
  const extents = box.flatMap((extent) => numbers[extent]);
  return {
    size,
    offset: numbers[`${name}_offset`],
    extents,
    strides: extents.length ? numbers[`${name}_strides`] : [],
    names: box,
  };
}

function checkRange(row, numbers, boxes, index) {
  const small = (number, what) => check(number < LARGE, "parameter-range", what, index);
  for (const { size, offset, extents, strides } of boxes) {
    small((abs(offset) + sum(extents.map((extent, i) => max1(extent) * abs(strides[i]))) + 1n) * size, "reach");
    small(product(extents.map(max1)), "elements");
  }
  const boxed = new Set(row.operands.flatMap(({ box }) => box));
  const single = [
    ...row.extents.filter(({ name }) => !boxed.has(name)).map(({ name }) => name),
    ...row.fields.filter(({ type }) => type !== "f64").map(({ name }) => name),
  ];
  for (const name of single) for (const number of [numbers[name]].flat()) small(abs(BigInt(number)), name);
  small(sum(row.work.map((group) => product(group.flatMap((name) => numbers[name]).map(max1)))), "work");
  (numbers.window_strides ?? []).forEach((stride, i) => {
    const end = numbers.pads_end ? abs(numbers.pads_end[i]) : 0n;
    const { output, kernel, input, dilations, pads } = numbers;
    small(output[i] * stride + abs(pads[i]) + kernel[i] * dilations[i] + input[i] + end, "window");
  });
}

function checkWindows(row, numbers, index) {
  for (const name of ["window_strides", "dilations"]) {
    for (const step of numbers[name] ?? []) check(step >= 1n, "parameter-window", `${name} ${step}`, index);
  }
}

/** Checks that an operand's elements lie within its ref, and are distinct where they are written. */
function checkBox({ size, offset, extents, strides }, row, operand, ref, index) {
  if (extents.some((extent) => extent === 0n)) return;
  const steps = extents.map((extent, i) => (extent - 1n) * strides[i]);
  const low = offset + sum(steps.filter((step) => step < 0n));
  const high = offset + sum(steps.filter((step) => step > 0n));
  check(low >= 0n && (high + 1n) * size <= ref.length, "touched-range", `operand ${operand}`, index);
  if (row.atomic || !(row.operands[operand].access & 2)) return;
  const pairs = extents.map((extent, i) => [abs(strides[i]), extent]).filter(([, extent]) => extent !== 1n);
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  let reach = 0n;
  for (const [stride, extent] of pairs) {
    check(stride > reach, "launch-injective", `operand ${operand}`, index);
    reach += stride * (extent - 1n);
  }
}

const MOST = (1n << 31n) - 1n;
const GEOMETRIES = {
  elements: (row, numbers, name) => {
    const { box } = row.operands.find((operand) => operand.name === name);
    return [[least(ceil(product(box.flatMap((extent) => numbers[extent])), GROUP), MOST), 1n, 1n], 0n];
  },
  rows: (row, { outer }) => [[least(product(outer), MOST), 1n, 1n], 1024n],
  tiles: (row, { columns, rows, batch }) => [
    [least(ceil(columns, 64n), MOST), least(ceil(rows, 64n), 65535n), least(product(batch), 65535n)],
    0n,
  ],
};

function checkGeometry(row, numbers, launch, index) {
  const [name, ...rest] = row.geometry;
  const [counts, memory] = GEOMETRIES[name](row, numbers, ...rest);
  const wanted = [...counts, GROUP, 1n, 1n, memory];
  const found = ["count_x", "count_y", "count_z", "size_x", "size_y", "size_z", "memory"].map(
    (part) => launch[`workgroup_${part}`],
  );
  check(
    found.every((number, i) => BigInt(number) === wanted[i]),
    "launch-geometry",
    `${found}, not ${wanted}`,
    index,
  );
}

function checkAliases({ kernel, refs }, boxes, slots, index) {
  const { operands, aliases } = kernel.row;
  for (let i = 0; i < refs.length; i++) {
    for (let j = i + 1; j < refs.length; j++) {
      if (!((operands[i].access | operands[j].access) & 2) || !overlap(refs[i], refs[j], slots)) continue;
      const [a, b] = [operands[i].name, operands[j].name];
      const declared = aliases.some(([x, y]) => (x === a && y === b) || (x === b && y === a));
      const exact =
        refs[i].offset === refs[j].offset &&
        sameElements(boxes[i], boxes[j]) &&
        kernel.operandTypes[i] === kernel.operandTypes[j];
      check(declared && exact, "launch-alias", `${a} and ${b}`, index);
    }
  }
}

function sameElements(a, b) {
  const names = a.names.length === b.names.length && a.names.every((name, i) => name === b.names[i]);
  return (
    names && a.offset === b.offset && a.extents.every((extent, i) => extent <= 1n || a.strides[i] === b.strides[i])
  );
}
