//! A disk with Debian's kernel and a first process that prints its findings.

use std::path::Path;

/// Makes the disk, readable by all.
pub(crate) fn disk(path: &Path) {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/telling_init");
    let work = tempfile::tempdir().unwrap();
    let applets = "sh mount umount modprobe dd poweroff sleep cat find sed tr printf grep";
    let tree = guests::Tree::new(work.path(), &["mnt"], applets, &init);
    tree.modules(&guests::DISK_MODULES);
    tree.modules(&["button", "evdev", "virtio_mem"]);
    tree.pack().disk(path);
}
