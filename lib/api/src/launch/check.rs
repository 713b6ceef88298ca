//! Which values a launch document may have: what would be a mistake of its writer, and what would do harm to its reader.

use std::collections::BTreeSet;

use super::{
    Bus, DEVICES_MAX, DhcpOptions, Disk, DiskDevice, Firmware, Interface, Launch, LaunchError, Layout, Media,
    PROCESSORS_MAX, PciAddress, Slot, Storage, USB_CHANNELS, VERSION,
};

/// Longest text that is no path and no content, in bytes.
const TEXT_MAX: usize = 256;
/// Longest command line of a kernel, in bytes (x86).
const ARGUMENTS_MAX: usize = 2047;
/// Longest path, in bytes.
const PATH_MAX: usize = 4095;
/// Longest folder, in bytes: a socket's path has 107, and those of libvirt are the longest below it.
const FOLDER_MAX: usize = 52;
/// Longest name of a network device.
const LINK_MAX: usize = 15;
/// Most resolvers, and most domains to search.
const RESOLVERS_MAX: usize = 8;
/// Longest option of DHCPv4, in bytes.
const OPTION_MAX: usize = 255;
/// Most routes of an interface.
const ROUTES_MAX: usize = 64;
/// Deepest chain of backing files.
const BACKING_MAX: usize = 8;
/// Most ports: as many as four slots of eight functions have.
const PORTS_MAX: u8 = 32;
const MIB: u64 = 1 << 20;
/// Longest name on a CD, and most names of a path there (ISO 9660, Joliet).
const FILE_NAME_MAX: usize = 100;
const FOLDERS_MAX: usize = 7;

type Result = std::result::Result<(), LaunchError>;

fn wrong(path: impl Into<String>, problem: impl Into<String>) -> LaunchError {
    LaunchError::Value { path: path.into(), problem: problem.into() }
}

fn ensure(good: bool, path: &str, problem: &str) -> Result {
    if good { Ok(()) } else { Err(wrong(path, problem)) }
}

/// Checks every value.
pub(super) fn check(launch: &Launch) -> Result {
    ensure(launch.version == VERSION, "version", "not this program's version")?;
    name("name", &launch.name)?;
    name("namespace", &launch.namespace)?;
    uuid("uid", &launch.uid)?;
    path("folder", &launch.folder)?;
    ensure(launch.folder.len() <= FOLDER_MAX, "folder", "too long for sockets in it")?;
    path("emulator", &launch.emulator)?;
    text("machine", &launch.machine)?;
    smbios(launch)?;
    if let Firmware::Efi(efi) = &launch.firmware {
        path("firmware.code", &efi.code)?;
        path("firmware.template", &efi.template)?;
        path("firmware.variables", &efi.variables)?;
    }
    kernel(launch)?;
    cpu(launch)?;
    memory(launch)?;
    if let Some(log) = launch.devices.serial.as_ref().and_then(|serial| serial.log.as_ref()) {
        path("devices.serial.log", log)?;
    }
    if let Some(state) = launch.devices.tpm.as_ref().and_then(|tpm| tpm.state.as_ref()) {
        path("devices.tpm.state", state)?;
    }
    if let super::Clock::Timezone(zone, _) = &launch.clock {
        text("clock.timezone", zone)?;
    }
    if let Some(vendor) = launch.features.hyperv.as_ref().and_then(|hyperv| hyperv.vendor_id.as_ref()) {
        text("features.hyperv.vendorId", vendor)?;
        ensure(vendor.chars().count() <= 12, "features.hyperv.vendorId", "longer than twelve characters")?;
    }
    for input in &launch.devices.inputs {
        name("devices.inputs", &input.name)?;
    }
    let channels = launch.devices.usb_channels.is_none_or(|count| (1..=USB_CHANNELS).contains(&count));
    ensure(channels, "devices.usbChannels", "not between 1 and 4")?;
    media(launch)?;
    ensure(launch.disks.len() <= DEVICES_MAX, "disks", "more than 256")?;
    for (index, disk) in launch.disks.iter().enumerate() {
        check_disk(launch, &format!("disks[{index}]"), disk)?;
    }
    ensure(launch.interfaces.len() <= DEVICES_MAX, "interfaces", "more than 256")?;
    for (index, interface) in launch.interfaces.iter().enumerate() {
        check_interface(&format!("interfaces[{index}]"), interface)?;
    }
    unique("disks", launch.disks.iter().map(|disk| disk.name.as_str()))?;
    unique("interfaces", launch.interfaces.iter().map(|one| one.name.as_str()))?;
    ensure(launch.host_devices.len() <= DEVICES_MAX, "hostDevices", "more than 256")?;
    for device in &launch.host_devices {
        name("hostDevices", &device.name)?;
    }
    mediated(launch)?;
    usb(launch)?;
    let mediated = launch.mediated_devices.iter().map(|one| one.name.as_str());
    let others = mediated.chain(launch.usb_devices.iter().map(|one| one.name.as_str()));
    unique("hostDevices", launch.host_devices.iter().map(|one| one.name.as_str()).chain(others))?;
    unique("hostDevices", launch.host_devices.iter().map(|one| one.address))?;
    unique("devices.inputs", launch.devices.inputs.iter().map(|one| one.name.as_str()))?;
    let orders = launch.disks.iter().filter_map(|disk| disk.boot_order);
    let orders: Vec<u32> =
        orders.chain(launch.interfaces.iter().filter_map(|interface| interface.boot_order)).collect();
    ensure(!orders.contains(&0), "bootOrder", "must be 1 or more")?;
    unique("bootOrder", orders.iter())?;
    let places = launch.disks.iter().filter_map(|disk| disk.pci_address);
    unique("pciAddress", places.chain(launch.interfaces.iter().filter_map(|one| one.pci_address)))?;
    layout(&launch.layout)
}

