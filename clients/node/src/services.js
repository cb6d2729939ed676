// The server's services, made from the protos.

import { loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import { ROOT } from "./files.js";

const OPTIONS = { longs: String, defaults: true, oneofs: true, bytes: Buffer, includeDirs: [`${ROOT}protos`] };
const definition = loadSync(["umd/graph.proto", "umd/runtime.proto"], OPTIONS);

/** `umd.graph.Graphs` and `umd.runtime.Runtime`. */
export const { graph: { Graphs }, runtime: { Runtime } } = loadPackageDefinition(definition).umd; // prettier-ignore
