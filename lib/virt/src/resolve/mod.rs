//! From what a person wrote and what was found on the machine to a launch document: pure.
//!
//! Every default is filled in here and every rule between fields is checked here, so that the launcher has nothing to
//! decide, and `virt-node validate` reports in advance the errors of a start. All errors are reported, not the first only.
//!
//! Not here: looking for anything on the machine, making disks or networks.

mod board;
mod clock;
mod credentials;
mod devices;
mod disks;
mod media;
mod networks;
mod volumes;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use api::core::{ConfigMap, Secret};
use api::kubevirt::VirtualMachineInstanceSpec;
pub use api::launch::Tap;
use api::launch::{
    Accelerator, BlockSizes, DEVICES_MAX, Launch, Layout, OnReboot, PciAddress, Slot, Storage, System,
    UsbAddress, VERSION,
};
use api::resource::ObjectMeta;

use crate::finding::{Finding, Findings, Verdict};
use devices::HostDevices;

pub use board::{Growth, is_dedicated, room, topology};
pub use networks::{DEFAULT_INTERFACE, interfaces_of, mac, queues_of};
pub use volumes::{add_disks, claim_of, claims_of, is_label, is_storage, leave_volumes_out};

/// The default of the seconds from a request to stop until a guest is killed.
pub const GRACE_SECONDS: u64 = 30;

/// The identity of the guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The object's metadata; its namespace is given.
    pub metadata: ObjectMeta,
    /// UUID of this run.
    pub uid: String,
    /// UUID in SMBIOS where the spec names none: the same in every run.
    pub smbios_uuid: String,
    /// Serial number in SMBIOS where the spec names none: the same in every run.
    pub smbios_serial: String,
}

/// Facts about the machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// The accelerator of guests.
    pub accelerator: Accelerator,
    /// The QEMU program.
    pub emulator: String,
    /// The versioned machine type of the alias `q35`.
    pub machine: String,
    /// OVMF, where it is installed: code and variables.
    pub ovmf: Option<(String, String)>,
    /// OVMF for secure boot, where it is installed: code and variables.
    pub ovmf_secure: Option<(String, String)>,
    /// SMBIOS strings that the platform gives its guests.
    pub system: System,
}

/// Resources made for the guest.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// Folder of the run.
    pub folder: String,
    /// Folder that is kept when the guest stops.
    pub state: String,
    /// Volumes that are files or devices, by name.
    pub volumes: BTreeMap<String, Backend>,
    /// Attached network interfaces, by name.
    pub taps: BTreeMap<String, Tap>,
    /// Devices of the host that the guest was given, by resource.
    pub host_devices: BTreeMap<String, Vec<HostAddress>>,
    /// Whether a guest that asks for dedicated CPUs has some to itself.
    pub own_cpus: bool,
    /// Where devices were in an earlier run.
    pub layout: Layout,
}

/// A device of the host that a guest was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAddress {
    /// A PCI device.
    Pci(PciAddress),
    /// A mediated device, by its UUID.
    Mediated(String),
    /// A set of USB devices, which a guest gets as one.
    Usb(Vec<UsbAddress>),
}

/// A volume that is a file or device.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The file or device.
    pub storage: Storage,
    /// Whether it can be read and written past the page cache.
    pub direct: bool,
    /// Whether all of its blocks are there.
    pub preallocated: bool,
    /// Sizes of its blocks, where they are known.
    pub block_sizes: Option<BlockSizes>,
}

/// Objects that a guest names.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Secrets of its namespace, by name.
    pub secrets: BTreeMap<String, Secret>,
    /// ConfigMaps of its namespace, by name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Tokens of ServiceAccounts in its pod, by their names: files by theirs. `None`: there is no pod yet.
    pub accounts: Option<BTreeMap<String, BTreeMap<String, Vec<u8>>>>,
    /// Whether the list is complete. Otherwise a missing entry is no error.
    pub complete: bool,
}

/// The state of one resolution.
struct Resolution<'a> {
    spec: &'a VirtualMachineInstanceSpec,
    guest: &'a Guest,
    host: &'a Host,
    made: &'a Made,
    objects: &'a Objects,
    /// Path of the spec in the document.
    at: &'a str,
    findings: Findings,
    /// Addresses on PCI that devices ask for.
    places: BTreeSet<PciAddress>,
}

/// The launch document of a guest, if no finding is an error. `at` is the path of `spec` in its document.
pub fn resolve(
    spec: &VirtualMachineInstanceSpec,
    guest: &Guest,
    host: &Host,
    made: &Made,
    objects: &Objects,
    at: &str,
) -> (Option<Launch>, Vec<Finding>) {
    let mut spec = Cow::Borrowed(spec);
    if volumes::lacks_disks(&spec) {
        add_disks(spec.to_mut());
    }
    let spec = spec.as_ref();
    let (findings, places) = (Findings::default(), BTreeSet::new());
    let mut resolution = Resolution { spec, guest, host, made, objects, at, findings, places };
    let launch = resolution.launch();
    let mut findings = resolution.findings;
    // A document that the reader would refuse is a defect of this code, or of a kind that no rule above has a better
    // sentence for.
    let launch = launch.filter(|_| !findings.failed()).filter(|launch| match launch.write() {
        Ok(_) => true,
        Err(error) => {
            findings.error(at, error.to_string());
            false
        }
    });
    (launch, findings.into_vec())
}

