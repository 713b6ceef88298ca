//! Processors, memory, firmware and machine type of a guest. Not here: its devices.

use api::kubevirt::{Efi as EfiSpec, VirtualMachineInstanceSpec};
use api::launch::{
    Accelerator, Chassis, Cpu, CpuFeature, CpuModel, Efi, FeaturePolicy, Firmware, Kernel, Memory,
    PROCESSORS_MAX, Pinning, Smbios,
};
use api::quantity;

use super::Resolution;
use super::volumes::is_path;
use crate::pod;

const MIB: u64 = 1 << 20;
/// Guests with less memory than this do not grow: upstream's rule.
const GROWING: u64 = 1 << 30;
/// Memory is added in blocks of this size.
const BLOCK: u64 = 2 * MIB;
/// Least memory a guest can have.
const LEAST: u64 = MIB;
/// Most memory a guest can have, now or later.
const MOST: u64 = 1 << 46;

/// Limits of the sockets and the memory that a guest can be given while it runs, where its spec leaves them open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Most sockets; `None`: by the ratio.
    pub sockets: Option<u32>,
    /// Most memory in bytes; `None`: by the ratio.
    pub memory: Option<u64>,
    /// Sockets, and memory, that there can be later: as many times those at the start.
    pub ratio: u32,
}

impl Default for Growth {
    fn default() -> Self {
        Self { sockets: None, memory: None, ratio: 4 }
    }
}

impl Growth {
    /// The default of the most sockets later; no fewer than at the start.
    fn most_sockets(self, sockets: u32, cores: u32, threads: u32) -> u32 {
        let per_socket = u64::from(cores) * u64::from(threads);
        let most = u32::try_from(u64::from(PROCESSORS_MAX) / per_socket.max(1)).unwrap_or(PROCESSORS_MAX);
        self.sockets.unwrap_or_else(|| sockets.saturating_mul(self.ratio)).min(most).max(sockets)
    }

    /// The default of the most memory later; no less than at the start.
    fn most_memory(self, guest: u64, huge: bool) -> u64 {
        if guest < GROWING || huge {
            return guest;
        }
        self.memory.unwrap_or_else(|| guest.saturating_mul(self.ratio.into())).min(MOST).max(guest)
    }
}

/// Processors as Kubernetes counts them, rounded up: requests, else limits, else one; and what is wrong, by field.
fn requested_processors(spec: &VirtualMachineInstanceSpec) -> (u32, Vec<(String, String)>) {
    let resources = spec.domain.resources.clone().unwrap_or_default();
    let mut wrong = Vec::new();
    for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        let Some(amount) = amounts.get("cpu") else { continue };
        let said = match amount.bytes().map(u32::try_from) {
            Ok(Ok(number)) => return (number.max(1), wrong),
            Ok(Err(_)) => "too many".to_owned(),
            Err(error) => error.to_string(),
        };
        wrong.push((format!("domain.resources.{list}.cpu"), said));
    }
    (1, wrong)
}

/// How many processors a guest has.
pub(super) fn processors(spec: &VirtualMachineInstanceSpec) -> u32 {
    let asked = spec.domain.cpu.clone().unwrap_or_default();
    let counts = [asked.sockets, asked.cores, asked.threads];
    if counts.iter().all(Option::is_none) {
        return requested_processors(spec).0;
    }
    counts.into_iter().map(|count| count.unwrap_or(1)).fold(1, u32::saturating_mul)
}

/// Sockets, cores and threads that a guest starts with. Where none is given, sockets are the processors that Kubernetes
/// is asked for.
pub fn topology(spec: &VirtualMachineInstanceSpec) -> (u32, u32, u32) {
    let asked = spec.domain.cpu.clone().unwrap_or_default();
    let counted = asked.sockets.is_some() || asked.cores.is_some() || asked.threads.is_some();
    let sockets = if counted { asked.sockets.unwrap_or(1) } else { requested_processors(spec).0 };
    (sockets, asked.cores.unwrap_or(1), asked.threads.unwrap_or(1))
}

