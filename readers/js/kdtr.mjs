// KDTR v1 reader for Node and browsers: no dependency. Rules and codes as in docs/format.md.
const MAGIC = [0x4b, 0x44, 0x54, 0x52, 13, 10, 26, 10];
const DTYPES = new Map(Object.entries({
  "6,8": "bool", "1,8": "u8", "1,16": "u16", "1,32": "u32", "1,64": "u64", "0,8": "i8",
  "0,16": "i16", "0,32": "i32", "0,64": "i64", "1,1": "u1", "1,2": "u2", "1,4": "u4",
  "0,2": "i2", "0,4": "i4", "2,16": "f16", "2,32": "f32", "2,64": "f64", "4,16": "bf16",
  "5,32": "c32", "5,64": "c64", "5,128": "c128", "7,8": "f8_e3m4", "8,8": "f8_e4m3",
  "9,8": "f8_e4m3b11fnuz", "10,8": "f8_e4m3fn", "11,8": "f8_e4m3fnuz", "12,8": "f8_e5m2",
  "13,8": "f8_e5m2fnuz", "14,8": "f8_e8m0fnu", "15,6": "f6_e2m3fn", "16,6": "f6_e3m2fn",
  "17,4": "f4_e2m1fn",
}));
const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});
const align = (x) => (x + 255n) & ~255n;

export class KdtrError extends Error {
  constructor(code, offset) {
    super(`${code} at byte ${offset}`);
    this.code = code;
    this.offset = offset;
  }
}
const refuse = (bad, code, offset) => { if (bad) throw new KdtrError(code, Number(offset)); };

export function crc32(bytes) {
  let c = -1;
  for (let i = 0; i < bytes.length; i++) c = CRC[(c ^ bytes[i]) & 255] ^ (c >>> 8);
  return ~c >>> 0;
}

function compare(a, b) {
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

function utf8(bytes) { // strict, and a leading BOM is kept
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); }
  catch { return null; }
}

function checkName(bytes, prefix, offset) {
  refuse(bytes.length < 1 || bytes.length > 1024, `${prefix}_LENGTH`, offset);
  const text = utf8(bytes);
  refuse(text === null, `${prefix}_UTF8`, offset);
  refuse(bytes.some((b) => b < 32 || b === 127 || b === 92), `${prefix}_CHAR`, offset);
  refuse(text.split("/").some((s) => s === "" || s === "." || s === ".."), `${prefix}_PATH`, offset);
  return text;
}

