//! The launch document: everything `virt-launcher` needs to know about one guest, and nothing it would have to decide.
//!
//! ```text
//! VirtualMachineInstance + what was found ──resolve──► Launch ──socket──► virt-launcher ──► libvirt's XML
//!   (names, defaults, wishes)                 (paths, numbers, words of closed sets)
//! ```
//!
//! The writer (virt-node here, the handler in a cluster) and the reader (virt-launcher) use this one type. It is JSON with
//! a version; a reader refuses versions and fields that it does not know, since a guest that lacks what was asked for is
//! worse than none. Lengths are bytes, paths absolute, numbers checked by [`Launch::read`].
//!
//! Not here: Kubernetes' resources, files, sockets.

mod check;
mod device;
mod disk;
mod machine;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use check::{is_text, is_uuid};
pub use device::{
    Balloon, Devices, Dhcp, DhcpOptions, HostDevice, Input, InputBus, Interface, Layout, Lease4,
    MediatedDevice, NicModel, NotPciAddress, PanicModel, PciAddress, Route4, SerialConsole, Slot, SoundModel,
    Tap, Tpm, TpmModel, USB_CHANNELS, UsbAddress, UsbDevice, VideoModel, WatchdogAction, usb_channel,
};
pub use disk::{
    BlockSizes, Bus, Cache, Disk, DiskDevice, DiskFormat, ErrorPolicy, Io, Media, MediaFile, Medium, Storage,
    Tray,
};
pub use machine::{
    Chassis, Clock, Cpu, CpuFeature, CpuModel, Efi, FeaturePolicy, Features, Firmware, Hyperv, HypervSwitch,
    Kernel, Memory, NamedCpu, OnReboot, Pinning, Smbios, System, TickPolicy, Timer, TimerName, Track,
};

/// The version that is written and read.
pub const VERSION: u32 = 1;
/// Longest document in bytes: most of one is the media's content.
pub const DOCUMENT_MAX: usize = 32 << 20;
/// Most disks, and most interfaces.
pub const DEVICES_MAX: usize = 256;
/// Most processors.
pub const PROCESSORS_MAX: u32 = 512;

/// A word of a closed set: in documents the word, in programs an enum.
pub trait Word: Sized {
    /// All words.
    const WORDS: &'static [&'static str];

    /// The word.
    fn word(self) -> &'static str;

    /// The value of a word; `None`: it is none of [`Self::WORDS`].
    fn from_word(word: &str) -> Option<Self>;
}

/// Makes enums that are [`Word`]s.
macro_rules! words {
    ($(
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$variant_about:meta])* $variant:ident = $word:literal,)*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_about])* #[serde(rename = $word)] $variant,)*
        }

        impl crate::launch::Word for $name {
            const WORDS: &'static [&'static str] = &[$($word,)*];

            fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}
pub(crate) use words;

/// Why a launch document is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// Longer than [`DOCUMENT_MAX`].
    #[error("a launch document of {0} bytes; {DOCUMENT_MAX} bytes is the limit")]
    TooLong(usize),
    /// A version that this program does not speak.
    #[error(
        "launch document of version {0}; this program reads version {VERSION}: both ends must be of one release"
    )]
    Version(u64),
    /// Not of the form of a launch document.
    #[error("not a launch document: {0}")]
    Malformed(String),
    /// A value that cannot be.
    #[error("launch document: {path}: {problem}")]
    Value {
        /// The field.
        path: String,
        /// The defect.
        problem: String,
    },
}

words! {
    /// The accelerator.
    pub enum Accelerator {
        /// The processor.
        Kvm = "kvm",
        /// QEMU, in software.
        Tcg = "tcg",
    }
}

/// One guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Launch {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// UUID of this run, which another run of the same guest does not have.
    pub uid: String,
    /// Folder of the run, private to the launcher: sockets (`serial0`, `vnc`, `agent`, `usbredir0`, …), media. At most 52
    /// bytes, so that sockets in it can be named.
    pub folder: String,
    /// The QEMU program.
    pub emulator: String,
    /// The accelerator.
    pub accelerator: Accelerator,
    /// Machine type with its version.
    pub machine: String,
    /// The SMBIOS strings.
    pub smbios: Smbios,
    /// BIOS or EFI.
    pub firmware: Firmware,
    /// A kernel that the firmware starts in place of a boot loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Processors.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Clock and timers.
    pub clock: Clock,
    /// Features of the machine.
    pub features: Features,
    /// Threads that serve disks, numbered from 1.
    pub io_threads: u16,
    /// Disks, in the order the guest counts them.
    pub disks: Vec<Disk>,
    /// Small CDs that the launcher makes in its folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Medium>,
    /// Network interfaces, in the order the guest counts them.
    pub interfaces: Vec<Interface>,
    /// Devices of the host that the guest gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_devices: Vec<HostDevice>,
    /// Mediated devices of the host that the guest gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices: Vec<MediatedDevice>,
    /// USB devices of the host that the guest gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usb_devices: Vec<UsbDevice>,
    /// Everything else.
    pub devices: Devices,
    /// Where devices were in an earlier run; empty at the first.
    pub layout: Layout,
    /// Seconds from a request to stop until the guest is killed.
    pub grace_seconds: u64,
    /// Whether the guest is made and not started.
    pub paused: bool,
    /// The effect of a reboot.
    pub on_reboot: OnReboot,
}

impl Launch {
    /// Reads a document: its version first, then its form, then its values.
    ///
    /// # Errors
    /// See [`LaunchError`].
    pub fn read(json: &[u8]) -> Result<Self, LaunchError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u64,
        }
        if json.len() > DOCUMENT_MAX {
            return Err(LaunchError::TooLong(json.len()));
        }
        let malformed = |error: serde_json::Error| LaunchError::Malformed(error.to_string());
        let Versioned { version } = serde_json::from_slice(json).map_err(malformed)?;
        if version != u64::from(VERSION) {
            return Err(LaunchError::Version(version));
        }
        let launch: Self = serde_json::from_slice(json).map_err(malformed)?;
        check::check(&launch)?;
        Ok(launch)
    }

    /// The document that [`Launch::read`] reads.
    ///
    /// # Errors
    /// When a value cannot be: what would be refused by the reader is not written.
    pub fn write(&self) -> Result<Vec<u8>, LaunchError> {
        check::check(self)?;
        let json = serde_json::to_vec(self).map_err(|error| LaunchError::Malformed(error.to_string()))?;
        if json.len() > DOCUMENT_MAX { Err(LaunchError::TooLong(json.len())) } else { Ok(json) }
    }
}
