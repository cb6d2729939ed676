// Graphs of ops on named values.

import { bytesOf, dtypeNumber, tensor } from "./tensors.js";

const desc = (dtype, shape) => ({ dtype: dtypeNumber(dtype), shape });
const message = (value) => ({ dtype: dtypeNumber(value.dtype), shape: value.shape, data: bytesOf(value) });

/**
 * Ops on named values, in program order. A value is its name.
 *
 * With `fuses` set to true, elementwise launches that follow each other become one.
 */
export class Graph {
  fuses = false;
  #nodes = [];
  #inputs = [];
  #constants = [];
  #outputs = [];
  #count = 0;

  /** @param {string} [name] of the graph */
  constructor(name = "graph") {
    this.name = name;
  }

  /** Adds an argument and returns its value. */
  input(name, dtype, shape) {
    this.#inputs.push({ name, desc: desc(dtype, shape) });
    return name;
  }

  /** Adds a tensor that becomes part of the program, and returns its value. */
  constant(value) {
    const { dtype, shape, data } = value;
    const name = this.#name("constant");
    this.#constants.push({ name, value: message(tensor(dtype, shape, data)) });
    return name;
  }

  /**
   * Adds an op and returns its output, or all of them when it has several.
   *
   * @param {string} op for example "MatMul"
   * @param {string[]} inputs values; "" for an optional one left out
   * @param {object} [attributes] integers, floats as {float: 0.5}, strings, booleans, lists
   * @param {number} [outputs] how many outputs are wanted
   */
  add(op, inputs, attributes = {}, outputs = 1) {
    const names = Array.from({ length: outputs }, () => this.#name(op));
    const given = Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, attribute(name, value)]));
    this.#nodes.push({ op, inputs, outputs: names, attributes: given });
    return outputs === 1 ? names[0] : names;
  }

  /** Makes a value a result of the graph. */
  output(value) {
    this.#outputs.push({ value });
  }

  #name(what) {
    return `${what}_${this.#count++}`;
  }

  /** Returns the message. */
  toMessage() {
    const [inputs, constants, nodes, outputs] = [this.#inputs, this.#constants, this.#nodes, this.#outputs];
    return { name: this.name, inputs, constants, nodes, outputs, fuses: this.fuses };
  }
}

/** Returns an attribute's message. Numbers that are integers are sent as such; {float: 2} is a float. */
function attribute(name, value) {
  if (typeof value === "bigint" || Number.isSafeInteger(value)) return { intValue: value.toString() };
  if (typeof value === "number") return { floatValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value === "string") return { stringValue: value };
  if (Array.isArray(value)) return list(name, value);
  if (value && typeof value.float === "number") return { floatValue: value.float };
  if (value && Array.isArray(value.floats)) return { floats: { values: value.floats } };
  if (value && value.dtype && value.shape) return { tensor: message(value) };
  throw new TypeError(`attribute ${name}: a ${typeof value} is none`);
}

function list(name, values) {
  if (values.every((value) => typeof value === "string"))
    return values.length ? { strings: { values } } : { ints: { values } };
  if (values.every((value) => typeof value === "bigint" || Number.isSafeInteger(value))) {
    return { ints: { values: values.map(String) } };
  }
  if (values.every((value) => typeof value === "number")) return { floats: { values } };
  throw new TypeError(`attribute ${name}: a list of numbers or of strings is wanted`);
}
