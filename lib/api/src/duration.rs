//! Durations as Go programs write them: `48h0m0s`, `1.5h`, `300ms`. Not here: signs, and units below a millisecond.

use std::time::Duration;

/// The duration that a text stands for; nothing if it is none, negative or too long.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return None,
        };
        let seconds = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()?;
        sum = sum.checked_add(seconds)?;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, seconds) in [
            ("48h0m0s", Some(172_800.0)),
            ("24h", Some(86_400.0)),
            ("1.5h", Some(5400.0)),
            ("1m30s", Some(90.0)),
            ("250ms", Some(0.25)),
            ("", None),
            ("5", None),
            ("h", None),
            ("-5s", None),
            ("5d", None),
            ("1..5s", None),
            ("99999999999999999999999h", None),
        ] {
            assert_eq!(parse(text).map(|found| found.as_secs_f64()), seconds, "{text}");
        }
    }
}
