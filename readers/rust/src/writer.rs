//! Writes KDTR v1: the same content gives the same bytes as every other writer.
use crate::{align, crc32, sha256};

/// Name, DLPack (code, bits), shape and payload of one tensor.
pub type TensorOut<'a> = (&'a str, (u8, u8), Vec<u64>, Vec<u8>);

/// The bytes of a file with these tensors and no metadata.
///
/// # Panics
/// On a repeated name, a rank above 8, or a payload whose length does not fit its shape.
#[must_use]
pub fn write(tensors: &[TensorOut<'_>]) -> Vec<u8> {
    let mut sorted: Vec<_> = tensors.iter().collect();
    sorted.sort_by_key(|t| t.0.as_bytes());
    assert!(sorted.windows(2).all(|w| w[0].0 != w[1].0), "repeated tensor name");
    let strings: String = sorted.iter().map(|t| t.0).collect();
    let end = 128 + 128 * sorted.len() + strings.len();
    let mut file = vec![0u8; align(end as u64) as usize];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    let (mut name_at, mut offset) = (0u32, align(end as u64));
    for (i, (name, (code, bits), shape, payload)) in sorted.iter().enumerate() {
        assert!(shape.len() <= 8, "{name}: rank above 8");
        let size = (shape.iter().product::<u64>() * u64::from(*bits)).div_ceil(8);
        assert_eq!(payload.len() as u64, size, "{name}: bytes of payload");
        let at = 128 + 128 * i;
        put(at, &name_at.to_le_bytes());
        put(at + 4, &(name.len() as u16).to_le_bytes());
        put(at + 6, &[shape.len() as u8, 0, *code, *bits, 1, 0]);
        put(at + 12, &crc32(payload).to_le_bytes());
        put(at + 16, &offset.to_le_bytes());
        put(at + 24, &size.to_le_bytes());
        for (k, dim) in shape.iter().enumerate() {
            put(at + 32 + 8 * k, &dim.to_le_bytes());
        }
        put(at + 96, &sha256(payload));
        name_at += name.len() as u32;
        offset = align(offset + size);
    }
    put(end - strings.len(), strings.as_bytes());
    put(0, b"KDTR\r\n\x1a\n\x01\0\0\0");
    put(48, &offset.to_le_bytes());
    put(56, &(sorted.len() as u32).to_le_bytes());
    put(64, &(strings.len() as u32).to_le_bytes());
    let root = sha256(&file[48..end]);
    file[16..48].copy_from_slice(&root);
    let crc = crc32(&file[16..end]);
    file[12..16].copy_from_slice(&crc.to_le_bytes());
    for (.., payload) in sorted {
        file.extend(payload);
        file.resize(align(file.len() as u64) as usize, 0);
    }
    file
}

#[cfg(test)]
mod tests {
    // Test vector 1 of docs/format.md.
    #[test]
    fn one_f32_scalar_has_the_documented_root() {
        let file = super::write(&[("x", (2, 32), vec![], 1f32.to_le_bytes().to_vec())]);
        let hex: String = file[16..48].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(file.len(), 768);
        assert_eq!(hex, "6429487f7487691bc8508634036f32697e9e37c871faf108484e61328cab0334");
    }

    #[test]
    fn names_are_sorted_and_the_file_is_valid() {
        let file = super::write(&[
            ("b", (0, 32), vec![2], vec![1, 0, 0, 0, 2, 0, 0, 0]),
            ("a", (1, 4), vec![3], vec![0x21, 0x0f]),
            ("c", (2, 64), vec![0, 3], vec![]),
        ]);
        let read = crate::validate(&file).unwrap();
        let names: Vec<_> = read.tensors.iter().map(|t| t.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