/// Whether a guest asks for CPUs to itself. Their number is fixed when its pod is created, so it cannot be given more vCPUs.
pub fn is_dedicated(spec: &VirtualMachineInstanceSpec) -> bool {
    spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement == Some(true))
}

/// Most sockets, and most bytes of memory, that a guest can be given while it runs, where the spec leaves that open and has
/// the initial values.
pub fn room(spec: &VirtualMachineInstanceSpec, growth: Growth) -> (Option<u32>, Option<u64>) {
    let (sockets, cores, threads) = topology(spec);
    let huge = spec.domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
    let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let guest = guest.and_then(|amount| amount.bytes().ok()?.checked_next_multiple_of(MIB));
    let room = guest.map(|guest| {
        let max = growth.most_memory(guest, huge);
        guest + (max - guest) - (max - guest) % BLOCK
    });
    let most = if is_dedicated(spec) { sockets } else { growth.most_sockets(sockets, cores, threads) };
    (Some(most), room)
}

impl Resolution<'_> {
    pub(super) fn cpu(&mut self) -> Cpu {
        let asked = self.spec.domain.cpu.clone().unwrap_or_default();
        let counted = asked.sockets.is_some() || asked.cores.is_some() || asked.threads.is_some();
        let sockets = if counted { asked.sockets.unwrap_or(1) } else { self.requested_processors() };
        let (cores, threads) = (asked.cores.unwrap_or(1), asked.threads.unwrap_or(1));
        for (field, value) in [("sockets", sockets), ("cores", cores), ("threads", threads)] {
            if value == 0 {
                self.error(&format!("domain.cpu.{field}"), "at least 1");
            }
        }
        let per_socket = u64::from(cores) * u64::from(threads);
        let total = per_socket.saturating_mul(sockets.into());
        if total > PROCESSORS_MAX.into() {
            self.error("domain.cpu", format!("{total} vCPUs; {PROCESSORS_MAX} is the limit"));
        }
        let most = u32::try_from(u64::from(PROCESSORS_MAX) / per_socket.max(1)).unwrap_or(PROCESSORS_MAX);
        let max_sockets = match asked.max_sockets {
            None => Growth::default().most_sockets(sockets, cores, threads),
            Some(max) => {
                if max < sockets {
                    self.error("domain.cpu.maxSockets", "less than sockets");
                } else if max > most {
                    self.error("domain.cpu.maxSockets", format!("more than {PROCESSORS_MAX} vCPUs"));
                }
                max
            }
        };
        let isolated = asked.isolate_emulator_thread == Some(true);
        let pinning = (self.made.own_cpus && is_dedicated(self.spec)).then_some(if isolated {
            Pinning::All
        } else {
            Pinning::Vcpus
        });
        let max_sockets = if pinning.is_some() { sockets } else { max_sockets };
        let mut features = Vec::new();
        for (index, feature) in asked.features.iter().enumerate() {
            let at = format!("domain.cpu.features[{index}]");
            if feature.name.is_empty() {
                self.error(&format!("{at}.name"), "missing");
            }
            let path = self.path(&format!("{at}.policy"));
            let policy = self.findings.word(&path, feature.policy.as_deref());
            features.push(CpuFeature {
                name: feature.name.clone(),
                policy: policy.unwrap_or(FeaturePolicy::Require),
            });
        }
        let model = match asked.model.as_deref() {
            None | Some("host-model" | "") => CpuModel::HostModel,
            // Without KVM there is no processor to pass through.
            Some("host-passthrough") => match self.host.accelerator {
                Accelerator::Kvm => CpuModel::HostPassthrough,
                Accelerator::Tcg => CpuModel::Maximum,
            },
            Some(name) => CpuModel::Named(name.to_owned()),
        };
        Cpu { sockets, max_sockets, cores, threads, model, features, pinning }
    }

    fn requested_processors(&mut self) -> u32 {
        let (number, wrong) = requested_processors(self.spec);
        for (field, said) in wrong {
            self.error(&field, said);
        }
        number
    }

    pub(super) fn memory(&mut self) -> Option<Memory> {
        let asked = self.spec.domain.memory.clone().unwrap_or_default();
        let resources = self.spec.domain.resources.clone().unwrap_or_default();
        let requested = [
            ("domain.memory.guest", asked.guest.as_ref()),
            ("domain.resources.requests.memory", resources.requests.get("memory")),
            ("domain.resources.limits.memory", resources.limits.get("memory")),
        ];
        let mut sizes = Vec::new();
        for (field, amount) in requested {
            match amount.map(|amount| amount.bytes()) {
                None => {}
                Some(Ok(bytes)) => sizes.push((field, bytes)),
                Some(Err(error)) => {
                    self.error(field, error.to_string());
                    return None;
                }
            }
        }
        let Some(&(field, bytes)) = sizes.first() else {
            self.error(
                "domain.memory.guest",
                "the size of the guest's memory is missing: set this field, or resources.requests.memory",
            );
            return None;
        };
        if !(LEAST..=MOST).contains(&bytes) {
            self.error(field, "not between 1Mi and 64Ti");
            return None;
        }
        if let Some((limit, _)) =
            sizes.iter().find(|(field, size)| *field == "domain.resources.limits.memory" && *size < bytes)
        {
            self.error(limit, "less than the guest's memory");
        }
        let huge_page = self.huge_page(bytes)?;
        let guest = bytes.checked_next_multiple_of(MIB)?;
        let max_guest = match &asked.max_guest {
            None => Growth::default().most_memory(guest, huge_page.is_some()),
            Some(amount) => match amount.bytes() {
                Ok(max) if (bytes..=MOST).contains(&max) => max,
                Ok(_) => {
                    self.error("domain.memory.maxGuest", "less than the guest's memory, or more than 64Ti");
                    guest
                }
                Err(error) => {
                    self.error("domain.memory.maxGuest", error.to_string());
                    guest
                }
            },
        };
        let more = max_guest.saturating_sub(guest);
        Some(Memory { guest, max_guest: guest + more - more % BLOCK, huge_page })
    }

    /// The size of huge pages, if any; `None` after an error.
    fn huge_page(&mut self, memory: u64) -> Option<Option<u64>> {
        let Some(pages) = self.spec.domain.memory.as_ref().and_then(|memory| memory.hugepages.clone()) else {
            return Some(None);
        };
        let size = pages.page_size.as_deref().map(quantity::bytes);
        match size {
            Some(Ok(size)) if [2 * MIB, 1 << 30].contains(&size) && memory.is_multiple_of(size) => {
                Some(Some(size))
            }
            Some(Ok(size)) if [2 * MIB, 1 << 30].contains(&size) => {
                self.error(
                    "domain.memory.hugepages.pageSize",
                    "the guest's memory is not a multiple of the page size",
                );
                None
            }
            Some(_) | None => {
                self.error("domain.memory.hugepages.pageSize", "neither 2Mi nor 1Gi");
                None
            }
        }
    }

    pub(super) fn machine(&mut self) -> String {
        let kind = self.spec.domain.machine.as_ref().map_or("", |machine| machine.kind.as_str());
        match kind {
            "" | "q35" => self.host.machine.clone(),
            // Distributions put their own version in: pc-q35-rhel9.6.0.
            other if other.starts_with("pc-q35-") => other.to_owned(),
            other => {
                self.error(
                    "domain.machine.type",
                    format!("{other:?} is not a machine type that is supported: use q35 or pc-q35-…"),
                );
                self.host.machine.clone()
            }
        }
    }

    pub(super) fn smbios(&mut self) -> Smbios {
        let asked = self.spec.domain.firmware.clone().unwrap_or_default();
        let chassis = self.spec.domain.chassis.clone().unwrap_or_default();
        let uuid = match asked.uuid {
            None => self.guest.smbios_uuid.clone(),
            Some(uuid) => {
                let digits = uuid.replace('-', "");
                if uuid.len() != 36 || digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    self.error("domain.firmware.uuid", "not a UUID");
                }
                uuid.to_ascii_lowercase()
            }
        };
        Smbios {
            uuid,
            serial: Some(asked.serial.unwrap_or_else(|| self.guest.smbios_serial.clone())),
            system: self.host.system.clone(),
            chassis: Chassis {
                manufacturer: chassis.manufacturer,
                version: chassis.version,
                serial: chassis.serial,
                asset: chassis.asset,
                sku: chassis.sku,
            },
        }
    }

    pub(super) fn firmware(&mut self) -> Option<Firmware> {
        let loader = self.spec.domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.clone());
        let loader = loader.unwrap_or_default();
        match (loader.bios, loader.efi) {
            (Some(_), Some(_)) => {
                self.error("domain.firmware.bootloader", "bios and efi exclude each other");
                None
            }
            (bios, None) => {
                Some(Firmware::Bios { serial: bios.and_then(|bios| bios.use_serial).unwrap_or(false) })
            }
            (None, Some(efi)) => self.efi(&efi).map(Firmware::Efi),
        }
    }

    /// The kernel that is started in place of a boot loader, where its image's files are shown to the launcher.
    pub(super) fn kernel(&mut self) -> Option<Kernel> {
        let asked = self.spec.domain.firmware.as_ref()?.kernel_boot.as_ref()?;
        let field = "domain.firmware.kernelBoot";
        let Some(container) = &asked.container else {
            let text = "no image holds the kernel: name one in kernelBoot.container";
            self.error(&format!("{field}.container"), text);
            return None;
        };
        if container.image.is_empty() {
            self.error(&format!("{field}.container.image"), "missing");
        }
        if container.kernel_path.is_none() {
            self.error(&format!("{field}.container.kernelPath"), "missing: the kernel's path in the image");
        }
        for (name, path) in [("kernelPath", &container.kernel_path), ("initrdPath", &container.initrd_path)] {
            if path.as_ref().is_some_and(|path| !is_path(path)) {
                let text = "not an absolute path without . and ..";
                self.error(&format!("{field}.container.{name}"), text);
            }
        }
        let shown = |name: &str| format!("{}/{name}", pod::CONTAINER_DISKS);
        Some(Kernel {
            image: shown(pod::KERNEL),
            initrd: container.initrd_path.is_some().then(|| shown(pod::INITRD)),
            arguments: asked.kernel_args.clone().filter(|arguments| !arguments.is_empty()),
        })
    }

    fn efi(&mut self, asked: &EfiSpec) -> Option<Efi> {
        let field = "domain.firmware.bootloader.efi";
        let secure_boot = asked.secure_boot.unwrap_or(true);
        let smm = self.spec.domain.features.as_ref().and_then(|features| features.smm.as_ref());
        if secure_boot && !smm.is_some_and(|smm| smm.enabled.unwrap_or(true)) {
            self.error(
                &format!("{field}.secureBoot"),
                "secure boot (the default with efi) needs features.smm.enabled: true; or set secureBoot: false",
            );
        }
        let found = if secure_boot { &self.host.ovmf_secure } else { &self.host.ovmf };
        let Some((code, template)) = found.clone() else {
            let text = "OVMF is not on this machine; on Debian: apt install ovmf";
            self.error(field, text);
            return None;
        };
        let folder = if asked.persistent.unwrap_or(false) { &self.made.state } else { &self.made.folder };
        Some(Efi { code, template, variables: format!("{folder}/nvram.fd"), secure_boot })
    }
}
