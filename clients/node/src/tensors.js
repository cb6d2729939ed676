// Tensors: an element type, a shape, and a typed array of the elements in row-major order.

/** Element types by name: ONNX's number and the array of its elements. 16-bit floats are given as their bits. */
export const DTYPES = {
  float16: { number: 10, array: Uint16Array },
  bfloat16: { number: 16, array: Uint16Array },
  float32: { number: 1, array: Float32Array },
  float64: { number: 11, array: Float64Array },
  int8: { number: 3, array: Int8Array },
  int16: { number: 5, array: Int16Array },
  int32: { number: 6, array: Int32Array },
  int64: { number: 7, array: BigInt64Array },
  uint8: { number: 2, array: Uint8Array },
  uint16: { number: 4, array: Uint16Array },
  uint32: { number: 12, array: Uint32Array },
  uint64: { number: 13, array: BigUint64Array },
  bool: { number: 9, array: Uint8Array },
};

const NAMES = Object.fromEntries(Object.entries(DTYPES).map(([name, { number }]) => [number, name]));

/** Returns the name of an element type. */
export const dtypeName = (number) => NAMES[number];

/** Returns ONNX's number of an element type. */
export function dtypeNumber(name) {
  if (!(name in DTYPES)) throw new TypeError(`no element type ${name}; there are ${Object.keys(DTYPES).join(", ")}`);
  return DTYPES[name].number;
}

/** Returns how many elements a shape has. */
export const elementCount = (shape) => shape.reduce((count, extent) => count * extent, 1);

/**
 * Returns a tensor.
 *
 * @param {string} dtype for example "float32"
 * @param {number[]} shape
 * @param {ArrayLike<number|bigint>|ArrayBufferView} data its elements, row-major
 */
export function tensor(dtype, shape, data) {
  dtypeNumber(dtype);
  const { array } = DTYPES[dtype];
  const elements = data instanceof array ? data : array.from(data);
  const count = elementCount(shape);
  if (elements.length !== count)
    throw new RangeError(`${elements.length} elements for shape [${shape}], which has ${count}`);
  return { dtype, shape, data: elements };
}

/** Returns the bytes of a tensor. */
export const bytesOf = ({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength);

/** Returns the tensor that bytes stand for. */
export function tensorOf(dtype, shape, bytes) {
  const { array } = DTYPES[dtype];
  const own = new Uint8Array(bytes); // a copy, so that it is aligned
  return { dtype, shape, data: new array(own.buffer, 0, elementCount(shape)) };
}
