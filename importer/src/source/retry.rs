//! When to try a failed request again: a pure decision from what failed, how often and for how long.
//!
//! Patience counts only while nothing arrives. A connection that breaks every few megabytes makes progress each time
//! and is carried on for ever; a server that gives nothing is given up after [`Policy::patience`].
//! Not here: the waiting, and what a failure means to each protocol.

use std::time::Duration;

/// How long to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Time without a single new byte after which a transfer is given up, counted from the first failure.
    pub patience: Duration,
    /// The same before the first byte: a wrong name or address should not take minutes to fail.
    pub first: Duration,
    /// The wait after the second failure in a row; it doubles with each one more.
    pub base: Duration,
    /// The longest single wait of our own choosing.
    pub longest: Duration,
    /// The longest wait a server may ask for by Retry-After; a longer one counts as this.
    pub longest_asked: Duration,
    /// Bodies in a row that may end at the same byte, short of their declared end, before that end is accepted.
    pub truncations: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(300),
            first: Duration::from_secs(30),
            base: Duration::from_millis(100),
            longest: Duration::from_secs(20),
            longest_asked: Duration::from_secs(120),
            truncations: 8,
        }
    }
}

/// Kind of failure, as far as a retry depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The name, the connection or the body broke.
    Network,
    /// The server reports a problem (5xx), or violates the protocol.
    Server,
    /// The server asks to come later (408, 429, 503), perhaps with a time.
    Busy(Option<Duration>),
    /// The body ended at the byte where the last one ended too, before its declared end.
    Truncated,
    /// Trying again cannot help.
    Final,
}

/// Events since the last new byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spell {
    /// Failures in a row, this one included.
    pub failures: u32,
    /// Those of them that were [`Cause::Truncated`].
    pub truncations: u32,
    /// Time since the first of them.
    pub elapsed: Duration,
    /// Whether anything ever arrived from this source.
    pub begun: bool,
}

/// Decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait that long, then try again.
    Wait(Duration),
    /// Give up.
    GiveUp(Why),
}

/// Why a transfer is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The failure is not one that passes.
    Final,
    /// No new byte for too long.
    Patience,
    /// The body keeps ending at the same byte.
    Truncated,
}

/// Decides. `jitter` is from 0 to 1 and takes up to half of a wait away, so that many clients do not come back at once.
pub fn decide(policy: &Policy, cause: Cause, spell: Spell, jitter: f64) -> Verdict {
    let patience = if spell.begun { policy.patience } else { policy.first };
    let asked = match cause {
        Cause::Final => return Verdict::GiveUp(Why::Final),
        Cause::Truncated if spell.truncations >= policy.truncations => {
            return Verdict::GiveUp(Why::Truncated);
        }
        Cause::Busy(asked) => asked,
        Cause::Network | Cause::Server | Cause::Truncated => None,
    };
    let left = patience.saturating_sub(spell.elapsed);
    if left.is_zero() {
        return Verdict::GiveUp(Why::Patience);
    }
    if let Some(asked) = asked {
        return Verdict::Wait(asked.min(policy.longest_asked).min(left));
    }
    // A connection that broke after it gave bytes is made again at once.
    if spell.begun && spell.failures <= 1 && matches!(cause, Cause::Network | Cause::Truncated) {
        return Verdict::Wait(Duration::ZERO);
    }
    let doublings = spell.failures.saturating_sub(1).min(20);
    let wait = policy.base.saturating_mul(1 << doublings).min(policy.longest);
    Verdict::Wait(wait.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0).min(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn decisions() {
        let policy = Policy::default();
        let spell = |failures, truncations, elapsed, begun| Spell { failures, truncations, elapsed, begun };
        let patience = Verdict::GiveUp(Why::Patience);
        #[rustfmt::skip]
        let table = [
            ("404 is final",                Cause::Final,                   spell(1, 0, ms(0), true),         0.0, Verdict::GiveUp(Why::Final)),
            ("a break goes on at once",     Cause::Network,                 spell(1, 0, ms(0), true),         0.9, Verdict::Wait(ms(0))),
            ("so does a cut body",          Cause::Truncated,               spell(1, 1, ms(0), true),         0.9, Verdict::Wait(ms(0))),
            ("the first contact waits",     Cause::Network,                 spell(1, 0, ms(0), false),        0.0, Verdict::Wait(ms(100))),
            ("doubles",                     Cause::Network,                 spell(4, 0, ms(900), true),       0.0, Verdict::Wait(ms(800))),
            ("jitter takes up to half",     Cause::Network,                 spell(4, 0, ms(900), true),       1.0, Verdict::Wait(ms(400))),
            ("is capped",                   Cause::Server,                  spell(4000, 0, ms(0), true),      0.0, Verdict::Wait(ms(20_000))),
            ("never past the patience",     Cause::Server,                  spell(30, 0, ms(299_990), true),  0.0, Verdict::Wait(ms(10))),
            ("500 waits even after bytes",  Cause::Server,                  spell(1, 0, ms(0), true),         0.0, Verdict::Wait(ms(100))),
            ("429 without a time",          Cause::Busy(None),              spell(2, 0, ms(0), true),         0.0, Verdict::Wait(ms(200))),
            ("429 with a time",             Cause::Busy(Some(ms(7000))),    spell(2, 0, ms(0), true),         1.0, Verdict::Wait(ms(7000))),
            ("429 with years",              Cause::Busy(Some(Duration::MAX)), spell(2, 0, ms(0), true),       1.0, Verdict::Wait(ms(120_000))),
            ("out of patience",             Cause::Network,                 spell(9, 0, ms(300_000), true),   0.0, patience),
            ("429 out of patience",         Cause::Busy(Some(ms(1))),       spell(9, 0, ms(400_000), true),   0.0, patience),
            ("less before the first byte",  Cause::Network,                 spell(9, 0, ms(30_000), false),   0.0, patience),
            ("cut short again",             Cause::Truncated,               spell(7, 7, ms(5000), true),      0.0, Verdict::Wait(ms(6400))),
            ("cut short for good",          Cause::Truncated,               spell(8, 8, ms(9000), true),      0.0, Verdict::GiveUp(Why::Truncated)),
        ];
        for (name, cause, spell, jitter, want) in table {
            assert_eq!(decide(&policy, cause, spell, jitter), want, "{name}");
        }
    }

    #[test]
    fn waits_never_exceed_what_is_left() {
        let policy = Policy { patience: ms(1000), ..Policy::default() };
        for failures in 0..2000 {
            for elapsed in (0..1000).step_by(37) {
                let spell = Spell { failures, truncations: 0, elapsed: ms(elapsed), begun: true };
                match decide(&policy, Cause::Server, spell, 0.3) {
                    Verdict::Wait(wait) => assert!(wait + ms(elapsed) <= ms(1000)),
                    Verdict::GiveUp(why) => panic!("gave up: {why:?}"),
                }
            }
        }
    }
}
