// A client of a umd server: translates graphs, and runs them on the server's devices.

export { Client } from "./client.js";
export { UmdError } from "./errors.js";
export { Graph } from "./graph.js";
export { DTYPES, tensor } from "./tensors.js";
