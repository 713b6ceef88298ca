//! Guests that tests boot, made from Debian packages: the kernel of `linux-image-cloud-amd64`, and an initramfs of
//! busybox and whatever programs a test adds. They run under emulation, for what the kernel that tests run on may not
//! do, or for what a test must be able to cut off.
//!
//! ```text
//!  Tree (folders, programs, modules) ── pack ──► Guest ── command ──► QEMU ── Console::start ──► its lines
//! ```
//!
//! And one that is a whole Debian, as people run it ([`debian`]), one that reports its devices ([`telling`]), one that
//! obeys its console ([`shell`]), and one that is started without a boot loader and has an agent ([`inside`]). Boot
//! sectors are in [`boot`]. Manifests with one wrong field at a time are [`mutants`].
//!
//! Used by tests alone, as a dev-dependency. Not here: the guest's work; its `init` is next to its test.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot build its guest fails by panicking"
)]

pub mod boot;
pub mod inside;
pub mod mutants;
pub mod shell;
pub mod telling;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Modules of the kernel for disks and CDs at virtio and SCSI.
pub const DISK_MODULES: [&str; 6] = ["virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "sr_mod", "isofs"];
/// The line that an init prints at its end.
const DONE: &str = "guest: done";

/// Runs a tool; gives its output.
fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{name} cannot be run ({error}): run make deps"));
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The disk of a whole Debian that a BIOS boots, with systemd, Debian's usual kernel (`linux-image-amd64`), cloud-init and
/// the guest agent: a raw file of 2 GiB in the cache, not to be written to. Made by mmdebstrap when it is not there yet,
/// which takes minutes and needs root.
///
/// # Panics
/// When a tool is missing or a package cannot be fetched.
pub fn debian() -> PathBuf {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("debian");
    PathBuf::from(tool(build.to_str().unwrap(), &[]).trim())
}

/// The content of a guest's initramfs.
#[derive(Debug)]
pub struct Tree {
    folder: PathBuf,
    /// Its files, below `folder`.
    root: PathBuf,
    /// Where the kernel's package was unpacked.
    kernel: PathBuf,
    release: String,
}

impl Tree {
    /// A tree that is built in `folder`, with these folders, applets of busybox (their names between spaces), and `init`
    /// as the guest's first process.
    ///
    /// # Panics
    /// When a tool or the kernel's package is missing.
    pub fn new(folder: &Path, folders: &[&str], applets: &str, init: &Path) -> Self {
        let unpack = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel");
        let kernel = PathBuf::from(tool(unpack.to_str().unwrap(), &[]).trim());
        let release = kernel.join("lib/modules").read_dir().unwrap().next().unwrap().unwrap().file_name();
        let release = release.into_string().unwrap();
        let tree = Self { folder: folder.to_owned(), root: folder.join("root"), kernel, release };
        for name in ["bin", "proc", "sys", "dev", "run"].iter().chain(folders) {
            fs::create_dir_all(tree.root.join(name)).unwrap();
        }
        tree.copy(Path::new("/bin/busybox"), Path::new("bin/busybox"));
        for name in applets.split(' ') {
            symlink("busybox", tree.root.join("bin").join(name)).unwrap();
        }
        symlink("bin", tree.root.join("sbin")).unwrap();
        tree.copy(init, Path::new("init"));
        fs::set_permissions(tree.root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
        tree
    }

    /// Where `path` of the guest is now.
    pub fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Adds a file.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn copy(&self, from: &Path, to: &Path) {
        let to = self.place(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}: run make deps", from.display()));
    }

    /// Adds a program without its symbols, and the libraries it needs.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn program(&self, from: &Path, to: &Path) {
        self.copy(from, to);
        tool("strip", &[self.place(to).to_str().unwrap()]);
        // Of "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)" the paths.
        for path in tool("ldd", &[from.to_str().unwrap()]).split_whitespace() {
            if path.starts_with("/lib") || path.starts_with("/usr/lib") {
                self.copy(Path::new(path), Path::new(path));
            }
        }
    }

    /// Adds modules of the kernel, with those they depend on, and appends their names to the guest's file `/modules`, from
    /// which its init loads them. A built-in one has no file.
    ///
    /// # Panics
    /// When the kernel does not have one.
    pub fn modules(&self, names: &[&str]) {
        let modules = Path::new("lib/modules").join(&self.release);
        let read = |name: &str| fs::read_to_string(self.kernel.join(&modules).join(name)).unwrap();
        let (dependencies, built_in) = (read("modules.dep"), read("modules.builtin"));
        self.copy(&self.kernel.join(&modules).join("modules.dep"), &modules.join("modules.dep"));
        let mut list =
            fs::OpenOptions::new().create(true).append(true).open(self.place(Path::new("modules"))).unwrap();
        for module in names {
            writeln!(list, "{module}").unwrap();
            let file = format!("/{module}.ko");
            let line = dependencies
                .lines()
                .find(|line| line.split_once(':').is_some_and(|(first, _)| first.ends_with(&file)));
            let Some(line) = line else {
                let built_in = built_in.lines().any(|line| line.ends_with(&file));
                assert!(built_in, "Debian's kernel has no module {module}");
                continue;
            };
            for name in line.split([':', ' ']).filter(|name| !name.is_empty()) {
                self.copy(&self.kernel.join(&modules).join(name), &modules.join(name));
            }
        }
    }

    /// Packs the tree.
    ///
    /// # Panics
    /// When cpio is missing or fails.
    pub fn pack(self) -> Guest {
        let initramfs = self.folder.join("initramfs");
        let pack = "cd \"$0\" && find . | cpio --quiet -o -H newc -R 0:0 > \"$1\"";
        tool("sh", &["-c", pack, self.root.to_str().unwrap(), initramfs.to_str().unwrap()]);
        Guest { kernel: self.kernel.join(format!("boot/vmlinuz-{}", self.release)), initramfs }
    }
}

/// A kernel and an initramfs, which lies in the tree's folder.
#[derive(Debug)]
pub struct Guest {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Guest {
    /// The kernel's file, and that of the initramfs.
    pub fn files(&self) -> (&Path, &Path) {
        (&self.kernel, &self.initramfs)
    }

    /// QEMU with two emulated processors, `memory` MiB, the console at its standard streams, no network, and `words` for
    /// the kernel's command line. The caller adds devices.
    pub fn command(&self, memory: u32, words: &str) -> Command {
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", &memory.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
            .args(["-append", &kernel_words(words)])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs);
        command
    }

    /// Makes a disk, a FAT filesystem without partitions, that a BIOS boots it from, and EFI by way of its shell.
    ///
    /// # Panics
    /// When a tool is missing or fails.
    pub fn disk(&self, disk: &Path) {
        let image = disk.to_str().unwrap();
        let config = self.initramfs.with_file_name("syslinux.cfg");
        let menu =
            "SERIAL 0 115200\nDEFAULT linux\nPROMPT 0\nLABEL linux\n  KERNEL vmlinuz\n  APPEND initrd=initrd";
        fs::write(&config, format!("{menu} {}\n", kernel_words(""))).unwrap();
        fs::File::create(disk).unwrap().set_len(63 << 20).unwrap();
        tool("mkfs.fat", &[image]);
        let script = self.initramfs.with_file_name("startup.nsh");
        fs::write(&script, format!("fs0:\\linux.efi initrd=\\initrd {}\r\n", kernel_words(""))).unwrap();
        let files = [
            (&self.kernel, "::vmlinuz"),
            (&self.kernel, "::linux.efi"),
            (&self.initramfs, "::initrd"),
            (&config, "::syslinux.cfg"),
            (&script, "::startup.nsh"),
        ];
        for (from, to) in files {
            tool("mcopy", &["-i", image, from.to_str().unwrap(), to]);
        }
        tool("syslinux", &["--install", image]);
    }

    /// Boots it with `disks` as QEMU's `-drive` takes them, and waits until it reports its end. Returns its output and the
    /// time it took; `patience` bounds all of it.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn run(
        &self,
        memory: u32,
        disks: &[String],
        words: &str,
        patience: Duration,
    ) -> (Vec<String>, Duration) {
        let begin = Instant::now();
        let mut command = self.command(memory, words);
        command.args(["-nic", "none"]).args(disks.iter().flat_map(|disk| ["-drive", disk]));
        let mut console = Console::start(&mut command);
        let done = console.line(DONE, patience);
        assert!(done.is_some(), "the guest did not end: {:#?}", console.said);
        (console.said, begin.elapsed())
    }
}

/// The kernel's command line, with `more`. Whether its timer works, the kernel asks a machine that is emulated and may be
/// starved for that moment: it does.
fn kernel_words(more: &str) -> String {
    format!("mitigations=off no_timer_check quiet console=ttyS0 panic=-1 {more}")
}

/// A child that is killed, by its id, when dropped.
#[derive(Debug)]
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running guest and its console's output; dropping it cuts its power.
#[derive(Debug)]
pub struct Console {
    _qemu: Killed,
    lines: Receiver<String>,
    /// The lines that were waited for or passed over.
    pub said: Vec<String>,
}

impl Console {
    /// Starts QEMU.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn start(command: &mut Command) -> Self {
        let qemu = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut qemu =
            Killed(qemu.unwrap_or_else(|error| panic!("QEMU cannot be run ({error}): run make deps")));
        let out = qemu.0.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Self { _qemu: qemu, lines, said: Vec::new() }
    }

    /// Waits for a line that holds `text`; `None` if there is none within `patience`, or the guest has ended.
    pub fn line(&mut self, text: &str, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.said.push(line.clone());
            if line.contains(text) {
                return Some(line);
            }
        }
        None
    }
}
