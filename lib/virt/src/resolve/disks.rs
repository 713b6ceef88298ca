//! Disks: the device that the guest sees, and how it is read and written. Not here: the storage behind it (`volumes`).

use std::collections::BTreeSet;

use api::kubevirt::Disk as Specified;
use api::launch::{
    BlockSizes, Bus, Cache, Cpu, Disk, DiskDevice, ErrorPolicy, Io, Media, Medium, PciAddress, Tray,
};

use super::volumes::is_label;
use super::{Backend, Resolution};

/// Most threads of a pool.
const THREADS_MAX: u32 = 64;

/// Which threads serve disks that do not ask for one of their own.
enum Pool {
    None,
    /// So many, in turn.
    Threads(u16),
}

impl Resolution<'_> {
    /// How many threads serve disks, and the disks.
    pub(super) fn disks(&mut self, cpu: &Cpu, media: &[Medium]) -> (u16, Vec<Disk>) {
        let asked = &self.spec.domain.devices.disks;
        let pool = self.pool(cpu);
        let own = match pool {
            Pool::None => 0,
            Pool::Threads(threads) => threads,
        };
        let (mut threads, mut turn) = (own, 0);
        let mut disks: Vec<Disk> = Vec::new();
        let mut boot = BootOrder::of(self);
        for (index, one) in asked.iter().enumerate() {
            let at = format!("domain.devices.disks[{index}]");
            if asked[..index].iter().any(|other| other.name == one.name) {
                self.error(&format!("{at}.name"), format!("{:?} is given twice", one.name));
            }
            let Some(mut disk) = self.disk(&at, one, cpu, media) else { continue };
            disk.io_thread = match (disk.bus, one.dedicated_io_thread.unwrap_or(false), &pool) {
                (Bus::Virtio, true, _) => {
                    threads += 1;
                    Some(threads)
                }
                (Bus::Virtio | Bus::Scsi, _, Pool::Threads(count)) => {
                    turn = turn % count + 1;
                    Some(turn)
                }
                (Bus::Sata | Bus::Usb | Bus::Scsi, true, _) => {
                    self.error(&format!("{at}.dedicatedIOThread"), "for disks on virtio only");
                    None
                }
                (Bus::Virtio | Bus::Sata | Bus::Usb | Bus::Scsi, _, _) => None,
            };
            disk.boot_order = boot.next(one, &disk);
            disks.push(disk);
        }
        (threads, disks)
    }

    fn pool(&mut self, cpu: &Cpu) -> Pool {
        let count = self.spec.domain.io_threads.as_ref().and_then(|one| one.supplemental_pool_thread_count);
        let policy = self.spec.domain.io_threads_policy.as_deref();
        if count.is_some() && policy != Some("supplementalPool") {
            self.error("domain.ioThreads", "needs ioThreadsPolicy: supplementalPool");
        }
        match policy {
            None => Pool::None,
            Some("shared") => Pool::Threads(1),
            Some("auto") => {
                let processors = cpu.sockets.saturating_mul(cpu.cores).saturating_mul(cpu.threads);
                let disks = u32::try_from(self.spec.domain.devices.disks.len()).unwrap_or(u32::MAX);
                let threads = processors.saturating_mul(2).min(disks).clamp(1, THREADS_MAX);
                Pool::Threads(u16::try_from(threads).unwrap_or(1))
            }
            Some("supplementalPool") => match count.map(u16::try_from) {
                Some(Ok(count)) if (1..=THREADS_MAX).contains(&count.into()) => Pool::Threads(count),
                Some(_) | None => {
                    self.error("domain.ioThreads.supplementalPoolThreadCount", "not between 1 and 64");
                    Pool::None
                }
            },
            Some(other) => {
                let text = format!("{other:?} is not one of shared, auto, supplementalPool");
                self.error("domain.ioThreadsPolicy", text);
                Pool::None
            }
        }
    }

    fn disk(&mut self, at: &str, one: &Specified, cpu: &Cpu, media: &[Medium]) -> Option<Disk> {
        if !is_label(&one.name) {
            self.error(&format!("{at}.name"), "not a name of lower-case letters, digits and -");
            return None;
        }
        let (device, bus, read_only) = self.device(at, one)?;
        let volume = self.spec.volumes.iter().find(|volume| volume.name == one.name);
        let known = volume.is_some();
        let claim = volume.and_then(|volume| volume.persistent_volume_claim.as_ref());
        let closed = claim.is_some_and(|claim| claim.read_only == Some(true));
        let backend = self.made.volumes.get(&one.name);
        let content = match backend {
            Some(backend) => Media::Storage(backend.storage.clone()),
            None if media.iter().any(|medium| medium.name == one.name) => Media::Medium(one.name.clone()),
            // An empty drive, for media that come later.
            None if !known && device == DiskDevice::Cdrom => Media::Empty,
            None if !known => {
                self.error(&format!("{at}.name"), format!("there is no volume {:?}", one.name));
                return None;
            }
            // The volume has been complained about.
            None => return None,
        };
        let is_medium = matches!(content, Media::Medium(_));
        if device == DiskDevice::Lun && !backend.is_some_and(|backend| backend.storage.block) {
            self.error(&format!("{at}.lun"), "the volume is not a block device");
        }
        let cache = self.cache(at, one, backend);
        let io = self.io(at, one, backend, cache);
        let error_policy: Option<ErrorPolicy> =
            self.findings.word(&self.path(&format!("{at}.errorPolicy")), one.error_policy.as_deref());
        let tray = one.cdrom.as_ref().and_then(|drive| drive.tray.as_deref());
        let tray: Option<Tray> = self.findings.word(&self.path(&format!("{at}.cdrom.tray")), tray);
        if let Some(serial) = &one.serial
            && (serial.is_empty()
                || serial.len() > 256
                || !serial.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.+-".contains(&b)))
        {
            self.error(&format!("{at}.serial"), "not one to 256 letters, digits and _.+-");
        }
        self.tag(at, one.tag.as_deref());
        let pci_address = self.address_of(at, one, bus);
        let always_writable = device == DiskDevice::Disk && bus == Bus::Sata;
        if always_writable && read_only {
            self.error(
                &format!("{at}.disk.readonly"),
                "a SATA disk cannot be read-only: use cdrom, or virtio",
            );
        }
        if always_writable && closed {
            let text = "the volume is read-only (persistentVolumeClaim.readOnly), which a SATA disk cannot be: use virtio, scsi or cdrom";
            self.error(&format!("{at}.disk.bus"), text);
        }
        let read_only = read_only || closed || (is_medium && !always_writable);
        let queues = cpu.sockets.saturating_mul(cpu.cores).saturating_mul(cpu.threads);
        let multi = self.spec.domain.devices.block_multi_queue.unwrap_or(false) && bus == Bus::Virtio;
        Some(Disk {
            name: one.name.clone(),
            device,
            bus,
            media: content,
            read_only,
            shareable: self.is_shared(one),
            cache,
            io,
            discard: !read_only && backend.is_some_and(|backend| !backend.preallocated),
            error_policy: error_policy.unwrap_or(ErrorPolicy::Stop),
            serial: one.serial.clone(),
            boot_order: None,
            pci_address,
            io_thread: None,
            queues: multi.then_some(queues),
            block_sizes: self.block_sizes(at, one, backend),
            tray,
        })
    }

    /// The address on PCI that a disk asks for.
    fn address_of(&mut self, at: &str, one: &Specified, bus: Bus) -> Option<PciAddress> {
        let asked = one.disk.as_ref()?.pci_address.as_deref().filter(|text| !text.is_empty())?;
        let device = format!("disk {}", self.path(&format!("{at}.name")));
        let field = format!("{at}.disk.pciAddress");
        if bus != Bus::Virtio {
            let text = format!("{device} - setting a PCI address is only possible with bus type virtio.");
            self.error(&field, text);
            return None;
        }
        let is_express = !self.spec.domain.devices.use_virtio_transitional.unwrap_or(false);
        self.pci_address(&field, &device, Some(asked), is_express)
    }

    /// Whether other guests have the disk, too.
    fn is_shared(&self, one: &Specified) -> bool {
        let volume = self.spec.volumes.iter().find(|volume| volume.name == one.name);
        let host = volume.and_then(|volume| volume.host_disk.as_ref());
        one.shareable.unwrap_or(false) || host.is_some_and(|host| host.shared == Some(true))
    }

    /// The kind of device in the guest, its bus, and whether it is read-only.
    fn device(&mut self, at: &str, one: &Specified) -> Option<(DiskDevice, Bus, bool)> {
        let (device, field, bus, read_only) = match (&one.disk, &one.cdrom, &one.lun) {
            (None, None, None) => (DiskDevice::Disk, "disk", None, false),
            (Some(disk), None, None) => {
                (DiskDevice::Disk, "disk", disk.bus.as_deref(), disk.readonly.unwrap_or(false))
            }
            (None, Some(drive), None) => {
                if drive.readonly == Some(false) {
                    self.error(&format!("{at}.cdrom.readonly"), "a CD drive is always read-only");
                }
                (DiskDevice::Cdrom, "cdrom", drive.bus.as_deref(), true)
            }
            (None, None, Some(lun)) => (
                DiskDevice::Lun,
                "lun",
                Some(lun.bus.as_deref().unwrap_or("scsi")),
                lun.readonly.unwrap_or(false),
            ),
            _ => {
                self.error(at, "more than one of disk, cdrom and lun");
                return None;
            }
        };
        let path = self.path(&format!("{at}.{field}.bus"));
        let bus = match bus.filter(|bus| !bus.is_empty()) {
            None => Bus::Sata,
            Some(word) => self.findings.word(&path, Some(word))?,
        };
        match (device, bus) {
            (DiskDevice::Cdrom, Bus::Virtio) => {
                self.findings.error(path, "a CD drive needs the bus sata, scsi or usb")
            }
            (DiskDevice::Lun, Bus::Virtio | Bus::Sata | Bus::Usb) => {
                self.findings.error(path, "a device that is passed through needs the bus scsi");
            }
            (DiskDevice::Disk | DiskDevice::Cdrom | DiskDevice::Lun, _) => {}
        }
        Some((device, bus, read_only))
    }

    fn cache(&mut self, at: &str, one: &Specified, backend: Option<&Backend>) -> Cache {
        let path = self.path(&format!("{at}.cache"));
        let asked: Option<Cache> = self.findings.word(&path, one.cache.as_deref());
        let direct = backend.is_some_and(|backend| backend.direct);
        let shared = self.is_shared(one);
        if shared && asked.is_some_and(|cache| cache != Cache::None) {
            self.findings.error(path, "a shared disk needs cache: none, or no cache field");
        } else if asked == Some(Cache::None) && backend.is_some_and(|backend| !backend.direct) {
            self.findings
                .error(path, "the volume's filesystem has no direct I/O (O_DIRECT), which cache: none needs; use writethrough or another volume");
        }
        match asked {
            Some(cache) => cache,
            None if direct || shared => Cache::None,
            None => Cache::Writethrough,
        }
    }

    fn io(&mut self, at: &str, one: &Specified, backend: Option<&Backend>, cache: Cache) -> Option<Io> {
        let path = self.path(&format!("{at}.io"));
        match one.io.as_deref() {
            None => {
                let ready = backend.is_some_and(|backend| backend.storage.block || backend.preallocated);
                (ready && cache == Cache::None).then_some(Io::Native)
            }
            Some("default") => None,
            Some(word) => {
                let io = self.findings.word(&path, Some(word));
                if io == Some(Io::Native) && cache != Cache::None {
                    self.findings.error(path, "native needs cache: none");
                }
                io
            }
        }
    }

    fn block_sizes(&mut self, at: &str, one: &Specified, backend: Option<&Backend>) -> Option<BlockSizes> {
        let asked = one.block_size.as_ref()?;
        let at = format!("{at}.blockSize");
        match (&asked.custom, &asked.match_volume) {
            (Some(custom), None) => {
                let power = |n: u32| n.is_power_of_two() && (512..=2 << 20).contains(&n);
                match (custom.logical, custom.physical) {
                    (Some(logical), Some(physical))
                        if power(logical) && power(physical) && logical <= physical =>
                    {
                        return Some(BlockSizes { logical, physical });
                    }
                    _ => self.error(
                        &format!("{at}.custom"),
                        "logical and physical must be powers of two from 512 to 2097152, logical at most physical",
                    ),
                }
                None
            }
            (None, Some(volume)) => {
                backend.and_then(|backend| backend.block_sizes).filter(|_| volume.enabled.unwrap_or(true))
            }
            (Some(_), Some(_)) | (None, None) => {
                self.error(&at, "needs exactly one of custom and matchVolume");
                None
            }
        }
    }

    /// Places among what is booted from: from 1, each one once.
    pub(super) fn boot_orders(&mut self) {
        let devices = &self.spec.domain.devices;
        let disks =
            devices.disks.iter().enumerate().map(|(i, disk)| (format!("disks[{i}]"), disk.boot_order));
        let interfaces = devices.interfaces.iter().enumerate();
        let interfaces = interfaces.map(|(i, one)| (format!("interfaces[{i}]"), one.boot_order));
        let mut seen = BTreeSet::new();
        for (device, order) in disks.chain(interfaces).collect::<Vec<_>>() {
            let field = format!("domain.devices.{device}.bootOrder");
            match order {
                None => {}
                Some(0) => self.error(&field, "must be 1 or more"),
                Some(order) if !seen.insert(order) => self.error(&field, format!("{order} is given twice")),
                Some(_) => {}
            }
        }
    }
}

/// Places of disks: those given, or all disks in their order where none is given to any device.
enum BootOrder {
    Given,
    Next(u32),
}

impl BootOrder {
    fn of(resolution: &Resolution<'_>) -> Self {
        let devices = &resolution.spec.domain.devices;
        let given = devices.disks.iter().any(|disk| disk.boot_order.is_some())
            || devices.interfaces.iter().any(|interface| interface.boot_order.is_some());
        if given { Self::Given } else { Self::Next(0) }
    }

    fn next(&mut self, asked: &Specified, disk: &Disk) -> Option<u32> {
        match self {
            Self::Given => asked.boot_order.filter(|order| *order > 0),
            Self::Next(_) if !matches!(disk.media, Media::Storage(_)) => None,
            Self::Next(last) => {
                *last += 1;
                Some(*last)
            }
        }
    }
}
