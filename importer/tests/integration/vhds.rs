//! Dynamic VHDs that are impossible; tests of uploads have them, too. Not here: what each way of reading makes of them.

use std::path::Path;

use places::guest::qemu_io;
use places::run;

/// An image that qemu makes below `folder`.
fn dynamic(folder: &Path) -> Vec<u8> {
    let image = folder.join("dynamic.vhd");
    let text = image.to_str().unwrap();
    run("qemu-img", &["create", "-q", "-f", "vpc", "-o", "subformat=dynamic,force_size=on", text, "7M"]);
    qemu_io("vpc", &image, &["write -P 1 0 70000".to_owned(), "write -P 2 3M 4096".to_owned()]);
    std::fs::read(image).unwrap()
}

/// One's complement of the sum of `bytes`, at `at` in them.
fn sum(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let sum = bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
    bytes[at..at + 4].copy_from_slice(&(!sum).to_be_bytes());
}

/// Images with right checksums and one impossible field each: a name, the bytes, words of the refusal.
pub(crate) fn impossible(folder: &Path) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    const HEADER: usize = 512;
    let base = dynamic(folder);
    let past = u32::try_from(base.len() / 512).unwrap().to_be_bytes();
    let changed = |name, at: usize, bytes: &[u8], words| {
        let mut image = base.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        sum(&mut image[..HEADER], 64);
        sum(&mut image[HEADER..HEADER + 1024], 36);
        (name, image, words)
    };
    vec![
        changed("difference", 60, &4_u32.to_be_bytes(), "difference"),
        changed("type", 60, &9_u32.to_be_bytes(), "type 9"),
        changed("large", 48, &(3_u64 << 40).to_be_bytes(), "2040 GiB"),
        changed("block", HEADER + 32, &256_u32.to_be_bytes(), "256"),
        changed("blocks", HEADER + 28, &1_u32.to_be_bytes(), "cannot hold"),
        changed("table", HEADER + 16, &(1_u64 << 40).to_be_bytes(), "VHD block table"),
        changed("overlap", 1536, &3_u32.to_be_bytes(), "overlap"),
        changed("past", 1536, &past, "end"),
    ]
}
