//! Amounts of bytes in messages.

/// Bytes in the largest unit of which there is at least one.
pub(crate) fn display(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "bytes";
    for larger in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = larger;
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{}.{} {unit}", tenths / 10, tenths % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        assert_eq!(display(1023), "1023 bytes");
        assert_eq!(display(1536), "1.5 KiB");
        assert_eq!(display(u64::MAX), "15.9 EiB");
    }
}
