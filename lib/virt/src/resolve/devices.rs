//! Everything that is neither disk nor network interface.

use std::collections::{BTreeMap, BTreeSet};

use api::launch::{
    Accelerator, Balloon, Devices, Firmware, HostDevice, Input, InputBus, MediatedDevice, PanicModel,
    SerialConsole, SoundModel, Tpm, TpmModel, USB_CHANNELS, UsbDevice, VideoModel, WatchdogAction,
};

use super::volumes::is_label;
use super::{HostAddress, Resolution};
use crate::{host_devices, pod};

/// Seconds between the reports of the balloon.
const STATISTICS_PERIOD: u32 = 10;
/// Name of the tablet that is made where one is asked for without a name.
const TABLET: &str = "default-0";

/// Devices of the host for a guest, by kinds.
#[derive(Default)]
pub(super) struct HostDevices {
    pub(super) pci: Vec<HostDevice>,
    pub(super) mediated: Vec<MediatedDevice>,
    pub(super) usb: Vec<UsbDevice>,
}

impl Resolution<'_> {
    pub(super) fn devices(&mut self, firmware: &Option<Firmware>) -> Devices {
        let asked = &self.spec.domain.devices;
        let hotplug = !asked.disable_hotplug.unwrap_or(false);
        let serial = asked.autoattach_serial_console.unwrap_or(true);
        let log = asked.log_serial_console.unwrap_or(true);
        Devices {
            video: self.video(firmware),
            serial: serial.then(|| SerialConsole {
                log: log.then(|| format!("{}/{}", self.made.folder, pod::CONSOLE_LOG)),
            }),
            inputs: self.inputs(),
            guest_agent: true,
            balloon: asked
                .autoattach_mem_balloon
                .unwrap_or(true)
                .then_some(Balloon { statistics_period: STATISTICS_PERIOD }),
            rng: asked.rng.is_some(),
            sound: self.sound(),
            watchdog: self.watchdog(),
            tpm: self.tpm(),
            panic: self.panic(),
            scsi_controller: hotplug,
            hotplug,
            transitional: asked.use_virtio_transitional.unwrap_or(false),
            usb_channels: asked.client_passthrough.is_some().then_some(USB_CHANNELS),
        }
    }

    /// Each takes the next device that the guest was given of its resource.
    pub(super) fn host_devices(&mut self) -> HostDevices {
        let mut found = HostDevices::default();
        let mut names = BTreeSet::new();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        let asked = host_devices::requested(self.spec);
        if asked.iter().filter(|one| one.display.ramfb && one.display.explicit).count() > 1 {
            self.error("domain.devices.gpus", "configuring multiple displays with ramfb is not valid");
        }
        let screen = self.spec.domain.devices.autoattach_graphics_device.unwrap_or(true);
        for one in asked {
            let name = one.alias();
            if !is_label(one.name) || !names.insert(name.clone()) {
                self.error(
                    &format!("{}.name", one.path),
                    "given twice, or not a name of lower-case letters, digits and -",
                );
            }
            let at = format!("{}.deviceName", one.path);
            if one.resource.is_empty() {
                self.error(&at, "is missing: name a resource of permittedHostDevices");
                continue;
            }
            let place = taken.entry(one.resource).or_default();
            let address = self.made.host_devices.get(one.resource).and_then(|all| all.get(*place));
            *place += 1;
            match address {
                Some(HostAddress::Pci(address)) => found.pci.push(HostDevice { name, address: *address }),
                Some(HostAddress::Mediated(uuid)) => {
                    let display = screen && one.display.shown;
                    // QEMU has one such frame buffer.
                    let ramfb =
                        display && one.display.ramfb && !found.mediated.iter().any(|other| other.ramfb);
                    found.mediated.push(MediatedDevice { name, uuid: uuid.clone(), display, ramfb });
                }
                Some(HostAddress::Usb(set)) => match one.no_usb() {
                    Some(problem) => self.error(&at, problem),
                    None => found.usb.extend(set.iter().enumerate().map(|(number, address)| UsbDevice {
                        name: one.usb_alias(number),
                        address: *address,
                    })),
                },
                None => self.error(&at, format!("the pod has too few devices of {}", one.resource)),
            }
        }
        found
    }

    fn video(&mut self, firmware: &Option<Firmware>) -> Option<VideoModel> {
        let asked = &self.spec.domain.devices;
        let kind = asked.video.as_ref().and_then(|video| video.kind.as_deref());
        if !asked.autoattach_graphics_device.unwrap_or(true) {
            if kind.is_some() {
                self.error("domain.devices.video", "needs a screen, and autoattachGraphicsDevice is false");
            }
            return None;
        }
        let default = match firmware {
            Some(Firmware::Efi(_)) => VideoModel::Bochs,
            Some(Firmware::Bios { .. }) | None => VideoModel::Vga,
        };
        let path = self.path("domain.devices.video.type");
        Some(self.findings.word(&path, kind).unwrap_or(default))
    }

    fn inputs(&mut self) -> Vec<Input> {
        let asked = &self.spec.domain.devices;
        let mut inputs: Vec<Input> = Vec::new();
        for (index, one) in asked.inputs.iter().enumerate() {
            let at = format!("domain.devices.inputs[{index}]");
            if one.kind != "tablet" {
                self.error(&format!("{at}.type"), format!("{:?} is not tablet", one.kind));
            }
            if !is_label(&one.name) || inputs.iter().any(|other| other.name == one.name) {
                self.error(
                    &format!("{at}.name"),
                    "given twice, or not a name of lower-case letters, digits and -",
                );
            }
            let bus = one.bus.as_deref().filter(|bus| !bus.is_empty());
            let bus = self.findings.word(&self.path(&format!("{at}.bus")), bus).unwrap_or(InputBus::Usb);
            inputs.push(Input { name: one.name.clone(), bus });
        }
        if inputs.is_empty() && asked.autoattach_input_device.unwrap_or(false) {
            inputs.push(Input { name: TABLET.to_owned(), bus: InputBus::Usb });
        }
        inputs
    }

    fn sound(&mut self) -> Option<SoundModel> {
        let asked = self.spec.domain.devices.sound.as_ref()?;
        let path = self.path("domain.devices.sound.model");
        let model = asked.model.as_deref().filter(|model| !model.is_empty());
        Some(self.findings.word(&path, model).unwrap_or(SoundModel::Ich9))
    }

    fn watchdog(&mut self) -> Option<WatchdogAction> {
        let asked = self.spec.domain.devices.watchdog.as_ref()?;
        let Some(device) = &asked.i6300esb else {
            if asked.diag288.is_none() {
                self.error("domain.devices.watchdog", "the model is missing: set i6300esb: {}");
            }
            return None;
        };
        let path = self.path("domain.devices.watchdog.i6300esb.action");
        Some(self.findings.word(&path, device.action.as_deref()).unwrap_or(WatchdogAction::Reset))
    }

    fn tpm(&mut self) -> Option<Tpm> {
        let asked = self.spec.domain.devices.tpm.as_ref().filter(|tpm| tpm.enabled.unwrap_or(true))?;
        let persistent = asked.persistent.unwrap_or(false);
        let model = if persistent { TpmModel::Crb } else { TpmModel::Tis };
        let state = persistent.then(|| self.made.state.clone()).filter(|state| !state.is_empty());
        Some(Tpm { model, persistent, state })
    }

    fn panic(&mut self) -> Vec<PanicModel> {
        let mut models = Vec::new();
        for (index, one) in self.spec.domain.devices.panic_devices.iter().enumerate() {
            let at = format!("domain.devices.panicDevices[{index}]");
            let path = self.path(&format!("{at}.model"));
            let model = self.findings.word(&path, one.model.as_deref()).unwrap_or(PanicModel::Isa);
            if models.contains(&model) {
                self.error(&at, "is given twice");
            }
            if model == PanicModel::Hyperv && self.host.accelerator == Accelerator::Tcg {
                self.error(&format!("{at}.model"), "only with KVM");
            }
            models.push(model);
        }
        models
    }
}
