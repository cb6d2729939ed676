// Copies what the package needs from the repository around it into the folder `umd`, before it is packed.

import { cpSync, mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

const repository = fileURLToPath(new URL("../../../", import.meta.url));
const folder = fileURLToPath(new URL("../umd/", import.meta.url));
mkdirSync(`${folder}docs`, { recursive: true });
cpSync(`${repository}protos`, `${folder}protos`, { recursive: true });
cpSync(`${repository}docs/command-buffer.md`, `${folder}docs/command-buffer.md`);
