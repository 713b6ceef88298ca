//! State that a guest keeps besides its disks: the variables of EFI and the memory of a TPM, in a cluster on a small claim of its
//! own, under upstream's name.
//!
//! Not here: making the claim, and its content.

use api::kubevirt::Domain;

/// Label of the claim, with the name of the guest.
pub const LABEL: &str = "persistent-state-for";
/// Requested size.
pub const SIZE: &str = "10Mi";

/// Whether a guest keeps state besides its disks.
pub fn is_kept(domain: &Domain) -> bool {
    let tpm = domain.devices.tpm.as_ref();
    let tpm = tpm.is_some_and(|tpm| tpm.enabled != Some(false) && tpm.persistent == Some(true));
    let loader = domain.firmware.as_ref().and_then(|firmware| firmware.bootloader.as_ref());
    let efi = loader.and_then(|loader| loader.efi.as_ref());
    tpm || efi.is_some_and(|efi| efi.persistent == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn state_is_kept_by_a_persistent_tpm_or_persistent_variables() {
        for (domain, kept) in [
            (json!({}), false),
            (json!({"devices": {"tpm": {}}}), false),
            (json!({"devices": {"tpm": {"persistent": true}}}), true),
            (json!({"devices": {"tpm": {"persistent": true, "enabled": false}}}), false),
            (json!({"firmware": {"bootloader": {"efi": {"secureBoot": false}}}}), false),
            (json!({"firmware": {"bootloader": {"efi": {"persistent": true}}}}), true),
        ] {
            assert_eq!(is_kept(&serde_json::from_value(domain.clone()).unwrap()), kept, "{domain}");
        }
    }
}
