//! The environment that processes of a guest start with.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::folder::Folder;

/// This program, wherever it is: the guests' user may not see the folder.
pub(crate) fn own() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("virt-launcher");
    command
}

/// Where libvirt keeps what is no part of a driver's folder; nothing else of our environment is its business.
pub(crate) fn environment(command: &mut Command, folder: &Folder) {
    command.env_clear();
    let own = folder.libvirt();
    for name in ["HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
        command.env(name, &own);
    }
    // A heap for each of libvirt's threads would be mostly air.
    command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
    // Errors only: what is asked for is answered where it was asked.
    command.env("LIBVIRT_DEBUG", "4");
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    command.env("PATH", path);
}
