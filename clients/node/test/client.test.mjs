// Against a server at UMD_ADDRESS.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Client, Graph, UmdError, tensor } from "../src/index.js";
import { decode } from "../src/command-buffer/index.js";

const client = new Client(process.env.UMD_ADDRESS);
after(() => client.close());

/** relu(x · w + b), as a graph with w and b inside. */
function layer() {
  const graph = new Graph("layer");
  const x = graph.input("x", "float32", [2, 3]);
  const w = graph.constant(tensor("float32", [3, 2], [1, -1, 2, -2, 3, -3]));
  const b = graph.constant(tensor("float32", [2], [0.5, 0.25]));
  graph.output(graph.add("Relu", [graph.add("Add", [graph.add("MatMul", [x, w]), b])]));
  return graph;
}

test("a graph that fuses becomes fewer launches and gives the same result", async () => {
  const x = tensor("float32", [4], [-1, 0, 1, 2]);
  const results = [];
  const counts = [];
  for (const fuses of [false, true]) {
    const graph = new Graph("fused");
    const value = graph.input("x", "float32", [4]);
    graph.output(graph.add("Relu", [graph.add("Neg", [graph.add("Mul", [value, value])])]));
    graph.fuses = fuses;
    counts.push(decode((await client.translate(graph)).bytes).commands.length);
    results.push(...(await client.run(graph, [x])));
  }
  assert.deepEqual(results[0], results[1]);
  assert.equal(counts[0] - counts[1], 2);
});

test("a graph runs and gives its result", async () => {
  const [y] = await client.run(layer(), [tensor("float32", [2, 3], [1, 2, 3, -1, -2, -3])]);
  assert.deepEqual(y, tensor("float32", [2, 2], [14.5, 0, 0, 14.25]));
});

test("a program that is loaded once runs again and again", async () => {
  const program = await client.translate(layer());
  const session = client.open("sim:0");
  const loaded = session.load(program);
  for (const k of [1, 2, 3]) {
    const [y] = await session.run(loaded, [tensor("float32", [2, 3], [k, 0, 0, 0, k, 0])]);
    assert.deepEqual([...y.data], [k + 0.5, 0, 2 * k + 0.5, 0]);
  }
  await session.close();
});

test("attributes, several outputs and other element types arrive", async () => {
  const graph = new Graph("split");
  const x = graph.input("x", "int64", [2, 4]);
  const [first, second] = graph.add("Split", [x], { axis: 1, num_outputs: 2 }, 2);
  graph.output(graph.add("Concat", [second, first], { axis: 1 }));
  const axes = graph.constant(tensor("int64", [1], [0n]));
  graph.output(graph.add("ReduceSum", [x, axes], { keepdims: 0 }));
  const [swapped, sum] = await client.run(graph, [tensor("int64", [2, 4], [1n, 2n, 3n, 4n, 5n, 6n, 7n, 2n ** 60n])]);
  assert.deepEqual([...swapped.data], [3n, 4n, 1n, 2n, 7n, 2n ** 60n, 5n, 6n]);
  assert.deepEqual([...sum.data], [6n, 8n, 10n, 2n ** 60n + 4n]);
});

test("large tensors travel as bulk data", async () => {
  const count = 3 << 20;
  const graph = new Graph("large");
  const x = graph.input("x", "float32", [count]);
  graph.output(graph.add("Neg", [x]));
  const [y] = await client.run(graph, [
    tensor(
      "float32",
      [count],
      Float32Array.from({ length: count }, (_, i) => i % 1000),
    ),
  ]);
  assert.equal(y.data.length, count);
  assert.ok(y.data.every((value, i) => value === -(i % 1000)));
});

test("the program is one that the decoder reads", async () => {
  const { bytes } = await client.translate(layer());
  const { commands } = decode(bytes);
  const kernels = commands.filter(({ op }) => op === "DISPATCH").map(({ kernel }) => kernel.name);
  assert.deepEqual(kernels, ["gemm_kernel", "elementwise_add_kernel", "elementwise_relu_kernel"]);
});

test("the server describes its devices", async () => {
  const { devices } = await client.describe();
  assert.equal(devices[0].name, "sim:0");
  assert.ok(devices[0].kernels.some(({ name }) => name === "gemm_kernel"));
});

test("errors carry their status and facts", async () => {
  const graph = new Graph("unknown");
  graph.output(graph.add("NoSuchOp", [graph.input("x", "float32", [1])]));
  await assert.rejects(client.translate(graph), (error) => error instanceof UmdError && error.status === 2);
  await assert.rejects(client.run(layer(), [tensor("float32", [3, 2], [0, 0, 0, 0, 0, 0])]), { status: 4 });
  await assert.rejects(client.run(layer(), []), { status: 3 });
  const session = client.open();
  await assert.rejects(session.read({ handle: ((1n << 32n) | 99n).toString(), size: 4 }), { status: 10 });
  await session.close();
  assert.throws(() => session.allocate(4), { status: 15 });
});

test("sessions do not see one another", async () => {
  const [a, b] = [client.open(), client.open()];
  const [x, y] = [a.allocate(4), b.allocate(4)];
  await a.write(x, Buffer.from([1, 2, 3, 4]));
  assert.deepEqual([...(await b.read(y))], [0, 0, 0, 0]);
  assert.deepEqual([...(await a.read(x))], [1, 2, 3, 4]);
  await Promise.all([a.close(), b.close()]);
});

test("a server that is not there is told", async () => {
  const nobody = new Client("127.0.0.1:1", { seconds: 2 });
  await assert.rejects(nobody.translate(layer()), { status: 15 });
  nobody.close();
});
