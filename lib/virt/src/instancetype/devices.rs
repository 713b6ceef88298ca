//! Devices: fields that a preference fills in. Pure.

use api::instancetype::DevicePreferences;
use api::kubevirt::{Disk, DiskTarget, Interface, Network, VideoDevice, VirtualMachineInstanceSpec as Spec};

use super::open::fill;

/// Fills in open fields from a preference.
pub(super) fn apply(wanted: &DevicePreferences, spec: &mut Spec) {
    let devices = &mut spec.domain.devices;
    fill(&mut devices.autoattach_graphics_device, &wanted.preferred_autoattach_graphics_device);
    fill(&mut devices.autoattach_input_device, &wanted.preferred_autoattach_input_device);
    fill(&mut devices.autoattach_mem_balloon, &wanted.preferred_autoattach_mem_balloon);
    fill(&mut devices.autoattach_pod_interface, &wanted.preferred_autoattach_pod_interface);
    fill(&mut devices.autoattach_serial_console, &wanted.preferred_autoattach_serial_console);
    fill(&mut devices.block_multi_queue, &wanted.preferred_block_multi_queue);
    fill(&mut devices.network_interface_multiqueue, &wanted.preferred_network_interface_multi_queue);
    fill(&mut devices.use_virtio_transitional, &wanted.preferred_use_virtio_transitional);
    fill(&mut devices.disable_hotplug, &wanted.preferred_disable_hotplug);
    fill(&mut devices.rng, &wanted.preferred_rng);
    fill(&mut devices.tpm, &wanted.preferred_tpm);
    if let Some(sound) = &mut devices.sound {
        fill(&mut sound.model, &wanted.preferred_sound_model);
    }
    if let Some(kind) = &wanted.preferred_video_type
        && devices.autoattach_graphics_device != Some(false)
    {
        let video = devices.video.get_or_insert_with(VideoDevice::default);
        video.kind.get_or_insert_with(|| kind.clone());
    }
    for panic in &mut devices.panic_devices {
        fill(&mut panic.model, &wanted.preferred_panic_device_model);
    }
    for gpu in &mut devices.gpus {
        fill(&mut gpu.virtual_gpu_options, &wanted.preferred_virtual_gpu_options);
    }
    for input in &mut devices.inputs {
        fill(&mut input.bus, &wanted.preferred_input_bus);
        if input.kind.is_empty() {
            input.kind = wanted.preferred_input_type.clone().unwrap_or_default();
        }
    }
    for one in &mut devices.disks {
        disk(wanted, one);
    }
    for one in &mut devices.interfaces {
        interface(wanted, one, &spec.networks);
    }
}

fn disk(wanted: &DevicePreferences, disk: &mut Disk) {
    if disk.disk.is_none() && disk.cdrom.is_none() && disk.lun.is_none() {
        disk.disk = Some(DiskTarget::default());
    }
    if let Some(drive) = &mut disk.cdrom {
        fill(&mut drive.bus, &wanted.preferred_cdrom_bus);
    }
    if let Some(device) = &mut disk.lun {
        fill(&mut device.bus, &wanted.preferred_lun_bus);
    }
    let Some(target) = &mut disk.disk else { return };
    fill(&mut target.bus, &wanted.preferred_disk_bus);
    fill(&mut disk.block_size, &wanted.preferred_disk_block_size);
    fill(&mut disk.cache, &wanted.preferred_disk_cache);
    fill(&mut disk.io, &wanted.preferred_disk_io);
    // Other buses have no I/O threads.
    if target.bus.as_deref() == Some("virtio") {
        fill(&mut disk.dedicated_io_thread, &wanted.preferred_disk_dedicated_io_thread);
    }
}

fn interface(wanted: &DevicePreferences, interface: &mut Interface, networks: &[Network]) {
    let unbound = interface.masquerade.is_none()
        && interface.bridge.is_none()
        && interface.binding.is_none()
        && interface.sriov.is_none()
        && interface.passt_binding.is_none();
    if interface.sriov.is_none() && interface.binding.is_none() {
        fill(&mut interface.model, &wanted.preferred_interface_model);
    }
    let on_pod = networks.iter().any(|network| network.name == interface.name && network.pod.is_some());
    if unbound && on_pod {
        fill(&mut interface.masquerade, &wanted.preferred_interface_masquerade);
    }
}
