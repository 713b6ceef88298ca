//! Claim properties of a class without a provisioner: the modes of the volumes that an administrator has made for it.
//! Pure.

use super::Property;
use crate::storage::seen::Volume;

/// Provisioner of classes without one: administrators make the volumes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Access modes in order of preference.
const MODES: [&str; 4] = ["ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany"];

/// The properties of a class with these volumes, the preferred one first: shared before single, Block before
/// Filesystem.
pub fn properties(volumes: &[Volume]) -> Vec<Property> {
    let of = |volume: &Volume| {
        let block = volume.block;
        let property = move |mode: &String| Property { modes: vec![mode.clone()], block };
        volume.modes.iter().map(property).collect::<Vec<_>>()
    };
    let mut found: Vec<Property> = volumes.iter().flat_map(of).collect();
    let rank = |property: &Property| MODES.iter().position(|mode| property.modes == [*mode]);
    found.sort_by_key(|property| (rank(property).unwrap_or(MODES.len()), !property.block));
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_of_the_volumes_is_one_property_in_order_of_preference() {
        let volume = |modes: &[&str], block| Volume {
            modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
            block,
            ..Volume::default()
        };
        let volumes = [
            volume(&["ReadOnlyMany", "ReadWriteOnce"], false),
            volume(&["ReadWriteOnce"], true),
            volume(&["ReadWriteOnce"], false),
            volume(&["ReadWriteMany"], false),
        ];
        let found = properties(&volumes);
        let found: Vec<_> = found.iter().map(|one| (one.modes.join(","), one.block)).collect();
        let wanted = [
            ("ReadWriteMany", false),
            ("ReadWriteOnce", true),
            ("ReadWriteOnce", false),
            ("ReadOnlyMany", false),
        ];
        assert_eq!(found, wanted.map(|(mode, block)| (mode.to_owned(), block)));
        assert!(properties(&[]).is_empty());
    }
}