// Checks the structure (rules 1 to 40) and returns { tensors, meta }. `bytes` is a Uint8Array.
export function parse(bytes) {
  const size = BigInt(bytes.length);
  refuse(bytes.length < 256, "E_TRUNCATED", bytes.length);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const u16 = (at) => view.getUint16(at, true), u32 = (at) => view.getUint32(at, true);
  const u64 = (at) => view.getBigUint64(at, true);
  const kdtr = MAGIC.slice(0, 4).every((b, i) => bytes[i] === b), m = bytes.subarray(4, 8);
  refuse(kdtr && (m[0] === 10 || (m[0] === 13 && m[1] === 13) ||
    (m[0] === 13 && m[1] === 10 && m[2] === 26 && m[3] === 13)), "E_MAGIC_TEXTMODE", 4);
  refuse(MAGIC.some((b, i) => bytes[i] !== b), "E_MAGIC", 0);
  refuse(u32(8) !== 1, "E_VERSION", 8);
  const n = u32(56), kvs = u32(60), pool = u32(64), fileSize = u64(48);
  refuse(n > 2 ** 20 || kvs > 2 ** 20 || pool > 2 ** 26, "E_LIMIT", 56);
  refuse(fileSize > size, "E_TRUNCATED", 48);
  refuse(fileSize < size, "E_TRAILING", 48);
  refuse(fileSize % 256n !== 0n, "E_FILE_SIZE", 48);
  const strings = 128 + 128 * n + 24 * kvs, end = strings + pool;
  refuse(BigInt(end) > fileSize, "E_PREFIX_RANGE", 56);
  refuse(crc32(bytes.subarray(16, end)) !== u32(12), "E_PREFIX_CRC", 12);
  refuse(bytes.subarray(68, 128).some((b) => b !== 0), "E_RESERVED", 68);

  let cursor = 0, expected = align(BigInt(end)), last = null;
  const take = (offset, length, code, at) => {
    refuse(offset !== cursor || length > pool - cursor, code, at);
    cursor += length;
    return bytes.subarray(strings + offset, strings + offset + length);
  };
  const tensors = [], meta = {};
  for (let i = 0; i < n; i++) {
    const at = 128 + 128 * i;
    refuse(bytes[at + 7] !== 0, "E_RESERVED", at + 7);
    const raw = take(u32(at), u16(at + 4), "E_NAME_SPAN", at);
    const name = checkName(raw, "E_NAME", at);
    const order = last === null ? 1 : compare(raw, last);
    refuse(order === 0, "E_NAME_DUP", at);
    refuse(order < 0, "E_NAME_ORDER", at);
    last = raw;
    const bits = bytes[at + 9], dtype = DTYPES.get(`${bytes[at + 8]},${bits}`);
    refuse(dtype === undefined || u16(at + 10) !== 1, "E_DTYPE", at + 8);
    const rank = bytes[at + 6], shape = [];
    refuse(rank > 8, "E_RANK", at + 6);
    for (let d = rank; d < 8; d++) refuse(u64(at + 32 + 8 * d) !== 0n, "E_DIM_UNUSED", at + 32 + 8 * d);
    for (let d = 0; d < rank; d++) {
      shape.push(u64(at + 32 + 8 * d));
      refuse(shape[d] > 2n ** 48n, "E_DIM_RANGE", at + 32 + 8 * d);
    }
    let product = BigInt(bits);
    for (const dim of shape) {
      product *= dim > 1n ? dim : 1n;
      refuse(product > 2n ** 56n, "E_NUMEL_OVERFLOW", at + 32);
    }
    const numel = shape.reduce((a, b) => a * b, 1n), offset = u64(at + 16), length = u64(at + 24);
    refuse(length !== (numel * BigInt(bits) + 7n) / 8n, "E_DATA_LEN", at + 24);
    refuse(offset % 256n !== 0n, "E_DATA_ALIGN", at + 16);
    refuse(offset !== expected, "E_DATA_OFFSET", at + 16);
    refuse(offset > fileSize || length > fileSize - offset, "E_DATA_RANGE", at + 16);
    expected = align(offset + length);
    tensors.push({ name, dtype, bits, shape: shape.map(Number), numel: Number(numel),
      offset: Number(offset), nbytes: Number(length), end: Number(expected), crc32: u32(at + 12),
      sha256: bytes.slice(at + 96, at + 128), meta: {} });
  }
  refuse(expected !== fileSize, "E_FILE_SIZE", 48);
  let lastOwner = -1, lastKey = null;
  for (let j = 0; j < kvs; j++) {
    const at = 128 + 128 * n + 24 * j, type = bytes[at + 10], text = type === 5 || type === 6;
    refuse(bytes[at + 11] !== 0, "E_RESERVED", at + 11);
    const owner = u32(at), length = u32(at + 12), value = u64(at + 16);
    refuse(owner > n, "E_KV_OWNER", at);
    const raw = take(u32(at + 4), u16(at + 8), "E_KV_SPAN", at + 4);
    let payload = null;
    if (text) {
      refuse(value !== BigInt(cursor), "E_KV_SPAN", at + 16);
      payload = take(Number(value), length, "E_KV_SPAN", at + 12);
    }
    const key = checkName(raw, "E_KV_KEY", at);
    const order = owner !== lastOwner ? owner - lastOwner : compare(raw, lastKey);
    refuse(order === 0, "E_KV_DUP", at);
    refuse(order < 0, "E_KV_ORDER", at);
    [lastOwner, lastKey] = [owner, raw];
    refuse(type < 1 || type > 6, "E_KV_TYPE", at + 10);
    refuse(!text && length !== 0, "E_KV_VALUE", at + 12);
    const f64 = view.getFloat64(at + 16, true);
    refuse((type === 1 && value > 1n) || (type === 3 && value < 2n ** 63n) ||
      (type === 4 && Number.isNaN(f64) && value !== 0x7ff8000000000000n), "E_KV_VALUE", at + 16);
    const string = type === 5 ? utf8(payload) : null;
    refuse(type === 5 && string === null, "E_KV_UTF8", at + 16);
    const decoded = [, value === 1n, BigInt.asIntN(64, value), value, f64, string, payload][type];
    Object.defineProperty(owner === 0 ? meta : tensors[owner - 1].meta, key,
      { value: decoded, enumerable: true });
  }
  refuse(cursor !== pool, "E_STRINGS_UNUSED", strings + cursor);
  refuse(bytes.subarray(end, Number(align(BigInt(end)))).some((b) => b !== 0), "E_PADDING", end);
  return { tensors, meta, root: bytes.slice(16, 48), end };
}

