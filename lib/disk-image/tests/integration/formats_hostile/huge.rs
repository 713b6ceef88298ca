//! Disks as large as each format has them.

use disk_image::Format;

use crate::support::images::made;
use crate::support::{self, Options, count};

/// The largest disks each format is used for: opening them costs no memory, and what a guest wrote at the far end is
/// found there.
#[test]
fn huge_disks() {
    let vdi = if count(0, 1) == 1 { 64 << 40 } else { 8_u64 << 40 };
    for (format, options, size) in [
        (Format::Vmdk, "subformat=monolithicSparse", 2 << 40),
        (Format::Vmdk, "subformat=streamOptimized", 2 << 40),
        (Format::Vhd, "force_size=on", 2040_u64 << 30),
        (Format::Vhdx, "block_size=256M", 64 << 40),
        (Format::Vdi, "static=off", vdi),
    ] {
        let last = size - 65536;
        let (qemu, flag) = match format {
            Format::Vhd => ("vpc", ""),
            Format::Vmdk if options.contains("stream") => ("vmdk", "-c"),
            Format::Vmdk | Format::Vhdx | Format::Vdi | Format::Raw | Format::Qcow2 => (format.name(), ""),
        };
        let image = made(qemu, options, &size.to_string(), &[&format!("write {flag} -P 7 {last} 65536")]);
        support::sys::reset_peak();
        let layout = support::open(&image, format, true).unwrap();
        assert!(
            support::sys::peak() < 1 << 20,
            "{} {options}: {} bytes",
            format.name(),
            support::sys::peak()
        );
        assert_eq!(layout.virtual_size(), size, "{} {options}", format.name());
        let mut fetch = support::Fetch::new();
        let mut end = None;
        let options = Options { slice: 1 << 16, ..Options::default() };
        support::drive(&image, format, &options, &mut |layout, extent| {
            let bytes = fetch.get(&image, layout, extent)?;
            end = bytes.and_then(|bytes| bytes.last_chunk::<65536>().copied());
            Ok(())
        })
        .unwrap();
        assert_eq!(end, Some([7; 65536]), "{}", format.name());
    }
}