impl Resolution<'_> {
    fn path(&self, field: &str) -> String {
        format!("{}.{field}", self.at)
    }

    fn error(&mut self, field: &str, text: impl Into<String>) {
        let path = self.path(field);
        self.findings.error(path, text);
    }

    /// The address on PCI that a device asks for in the field at `at`; `None` where the guest has no place there. `device`:
    /// what it is and the path of its name, for upstream's text.
    fn pci_address(
        &mut self,
        at: &str,
        device: &str,
        asked: Option<&str>,
        is_express: bool,
    ) -> Option<PciAddress> {
        let text = asked.filter(|text| !text.is_empty())?;
        let Ok(address) = text.parse::<PciAddress>() else {
            self.error(at, format!("{device} has malformed PCI address ({text})."));
            return None;
        };
        let fits = match Slot::at(address) {
            Some(Slot::Port(_)) => is_express,
            Some(Slot::Root(_)) => true,
            Some(Slot::Conventional(_)) | None => false,
        };
        let why = if !fits {
            let ports = if is_express { ", or 0000:01:00.0 to 0000:20:00.0" } else { "" };
            let places = format!("0000:00:06.0 to 0000:00:1a.0{ports}");
            format!("the guest has no place at {text}: the address is assigned automatically; use {places}")
        } else if !self.places.insert(address) {
            format!("{address} is given twice: the address is assigned automatically")
        } else {
            return Some(address);
        };
        // Guests that are stored with such addresses, which had no effect in earlier releases, still start.
        let path = self.path(at);
        self.findings.add(Verdict::Unsupported, path, why);
        None
    }

    /// Reports the tag of a disk or network interface at `at`.
    fn tag(&mut self, at: &str, tag: Option<&str>) {
        if tag.is_some() {
            let path = self.path(&format!("{at}.tag"));
            let why = "not supported yet: config drives do not describe devices";
            self.findings.add(Verdict::Unsupported, path, why);
        }
    }

    /// Checks the number of each kind of device; later rules compare each with the others.
    fn few(&mut self) -> bool {
        let devices = &self.spec.domain.devices;
        let counts = [
            ("domain.devices.disks", "disks", devices.disks.len()),
            ("domain.devices.interfaces", "interfaces", devices.interfaces.len()),
            ("domain.devices.gpus", "GPUs", devices.gpus.len()),
            ("domain.devices.hostDevices", "host devices", devices.host_devices.len()),
            ("domain.devices.inputs", "inputs", devices.inputs.len()),
            ("networks", "networks", self.spec.networks.len()),
            ("volumes", "volumes", self.spec.volumes.len()),
        ];
        let many = counts.into_iter().filter(|(_, _, count)| *count > DEVICES_MAX);
        let many: Vec<_> = many.collect();
        for (field, what, count) in &many {
            self.error(field, format!("{count} {what}; {DEVICES_MAX} is the limit"));
        }
        many.is_empty()
    }

    fn launch(&mut self) -> Option<Launch> {
        if !self.few() {
            return None;
        }
        let spec = self.spec;
        let cpu = self.cpu();
        let memory = self.memory();
        let smbios = self.smbios();
        let firmware = self.firmware();
        let kernel = self.kernel();
        let features = self.features();
        let clock = self.clock();
        let machine = self.machine();
        let interfaces = self.interfaces();
        let media = self.media();
        let (io_threads, disks) = self.disks(&cpu, &media);
        let HostDevices { pci: host_devices, mediated: mediated_devices, usb: usb_devices } =
            self.host_devices();
        let devices = self.devices(&firmware);
        self.boot_orders();
        self.credentials();
        let on_reboot = match spec.domain.reboot_policy.as_deref() {
            None | Some("Reboot") => OnReboot::Restart,
            Some("Terminate") => OnReboot::Destroy,
            Some(other) => {
                let text = format!("{other:?} is neither Reboot nor Terminate");
                self.error("domain.rebootPolicy", text);
                OnReboot::Restart
            }
        };
        let paused = match spec.start_strategy.as_deref() {
            None => false,
            Some("Paused") => true,
            Some(other) => {
                self.error("startStrategy", format!("{other:?} is not Paused"));
                false
            }
        };
        if spec.architecture.as_deref().is_some_and(|architecture| architecture != "amd64") {
            self.error("architecture", "guests here are amd64");
        }
        Some(Launch {
            version: VERSION,
            name: self.guest.metadata.name.clone(),
            namespace: self.guest.metadata.namespace.clone().unwrap_or_default(),
            uid: self.guest.uid.clone(),
            folder: self.made.folder.clone(),
            emulator: self.host.emulator.clone(),
            accelerator: self.host.accelerator,
            machine,
            smbios,
            firmware: firmware?,
            kernel,
            cpu,
            memory: memory?,
            clock,
            features,
            io_threads,
            disks,
            media,
            interfaces,
            host_devices,
            mediated_devices,
            usb_devices,
            devices,
            layout: self.made.layout.clone(),
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS),
            paused,
            on_reboot,
        })
    }
}
