//! Content of the project's own images: a small Debian, and the programs, one layer each.
//!
//! There are two sets of layers: one for VMs, with QEMU and libvirt, and one for everything else. Stock controllers give a
//! pod arguments and no command, so every program has a tag of its own with it as the entrypoint. `Containerfile` next to
//! this package describes the same images for podman and docker; a test compares the two.

use crate::archive::Tag;
use crate::root::Root;

/// The repository of all tags; a registry's tools rename it.
pub const REPOSITORY: &str = "localhost/ferrovirt";

/// One program of the image.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, and the tag's.
    pub name: &'static str,
    /// Whether it is linked statically: it runs in images with unknown libraries.
    pub is_static: bool,
    /// Its user, numeric: pods with `runAsNonRoot` and no user of their own start by it. `None`: root, on nodes' files.
    pub user: Option<u32>,
}

/// qemu, as disks belong to it.
const QEMU: Option<u32> = Some(107);
/// The unprivileged user of Debian.
const NOBODY: Option<u32> = Some(65_534);

/// The programs, from the one that changes least to the one that changes most: layers below stay what they were.
pub const PROGRAMS: &[Program] = &[
    Program { name: "cdi-containerimage-server", is_static: true, user: QEMU },
    Program { name: "cni", is_static: true, user: None },
    Program { name: "importer", is_static: false, user: QEMU },
    // Stock controllers start it by its path in the image of the importer.
    Program { name: "cdi-source-update-poller", is_static: false, user: NOBODY },
    Program { name: "uploadserver", is_static: false, user: QEMU },
    Program { name: "uploadproxy", is_static: false, user: NOBODY },
    Program { name: "clone-source", is_static: false, user: QEMU },
    Program { name: "hpp-csi", is_static: false, user: None },
    Program { name: "macpool", is_static: false, user: NOBODY },
    Program { name: "kubectl-virt", is_static: false, user: NOBODY },
    Program { name: "operator", is_static: false, user: NOBODY },
];

/// The programs of the image that VMs run in. The agent is one of them: it probes QEMU and makes overlays as the launcher
/// sees them. `container-disk` is copied from here into containers of users' images.
pub const LAUNCHER: &[Program] = &[
    Program { name: "container-disk", is_static: true, user: None },
    Program { name: "virt-launcher", is_static: false, user: None },
    Program { name: "virt-agent", is_static: false, user: None },
];

/// Layers that belong together: a lowest one and the programs above it.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    /// Its name on the command line.
    pub name: &'static str,
    /// The lowest layer.
    pub root: Root,
    /// The programs, a tag each.
    pub programs: &'static [Program],
}

/// The sets. `launcher` is apart because QEMU and libvirt are larger than everything else together.
pub const SETS: [Set; 2] = [
    Set {
        name: "programs",
        root: Root { packages: "ca-certificates,libinih1,liburcu8", mkfs_xfs: true },
        programs: PROGRAMS,
    },
    Set {
        name: "launcher",
        // iproute2, nftables, procps: stock support bundles run `ip`, `bridge`, `nft` and `pgrep` in pods of launchers and
        // agents. libvirt-daemon has libvirt_iohelper, which dumps of memory need.
        root: Root {
            packages: "iproute2,libvirt0,libvirt-daemon,libvirt-daemon-driver-qemu,nftables,ovmf,procps,qemu-system-x86,qemu-utils,swtpm,swtpm-tools",
            mkfs_xfs: false,
        },
        programs: LAUNCHER,
    },
];

/// Names of `virt-launcher` in its image: probes, backup hooks and support bundles run them in launchers' pods, and the
/// container `guest-console-log` is one.
pub const TOOLS: [&str; 4] = ["virt-probe", "virt-freezer", "virsh", "virt-tail"];

/// The client as the upload proxy's process serves it for download: an archive with the program as virtctl, by this path.
pub const DOWNLOAD: (&str, &str) = ("usr/share/ferrovirt/clients/amd64/linux/virtctl.tar.gz", "virtctl");

/// The importer's name in pods next to clones without a size; stock controllers start it by this path.
pub const SIZE_DETECTION: &str = "usr/bin/cdi-image-size-detection";

/// The path of macpool's program in upstream's image, which upstream's manifests start.
pub const MANAGER: &str = "manager";

/// Folder of the programs. Stock controllers copy `/usr/bin/cdi-containerimage-server` out of the image by this path.
pub const FOLDER: &str = "usr/bin";

/// Where the DaemonSet of the cluster network addons operator takes plugins from, each with a file of its checksum.
pub const PLUGINS: &str = "usr/src/github.com/containernetworking/plugins/bin";

/// The plugins it takes.
pub const TAKEN: [&str; 2] = ["bridge", "tuning"];

impl Program {
    /// Its file, relative to cargo's target folder. Those that are linked statically are of the release build always.
    pub fn built(&self, profile: &str) -> String {
        let folder = if self.is_static { "x86_64-unknown-linux-gnu/release" } else { profile };
        format!("{folder}/{}", self.name)
    }

    /// Its name in a pod's `image`.
    pub fn tag(&self) -> Tag {
        Tag {
            repository: REPOSITORY.into(),
            name: self.name.into(),
            entrypoint: vec![format!("/{FOLDER}/{}", self.name)],
            user: self.user,
        }
    }
}
