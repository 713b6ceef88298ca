//! Memory that QEMU and the launcher of a guest need in addition to the guest's. Pure.
//!
//! Not here: requests and limits of pods.

use api::kubevirt::Domain;

const MIB: u64 = 1 << 20;
/// virt-launcher with libvirt embedded, and the pages that it shares.
const LAUNCHER: u64 = 64 * MIB;
/// QEMU itself.
const QEMU: u64 = 50 * MIB;
/// QEMU for each vCPU.
const VCPU: u64 = 8 * MIB;
/// I/O threads.
const IO_THREADS: u64 = 8 * MIB;
/// A screen.
const GRAPHICS: u64 = 32 * MIB;
/// The emulator of a TPM.
const TPM: u64 = 53 * MIB;
/// Code that QEMU translates without KVM.
const TRANSLATION: u64 = 128 * MIB;
/// Pages of the guest for each page of tables.
const PAGE_TABLES: u64 = 512;

/// vCPUs at the start.
pub fn vcpus(domain: &Domain) -> u64 {
    let topology = domain.cpu.as_ref();
    let given = topology.is_some_and(|cpu| cpu.sockets.or(cpu.cores).or(cpu.threads).is_some());
    if given {
        let of = |count: Option<u32>| u64::from(count.unwrap_or(1));
        return topology.map_or(1, |cpu| of(cpu.sockets) * of(cpu.cores) * of(cpu.threads));
    }
    let resources = domain.resources.as_ref();
    let cpu = resources.and_then(|resources| resources.limits.get("cpu").or(resources.requests.get("cpu")));
    cpu.and_then(|cpu| cpu.bytes().ok()).unwrap_or(1).max(1)
}

/// Bytes that a guest with `memory` bytes needs in addition to them, under KVM.
pub fn bytes(domain: &Domain, memory: u64) -> u64 {
    let devices = &domain.devices;
    let mut bytes = memory / PAGE_TABLES + LAUNCHER + QEMU + VCPU.saturating_mul(vcpus(domain)) + IO_THREADS;
    if devices.autoattach_graphics_device != Some(false) {
        bytes += GRAPHICS;
    }
    if devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled != Some(false)) {
        bytes += TPM;
    }
    bytes
}

/// The overhead that a cluster's settings make of those bytes: emulation adds to it, and a ratio multiplies it.
pub fn scaled(bytes: u64, emulation: bool, percent: u32) -> u64 {
    let bytes = if emulation { bytes.saturating_add(TRANSLATION) } else { bytes };
    // The ratio is 100 at most, so this has room for any guest.
    bytes.saturating_mul(u64::from(percent)) / 100
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vcpus_memory_and_devices_decide_the_overhead() {
        let of = |domain: serde_json::Value| bytes(&serde_json::from_value(domain).unwrap(), 1 << 30) / MIB;
        for (domain, expected) in [
            (json!({"devices": {}}), 164),
            (json!({"devices": {"autoattachGraphicsDevice": false}}), 132),
            (json!({"devices": {"tpm": {}}}), 217),
            (json!({"devices": {"tpm": {"enabled": false}}}), 164),
            (json!({"devices": {}, "cpu": {"cores": 2, "sockets": 2}}), 188),
            (json!({"devices": {}, "resources": {"limits": {"cpu": "3"}}}), 180),
        ] {
            assert_eq!(of(domain.clone()), expected, "{domain}");
        }
        assert_eq!(scaled(100 * MIB, false, 100), 100 * MIB);
        assert_eq!(scaled(100 * MIB, true, 150), 342 * MIB);
    }
}
