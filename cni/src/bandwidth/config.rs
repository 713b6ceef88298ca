//! The keys of a `bandwidth` configuration, and the token buckets they mean. Pure, but for the kernel's clock.

use crate::error::Error;
use crate::protocol::{Call, Object};
use link::netlink::Bucket;

/// How long a packet may wait, in microseconds.
const LATENCY: f64 = 25_000.0;
/// Microseconds in a second.
const SECOND: f64 = 1e6;
/// Ticks of the kernel's clock in a microsecond, where /proc/net/psched has none.
const TICKS: f64 = 15.625;
const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// The limits of an attachment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Config {
    /// Of what goes to the pod.
    pub(super) ingress: Option<Limit>,
    /// Of what comes from it.
    pub(super) egress: Option<Limit>,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    /// Bits in a second.
    rate: u64,
    /// Bits at once.
    burst: u64,
}

impl Config {
    /// Reads the keys of the configuration, or, where it has none of them, those of `runtimeConfig.bandwidth`.
    ///
    /// # Errors
    /// [`crate::Kind::Config`], naming the key.
    pub(super) fn parse(call: &Call) -> Result<Self, Error> {
        let keys = &call.config;
        let has_own = KEYS.iter().any(|key| keys.get(key).is_some());
        let of = if has_own { keys } else { keys.object("runtimeConfig")?.object("bandwidth")? };
        Ok(Self { ingress: limit(of, "ingress")?, egress: limit(of, "egress")? })
    }
}

fn limit(keys: &Object, side: &str) -> Result<Option<Limit>, Error> {
    let number = |key: &str| match keys.integer(key)? {
        None => Ok(0),
        Some(number) => u64::try_from(number)
            .map_err(|_| Error::config(format!("\"{key}\" must not be negative, and is {number}"))),
    };
    let (rate_key, burst_key) = (format!("{side}Rate"), format!("{side}Burst"));
    let (rate, burst) = (number(&rate_key)?, number(&burst_key)?);
    match (rate, burst) {
        (0, 0) => Ok(None),
        (0, _) => Err(Error::config(format!("\"{burst_key}\" needs \"{rate_key}\""))),
        (_, 0) => Err(Error::config(format!("\"{rate_key}\" needs \"{burst_key}\""))),
        (1..8, _) => {
            Err(Error::config(format!("\"{rate_key}\" must be 8 or more bits in a second, not {rate}")))
        }
        (_, burst) if burst / 8 >= u64::from(u32::MAX) => {
            Err(Error::config(format!("\"{burst_key}\" must be below 4 GiB, and is {burst} bits")))
        }
        (rate, burst) => Ok(Some(Limit { rate, burst })),
    }
}

impl Limit {
    /// The token bucket, its sizes rounded as the reference rounds them. `ticks`: of the kernel's clock in a microsecond.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "sizes beyond 32 bits are cut off at the most there is, as the reference's are"
    )]
    pub(super) fn bucket(self, ticks: f64) -> Bucket {
        let (rate, burst) = (self.rate / 8, (self.burst / 8) as u32);
        let fill = (f64::from(burst) * SECOND / rate as f64) as u32;
        Bucket {
            rate,
            limit: ((rate as f64 * LATENCY / SECOND) as u32).saturating_add(burst),
            buffer: (f64::from(fill) * ticks) as u32,
        }
    }
}

/// Ticks of the kernel's clock in a microsecond, of /proc/net/psched.
pub(super) fn ticks() -> f64 {
    let text = std::fs::read_to_string("/proc/net/psched").unwrap_or_default();
    ticks_of(&text).unwrap_or(TICKS)
}

fn ticks_of(text: &str) -> Option<f64> {
    let mut numbers = text.split_whitespace().map(|word| u32::from_str_radix(word, 16));
    let mut next = || numbers.next()?.ok().map(f64::from).filter(|number| *number > 0.0);
    let (ticks, microseconds, clock) = (next()?, next()?, next()?);
    Some(ticks / microseconds * (clock / SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(keys: &str) -> Result<Config, Error> {
        Config::parse(&Call::adding(keys))
    }

    #[test]
    fn limits_are_read_from_the_configuration_before_the_runtime() {
        let limit = |rate, burst| Some(Limit { rate, burst });
        for (keys, ingress, egress) in [
            ("", None, None),
            (r#""ingressRate": 8000, "ingressBurst": 80,"#, limit(8000, 80), None),
            (r#""egressRate": 16, "egressBurst": 8, "ingressRate": 0,"#, None, limit(16, 8)),
            (r#""runtimeConfig": {"bandwidth": {"egressRate": 9, "egressBurst": 9}},"#, None, limit(9, 9)),
            (
                r#""ingressRate": 80, "ingressBurst": 80, "runtimeConfig": {"bandwidth": {"egressRate": 9, "egressBurst": 9}},"#,
                limit(80, 80),
                None,
            ),
        ] {
            assert_eq!(parse(keys).unwrap(), Config { ingress, egress }, "{keys}");
        }
        for (keys, word) in [
            (r#""ingressRate": 8000,"#, "\"ingressRate\" needs \"ingressBurst\""),
            (r#""egressBurst": 8000,"#, "\"egressBurst\" needs \"egressRate\""),
            (r#""egressRate": -1, "egressBurst": 1,"#, "must not be negative"),
            (r#""egressRate": 7, "egressBurst": 1,"#, "8 or more"),
            (r#""egressRate": 8, "egressBurst": 34359738360,"#, "below 4 GiB"),
            (r#""egressRate": "8", "egressBurst": 1,"#, "a whole number"),
        ] {
            let error = parse(keys).unwrap_err().to_string();
            assert!(error.contains(word), "{keys}: {error}");
        }
    }

    #[test]
    fn buckets_are_the_references() {
        let ticks = ticks_of("000003e8 00000040 000f4240 3b9aca00\n").unwrap();
        assert!((ticks - TICKS).abs() < 1e-9);
        assert_eq!(ticks_of("0 0 0"), None);
        let bucket = Limit { rate: 8_000_000, burst: 800_000 }.bucket(ticks);
        assert_eq!(bucket, Bucket { rate: 1_000_000, limit: 125_000, buffer: 1_562_500 });
        let most = Limit { rate: 800_000_000_000, burst: 8 * u64::from(u32::MAX - 1) }.bucket(ticks);
        assert_eq!((most.rate, most.limit), (100_000_000_000, u32::MAX));
    }
}
