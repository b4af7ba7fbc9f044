// node validate.mjs FILE...           one line a file: path TAB OK or code
// node validate.mjs --stream          stdin: repeated (u32 length, bytes); stdout: one code a line
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { validate } from "./kdtr.mjs";

const sha256 = async (bytes) => createHash("sha256").update(bytes).digest();
async function verdict(bytes) {
  try {
    await validate(bytes, sha256);
    return "OK";
  } catch (error) {
    if (error.code === undefined) throw error;
    return error.code;
  }
}

const [first, ...rest] = process.argv.slice(2);
if (first === "--stream") {
  const all = readFileSync(0), lines = [];
  for (let at = 0; at < all.length; ) {
    const length = all.readUInt32LE(at);
    lines.push(await verdict(new Uint8Array(all.subarray(at + 4, at + 4 + length))));
    at += 4 + length;
  }
  console.log(lines.join("\n"));
} else {
  let refused = 0;
  for (const path of [first, ...rest].filter(Boolean)) {
    const code = await verdict(new Uint8Array(readFileSync(path)));
    refused += code !== "OK";
    console.log(`${path}\t${code}`);
  }
  process.exitCode = refused ? 1 : 0;
}
