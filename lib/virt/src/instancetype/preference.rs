//! Fields that a preference fills in where a template leaves them open: CPU features, firmware, clock, hardware features. Pure.
//!
//! Not here: devices ([`super::devices`]); the CPU topology, which belongs to the instance type ([`super::size`]).

use api::instancetype::{
    ClockPreferences, FeaturePreferences, FirmwarePreferences, VirtualMachinePreferenceSpec,
};
use api::kubevirt::{
    Bios, Bootloader, Clock, Domain, Efi, Features, Hyperv, VirtualMachineInstanceSpec as Spec,
};
use api::resource::ObjectMeta;

use super::devices;
use super::open::fill;

/// Fills in open fields from a preference.
pub(super) fn apply(preference: &VirtualMachinePreferenceSpec, metadata: &mut ObjectMeta, spec: &mut Spec) {
    for (name, value) in &preference.annotations {
        metadata.annotations.entry(name.clone()).or_insert_with(|| value.clone());
    }
    fill(&mut spec.architecture, &preference.preferred_architecture);
    fill(&mut spec.subdomain, &preference.preferred_subdomain);
    if spec.termination_grace_period_seconds.is_none() {
        let seconds = preference.preferred_termination_grace_period_seconds;
        spec.termination_grace_period_seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    }
    if let Some(wanted) = &preference.devices {
        devices::apply(wanted, spec);
    }
    let domain = &mut spec.domain;
    fill(&mut domain.launch_security, &preference.preferred_launch_security);
    if let Some(cpu) = &preference.cpu {
        let features = &mut domain.cpu.get_or_insert_default().features;
        for preferred in &cpu.preferred_cpu_features {
            if !features.iter().any(|feature| feature.name == preferred.name) {
                features.push(preferred.clone());
            }
        }
    }
    let machine = preference.machine.as_ref().and_then(|machine| machine.preferred_machine_type.as_ref());
    if let Some(kind) = machine.filter(|kind| !kind.is_empty()) {
        let machine = domain.machine.get_or_insert_default();
        if machine.kind.is_empty() {
            machine.kind.clone_from(kind);
        }
    }
    if let Some(wanted) = &preference.clock {
        clock(wanted, domain.clock.get_or_insert_default());
    }
    if let Some(wanted) = &preference.features {
        features(wanted, domain.features.get_or_insert_default());
    }
    if let Some(wanted) = &preference.firmware {
        firmware(wanted, domain);
    }
}

fn clock(wanted: &ClockPreferences, clock: &mut Clock) {
    if clock.utc.is_none()
        && clock.timezone.is_none()
        && let Some(offset) = &wanted.preferred_clock_offset
    {
        clock.utc.clone_from(&offset.utc);
        clock.timezone.clone_from(&offset.timezone);
    }
    fill(&mut clock.timer, &wanted.preferred_timer);
}

fn features(wanted: &FeaturePreferences, features: &mut Features) {
    fill(&mut features.acpi, &wanted.preferred_acpi);
    fill(&mut features.apic, &wanted.preferred_apic);
    fill(&mut features.kvm, &wanted.preferred_kvm);
    fill(&mut features.pvspinlock, &wanted.preferred_pvspinlock);
    fill(&mut features.smm, &wanted.preferred_smm);
    let Some(preferred) = &wanted.preferred_hyperv else { return };
    if features.hyperv_passthrough.is_some() {
        return;
    }
    hyperv(preferred, features.hyperv.get_or_insert_default());
}

/// Each enlightenment by itself.
fn hyperv(wanted: &Hyperv, hyperv: &mut Hyperv) {
    fill(&mut hyperv.relaxed, &wanted.relaxed);
    fill(&mut hyperv.vapic, &wanted.vapic);
    fill(&mut hyperv.spinlocks, &wanted.spinlocks);
    fill(&mut hyperv.vpindex, &wanted.vpindex);
    fill(&mut hyperv.runtime, &wanted.runtime);
    fill(&mut hyperv.synic, &wanted.synic);
    fill(&mut hyperv.synictimer, &wanted.synictimer);
    fill(&mut hyperv.reset, &wanted.reset);
    fill(&mut hyperv.vendorid, &wanted.vendorid);
    fill(&mut hyperv.frequencies, &wanted.frequencies);
    fill(&mut hyperv.reenlightenment, &wanted.reenlightenment);
    fill(&mut hyperv.tlbflush, &wanted.tlbflush);
    fill(&mut hyperv.ipi, &wanted.ipi);
    fill(&mut hyperv.evmcs, &wanted.evmcs);
}

fn firmware(wanted: &FirmwarePreferences, domain: &mut Domain) {
    let firmware = domain.firmware.get_or_insert_default();
    let open =
        firmware.bootloader.as_ref().is_none_or(|loader| loader.bios.is_none() && loader.efi.is_none());
    let (bios, efi) = (wanted.preferred_use_bios == Some(true), wanted.preferred_use_efi == Some(true));
    if open {
        let loader = if let Some(efi) = &wanted.preferred_efi {
            Some(Bootloader { efi: Some(efi.clone()), ..Bootloader::default() })
        } else if efi {
            Some(Bootloader { efi: Some(Efi::default()), ..Bootloader::default() })
        } else {
            bios.then(|| Bootloader { bios: Some(Bios::default()), ..Bootloader::default() })
        };
        if loader.is_some() {
            firmware.bootloader = loader;
        }
    }
    let Some(loader) = &mut firmware.bootloader else { return };
    if let Some(bios) = &mut loader.bios {
        fill(&mut bios.use_serial, &wanted.preferred_use_bios_serial);
    }
    if let Some(efi) = &mut loader.efi {
        fill(&mut efi.secure_boot, &wanted.preferred_use_secure_boot);
    }
}
