// A session with one device: frames in order, answers as they come.

import { crc32 } from "node:zlib";

import { UmdError } from "./errors.js";
import { DTYPES, bytesOf, elementCount, tensorOf } from "./tensors.js";

const PROTOCOL = 1;
const DEVICE_LOST = 15;
const [WRITE, READ] = ["DIRECTION_WRITE", "DIRECTION_READ"];
const INLINE = 256 << 10;

/** One session. Everything that it makes is freed when it ends. */
export class Session {
  #runtime;
  #metadata;
  #seconds;
  #call;
  #seq = 0;
  #id = 0;
  #waiting = new Map();
  #failure = null;
  #ended;
  #opened;

  constructor(runtime, metadata, device, seconds) {
    this.#runtime = runtime;
    this.#metadata = metadata;
    this.#seconds = seconds;
    this.#call = runtime.session(metadata);
    this.#ended = new Promise((resolve) => {
      this.#call.on("end", () => resolve(this.#end(new UmdError(DEVICE_LOST, "the session has ended"))));
      this.#call.on("error", (error) => resolve(this.#end(new UmdError(DEVICE_LOST, error.details || error.message))));
    });
    this.#call.on("data", (response) => response.replies.forEach((reply) => this.#take(reply)));
    this.#opened = this.#ask({ open: { device, protocol: PROTOCOL, client: "umd-client for Node.js" } });
    this.#opened.catch(() => {}); // told to whoever asks next
  }

  /** Returns a new buffer of `size` bytes, all zero. */
  allocate(size) {
    const buffer = { handle: this.#handle(), size };
    this.#send({ allocate: { handles: [buffer.handle], sizes: [size] } });
    return buffer;
  }

  /** Frees buffers. Work that was submitted with them still finishes. */
  free(...buffers) {
    this.#send({ free: { buffers: buffers.map(({ handle }) => handle) } });
  }

  /** Writes bytes at the start of a buffer. */
  async write(buffer, bytes) {
    if (bytes.length <= INLINE) return this.#send({ write: { buffer: buffer.handle, data: bytes } });
    const { limits } = (await this.#opened).opened;
    for (let at = 0; at < bytes.length; at += Number(limits.transferSize)) {
      await this.#writeBulk(buffer, at, bytes.subarray(at, at + Number(limits.transferSize)), Number(limits.chunkSize));
    }
  }

  async #writeBulk(buffer, offset, bytes, chunk) {
    const id = String(++this.#id);
    this.#send({ transfer: { id, direction: WRITE, buffer: buffer.handle, offset, size: bytes.length } });
    const session = (await this.#opened).opened.session;
    await new Promise((resolve, reject) => {
      const call = this.#runtime.write(this.#metadata, this.#options(), (error, answer) => {
        if (error) reject(new UmdError(DEVICE_LOST, error.details || error.message));
        else answer.error ? reject(UmdError.of(answer.error)) : resolve();
      });
      for (let at = 0; at < bytes.length; at += chunk) {
        const data = bytes.subarray(at, at + chunk);
        call.write({ session, transfer: id, offset: at, crc32: crc32(data), data });
      }
      call.end();
    });
  }

  /** Returns the first `size` bytes of a buffer, once everything before has run. */
  async read(buffer, size = buffer.size) {
    if (size <= INLINE) return (await this.#ask({ read: { buffer: buffer.handle, offset: 0, size } })).data;
    const { limits } = (await this.#opened).opened;
    const parts = [];
    for (let at = 0; at < size; at += Number(limits.transferSize)) {
      parts.push(await this.#readBulk(buffer, at, Math.min(size - at, Number(limits.transferSize))));
    }
    return Buffer.concat(parts);
  }

  async #readBulk(buffer, offset, size) {
    const id = String(++this.#id);
    this.#send({ transfer: { id, direction: READ, buffer: buffer.handle, offset, size } });
    const session = (await this.#opened).opened.session;
    const chunks = [];
    let done = 0;
    for await (const { offset: at, crc32: crc, data, error } of this.#runtime.read(
      { session, transfer: id },
      this.#metadata,
      this.#options(),
    )) {
      if (error) throw UmdError.of(error);
      if (Number(at) !== done || crc32(data) !== crc) throw new UmdError(9, `chunk at ${at} of a transfer is damaged`);
      done += data.length;
      chunks.push(data);
    }
    if (done !== size) throw new UmdError(9, `${done} of ${size} bytes arrived`);
    return Buffer.concat(chunks);
  }

  /** Loads a program, as `Client.translate` gives it, and returns it for `run` and `submit`. */
  load(program) {
    const handle = this.#handle();
    this.#send({ load: { handle, program: program.bytes } });
    return { ...program, handle };
  }

  /** Submits a program over buffers, one an argument: inputs, then outputs. */
  submit(program, buffers) {
    this.#send({
      submit: {
        program: program.handle,
        buffers: buffers.map(({ handle }) => handle),
        sizes: buffers.map(({ size }) => size),
      },
    });
  }

  /**
   * Returns a program's outputs. Small ones take one round trip.
   *
   * @param {object} program as `load` returns it
   * @param {object[]} inputs tensors
   */
  async run(program, inputs) {
    check(program, inputs);
    const into = [];
    for (const input of inputs) {
      const bytes = bytesOf(input);
      const buffer = this.allocate(bytes.length);
      if (bytes.length) await this.write(buffer, bytes);
      into.push(buffer);
    }
    const shared = new Map(program.aliases.map(({ output, input }) => [output, into[input]]));
    const sizes = program.outputs.map(
      ({ dtype, shape }) => elementCount(shape) * DTYPES[dtype].array.BYTES_PER_ELEMENT,
    );
    const out = sizes.map((size, i) => shared.get(i) ?? this.allocate(size));
    this.submit(program, [...into, ...out]);
    const parts = await Promise.all(out.map((buffer, i) => (sizes[i] ? this.read(buffer, sizes[i]) : Buffer.alloc(0))));
    this.free(...new Set([...into, ...out]));
    return program.outputs.map(({ dtype, shape }, i) => tensorOf(dtype, shape, parts[i]));
  }

  /** Ends the session, once what was sent has been carried out. */
  async close() {
    this.#call.end();
    await this.#ended;
  }

  // frames

  #options() {
    return { deadline: Date.now() + this.#seconds * 1000 };
  }

  /** Handles are id | generation << 32; ids are not used again here. */
  #handle() {
    return ((1n << 32n) | BigInt(++this.#id)).toString();
  }

  #send(command) {
    if (this.#failure) throw this.#failure;
    const seq = String(++this.#seq);
    this.#call.write({ frames: [{ seq, ...command }] });
    return seq;
  }

  #ask(command) {
    return new Promise((resolve, reject) => {
      const seq = this.#send(command);
      const timer = setTimeout(() => {
        this.#waiting.delete(seq);
        reject(new UmdError(12, `no answer within ${this.#seconds} s`));
      }, this.#seconds * 1000);
      this.#waiting.set(seq, { resolve, reject, timer });
    });
  }

  #take(reply) {
    const waiting = this.#waiting.get(reply.seq);
    if (reply.result === "error" && reply.seq === "0") return this.#end(UmdError.of(reply.error));
    if (!waiting) return;
    this.#waiting.delete(reply.seq);
    clearTimeout(waiting.timer);
    if (reply.result === "error") waiting.reject(UmdError.of(reply.error));
    else waiting.resolve(reply);
  }

  #end(failure) {
    this.#failure ??= failure;
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(this.#failure);
    }
    this.#waiting.clear();
  }
}

function check(program, inputs) {
  if (inputs.length !== program.inputs.length) {
    throw new UmdError(3, `the program takes ${program.inputs.length} inputs, not ${inputs.length}`);
  }
  inputs.forEach(({ dtype, shape }, i) => {
    const wanted = program.inputs[i];
    if (dtype !== wanted.dtype) throw new UmdError(5, `input ${i} is ${dtype}, not ${wanted.dtype}`);
    if (String(shape) !== String(wanted.shape))
      throw new UmdError(4, `input ${i} is [${shape}], not [${wanted.shape}]`);
  });
}
