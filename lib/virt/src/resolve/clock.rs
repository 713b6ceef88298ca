//! Clock, timers and features.

use api::kubevirt::{Feature, Features as Specified, Timer as AskedTimer};
use api::launch::{Accelerator, Clock, Features, Hyperv, HypervSwitch, TickPolicy, Timer, TimerName, Track};

use super::Resolution;
use crate::finding::Verdict;

/// Attempts at a spinlock before the hypervisor is notified: the minimum.
const SPINLOCKS: u32 = 4096;

/// A feature that is named is on unless it is disabled.
fn on(feature: &Feature) -> bool {
    feature.enabled.unwrap_or(true)
}

impl Resolution<'_> {
    pub(super) fn clock(&mut self) -> Clock {
        let asked = self.spec.domain.clock.clone().unwrap_or_default();
        let timers = asked.timer.unwrap_or_default();
        let timers = [
            (TimerName::Hpet, "hpet", timers.hpet),
            (TimerName::Kvm, "kvm", timers.kvm),
            (TimerName::Pit, "pit", timers.pit),
            (TimerName::Rtc, "rtc", timers.rtc),
            (TimerName::Hyperv, "hyperv", timers.hyperv),
        ];
        let timers: Vec<Timer> = timers
            .into_iter()
            .filter_map(|(name, field, timer)| {
                self.timer(name, &format!("domain.clock.timer.{field}"), &timer?)
            })
            .collect();
        match (asked.timezone, asked.utc.map(|utc| utc.offset_seconds)) {
            (Some(_), Some(_)) => {
                self.error("domain.clock", "utc and timezone exclude each other");
                Clock::Utc(timers)
            }
            (Some(zone), None) => {
                if zone.is_empty() || !zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b))
                {
                    self.error("domain.clock.timezone", "not a time zone like Europe/Berlin");
                }
                Clock::Timezone(zone, timers)
            }
            (None, Some(Some(seconds))) => Clock::Offset(seconds, timers),
            (None, Some(None) | None) => Clock::Utc(timers),
        }
    }

    fn timer(&mut self, name: TimerName, field: &str, asked: &AskedTimer) -> Option<Timer> {
        let tick: Option<TickPolicy> =
            self.findings.word(&self.path(&format!("{field}.tickPolicy")), asked.tick_policy.as_deref());
        let track: Option<Track> =
            self.findings.word(&self.path(&format!("{field}.track")), asked.track.as_deref());
        let paravirtual = matches!(name, TimerName::Kvm | TimerName::Hyperv);
        if paravirtual && tick.is_some() {
            self.error(&format!("{field}.tickPolicy"), "this timer has no tick policy; leave it out");
        }
        if name != TimerName::Rtc && track.is_some() {
            self.error(&format!("{field}.track"), "only the timer rtc has one; leave it out");
        }
        if paravirtual && self.host.accelerator == Accelerator::Tcg {
            self.without_kvm(field);
            return None;
        }
        Some(Timer { name, present: asked.present.unwrap_or(true), tick_policy: tick, track })
    }

    /// Reports that a field has no effect without KVM.
    fn without_kvm(&mut self, field: &str) {
        let path = self.path(field);
        self.findings.add(Verdict::Ignored, path, "only with KVM; this machine runs guests in software");
    }

    pub(super) fn features(&mut self) -> Features {
        let asked = self.spec.domain.features.clone().unwrap_or_default();
        let kvm = self.host.accelerator == Accelerator::Kvm;
        for (field, given) in [
            ("kvm", asked.kvm.is_some()),
            ("pvspinlock", asked.pvspinlock.is_some()),
            ("hyperv", asked.hyperv.is_some()),
        ] {
            if given && !kvm {
                self.without_kvm(&format!("domain.features.{field}"));
            }
        }
        let apic = asked.apic.as_ref();
        Features {
            acpi: asked.acpi.as_ref().is_none_or(on),
            apic: apic.is_none_or(|apic| apic.enabled.unwrap_or(true)),
            apic_eoi: apic.and_then(|apic| apic.end_of_interrupt).filter(|_| kvm),
            smm: asked.smm.as_ref().map(on),
            kvm_hidden: kvm && asked.kvm.as_ref().is_some_and(|kvm| kvm.hidden.unwrap_or(false)),
            pvspinlock: asked.pvspinlock.as_ref().map(on).filter(|_| kvm),
            hyperv: self.hyperv(&asked).filter(|_| kvm),
        }
    }

    fn hyperv(&mut self, asked: &Specified) -> Option<Hyperv> {
        let asked = asked.hyperv.as_ref()?;
        let at = "domain.features.hyperv";
        let timer = asked.synictimer.as_ref();
        let switches = [
            (HypervSwitch::Relaxed, asked.relaxed.as_ref().map(on)),
            (HypervSwitch::Vapic, asked.vapic.as_ref().map(on)),
            (HypervSwitch::Vpindex, asked.vpindex.as_ref().map(on)),
            (HypervSwitch::Runtime, asked.runtime.as_ref().map(on)),
            (HypervSwitch::Synic, asked.synic.as_ref().map(on)),
            (HypervSwitch::Stimer, timer.map(|timer| timer.enabled.unwrap_or(true))),
            (HypervSwitch::Reset, asked.reset.as_ref().map(on)),
            (HypervSwitch::Frequencies, asked.frequencies.as_ref().map(on)),
            (HypervSwitch::Reenlightenment, asked.reenlightenment.as_ref().map(on)),
            (HypervSwitch::Tlbflush, asked.tlbflush.as_ref().map(|one| one.enabled.unwrap_or(true))),
            (HypervSwitch::Ipi, asked.ipi.as_ref().map(on)),
            (HypervSwitch::Evmcs, asked.evmcs.as_ref().map(on)),
        ];
        let is_on = |wanted: HypervSwitch| switches.contains(&(wanted, Some(true)));
        for (field, switch, needs, needed) in [
            ("synictimer", HypervSwitch::Stimer, HypervSwitch::Synic, "synic"),
            ("tlbflush", HypervSwitch::Tlbflush, HypervSwitch::Vpindex, "vpindex"),
            ("ipi", HypervSwitch::Ipi, HypervSwitch::Vpindex, "vpindex"),
            ("synic", HypervSwitch::Synic, HypervSwitch::Vpindex, "vpindex"),
            ("evmcs", HypervSwitch::Evmcs, HypervSwitch::Vapic, "vapic"),
        ] {
            if is_on(switch) && !is_on(needs) {
                self.error(&format!("{at}.{field}"), format!("needs {needed}"));
            }
        }
        let spinlocks = asked.spinlocks.as_ref().filter(|one| one.enabled.unwrap_or(true));
        let spinlocks = spinlocks.map(|one| one.retries.unwrap_or(SPINLOCKS));
        if spinlocks.is_some_and(|retries| retries < SPINLOCKS) {
            self.error(&format!("{at}.spinlocks.spinlocks"), "at least 4096");
        }
        let vendor = asked.vendorid.as_ref().filter(|one| one.enabled.unwrap_or(true));
        let vendor_id = vendor.and_then(|one| one.vendorid.clone());
        if vendor_id.as_ref().is_some_and(|id| id.is_empty() || id.chars().count() > 12 || id.contains(',')) {
            self.error(&format!("{at}.vendorid.vendorid"), "one to twelve characters, no comma");
        }
        Some(Hyperv {
            switches: switches.into_iter().filter_map(|(switch, on)| Some((switch, on?))).collect(),
            spinlocks,
            vendor_id,
            direct_timers: timer.is_some_and(|timer| timer.direct.as_ref().is_some_and(on)),
        })
    }
}
