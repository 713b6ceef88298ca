//! Clock and timers of a guest.

use crate::resource::resource;

resource! {
    /// Clock and timers. UTC if neither `utc` nor `timezone` is set.
    pub struct Clock {
        /// UTC, or an offset from it.
        pub utc: Option<UtcOffset>,
        /// Time zone, such as `Europe/Berlin`.
        pub timezone: Option<String>,
        /// Timers.
        pub timer: Option<Timers>,
    }

    /// Timers. Omitted timers are as the machine type has them.
    pub struct Timers {
        /// High precision event timer.
        pub hpet: Option<Timer> ["x-omit" = ["track"]],
        /// KVM clock.
        pub kvm: Option<Timer> ["x-omit" = ["tickPolicy", "track"]],
        /// Programmable interval timer.
        pub pit: Option<Timer> ["x-omit" = ["track"]],
        /// Real-time clock.
        pub rtc: Option<Timer>,
        /// Hyper-V clock.
        pub hyperv: Option<Timer> ["x-omit" = ["tickPolicy", "track"]],
    }

    /// Timer.
    pub struct Timer {
        /// Whether it is present. Default: true.
        pub present: Option<bool>,
        /// Handling of missed ticks: `delay`, `catchup`, `merge` or `discard`.
        pub tick_policy: Option<String>,
        /// Clock that is followed: `guest` or `wall`.
        pub track: Option<String>,
    }

    /// UTC, or an offset from it.
    pub struct UtcOffset {
        /// Offset in seconds. If set, clock changes by the guest persist over reboots.
        pub offset_seconds: Option<i64>,
    }
}
