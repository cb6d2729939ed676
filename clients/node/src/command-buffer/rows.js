// Kernel rows, as the page lists them.

const ACCESS = { r: 1, w: 2, rw: 3 };
const RANKS = [1, 4, 8];

/**
 * Returns the rows by "name abi".
 *
 * @param {string[][]} elementwise cells of the table of elementwise rows
 * @param {string[]} others lines of the other rows
 * @param {{types: object[], sets: object}} known element types and sets of them
 */
export function readKernelRows(elementwise, others, known) {
  const allowed = (text) =>
    text
      .split(", ")
      .flatMap((name) => known.sets[name] ?? [name])
      .map((name) => typeNamed(known.types, name));
  const rows = [...elementwise.map((cells) => elementwiseRow(cells, allowed)), ...otherRows(others, allowed)];
  for (const row of rows) {
    for (const operand of row.operands)
      operand.fixed = row.types.some(({ name }) => name === operand.type) ? null : typeNamed(known.types, operand.type);
  }
  return new Map(rows.map((row) => [`${row.name} ${row.abi}`, row]));
}

function typeNamed(types, name) {
  const found = types.find((type) => type.name === name);
  if (!found) throw new Error(`the page has no type ${name}`);
  return found;
}

function emptyRow(name, abi, digest) {
  return {
    name, abi: Number(abi), digest: BigInt(digest),
    types: [], sizes: [], extents: [], operands: [], fields: [], work: [], aliases: [],
    geometry: null, atomic: false, status: false, deterministic: true,
  }; // prettier-ignore
}

function operand(text, box) {
  const [name, access, type] = text.split(" ");
  return { name, access: ACCESS[access], type, box };
}

/** An elementwise row: one box for all operands. */
function elementwiseRow([name, abi, digest, types, operands, aliases], allowed) {
  const row = emptyRow(name, abi, digest);
  row.types =
    types === "-"
      ? []
      : types.split("; ").map((text) => {
          const [parameter, set] = text.split(": ");
          return { name: parameter, allowed: allowed(set) };
        });
  row.sizes = [{ name: "rank", allowed: RANKS }];
  row.extents = [{ name: "extents", size: "rank" }];
  row.operands = operands.split(", ").map((text) => operand(text, ["extents"]));
  row.geometry = ["elements", "out"];
  row.work = [["extents"]];
  row.aliases = aliases === "-" ? [] : aliases.split(", ").map((text) => text.split(" "));
  return row;
}

const LINES = {
  type: (row, text, allowed) => {
    const [name, set] = text.split(": ");
    row.types.push({ name, allowed: allowed(set) });
  },
  size: (row, text) => {
    const [name, values] = text.split(": ");
    row.sizes.push({ name, allowed: values.split(", ").map(Number) });
  },
  extent: (row, text) => row.extents.push(sized(text)),
  operand: (row, text) => {
    const [head, box] = text.split(": ");
    row.operands.push(operand(head, box === "-" ? [] : box.split(" ")));
  },
  field: (row, text) => {
    const [name, type, patchable] = text.split(" ");
    const { name: base, size } = sized(type);
    row.fields.push({ name, type: base, size, patchable: patchable === "patchable" });
  },
  geometry: (row, text) => (row.geometry = text.split(" ")),
  work: (row, text) => (row.work = text.split(" + ").map((group) => group.split(" "))),
  alias: (row, text) => row.aliases.push(text.split(" ")),
  atomic: (row) => (row.atomic = true),
  status: (row) => (row.status = true),
  nondeterministic: (row) => (row.deterministic = false),
};

/** "extents[rank]" → its name and its size's name; a single one has the size null. */
function sized(text) {
  const [, name, size] = /^(\w+)(?:\[(\w+)\])?$/.exec(text);
  return { name, size: size ?? null };
}

function otherRows(lines, allowed) {
  const rows = [];
  for (const line of lines) {
    if (line.startsWith("```")) continue;
    const [word, ...rest] = line.trim().split(" ");
    if (!line.startsWith(" ")) rows.push(emptyRow(word, ...rest));
    else if (LINES[word]) LINES[word](rows.at(-1), rest.join(" "), allowed);
    else throw new Error(`the page has a line that is not understood: ${line}`);
  }
  return rows;
}
