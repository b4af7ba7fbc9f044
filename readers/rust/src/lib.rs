//! KDTR v1 reader, and a small writer: std only, safe code, no allocation proportional to untrusted counts before
//! they are checked. Rules and codes as in docs/format.md.
#![forbid(unsafe_code)]
mod sha256;
mod writer;
pub use sha256::sha256;
pub use writer::{write, TensorOut};

/// A broken rule: its code and the byte offset at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    pub name: &'a str,
    /// DLPack type code and bits per element.
    pub dtype: (u8, u8),
    pub shape: Vec<u64>,
    /// The payload, not yet checked: see [`File::payload`].
    raw: &'a [u8],
    padding: &'a [u8],
    offset: u64,
    crc32: u32,
    sha256: &'a [u8],
}

#[derive(Debug, Clone)]
pub struct File<'a> {
    pub tensors: Vec<Tensor<'a>>,
    /// (owner, key, value); owner 0 is the file, i + 1 is tensor i.
    pub meta: Vec<(u32, &'a str, Value<'a>)>,
    pub root: &'a [u8],
    hashed: &'a [u8],
}

const DTYPES: [(u8, u8); 32] = [
    (6, 8), (1, 8), (1, 16), (1, 32), (1, 64), (0, 8), (0, 16), (0, 32), (0, 64), (1, 1), (1, 2),
    (1, 4), (0, 2), (0, 4), (2, 16), (2, 32), (2, 64), (4, 16), (5, 32), (5, 64), (5, 128), (7, 8),
    (8, 8), (9, 8), (10, 8), (11, 8), (12, 8), (13, 8), (14, 8), (15, 6), (16, 6), (17, 4),
];

const CRC: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let (mut c, mut k) = (i as u32, 0);
        while k < 8 {
            c = if c & 1 == 1 { 0xEDB8_8320 ^ (c >> 1) } else { c >> 1 };
            k += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |c, b| CRC[((c ^ u32::from(*b)) & 255) as usize] ^ (c >> 8))
}

fn refuse(bad: bool, code: &'static str, offset: usize) -> Result<(), Refusal> {
    if bad { Err(Refusal { code, offset: offset as u64 }) } else { Ok(()) }
}

fn le<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    b[at..at + N].try_into().expect("slice of N bytes")
}
fn u16_at(b: &[u8], at: usize) -> u16 { u16::from_le_bytes(le(b, at)) }
fn u32_at(b: &[u8], at: usize) -> u32 { u32::from_le_bytes(le(b, at)) }
fn u64_at(b: &[u8], at: usize) -> u64 { u64::from_le_bytes(le(b, at)) }
fn align(x: u64) -> u64 { (x + 255) & !255 }

/// The four name codes, in rule order: length, UTF-8, character, path.
type NameCodes = [&'static str; 4];
const NAME: NameCodes = ["E_NAME_LENGTH", "E_NAME_UTF8", "E_NAME_CHAR", "E_NAME_PATH"];
const KEY: NameCodes = ["E_KV_KEY_LENGTH", "E_KV_KEY_UTF8", "E_KV_KEY_CHAR", "E_KV_KEY_PATH"];

fn name<'a>(raw: &'a [u8], codes: &NameCodes, at: usize) -> Result<&'a str, Refusal> {
    refuse(raw.is_empty() || raw.len() > 1024, codes[0], at)?;
    let text = std::str::from_utf8(raw).map_err(|_| Refusal { code: codes[1], offset: at as u64 })?;
    refuse(raw.iter().any(|b| *b < 32 || *b == 127 || *b == b'\\'), codes[2], at)?;
    refuse(text.split('/').any(|s| matches!(s, "" | "." | "..")), codes[3], at)?;
    Ok(text)
}