fn unique<T: Ord>(path: &str, mut values: impl Iterator<Item = T>) -> Result {
    let mut seen = BTreeSet::new();
    ensure(values.all(|value| seen.insert(value)), path, "one of them is given twice")
}

/// A name as Kubernetes has them: parts of file names and of libvirt's aliases.
fn name(path: &str, name: &str) -> Result {
    let letters =
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'));
    let ends = !name.starts_with(['-', '.']) && !name.ends_with(['-', '.']);
    ensure(
        !name.is_empty() && name.len() <= 253 && letters && ends,
        path,
        "not a name of lower-case letters, digits, - and .",
    )
}

/// Text that can be shown and stand in XML.
fn text(path: &str, text: &str) -> Result {
    ensure(is_text(text), path, "empty, longer than 256 bytes, or with control characters")
}

/// Whether a document may have this as a string that a guest is shown.
pub fn is_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= TEXT_MAX && !text.contains(unfit)
}

fn unfit(c: char) -> bool {
    c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')
}

fn path(field: &str, path: &str) -> Result {
    let good = path.starts_with('/')
        && path.len() <= PATH_MAX
        && !path.contains(unfit)
        && !path.split('/').any(|part| part == ".." || part == ".");
    ensure(good, field, "not an absolute path without . and ..")
}

/// Whether a text is a UUID in its usual form.
pub fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn uuid(path: &str, uuid: &str) -> Result {
    ensure(is_uuid(uuid), path, "not a UUID")
}

fn mediated(launch: &Launch) -> Result {
    const FIELD: &str = "mediatedDevices";
    let devices = &launch.mediated_devices;
    ensure(devices.len() <= DEVICES_MAX, FIELD, "more than 256")?;
    for device in devices {
        name(FIELD, &device.name)?;
        uuid(FIELD, &device.uuid)?;
        let shown = launch.devices.video.is_some() && device.display;
        ensure(!device.display || shown, FIELD, "on a screen that the guest does not have")?;
        ensure(!device.ramfb || shown, FIELD, "a frame buffer that no screen shows")?;
    }
    ensure(devices.iter().filter(|one| one.ramfb).count() <= 1, FIELD, "two frame buffers")?;
    unique(FIELD, devices.iter().map(|one| one.uuid.to_ascii_lowercase()))
}