// Checks one payload (rules 41 to 44) and returns its bytes, no copy.
export function payload(bytes, tensor) {
  const { offset, nbytes, end, bits, numel } = tensor, data = bytes.subarray(offset, offset + nbytes);
  refuse(crc32(data) !== tensor.crc32, "E_TENSOR_CRC", offset);
  refuse(bytes.subarray(offset + nbytes, end).some((b) => b !== 0), "E_PADDING", offset + nbytes);
  refuse(tensor.dtype === "bool" && data.some((b) => b > 1), "E_BOOL_VALUE", offset);
  const used = (numel * bits) % 8;
  refuse(used !== 0 && data[nbytes - 1] >> used !== 0, "E_SUBBYTE_TAIL", offset + nbytes - 1);
  return data;
}

// Everything, digests too (rules 45 and 46). `sha256` is async (bytes) -> Uint8Array.
export async function validate(bytes, sha256 = webSha256) {
  const file = parse(bytes);
  const data = file.tensors.map((t) => payload(bytes, t));
  for (const [i, t] of file.tensors.entries())
    refuse(compare(await sha256(data[i]), t.sha256) !== 0, "E_TENSOR_DIGEST", t.offset);
  const root = await sha256(bytes.subarray(48, file.end));
  refuse(compare(root, file.root) !== 0, "E_ROOT_DIGEST", 16);
  return file;
}
const webSha256 = async (bytes) =>
  new Uint8Array(await globalThis.crypto.subtle.digest("SHA-256", bytes));

const bf16 = (u) => new Float32Array(Uint32Array.of(u << 16).buffer)[0];
const f16 = (u) => {
  const sign = u & 0x8000 ? -1 : 1, e = (u >> 10) & 31, m = u & 1023;
  if (e === 31) return m ? NaN : sign * Infinity;
  return sign * (e === 0 ? m * 2 ** -24 : (1 + m / 1024) * 2 ** (e - 15));
};
const TYPED = { bool: Uint8Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array,
  u64: BigUint64Array, i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  f32: Float32Array, f64: Float64Array };

// Decoded values of a tensor, flat: typed array, or plain array for bf16, f16 and sub-byte.
// The copy must be a Uint8Array's: slice() of a Node Buffer shares its memory.
export function values(bytes, tensor) {
  const data = Uint8Array.from(payload(bytes, tensor)), { dtype, bits, numel } = tensor;
  if (dtype in TYPED) return new TYPED[dtype](data.buffer);
  if (dtype === "bf16") return Array.from(new Uint16Array(data.buffer), bf16);
  if (dtype === "f16") return Array.from(new Uint16Array(data.buffer), f16);
  if (/^[ui][124]$/.test(dtype)) return Array.from({ length: numel }, (_, i) => {
    const code = (data[(i * bits) >> 3] >> ((i * bits) & 7)) & ((1 << bits) - 1);
    return dtype[0] === "i" && code >> (bits - 1) ? code - (1 << bits) : code;
  });
  return Array.from(data); // other types: raw bytes
}
