//! VLANs with live frames, in a guest with Debian's kernel: the one that tests run on may not filter VLANs at all. The
//! guest is emulated, holds nothing but the program, busybox and iproute2, and does what `support/vlan_init` says.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use support::{run, shipped};

/// How long the guest may take in all; TCG on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// Killed, by its id, when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Kernel and initramfs of the guest.
fn guest(folder: &Path) -> (PathBuf, PathBuf) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tree = here.join("../importer/tests/support/crash_kernel");
    let tree = PathBuf::from(run(tree.to_str().unwrap(), &[]).trim());
    let release = tree.join("lib/modules").read_dir().unwrap().next().unwrap().unwrap().file_name();
    let release = release.into_string().unwrap();
    let root = folder.join("root");
    for name in ["bin", "proc", "sys", "dev", "run", "plugins"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let copy = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}: run make deps", from.display()));
    };
    copy(Path::new("/bin/busybox"), "bin/busybox");
    let applets = "sh mount mkdir modprobe cat sed tr grep ls wc ping poweroff";
    for name in applets.split(' ') {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    symlink("bin", root.join("sbin")).unwrap();
    for name in ["ip", "bridge"] {
        let program = format!("/sbin/{name}");
        copy(Path::new(&program), &format!("bin/{name}"));
        // Of "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)" the paths.
        for path in run("ldd", &[&program]).split_whitespace().filter(|word| word.starts_with("/lib")) {
            copy(Path::new(path), path);
        }
    }
    copy(&shipped(), "plugins/bridge");
    symlink("bridge", root.join("plugins/host-local")).unwrap();
    copy(&here.join("tests/support/vlan_init"), "init");
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let modules = Path::new("lib/modules").join(&release);
    let dependencies = fs::read_to_string(tree.join(&modules).join("modules.dep")).unwrap();
    copy(&tree.join(&modules).join("modules.dep"), modules.join("modules.dep").to_str().unwrap());
    for driver in ["bridge", "8021q", "veth"] {
        let file = format!("/{driver}.ko:");
        let line =
            dependencies.lines().find(|line| line.contains(&file)).expect("a module of Debian's kernel");
        for name in line.split([':', ' ']).filter(|name| !name.is_empty()) {
            copy(&tree.join(&modules).join(name), modules.join(name).to_str().unwrap());
        }
    }
    let initramfs = folder.join("initramfs");
    let pack = "cd \"$0\" && find . | cpio --quiet -o -H newc -R 0:0 > \"$1\"";
    run("sh", &["-c", pack, root.to_str().unwrap(), initramfs.to_str().unwrap()]);
    (tree.join(format!("boot/vmlinuz-{release}")), initramfs)
}

#[test]
fn vlans_separate_live_frames() {
    let folder = tempfile::tempdir().unwrap();
    let (kernel, initramfs) = guest(folder.path());
    let begin = Instant::now();
    let qemu = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "384", "-nodefaults"])
        .args(["-display", "none", "-no-reboot", "-serial", "stdio", "-nic", "none"])
        .args(["-append", "mitigations=off quiet console=ttyS0 panic=-1 gateway"])
        .arg("-kernel")
        .arg(&kernel)
        .arg("-initrd")
        .arg(&initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut qemu = Killed(qemu.unwrap_or_else(|error| panic!("QEMU cannot be run ({error}): run make deps")));
    let out = qemu.0.stdout.take().unwrap();
    let (lines, console) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });
    let mut seen = Vec::new();
    while !seen.last().is_some_and(|line: &String| line.contains("guest: done")) {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        let line = console.recv_timeout(left).unwrap_or_else(|_| panic!("the guest did not end: {seen:#?}"));
        seen.push(line);
    }
    let said = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("guest: FAILED"), 0, "{seen:#?}");
    println!(
        "VLANs: {} things seen right in a guest, {:.1} s",
        said("guest: ok"),
        begin.elapsed().as_secs_f64()
    );
    assert_eq!(said("guest: ok"), 45, "{seen:#?}");
}
