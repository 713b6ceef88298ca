//! A guest that reports its devices on its console, the disk of every manifest in `machines/`: these run in a cluster and on
//! one machine, and their guests must report the same.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{DISK_MODULES, Tree};

/// The last line of the report.
pub const TOLD: &str = "guest: told";
/// The page at port 80; port 7 sends back what it is sent.
pub const PAGE: &str = "a page of the guest";
/// Where manifests have the address of the server with the disk, `guest.qcow2`.
const SERVER: &str = "@SERVER@";

/// Makes the guest's disk, raw.
///
/// # Panics
/// When a tool or the kernel's package is missing.
pub fn disk(disk: &Path) {
    let sources = folder("telling");
    let work = disk.with_added_extension("work");
    let applets = "sh mount umount modprobe dd poweroff sleep cat cp find sort head tail sed printf grep ip udhcpc httpd nc";
    let tree = Tree::new(&work, &["mnt", "www"], applets, &sources.join("init"));
    tree.modules(&DISK_MODULES);
    tree.modules(&["virtio_net", "virtio-rng", "button", "evdev"]);
    tree.copy(&sources.join("lease"), Path::new("lease"));
    tree.pack().disk(disk);
    fs::remove_dir_all(&work).unwrap();
}

/// The same as a compressed qcow2 image.
///
/// # Panics
/// As [`disk()`].
pub fn image(image: &Path) {
    let raw = image.with_extension("raw");
    disk(&raw);
    let (from, to) = (raw.to_str().unwrap(), image.to_str().unwrap());
    crate::tool("qemu-img", &["convert", "-q", "-c", "-f", "raw", "-O", "qcow2", from, to]);
    fs::remove_file(&raw).unwrap();
}

/// A manifest of a VM of another shape.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its file without `.yaml`, and the VM's name.
    pub name: String,
    /// As it is written.
    pub text: String,
    /// Report of its guest, sorted; empty: not recorded.
    pub facts: Vec<String>,
}

impl Manifest {
    /// The text with the server that has the disk, such as `http://192.0.2.1:80`.
    pub fn with_server(&self, server: &str) -> String {
        self.text.replace(SERVER, server)
    }

    /// Writes down the report of its guest.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn record(&self, facts: &[String]) {
        let file = folder("machines").join(&self.name).with_added_extension("facts");
        fs::write(file, facts.join("\n") + "\n").unwrap();
    }
}

/// All manifests, by name.
///
/// # Panics
/// When one cannot be read.
pub fn manifests() -> Vec<Manifest> {
    let files = fs::read_dir(folder("machines")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<Manifest> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "yaml"))
        .map(|file| Manifest {
            name: file.file_stem().unwrap().to_str().unwrap().to_owned(),
            text: fs::read_to_string(&file).unwrap(),
            facts: fs::read_to_string(file.with_extension("facts"))
                .unwrap_or_default()
                .lines()
                .map(str::to_owned)
                .collect(),
        })
        .collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// The facts of a console's text, sorted; `None`: the report is not complete.
pub fn facts(console: &str) -> Option<Vec<String>> {
    let (report, _) = console.split_once(TOLD)?;
    // A firmware's last line has no end.
    let mut facts: Vec<String> =
        report.lines().filter_map(|line| Some(line.trim_end().split_once("fact: ")?.1.to_owned())).collect();
    facts.sort();
    Some(facts)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