fn usb(launch: &Launch) -> Result {
    const FIELD: &str = "usbDevices";
    let devices = &launch.usb_devices;
    ensure(devices.len() <= DEVICES_MAX, FIELD, "more than 256")?;
    for device in devices {
        name(FIELD, &device.name)?;
        ensure(device.address.bus > 0 && device.address.device > 0, FIELD, "not an address on USB")?;
    }
    unique(FIELD, devices.iter().map(|one| one.address))
}

fn smbios(launch: &Launch) -> Result {
    let super::Smbios { uuid: id, serial, system, chassis } = &launch.smbios;
    uuid("smbios.uuid", id)?;
    let super::System { manufacturer: maker, product, version: of_product, sku: number, family } = system;
    let super::Chassis { manufacturer, version, serial: case_serial, asset, sku } = chassis;
    for (field, value) in [
        ("smbios.serial", serial),
        ("smbios.system.manufacturer", maker),
        ("smbios.system.product", product),
        ("smbios.system.version", of_product),
        ("smbios.system.sku", number),
        ("smbios.system.family", family),
        ("smbios.chassis.manufacturer", manufacturer),
        ("smbios.chassis.version", version),
        ("smbios.chassis.serial", case_serial),
        ("smbios.chassis.asset", asset),
        ("smbios.chassis.sku", sku),
    ] {
        if let Some(value) = value {
            text(field, value)?;
        }
    }
    Ok(())
}

fn kernel(launch: &Launch) -> Result {
    let Some(super::Kernel { image, initrd, arguments }) = &launch.kernel else { return Ok(()) };
    path("kernel.image", image)?;
    initrd.iter().try_for_each(|initrd| path("kernel.initrd", initrd))?;
    let good = |text: &String| text.len() <= ARGUMENTS_MAX && !text.contains(unfit);
    ensure(
        arguments.iter().all(good),
        "kernel.arguments",
        "longer than 2047 bytes, or with control characters",
    )
}

fn cpu(launch: &Launch) -> Result {
    let super::Cpu { sockets, max_sockets, cores, threads, model, features, pinning } = &launch.cpu;
    let most = max_sockets.checked_mul(*cores).and_then(|n| n.checked_mul(*threads));
    ensure(
        [*sockets, *cores, *threads].iter().all(|&n| n > 0) && most.is_some_and(|n| n <= PROCESSORS_MAX),
        "cpu",
        "sockets × cores × threads is not between 1 and 512",
    )?;
    ensure(max_sockets >= sockets, "cpu.maxSockets", "less than sockets")?;
    ensure(pinning.is_none() || max_sockets == sockets, "cpu.pinning", "with room for more sockets")?;
    if let super::CpuModel::Named(model) = model {
        text("cpu.model", model)?;
    }
    ensure(features.len() <= 1024, "cpu.features", "more than 1024")?;
    features.iter().try_for_each(|feature| text("cpu.features", &feature.name))?;
    unique("cpu.features", features.iter().map(|feature| feature.name.as_str()))
}

fn memory(launch: &Launch) -> Result {
    let super::Memory { guest, max_guest, huge_page } = launch.memory;
    ensure(guest >= MIB && guest.is_multiple_of(MIB), "memory.guest", "not whole MiB")?;
    ensure(max_guest >= guest, "memory.maxGuest", "less than guest")?;
    ensure(max_guest <= 1 << 46, "memory.maxGuest", "more than 64 TiB")?;
    ensure(
        (max_guest - guest).is_multiple_of(2 * MIB),
        "memory.maxGuest",
        "not in blocks of 2 MiB above guest",
    )?;
    match huge_page {
        None => Ok(()),
        Some(size) => ensure(
            size.is_power_of_two() && size >= 64 << 10 && guest.is_multiple_of(size),
            "memory.hugePage",
            "not a power of two that memory is a multiple of",
        ),
    }
}

