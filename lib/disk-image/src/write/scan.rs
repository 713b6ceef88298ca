//! Finding the bytes of a buffer that are worth writing.

use std::ops::Range;

use super::PAGE;

/// Adds to `out` the ranges of `buf` that hold data, ascending, neighbours merged. `buf` is the guest from
/// `origin_guest` on; it is looked at by 4 KiB pages of the guest, and a page (or the part of one at either end of
/// `buf`) that is all zeroes is left out.
pub fn data_runs(buf: &[u8], origin_guest: u64, out: &mut Vec<Range<usize>>) {
    let first = out.len();
    let mut add = |range: Range<usize>| match out.get_mut(first..).and_then(<[_]>::last_mut) {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => out.push(range),
    };
    // Less than a page, so it fits.
    let into = usize::try_from(origin_guest % PAGE as u64).unwrap_or(0);
    let head = if into == 0 { 0 } else { (PAGE - into).min(buf.len()) };
    if !is_zero(&buf[..head]) {
        add(0..head);
    }
    let mut at = head;
    for page in buf[head..].chunks(PAGE) {
        if !is_zero(page) {
            add(at..at + page.len());
        }
        at += page.len();
    }
}

/// Whether `bytes` are all zero. Blocks are folded without a branch, which the compiler turns into wide ORs.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<256>();
    blocks.iter().all(|block| block.iter().fold(0, |all, &b| all | b) == 0) && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_a_look_at_every_byte() {
        let mut state = 3u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let mut buf = vec![0u8; next(40_000) as usize];
            for _ in 0..next(12) {
                if !buf.is_empty() {
                    let at = next(buf.len() as u64) as usize;
                    let end = (at + next(9000) as usize).min(buf.len());
                    buf[at..end].fill(next(3) as u8);
                }
            }
            let origin = next(20) * 512 + next(2) * next(512);
            let mut runs = Vec::new();
            runs.push(usize::MAX - 1..usize::MAX);
            data_runs(&buf, origin, &mut runs);
            assert_eq!(runs.remove(0), usize::MAX - 1..usize::MAX, "existing data stays");
            assert!(runs.windows(2).all(|w| w[0].end < w[1].start));
            // A byte is in a run exactly when its guest page, as far as it lies in the buffer, is not all zeroes.
            for i in (0..buf.len()).step_by(61) {
                let into = ((origin + i as u64) % PAGE as u64) as usize;
                let page = &buf[i.saturating_sub(into)..(i + PAGE - into).min(buf.len())];
                let wanted = page.iter().any(|&b| b != 0);
                assert_eq!(runs.iter().any(|r| r.contains(&i)), wanted, "byte {i} from {origin}");
            }
        }
    }
}
