//! Hardware features of a guest besides CPU and devices.

use crate::resource::resource;

resource! {
    /// Feature that can be switched on and off.
    pub struct Feature {
        /// Whether it is on. Default: true.
        pub enabled: Option<bool>,
    }

    /// Hardware features. A feature that is listed without `enabled` is switched on.
    pub struct Features {
        /// ACPI. Default: on.
        pub acpi: Option<Feature>,
        /// Local APIC. Default: on.
        pub apic: Option<Apic>,
        /// System management mode, needed by secure boot. Default: off.
        pub smm: Option<Feature>,
        /// Visibility of KVM.
        pub kvm: Option<KvmFeature>,
        /// Paravirtual spinlocks. Default: as the machine type.
        pub pvspinlock: Option<Feature>,
        /// Hyper-V enlightenments, for Windows.
        pub hyperv: Option<Hyperv>,
        /// All Hyper-V enlightenments that the host supports.
        pub hyperv_passthrough: Option<Feature>,
    }

    /// Local APIC.
    pub struct Apic {
        /// Whether it is on. Default: true.
        pub enabled: Option<bool>,
        /// Paravirtual end of interrupt. Default: false.
        pub end_of_interrupt: Option<bool>,
    }

    /// Hyper-V enlightenments.
    pub struct Hyperv {
        /// Relaxed timing: no watchdog timeouts.
        pub relaxed: Option<Feature>,
        /// Virtual APIC.
        pub vapic: Option<Feature>,
        /// Notification of long spinlocks.
        pub spinlocks: Option<Spinlocks>,
        /// Virtual processor index.
        pub vpindex: Option<Feature>,
        /// Virtual processor run time.
        pub runtime: Option<Feature>,
        /// Synthetic interrupt controller.
        pub synic: Option<Feature>,
        /// Synthetic timers; needs `synic`.
        pub synictimer: Option<SynicTimer>,
        /// Reset by the hypervisor.
        pub reset: Option<Feature>,
        /// Hypervisor vendor string.
        pub vendorid: Option<VendorId>,
        /// Frequency registers.
        pub frequencies: Option<Feature>,
        /// Notification of frequency changes.
        pub reenlightenment: Option<Feature>,
        /// Paravirtual TLB flush; needs `vpindex`.
        pub tlbflush: Option<TlbFlush>,
        /// Paravirtual inter-processor interrupts; needs `vpindex`.
        pub ipi: Option<Feature>,
        /// Enlightened VMCS, for nested guests on Intel CPUs.
        pub evmcs: Option<Feature>,
    }

    /// Notification of long spinlocks.
    pub struct Spinlocks {
        /// Whether it is on. Default: true.
        pub enabled: Option<bool>,
        /// Attempts before the hypervisor is notified, at least 4096. Default: 4096.
        #[serde(rename = "spinlocks")]
        pub retries: Option<u32>,
    }

    /// Synthetic timers.
    pub struct SynicTimer {
        /// Whether they are on. Default: true.
        pub enabled: Option<bool>,
        /// Direct mode: without synthetic interrupts.
        pub direct: Option<Feature>,
    }

    /// Paravirtual TLB flush.
    pub struct TlbFlush {
        /// Whether it is on. Default: true.
        pub enabled: Option<bool>,
        /// Direct mode, for nested guests.
        pub direct: Option<Feature>,
        /// Flush of single address ranges.
        pub extended: Option<Feature>,
    }

    /// Hypervisor vendor string.
    pub struct VendorId {
        /// Whether it is set. Default: true.
        pub enabled: Option<bool>,
        /// String of at most 12 characters.
        pub vendorid: Option<String>,
    }

    /// Visibility of KVM.
    pub struct KvmFeature {
        /// Whether KVM is hidden from the guest. Default: false.
        pub hidden: Option<bool>,
    }
}
