// Calls of one server.

import { Metadata, credentials } from "@grpc/grpc-js";

import { UmdError } from "./errors.js";
import { Graphs, Runtime } from "./services.js";
import { Session } from "./session.js";
import { dtypeName } from "./tensors.js";

const MESSAGE_LIMIT = 65 << 20;
const SECONDS = 30;
const UNAVAILABLE = 15;

/**
 * Calls of one server over one channel.
 *
 *     const client = new Client("127.0.0.1:50051");
 *     const [sum] = await client.run(graph, [tensor("float32", [3], [1, 2, 3])]);
 *     client.close();
 */
export class Client {
  #graphs;
  #runtime;
  #metadata = new Metadata();
  #seconds;

  /**
   * @param {string} target "host:port" or "unix:/path"
   * @param {{token?: string, rootCertificate?: Buffer, seconds?: number}} [options] a token and the certificate to trust,
   *   for a server that is reached through TLS; and the deadline of a call in seconds
   */
  constructor(target, { token, rootCertificate, seconds = SECONDS } = {}) {
    if (token && !rootCertificate) throw new TypeError("a token is sent through TLS only: give rootCertificate");
    const secured = rootCertificate ? credentials.createSsl(rootCertificate) : credentials.createInsecure();
    const options = {
      "grpc.max_receive_message_length": MESSAGE_LIMIT,
      "grpc.max_send_message_length": MESSAGE_LIMIT,
    };
    if (token) this.#metadata.set("authorization", `Bearer ${token}`);
    this.#seconds = seconds;
    this.#graphs = new Graphs(target, secured, options);
    this.#runtime = new Runtime(target, secured, options);
  }

  #options() {
    return { deadline: Date.now() + this.#seconds * 1000 };
  }

  /** Returns what the server and its devices can do. */
  describe() {
    return new Promise((resolve, reject) => {
      this.#runtime.describe({}, this.#metadata, this.#options(), (error, answer) =>
        error ? reject(lost(error)) : resolve(answer),
      );
    });
  }

  /**
   * Returns a graph's program and what it takes and gives.
   *
   * @param {import("./graph.js").Graph} graph
   * @param {{device?: string}} [options] the device to translate for; any by default
   * @throws {UmdError} the server refused it
   */
  async translate(graph, { device = "" } = {}) {
    const call = this.#graphs.translateGraph(
      { graph: graph.toMessage(), deviceId: device },
      this.#metadata,
      this.#options(),
    );
    let header;
    const chunks = [];
    try {
      for await (const message of call) {
        if (message.part === "header") header = message.header;
        else chunks.push(message.chunk);
      }
    } catch (error) {
      throw lost(error);
    }
    if (header.status) throw UmdError.of(header);
    const descs = (list) => list.map(({ dtype, shape }) => ({ dtype: dtypeName(dtype), shape: shape.map(Number) }));
    return {
      bytes: Buffer.concat(chunks),
      inputs: descs(header.inputs),
      outputs: descs(header.outputs),
      aliases: header.aliases,
    };
  }

  /** Returns a new session with a device; the server's first by default. */
  open(device = "") {
    return new Session(this.#runtime, this.#metadata, device, this.#seconds);
  }

  /**
   * Returns a graph's outputs for inputs. For repeated use keep a session and a loaded program.
   *
   * @param {import("./graph.js").Graph} graph
   * @param {object[]} inputs tensors
   * @param {{device?: string}} [options]
   */
  async run(graph, inputs, { device = "" } = {}) {
    const program = await this.translate(graph, { device });
    const session = this.open(device);
    try {
      return await session.run(session.load(program), inputs);
    } finally {
      await session.close();
    }
  }

  /** Ends the channel. */
  close() {
    this.#graphs.close();
    this.#runtime.close();
  }
}

/** Returns what the failure of a call means. */
export function lost(error) {
  return error instanceof UmdError ? error : new UmdError(UNAVAILABLE, error.details || error.message);
}