/// Checks the structure (rules 1 to 40). Payloads are checked by [`File::payload`].
pub fn parse(b: &[u8]) -> Result<File<'_>, Refusal> {
    refuse(b.len() < 256, "E_TRUNCATED", b.len())?;
    let text_mode = b[4] == 10 || b[4..6] == [13, 13] || b[4..8] == [13, 10, 26, 13];
    refuse(&b[..4] == b"KDTR" && text_mode, "E_MAGIC_TEXTMODE", 4)?;
    refuse(&b[..8] != b"KDTR\r\n\x1a\n", "E_MAGIC", 0)?;
    refuse(u32_at(b, 8) != 1, "E_VERSION", 8)?;
    let (n, m, s) = (u32_at(b, 56) as usize, u32_at(b, 60) as usize, u32_at(b, 64) as usize);
    let (file_size, actual) = (u64_at(b, 48), b.len() as u64);
    refuse(n > 1 << 20 || m > 1 << 20 || s > 1 << 26, "E_LIMIT", 56)?;
    refuse(file_size > actual, "E_TRUNCATED", 48)?;
    refuse(file_size < actual, "E_TRAILING", 48)?;
    refuse(file_size % 256 != 0, "E_FILE_SIZE", 48)?;
    let strings = 128 + 128 * n + 24 * m;
    let end = strings + s;
    refuse(end as u64 > file_size, "E_PREFIX_RANGE", 56)?;
    refuse(crc32(&b[16..end]) != u32_at(b, 12), "E_PREFIX_CRC", 12)?;
    refuse(b[68..128].iter().any(|x| *x != 0), "E_RESERVED", 68)?;

    let mut cursor = 0usize;
    let mut take = |offset: u64, length: usize, code, at| -> Result<&[u8], Refusal> {
        refuse(offset != cursor as u64 || length > s - cursor, code, at)?;
        cursor += length;
        Ok(&b[strings + cursor - length..strings + cursor])
    };
    let mut expected = align(end as u64);
    let mut tensors: Vec<Tensor> = Vec::with_capacity(n);
    for i in 0..n {
        let at = 128 + 128 * i;
        refuse(b[at + 7] != 0, "E_RESERVED", at + 7)?;
        let length = u16_at(b, at + 4) as usize;
        let raw = take(u64::from(u32_at(b, at)), length, "E_NAME_SPAN", at)?;
        let name = name(raw, &NAME, at)?;
        if let Some(last) = tensors.last() {
            refuse(last.name.as_bytes() == raw, "E_NAME_DUP", at)?;
            refuse(last.name.as_bytes() > raw, "E_NAME_ORDER", at)?;
        }
        let dtype = (b[at + 8], b[at + 9]);
        let known = DTYPES.contains(&dtype) && u16_at(b, at + 10) == 1;
        refuse(!known, "E_DTYPE", at + 8)?;
        let rank = b[at + 6] as usize;
        refuse(rank > 8, "E_RANK", at + 6)?;
        let dims: Vec<u64> = (0..8).map(|d| u64_at(b, at + 32 + 8 * d)).collect();
        refuse(dims[rank..].iter().any(|d| *d != 0), "E_DIM_UNUSED", at + 32 + 8 * rank)?;
        refuse(dims.iter().any(|d| *d > 1 << 48), "E_DIM_RANGE", at + 32)?;
        let mut product = u128::from(dtype.1);
        for d in &dims[..rank] {
            product *= u128::from((*d).max(1));
            refuse(product > 1 << 56, "E_NUMEL_OVERFLOW", at + 32)?;
        }
        let numel: u64 = if dims[..rank].contains(&0) { 0 } else { dims[..rank].iter().product() };
        let (offset, length) = (u64_at(b, at + 16), u64_at(b, at + 24));
        refuse(length != (numel * u64::from(dtype.1)).div_ceil(8), "E_DATA_LEN", at + 24)?;
        refuse(offset % 256 != 0, "E_DATA_ALIGN", at + 16)?;
        refuse(offset != expected, "E_DATA_OFFSET", at + 16)?;
        let outside = offset > file_size || length > file_size - offset;
        refuse(outside, "E_DATA_RANGE", at + 16)?;
        expected = align(offset + length);
        let (from, to) = (offset as usize, (offset + length) as usize);
        tensors.push(Tensor {
            name,
            dtype,
            shape: dims[..rank].to_vec(),
            raw: &b[from..to],
            padding: &b[to..(expected.min(file_size)) as usize],
            offset,
            crc32: u32_at(b, at + 12),
            sha256: &b[at + 96..at + 128],
        });
    }
    refuse(expected != file_size, "E_FILE_SIZE", 48)?;
    let mut meta: Vec<(u32, &str, Value)> = Vec::with_capacity(m);
    for j in 0..m {
        let at = 128 + 128 * n + 24 * j;
        refuse(b[at + 11] != 0, "E_RESERVED", at + 11)?;
        let (owner, kind, length) = (u32_at(b, at), b[at + 10], u32_at(b, at + 12) as usize);
        let value = u64_at(b, at + 16);
        refuse(owner as usize > n, "E_KV_OWNER", at)?;
        let key_length = u16_at(b, at + 8) as usize;
        let raw = take(u64::from(u32_at(b, at + 4)), key_length, "E_KV_SPAN", at + 4)?;
        let stored = matches!(kind, 5 | 6);
        let body = if stored { take(value, length, "E_KV_SPAN", at + 12)? } else { &[] };
        let key = name(raw, &KEY, at)?;
        if let Some((last_owner, last_key, _)) = meta.last() {
            let order = (owner, raw).cmp(&(*last_owner, last_key.as_bytes()));
            refuse(order.is_eq(), "E_KV_DUP", at)?;
            refuse(order.is_lt(), "E_KV_ORDER", at)?;
        }
        refuse(!(1..=6).contains(&kind), "E_KV_TYPE", at + 10)?;
        let nan = f64::from_bits(value).is_nan() && value != 0x7FF8_0000_0000_0000;
        let bad = (!stored && length != 0)
            || (kind == 1 && value > 1)
            || (kind == 3 && value < 1 << 63)
            || (kind == 4 && nan);
        refuse(bad, "E_KV_VALUE", at + 12)?;
        let value = match kind {
            1 => Value::Bool(value == 1),
            2 => Value::I64(value as i64),
            3 => Value::U64(value),
            4 => Value::F64(f64::from_bits(value)),
            5 => Value::Text(
                std::str::from_utf8(body)
                    .map_err(|_| Refusal { code: "E_KV_UTF8", offset: at as u64 + 16 })?,
            ),
            _ => Value::Bytes(body),
        };
        meta.push((owner, key, value));
    }
    refuse(cursor != s, "E_STRINGS_UNUSED", strings + cursor)?;
    refuse(b[end..align(end as u64) as usize].iter().any(|x| *x != 0), "E_PADDING", end)?;
    Ok(File { tensors, meta, root: &b[16..48], hashed: &b[48..end] })
}

