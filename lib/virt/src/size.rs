//! The size of a disk on a filesystem claim: of a new one, and of one whose claim grew.

use api::cdi::thousandths;
use api::kubevirt::ClaimInfo;

/// Disks are whole mebibytes.
const MIB: u64 = 1 << 20;
/// Bytes of a filesystem that a new disk leaves free, as upstream.
const RESERVED: u64 = 128 << 10;
/// Per cent of the wanted size that a filesystem may lack, as upstream.
const TOLERATED: u64 = 10;
/// Overhead in thousandths where none is reported.
const DEFAULT_OVERHEAD: u32 = 55;

/// Bytes of a new disk on a claim with `free` bytes in its filesystem: the request, or the capacity if that is less,
/// without the overhead of the filesystem. A filesystem that is a little smaller is used whole.
///
/// # Errors
/// The filesystem is too small, or the claim's quantities cannot be read.
pub fn of_new_disk(info: &ClaimInfo, free: u64) -> Result<u64, String> {
    let free = free.saturating_sub(RESERVED) / MIB * MIB;
    let wanted = wanted(info)?.unwrap_or(free);
    let size = without_overhead(info, wanted)?;
    let least = size / 100 * (100 - TOLERATED);
    match size.min(free) {
        0 => Err(format!(
            "a claim of {wanted} bytes, less the filesystem's overhead, leaves less than 1 MiB for the disk; make it larger"
        )),
        fits if fits >= least => Ok(fits),
        _ => Err(format!(
            "not enough space for the disk: {size} bytes are needed, less {TOLERATED} % at most, and {free} are free; use a larger volume"
        )),
    }
}

/// Bytes that the disk of a claim has once the claim grew, by the same rule; `None`: the claim's size is not known. How
/// much is free does not count: a disk is sparse.
///
/// # Errors
/// The claim's quantities cannot be read.
pub fn of_grown_disk(info: &ClaimInfo) -> Result<Option<u64>, String> {
    wanted(info)?.map(|wanted| without_overhead(info, wanted)).transpose()
}

/// Bytes of a claim that its user asked for and has.
fn wanted(info: &ClaimInfo) -> Result<Option<u64>, String> {
    let bytes = |name: &str, quantities: &std::collections::BTreeMap<_, api::resource::Quantity>| {
        let found = quantities.get("storage").map(|quantity| quantity.bytes());
        found.transpose().map_err(|error| format!("the claim's {name}: {error}"))
    };
    let (requested, capacity) = (bytes("request", &info.requests)?, bytes("capacity", &info.capacity)?);
    Ok(match (requested, capacity) {
        (Some(requested), Some(capacity)) => Some(requested.min(capacity)),
        (one, other) => one.or(other),
    })
}

/// Whole mebibytes of a disk that leaves the overhead of the filesystem free.
fn without_overhead(info: &ClaimInfo, wanted: u64) -> Result<u64, String> {
    let overhead = info.filesystem_overhead.as_deref().map_or(Some(DEFAULT_OVERHEAD), thousandths);
    let overhead =
        overhead.ok_or_else(|| "the reported filesystem overhead is not a number from 0 to 1".to_owned())?;
    let usable = u128::from(wanted) * u128::from(1000 - overhead) / 1000;
    Ok(u64::try_from(usable).unwrap_or(u64::MAX) / MIB * MIB)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grown_disk_follows_the_rule_of_new_ones() {
        for (request, capacity, wanted) in [
            (Some("2Gi"), Some("2Gi"), Ok(Some(1925 * MIB))),
            (Some("2Gi"), Some("1Gi"), Ok(Some(962 * MIB))),
            (Some("1Gi"), Some("100Gi"), Ok(Some(962 * MIB))),
            (None, None, Ok(None)),
            (Some("much"), Some("1Gi"), Err(())),
        ] {
            let quantity = |text: Option<&str>| text.map_or(json!({}), |text| json!({"storage": text}));
            let info = json!({
                "requests": quantity(request), "capacity": quantity(capacity), "filesystemOverhead": "0.06",
            });
            let found = of_grown_disk(&serde_json::from_value(info).unwrap());
            assert_eq!(found.map_err(drop), wanted, "{request:?} {capacity:?}");
        }
    }

    #[test]
    fn new_disk_has_the_requested_size_without_overhead() {
        const GIB: u64 = 1 << 30;
        for (request, capacity, overhead, free, wanted) in [
            (Some("1Gi"), Some("1Gi"), Some("0.06"), 40 * GIB, Ok(962 * MIB)),
            (Some("1Gi"), Some("100Gi"), Some("0.06"), 40 * GIB, Ok(962 * MIB)),
            (Some("10Gi"), Some("1Gi"), Some("0"), 40 * GIB, Ok(GIB)),
            (Some("1Gi"), None, None, 40 * GIB, Ok(967 * MIB)),
            (Some("1Gi"), Some("1Gi"), Some("0"), 1000 * MIB, Ok(999 * MIB)),
            (Some("1Gi"), Some("1Gi"), Some("0"), 500 * MIB, Err("not enough space")),
            (Some("1Mi"), Some("1Mi"), Some("0.06"), GIB, Err("less than 1 MiB")),
            (Some("1Gi"), Some("1Gi"), Some("1"), GIB, Err("less than 1 MiB")),
            (Some("1Gi"), Some("1Gi"), Some("2"), GIB, Err("not a number from 0 to 1")),
            (Some("much"), None, None, GIB, Err("the claim's request")),
            (None, None, Some("0.06"), GIB, Ok(961 * MIB)),
        ] {
            let quantity = |text: Option<&str>| text.map_or(json!({}), |text| json!({"storage": text}));
            let info: ClaimInfo = serde_json::from_value(json!({
                "requests": quantity(request), "capacity": quantity(capacity), "filesystemOverhead": overhead,
            }))
            .unwrap();
            let found = of_new_disk(&info, free);
            match (&found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(*found, wanted, "{request:?} {capacity:?}"),
                (Err(found), Err(wanted)) => assert!(found.contains(wanted), "{found}"),
                _ => panic!("{request:?} {capacity:?} {overhead:?} {free}: {found:?}, not {wanted:?}"),
            }
        }
    }
}
