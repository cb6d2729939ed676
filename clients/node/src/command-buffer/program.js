// Programs of elementwise chains.

import { check } from "./errors.js";

const [OPERAND, CONSTANT, RESULT] = [0x100, 0x200, 0x300];
const [OPERANDS, CONSTANTS, STEPS, DEPTH] = [8, 8, 16, 8];

/** Checks that a program leaves one number on the stack, and never reaches below it or beyond its bounds. */
export function checkProgram(program, primitives, index) {
  const fail = (detail) => check(false, "parameter-program", detail, index);
  const zero = program.indexOf(0);
  const end = zero < 0 ? program.length : zero;
  const stack = []; // whether each value is a truth
  const results = [];
  for (const token of program.slice(0, end)) {
    const primitive = primitives.get(token);
    if (primitive) {
      const { name, count, isTruth } = primitive;
      const taken = stack.splice(-count);
      const fits = taken.length === count && taken.every((truth, i) => truth === (name === "select" && i === 0));
      if (!fits) fail(`arguments of ${name}`);
      stack.push(isTruth);
      results.push(isTruth);
    } else {
      const pushed = valueOf(token, results);
      if (pushed === undefined) fail(`token ${token}`);
      stack.push(pushed);
    }
    if (stack.length > DEPTH || results.length > STEPS) fail(`${stack.length} values, ${results.length} steps`);
  }
  if (program.slice(end).some((token) => token !== 0)) fail("tokens after the end");
  if (stack.length !== 1 || stack[0] || !results.length) fail(`${stack.length} values at the end`);
}

/** Returns whether what a token pushes is a truth; undefined when it names nothing. */
function valueOf(token, results) {
  const number = token & 0xff;
  const kind = token - number;
  if (kind === RESULT) return results[number];
  const isOperand = kind === OPERAND && number < OPERANDS;
  return isOperand || (kind === CONSTANT && number < CONSTANTS) ? false : undefined;
}
