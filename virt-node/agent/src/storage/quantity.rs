//! Bytes as Kubernetes writes them: `resource.Quantity` in the format BinarySI. Reading is lib/api's.

/// The canonical text of a number of bytes: the largest binary suffix that divides it.
pub(super) fn text(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut number = bytes;
    let mut suffix = 0;
    while number != 0 && number.is_multiple_of(1024) && suffix + 1 < suffixes.len() {
        number /= 1024;
        suffix += 1;
    }
    format!("{number}{}", suffixes.get(suffix).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn bytes_are_written_as_kubernetes_writes_them() {
        for (bytes, expected) in [
            (0, "0"),
            (1, "1"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1536, "1536"),
            (200 << 20, "200Mi"),
            (1 << 40, "1Ti"),
            (3 << 60, "3Ei"),
        ] {
            assert_eq!(text(bytes), expected);
        }
    }
}