impl<'a> File<'a> {
    pub fn tensor(&self, name: &str) -> Option<&Tensor<'a>> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Checks one payload (rules 41 to 44) and returns its bytes.
    pub fn payload(&self, t: &Tensor<'a>) -> Result<&'a [u8], Refusal> {
        let at = t.offset as usize;
        refuse(crc32(t.raw) != t.crc32, "E_TENSOR_CRC", at)?;
        refuse(t.padding.iter().any(|x| *x != 0), "E_PADDING", at + t.raw.len())?;
        refuse(t.dtype == (6, 8) && t.raw.iter().any(|x| *x > 1), "E_BOOL_VALUE", at)?;
        let numel: u64 = if t.shape.contains(&0) { 0 } else { t.shape.iter().product() };
        let used = (numel * u64::from(t.dtype.1)) % 8;
        let tail = used != 0 && t.raw.last().is_some_and(|x| x >> used != 0);
        refuse(tail, "E_SUBBYTE_TAIL", at + t.raw.len())?;
        Ok(t.raw)
    }
}

/// Everything, digests too (rules 45 and 46).
pub fn validate(b: &[u8]) -> Result<File<'_>, Refusal> {
    let file = parse(b)?;
    for t in &file.tensors {
        file.payload(t)?;
    }
    for t in &file.tensors {
        refuse(sha256(t.raw) != *t.sha256, "E_TENSOR_DIGEST", t.offset as usize)?;
    }
    refuse(sha256(file.hashed) != *file.root, "E_ROOT_DIGEST", 16)?;
    Ok(file)
}
