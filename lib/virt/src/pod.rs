//! Where everything of a guest is inside its launcher pod: one place for the operator that builds the pod, the agent that
//! fills it, and the launcher.
//!
//! Not here: paths of the node below which the kubelet has the same directories.

use api::kubevirt::{VirtualMachineInstanceSpec, Volume};

/// The launcher's directory: socket, libvirt's root, logs, state. emptyDir `private`.
pub const PRIVATE: &str = "/var/run/kubevirt-private";
/// emptyDir `public`.
pub const PUBLIC: &str = "/var/run/kubevirt";
/// Images of containerDisks, `disk_<index>.img`. emptyDir `container-disks`.
pub const CONTAINER_DISKS: &str = "/var/run/kubevirt/container-disks";
/// Overlays and empty disks, which end with the pod. emptyDir `ephemeral-disks`.
pub const EPHEMERAL: &str = "/var/run/kubevirt-ephemeral-disks";
/// Volumes that are attached while the guest runs. emptyDir `hotplug-disks`.
pub const HOTPLUG: &str = "/var/run/kubevirt/hotplug-disks";

/// State of the guest besides its disks ([`crate::state`]), where it keeps some.
pub const STATE: &str = "/var/run/kubevirt-private/vm-state";
/// The volume there.
pub const STATE_VOLUME: &str = "vm-state";
/// Output of the guest's first serial port, in the launcher's directory.
pub const CONSOLE_LOG: &str = "serial0.log";
/// The container that prints it.
pub const CONSOLE_LOGGER: &str = "guest-console-log";
/// Where programs look for the token of their pod's ServiceAccount.
pub const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The volume, in upstream's words, for the image with the guest's kernel.
pub const KERNEL_VOLUME: &str = "kernel-boot-volume";
/// The guest's kernel and its first filesystem, in [`CONTAINER_DISKS`].
pub const KERNEL: &str = "kernel";
/// See [`KERNEL`].
pub const INITRD: &str = "initrd";

/// The container that keeps an image open, by the volume that it is for.
pub fn image_container(volume: &str) -> String {
    format!("volume{volume}")
}

/// Mount point of an image, where the kubelet mounts it in place of such a container.
pub fn image_directory(volume: &str) -> String {
    format!("{PRIVATE}/images/{volume}")
}

/// Mount point of a claim with a filesystem.
pub fn claim_directory(volume: &str) -> String {
    format!("{PRIVATE}/vmi-disks/{volume}")
}

/// The disk's file on a claim with a filesystem.
pub fn claim_file(volume: &str) -> String {
    format!("{}/disk.img", claim_directory(volume))
}

/// The device of a claim that is a block device.
pub fn claim_device(volume: &str) -> String {
    format!("/dev/{volume}")
}

/// Mount point of a Secret.
pub fn secret(volume: &str) -> String {
    format!("{PRIVATE}/secret/{volume}")
}

/// Mount point of a ConfigMap.
pub fn config_map(volume: &str) -> String {
    format!("{PRIVATE}/config-map/{volume}")
}

/// The image of a containerDisk, by its number among the instance's volumes ([`container_disks`]).
pub fn container_disk(index: usize) -> String {
    format!("{CONTAINER_DISKS}/{}", container_disk_file(index))
}

/// The same, in [`CONTAINER_DISKS`].
pub fn container_disk_file(index: usize) -> String {
    format!("disk_{index}.img")
}

/// The file or device of a volume that was attached while the guest runs.
pub fn hotplugged(volume: &str) -> String {
    format!("{HOTPLUG}/{}", hotplugged_file(volume))
}

/// Its name in that directory.
pub fn hotplugged_file(volume: &str) -> String {
    format!("{volume}.img")
}

/// Mount point of a claim with a filesystem in its attachment pod.
pub fn attached_directory(volume: &str) -> String {
    format!("/attached/{volume}")
}

/// The device of a claim that is a block device in its attachment pod.
pub fn attached_device(volume: &str) -> String {
    format!("/dev/attached-{volume}")
}

/// The overlay of a containerDisk or an ephemeral claim, and the file of an empty disk.
pub fn ephemeral(volume: &str) -> String {
    format!("{EPHEMERAL}/{volume}.qcow2")
}

/// containerDisks of an instance, each with its number among all volumes, which names its image.
pub fn container_disks(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = (usize, &Volume)> {
    spec.volumes.iter().enumerate().filter(|(_, volume)| volume.container_disk.is_some())
}
