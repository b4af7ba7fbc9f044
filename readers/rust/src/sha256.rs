//! SHA-256 (FIPS 180-4). The constants are computed: fractional bits of roots of primes.

/// floor(2^32 * frac(p^(1/root))) by integer bisection on q^root <= p * 2^(32 * root).
const fn fraction(p: u128, root: u32) -> u32 {
    let (mut low, mut high) = (0u128, 1u128 << 37);
    while high - low > 1 {
        let q = (low + high) / 2;
        // Cubes of 37-bit numbers fit 111 bits, and p * 2^96 fits 105.
        let fits = if root == 2 { q * q <= p << 64 } else { q * q * q <= p << 96 };
        if fits { low = q } else { high = q }
    }
    low as u32
}

const fn constants<const N: usize>(root: u32) -> [u32; N] {
    let (mut out, mut count, mut p) = ([0u32; N], 0, 2u128);
    while count < N {
        let (mut d, mut prime) = (2, true);
        while d * d <= p {
            if p % d == 0 {
                prime = false;
            }
            d += 1;
        }
        if prime {
            out[count] = fraction(p, root);
            count += 1;
        }
        p += 1;
    }
    out
}
const K: [u32; 64] = constants(3);
const START: [u32; 8] = constants(2);

pub fn sha256(message: &[u8]) -> [u8; 32] {
    let mut state = START;
    let mut blocks = message.chunks_exact(64);
    for block in &mut blocks {
        compress(&mut state, block);
    }
    let mut tail = blocks.remainder().to_vec();
    tail.push(0x80);
    tail.resize(if tail.len() <= 56 { 56 } else { 120 }, 0);
    tail.extend((message.len() as u64 * 8).to_be_bytes());
    tail.chunks_exact(64).for_each(|block| compress(&mut state, block));
    let mut out = [0; 32];
    for (to, word) in out.chunks_exact_mut(4).zip(state) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn compress(state: &mut [u32; 8], block: &[u8]) {
    let mut w = [0u32; 64];
    for (to, from) in w.iter_mut().zip(block.chunks_exact(4)) {
        *to = u32::from_be_bytes([from[0], from[1], from[2], from[3]]);
    }
    for i in 16..64 {
        let (x, y) = (w[i - 15], w[i - 2]);
        let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
        let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for i in 0..64 {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(K[i]).wrapping_add(w[i]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        (h, g, f, e, d, c, b) = (g, f, e, d.wrapping_add(t), c, b, a);
        a = t.wrapping_add(s0).wrapping_add(majority);
    }
    for (s, x) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *s = s.wrapping_add(x);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_answers() {
        let hex = |m: &[u8]| super::sha256(m).iter().map(|b| format!("{b:02x}")).collect::<String>();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((hex(b"abc"), hex(b"")), (abc.into(), empty.into()));
    }
}
