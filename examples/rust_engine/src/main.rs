//! A kdtr engine in Rust with one op, argmax@1, as a program.
use kdtr::{parse, write, Tensor};

fn wide(t: &Tensor, bytes: &[u8]) -> Vec<f32> {
    match t.dtype {
        (2, 32) => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        (4, 16) => bytes.chunks(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect(),
        (2, 16) => bytes.chunks(2).map(|b| half(u16::from_le_bytes([b[0], b[1]]))).collect(),
        other => panic!("logits: want f32, bf16 or f16, got {other:?}"),
    }
}

fn half(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let size = match exponent {
        0 => mantissa * 2f32.powi(-24),
        31 => if mantissa == 0.0 { f32::INFINITY } else { f32::NAN },
        e => (1024.0 + mantissa) * 2f32.powi(e - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments[1] == "--ops" {
        return println!("argmax@1");
    }
    let file = std::fs::read(&arguments[1]).expect("CALL.kdtr");
    let call = parse(&file).expect("a KDTR file");
    let logits = call.tensor("logits").expect("logits");
    let x = wide(logits, call.payload(logits).expect("payload"));
    let [requests, rows, vocab] = logits.shape[..] else { panic!("logits: want rank 3") };
    let (mut ids, mut status) = (Vec::new(), Vec::new());
    for r in 0..requests as usize {
        let size = (rows * vocab) as usize;
        let mine = &x[r * size..(r + 1) * size];
        let bad = mine.iter().any(|v| v.is_nan());
        status.extend(i32::from(bad).to_le_bytes());
        for n in 0..rows as usize {
            let row = &mine[n * vocab as usize..(n + 1) * vocab as usize];
            let first = |best: usize, v: usize| if row[v] > row[best] { v } else { best };
            let best = (0..row.len()).reduce(first).map_or(-1, |v| v as i32);
            ids.extend((if bad { -1 } else { best }).to_le_bytes());
        }
    }
    let outputs = [
        ("ids", (0, 32), vec![requests, rows], ids),
        ("status", (0, 32), vec![requests], status),
    ];
    std::fs::write(&arguments[2], write(&outputs)).expect("RESULT.kdtr");
}
