//! A guest that is started without a boot loader and prints its configuration: the content of its small CDs, a TPM, and, while
//! it runs, keys and passwords that its agent (Debian's `qemu-ga`) puts into it. On a disk with the serial number `data` it
//! makes a filesystem and writes there all the time, a line on its console for each; its agent reboots it by a line, too.
//! With a network card it serves its folder /www, which is empty, at port 80.

use std::path::{Path, PathBuf};

use crate::{DISK_MODULES, Guest, Tree, tool};

/// The last line before the agent serves.
pub const TOLD: &str = "inside: told";

/// Makes kernel and initramfs in a folder.
///
/// # Panics
/// When a tool or a package is missing.
pub fn guest(folder: &Path) -> Guest {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let applets =
        "sh mount umount modprobe cat find sort sed printf chmod sleep mke2fs reboot ip udhcpc httpd nc";
    let folders = ["mnt", "etc", "home/ann", "tmp", "root", "data", "www"];
    let tree = Tree::new(folder, &folders, applets, &sources.join("inside/init"));
    tree.modules(&DISK_MODULES);
    tree.modules(&["virtio_console", "virtio_net"]);
    tree.copy(&sources.join("telling/lease"), Path::new("lease"));
    let agent = PathBuf::from(tool(sources.join("agent").to_str().unwrap(), &[]).trim());
    tree.program(&agent, Path::new("bin/qemu-ga"));
    tree.pack()
}
