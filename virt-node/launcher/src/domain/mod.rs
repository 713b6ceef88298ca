//! From a launch document to libvirt's description of a domain: pure, the same text for the same document.
//!
//! ```text
//! Launch ─► layout (places of devices: recorded ones, then new ones) ─► XML
//!                └──────────────► recorded by the starter of the guest, and given with the next Launch
//! ```
//!
//! Nothing is left to libvirt that a guest could notice: machine, places, order, models are all written out. What is left to
//! it is QEMU's command line.
//!
//! Not here: libvirt.

mod board;
mod device;
mod disk;
mod layout;
mod xml;

use api::launch::{Accelerator, Launch, Layout, OnReboot};
use thiserror::Error;

use xml::Element;

/// Why there is no domain for a launch document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DomainError {
    /// More devices than a bus has places.
    #[error("no slot is left on {bus} for {device}: the guest has too many devices there")]
    Full {
        /// The bus.
        bus: &'static str,
        /// The first device without a place.
        device: String,
    },
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// libvirt's XML.
    pub xml: String,
    /// Where its devices are.
    pub layout: Layout,
}

/// The domain of a launch document that was read by [`Launch::read`].
///
/// # Errors
/// See [`DomainError`].
pub fn domain(launch: &Launch) -> Result<Domain, DomainError> {
    let layout = layout::plan(launch)?;
    let kind = match launch.accelerator {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "qemu",
    };
    let on_reboot = match launch.on_reboot {
        OnReboot::Restart => "restart",
        OnReboot::Destroy => "destroy",
    };
    let devices = Element::new("devices")
        .child(Element::new("emulator").text(&launch.emulator))
        .child(device::controllers(launch, &layout))
        .child(disk::disks(launch, &layout))
        .child(device::interfaces(launch, &layout))
        .child(device::host_devices(launch, &layout))
        .child(device::others(launch, &layout));
    let xml = Element::new("domain")
        .with("type", kind)
        .with("xmlns:qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
        .child(board::identity(launch))
        .child(board::processors_and_memory(launch))
        .child(board::firmware(launch))
        .child(board::features(launch))
        .child(board::clock(&launch.clock))
        .child(Element::new("on_poweroff").text("destroy"))
        .child(Element::new("on_reboot").text(on_reboot))
        .child(Element::new("on_crash").text("destroy"))
        .child(devices)
        // The launcher is confined as a whole; QEMU gets no label of its own.
        .child(Element::new("seclabel").with("type", "none"))
        .child(board::spared(launch));
    Ok(Domain { xml: xml.document(), layout })
}

/// A device that comes to a guest that runs, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device<'a> {
    /// The disk of this name.
    Disk(&'a str),
    /// The interface of this name.
    Interface(&'a str),
}

impl Device<'_> {
    /// Its alias in layouts.
    pub(crate) fn alias(self) -> String {
        match self {
            Self::Disk(name) => layout::disk_alias(name),
            Self::Interface(name) => layout::net_alias(name),
        }
    }
}

/// The XML of one device of a launch document, to attach to the domain `running`, and the places of all of its devices;
/// `None`: it has no such device.
///
/// # Errors
/// See [`DomainError`].
pub(crate) fn device(
    launch: &Launch,
    wanted: Device<'_>,
    running: &str,
) -> Result<Option<(String, Layout)>, DomainError> {
    let layout = layout::plan(launch)?;
    let element = match wanted {
        Device::Disk(name) => disk::one(launch, &layout, name, running),
        Device::Interface(name) => {
            let place = launch.interfaces.iter().position(|one| one.name == name);
            place.and_then(|place| device::interfaces(launch, &layout).into_iter().nth(place))
        }
    };
    Ok(element.map(|element| (element.document(), layout)))
}

/// libvirt's description of a CD drive of a running domain, with the target `target`; `None`: there is no such drive.
pub(crate) fn drive(launch: &Launch, name: &str, target: &str) -> Option<String> {
    let disk = launch.disks.iter().find(|disk| disk.name == name)?;
    Some(disk::element(launch, &launch.layout, disk, target).document())
}

/// The XML for a new memory size of a guest; `None`: there is no room for as many bytes, or they are no whole blocks.
pub(crate) fn memory(launch: &Launch, bytes: u64) -> Option<String> {
    let more = bytes.checked_sub(launch.memory.guest)?;
    let fits = bytes <= launch.memory.max_guest && more.is_multiple_of(device::MEMORY_BLOCK);
    let device = device::more_memory(launch, &launch.layout, more)?;
    fits.then(|| device.document())
}

/// The path of the socket or file `name` in the run's folder.
fn in_folder(launch: &Launch, name: &str) -> String {
    format!("{}/{name}", launch.folder)
}
