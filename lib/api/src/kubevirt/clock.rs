//! What the guest's clocks show.

use crate::resource::resource;

resource! {
    /// Clock and timers; UTC where neither of the two offsets is given.
    pub struct Clock {
        /// UTC, or a distance from it.
        pub utc: Option<UtcOffset>,
        /// A time zone's name, such as `Europe/Berlin`.
        pub timezone: Option<String>,
        /// Timers.
        pub timer: Option<Timers>,
    }

    /// UTC, or a distance from it.
    pub struct UtcOffset {
        /// Seconds from UTC; what the guest sets is kept over reboots then.
        pub offset_seconds: Option<i64>,
    }

    /// Timers; one that is not named is as the machine type has it.
    pub struct Timers {
        /// High precision event timer.
        pub hpet: Option<Timer>,
        /// KVM's clock.
        pub kvm: Option<Timer>,
        /// Programmable interval timer.
        pub pit: Option<Timer>,
        /// Real time clock.
        pub rtc: Option<Timer>,
        /// Hyper-V's clock.
        pub hyperv: Option<Timer>,
    }

    /// One timer.
    pub struct Timer {
        /// Whether it is there. Default: yes.
        pub present: Option<bool>,
        /// What becomes of ticks that came too late: `delay`, `catchup`, `merge`, `discard`. For hpet, pit and rtc.
        pub tick_policy: Option<String>,
        /// What it follows: `guest` or `wall`. For rtc.
        pub track: Option<String>,
    }
}
