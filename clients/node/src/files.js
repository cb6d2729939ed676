// Where the protos and the page of the format are: in the repository, or in the folder `umd` of the packed package.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const ROOTS = ["../umd/", "../../../"].map((path) => fileURLToPath(new URL(path, import.meta.url)));

/** The folder that `protos/` and `docs/` are in. */
export const ROOT = ROOTS.find((root) => existsSync(`${root}protos/umd/graph.proto`)) ?? ROOTS[0];
