//! When a DataImportCron is due. Pure; times are seconds since 1970, schedules are in UTC.

use std::str::FromStr;

use croner::Cron;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A schedule: five fields, or `@daily` and the like.
#[derive(Clone, Debug)]
pub struct Schedule(Cron);

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// The mistake in it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Cron::from_str(&with_ranges(text.trim()))
            .map(Self)
            .map_err(|error| format!("schedule {text:?}: {error}"))
    }

    /// The first time after `seconds`; `None` when there is none.
    pub fn after(&self, seconds: u64) -> Option<u64> {
        let from = Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?.to_zoned(TimeZone::UTC);
        let next = self.0.find_next_occurrence(&from, false).ok()?;
        u64::try_from(next.timestamp().as_second()).ok()
    }
}

/// The text with ranges for steps that begin at a number, `1/12`, which Kubernetes reads as "from 1 on": the parser takes
/// ranges only.
fn with_ranges(text: &str) -> String {
    /// Last value of each field.
    const LAST: [&str; 5] = ["59", "23", "31", "12", "6"];
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    if fields.len() != LAST.len() {
        return text.to_owned();
    }
    let item = |item: &str, last: &str| match item.split_once('/') {
        Some((first, step)) if !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{first}-{last}/{step}")
        }
        Some(_) | None => item.to_owned(),
    };
    let field = |(field, last): (&&str, &&str)| {
        field.split(',').map(|one| item(one, last)).collect::<Vec<_>>().join(",")
    };
    fields.iter().zip(&LAST).map(field).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use virt::time;

    use super::*;

    #[test]
    fn the_next_time_is_after_the_last() {
        for (schedule, from, next) in [
            ("0 3 * * *", "2026-11-23T02:59:59Z", "2026-11-23T03:00:00Z"),
            ("0 3 * * *", "2026-11-23T03:00:00Z", "2026-11-24T03:00:00Z"),
            ("*/15 * * * *", "2026-11-23T03:00:01Z", "2026-11-23T03:15:00Z"),
            ("30 1/12 * * *", "2026-11-23T03:00:01Z", "2026-11-23T13:30:00Z"),
            ("5,10/20 * * * *", "2026-11-23T03:31:00Z", "2026-11-23T03:50:00Z"),
            ("0 0 29 2 *", "2026-11-23T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 12 * * 1-5", "2026-11-20T12:00:00Z", "2026-11-23T12:00:00Z"),
            ("@daily", "2026-11-23T03:00:00Z", "2026-11-24T00:00:00Z"),
        ] {
            let found = Schedule::parse(schedule).unwrap().after(time::seconds(from).unwrap());
            assert_eq!(found.map(time::text).as_deref(), Some(next), "{schedule} after {from}");
        }
    }

    #[test]
    fn texts_that_are_no_schedule_are_refused() {
        for wrong in ["", "x", "61 * * * *", "* * *"] {
            assert!(Schedule::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
