//! The environment that processes of a guest start with.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::folder::Folder;

/// This program by its open file: the guests' user may have no access to the program's folder.
pub(crate) fn own() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("virt-launcher");
    command
}

/// Sets libvirt's environment: its caches and settings are in the run's folder, and no variable is inherited but PATH.
pub(crate) fn environment(command: &mut Command, folder: &Folder) {
    command.env_clear();
    let own = folder.libvirt();
    for name in ["HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"] {
        command.env(name, &own);
    }
    // One heap for all of libvirt's threads: a heap for each would hold mostly unused memory.
    command.env("GLIBC_TUNABLES", "glibc.malloc.arena_max=1");
    // libvirt logs errors only; calls return their errors to the worker.
    command.env("LIBVIRT_DEBUG", "4");
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    command.env("PATH", path);
}
