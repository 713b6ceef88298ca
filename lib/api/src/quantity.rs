//! Kubernetes quantities as whole bytes, rounded up, and whole bytes as quantities. Grammar: apimachinery `resource.Quantity`, i.e. a decimal number
//! and one suffix of Ki Mi Gi Ti Pi Ei, n u m k M G T P E, or a decimal exponent (`e3`, `E3`).
//!
//! Not here: negative amounts (a size has none).

use thiserror::Error;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// Not of the grammar.
    #[error("\"{0}\" is not a quantity like 10Gi, 500M or 1073741824")]
    Malformed(String),
    /// More bytes than 2^63 - 1, or negative.
    #[error("\"{0}\" is not between 0 and 2^63 - 1 bytes")]
    OutOfRange(String),
}

/// Pattern that Kubernetes' schemas have for quantities.
pub const PATTERN: &str = concat!(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
);

/// Digits that can matter: 2^63 has 19, and nano needs 9 behind the point.
const DIGITS_MAX: usize = 64;

/// The bytes `text` stands for, rounded up to a whole byte.
///
/// # Errors
/// When it is no quantity, negative, or above 2^63 - 1.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    scaled(text, 0)
}

/// The thousandths of what `text` stands for, rounded up: Kubernetes' least part of a CPU.
///
/// # Errors
/// As [`bytes`], of as many thousandths.
pub fn thousandths(text: &str) -> Result<u64, QuantityError> {
    scaled(text, 3)
}

/// The value of `text` times ten to the power of `exponent`, rounded up.
fn scaled(text: &str, exponent: i32) -> Result<u64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.to_owned());
    let range = || QuantityError::OutOfRange(text.to_owned());
    let number_end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return Err(malformed());
    }
    let mut scale = Scale::parse(suffix).ok_or_else(malformed)?;
    scale.exponent += exponent;
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.is_empty() && fraction.is_empty() {
        return Ok(0);
    }
    if negative || whole.len() > DIGITS_MAX {
        return Err(range());
    }
    scale.apply(whole, fraction).filter(|&n| i64::try_from(n).is_ok()).ok_or_else(range)
}

/// The canonical text of a number of bytes, as Kubernetes writes it (format BinarySI): the largest binary suffix that
/// divides it.
pub fn text(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut number = bytes;
    let mut suffix = 0;
    while number != 0 && number.is_multiple_of(1024) && suffix + 1 < suffixes.len() {
        number /= 1024;
        suffix += 1;
    }
    format!("{number}{}", suffixes.get(suffix).copied().unwrap_or_default())
}

/// The factor of a suffix: `binary << 0` times ten to the power of `exponent`.
#[derive(Clone, Copy)]
struct Scale {
    binary: u32,
    exponent: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        let decimal = |exponent| Some(Self { binary: 0, exponent });
        let binary = |binary| Some(Self { binary, exponent: 0 });
        match suffix {
            "" => decimal(0),
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            exponent => decimal(exponent.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?.into()),
        }
    }

    /// `whole.fraction` times this, rounded up; `None` when it does not fit.
    fn apply(self, whole: &str, fraction: &str) -> Option<u64> {
        // Integer of all digits, `point` of them behind the decimal point; both bounded before any arithmetic.
        let point = i32::try_from(fraction.len()).ok()?.checked_sub(self.exponent)?;
        let mut digits: String = format!("{whole}{fraction}");
        if point < 0 {
            let zeroes = usize::try_from(point.unsigned_abs()).ok()?;
            if digits.len() + zeroes > DIGITS_MAX {
                return None;
            }
            digits.extend(std::iter::repeat_n('0', zeroes));
        }
        let behind = usize::try_from(point.max(0)).ok()?;
        if behind >= digits.len() + DIGITS_MAX {
            return Some(1); // Smaller than anything counted, but not nothing.
        }
        let padded = format!("{digits:0>width$}", width = behind + 1);
        let (whole, fraction) = padded.split_at(padded.len() - behind);
        let shift = 1u128 << self.binary;
        let mut total = whole
            .trim_start_matches('0')
            .parse::<u128>()
            .or_else(|e| match whole.trim_start_matches('0') {
                "" => Ok(0),
                _ => Err(e),
            })
            .ok()?
            .checked_mul(shift)?;
        // The fraction times `shift`, digit by digit from the back: carry = (digit * shift + carry) / 10.
        let (mut carry, mut rest) = (0u128, false);
        for digit in fraction.bytes().rev() {
            let sum = u128::from(digit - b'0') * shift + carry;
            rest |= !sum.is_multiple_of(10);
            carry = sum / 10;
        }
        total = total.checked_add(carry)?.checked_add(u128::from(rest))?;
        u64::try_from(total).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_counted_of_every_form() {
        for (text, wanted) in [
            ("0", 0),
            ("2", 2000),
            ("1500m", 1500),
            ("1.5", 1500),
            ("1u", 1),
            ("2e0", 2000),
            ("1Ki", 1_024_000),
        ] {
            assert_eq!(thousandths(text), Ok(wanted), "{text}");
        }
        assert!(thousandths("two").is_err() && thousandths("-1").is_err());
    }

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

    #[test]
    fn quantities_are_bytes_rounded_up() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("1", 1),
            ("+7", 7),
            ("1073741824", 1 << 30),
            ("1Ki", 1024),
            ("10Mi", 10 << 20),
            ("1.5Gi", 3 << 29),
            ("0.1Ki", 103),
            (".5Mi", 1 << 19),
            ("5.Ki", 5120),
            ("7Ei", 7 << 60),
            ("2k", 2000),
            ("2M", 2_000_000),
            ("1.1G", 1_100_000_000),
            ("1m", 1),
            ("1500m", 2),
            ("2000m", 2),
            ("1n", 1),
            ("1000000000n", 1),
            ("1e3", 1000),
            ("1.5E3", 1500),
            ("12e-1", 2),
            ("1e-300", 1),
            ("9E", 9_000_000_000_000_000_000),
            ("000000000000000000000000000000000000000000000000000000000000000000000000001", 1),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            ".",
            "Gi",
            "1 Gi",
            "1gi",
            "1K",
            "1KiB",
            "--1",
            "1.2.3",
            "1-2",
            "e3",
            "1e",
            "1e99999999",
            "0x10",
            "∞",
        ] {
            assert!(matches!(bytes(text), Err(QuantityError::Malformed(_))), "{text}: {:?}", bytes(text));
        }
        for text in ["-1", "9223372036854775808", "8Ei", "10E", "1e30", "1e300", "1e32000"] {
            assert!(matches!(bytes(text), Err(QuantityError::OutOfRange(_))), "{text}: {:?}", bytes(text));
        }
    }
}