fn media(launch: &Launch) -> Result {
    unique("media", launch.media.iter().map(|medium| medium.name.as_str()))?;
    for (index, medium) in launch.media.iter().enumerate() {
        let at = format!("media[{index}]");
        name(&format!("{at}.name"), &medium.name)?;
        text(&format!("{at}.label"), &medium.label)?;
        ensure(medium.label.len() <= 32, &format!("{at}.label"), "longer than 32 bytes")?;
        unique(&format!("{at}.files"), medium.files.iter().map(|file| file.path.as_str()))?;
        for file in &medium.files {
            let steps: Vec<&str> = file.path.split('/').collect();
            let good = steps.len() <= FOLDERS_MAX && steps.into_iter().all(is_file_name);
            ensure(good, &format!("{at}.files"), "not a relative path of names that a CD can have")?;
        }
    }
    Ok(())
}

/// A name of a file or folder on a CD.
fn is_file_name(name: &str) -> bool {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (1..=FILE_NAME_MAX).contains(&name.len()) && letters && name != "." && name != ".."
}

fn check_disk(launch: &Launch, at: &str, disk: &Disk) -> Result {
    let field = |name: &str| format!("{at}.{name}");
    name(&field("name"), &disk.name)?;
    if let Some(serial) = &disk.serial {
        text(&field("serial"), serial)?;
    }
    match &disk.media {
        Media::Empty => {
            ensure(disk.device == DiskDevice::Cdrom, &field("media"), "only a CD drive can be empty")?
        }
        Media::Storage(storage) => check_storage(&field("media"), storage)?,
        Media::Medium(wanted) => {
            let known = launch.media.iter().any(|medium| medium.name == *wanted);
            ensure(known, &field("media"), "a medium that is not there")?;
        }
    }
    let fits = match disk.device {
        // AHCI has no read-only disks.
        DiskDevice::Disk => disk.bus != Bus::Sata || !disk.read_only,
        DiskDevice::Cdrom => disk.bus != Bus::Virtio && disk.read_only,
        DiskDevice::Lun => {
            disk.bus == Bus::Scsi && matches!(&disk.media, Media::Storage(storage) if storage.block)
        }
    };
    ensure(fits, &field("device"), "not on this bus, not with this content, or not read-only")?;
    let thread = disk.io_thread.is_none_or(|thread| (1..=launch.io_threads).contains(&thread));
    ensure(thread, &field("ioThread"), "not between 1 and ioThreads")?;
    let threaded = disk.io_thread.is_none() || matches!(disk.bus, Bus::Virtio | Bus::Scsi);
    ensure(threaded, &field("ioThread"), "not supported on this bus")?;
    let placed = disk.bus == Bus::Virtio && disk.pci_address.and_then(Slot::at).is_some();
    ensure(placed || disk.pci_address.is_none(), &field("pciAddress"), "no place for it")?;
    ensure(disk.queues.is_none_or(|n| (1..=PROCESSORS_MAX).contains(&n)), &field("queues"), "not 1 to 512")?;
    if let Some(sizes) = disk.block_sizes {
        let size = |n: u32| n.is_power_of_two() && (512..=2 << 20).contains(&n);
        let good = size(sizes.logical) && size(sizes.physical) && sizes.physical >= sizes.logical;
        ensure(good, &field("blockSizes"), "not powers of two from 512 to 2 MiB that fit one another")?;
    }
    Ok(())
}

fn check_storage(at: &str, storage: &Storage) -> Result {
    let mut layer = Some(storage);
    for _ in 0..BACKING_MAX {
        let Some(storage) = layer else { return Ok(()) };
        path(&format!("{at}.path"), &storage.path)?;
        layer = storage.backing.as_deref();
    }
    ensure(layer.is_none(), at, "too many backing files")
}

