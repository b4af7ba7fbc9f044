//! kdtr-validate FILE...      one line a file: path TAB OK or code; exit 1 if any is refused
//! kdtr-validate --stream     stdin: repeated (u32 length, bytes); stdout: one code a line
use std::io::{Read, Write};

fn verdict(bytes: &[u8]) -> &'static str {
    kdtr::validate(bytes).map_or_else(|refusal| refusal.code, |_| "OK")
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut refused = false;
    if arguments.first().is_some_and(|a| a == "--stream") {
        let mut all = Vec::new();
        std::io::stdin().lock().read_to_end(&mut all)?;
        let mut rest = &all[..];
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (file, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
            writeln!(out, "{}", verdict(file))?;
            rest = tail;
        }
    } else {
        for path in &arguments {
            let code = verdict(&std::fs::read(path)?);
            refused |= code != "OK";
            writeln!(out, "{}\t{code}", path.to_string_lossy())?;
        }
    }
    out.flush()?;
    std::process::exit(i32::from(refused));
}
