//! The features that guests find on a machine or in a pod, detected by inspection and by trial.
//!
//! The caller's user and groups decide what it finds: ask as the user that the guest runs as.

mod kvm;
mod programs;

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

pub use kvm::{NoKvm, group_of, kvm, kvm_opens, kvm_with, own_group};
pub use programs::{emulator, find, libvirt_driver, libvirt_file, machine, ovmf_files};

/// Whether a file or device can be read past the page cache.
///
/// # Errors
/// It cannot be opened at all.
pub fn is_direct(path: &Path) -> io::Result<bool> {
    let open = |flags: OFlags| {
        let flags = i32::try_from((flags | OFlags::NONBLOCK).bits()).unwrap_or(0);
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    };
    match open(OFlags::DIRECT) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => open(OFlags::empty()).map(|_| false),
        Err(error) => Err(error),
    }
}