/// Whether a text names a network device.
fn is_link(link: &str) -> bool {
    !link.is_empty()
        && link.len() <= LINK_MAX
        && link.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%' | b'<' | b'&'))
        && link != "."
        && link != ".."
}

fn check_interface(at: &str, interface: &Interface) -> Result {
    let field = |name: &str| format!("{at}.{name}");
    name(&field("name"), &interface.name)?;
    ensure(is_link(&interface.tap), &field("tap"), "not a name of a network device")?;
    let pairs: Vec<&str> = interface.mac.split(':').collect();
    let hex = |pair: &&str| {
        pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let unicast = u8::from_str_radix(pairs[0], 16).is_ok_and(|first| first & 1 == 0);
    ensure(
        pairs.len() == 6 && pairs.iter().all(hex) && unicast,
        &field("mac"),
        "not an address of one device",
    )?;
    ensure((68..=65535).contains(&interface.mtu), &field("mtu"), "not between 68 and 65535")?;
    ensure(
        interface.queues.is_none_or(|n| (1..=256).contains(&n)),
        &field("queues"),
        "not between 1 and 256",
    )?;
    let placed = interface.pci_address.is_none_or(|address| Slot::at(address).is_some());
    ensure(placed, &field("pciAddress"), "no place for it")?;
    let Some(dhcp) = &interface.dhcp else { return Ok(()) };
    ensure(is_link(&dhcp.link), &field("dhcp.link"), "no name of a network device")?;
    ensure(dhcp.resolvers.len() <= RESOLVERS_MAX, &field("dhcp.resolvers"), "more than 8")?;
    ensure(dhcp.search.len() <= RESOLVERS_MAX, &field("dhcp.search"), "more than 8")?;
    let domain = |name: &String| {
        (1..=253).contains(&name.len())
            && name.split('.').all(|label| {
                (1..=63).contains(&label.len())
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
            })
    };
    ensure(dhcp.search.iter().all(domain), &field("dhcp.search"), "no names of domains")?;
    ensure(domain(&dhcp.host_name), &field("dhcp.hostName"), "no name of a host")?;
    check_options(&field("dhcp.options"), &dhcp.options)?;
    let Some(lease) = &dhcp.v4 else { return Ok(()) };
    ensure(lease.prefix <= 32, &field("dhcp.v4.prefix"), "more than 32")?;
    ensure(lease.routes.len() <= ROUTES_MAX, &field("dhcp.v4.routes"), "more than 64")?;
    ensure(
        lease.routes.iter().all(|route| route.prefix <= 32),
        &field("dhcp.v4.routes"),
        "a prefix of more than 32",
    )
}

fn check_options(at: &str, options: &DhcpOptions) -> Result {
    let DhcpOptions { boot_file, tftp_server, ntp_servers, private } = options;
    let texts = [boot_file, tftp_server].into_iter().flatten().chain(private.values());
    let fit = texts.map(String::len).chain([ntp_servers.len() * 4]).all(|length| length <= OPTION_MAX);
    ensure(fit, at, "an option of more than 255 bytes")?;
    let good = private.keys().all(|number| (224..=254).contains(number));
    ensure(good, at, "a private option that is not between 224 and 254")
}

fn layout(layout: &Layout) -> Result {
    ensure(layout.ports <= PORTS_MAX, "layout.ports", "more than 32")?;
    ensure(layout.slots.len() <= 1024 && layout.units.len() <= 1024, "layout", "more than 1024 devices")?;
    for slot in layout.slots.values() {
        let good = match slot {
            Slot::Port(port) => (1..=layout.ports).contains(port),
            Slot::Conventional(slot) => (1..=31).contains(slot),
            Slot::Root(slot) => {
                Slot::at(PciAddress { domain: 0, bus: 0, slot: *slot, function: 0 }).is_some()
            }
        };
        ensure(good, "layout.slots", "a port or slot that the board does not have")?;
    }
    unique("layout.slots", layout.slots.values())
}
