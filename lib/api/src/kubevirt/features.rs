//! What the machine can do beside processors and devices.

use crate::resource::resource;

resource! {
    /// What the machine can do. A feature that is named without `enabled` is switched on.
    pub struct Features {
        /// ACPI. Default: on.
        pub acpi: Option<Feature>,
        /// Local APIC. Default: on.
        pub apic: Option<Apic>,
        /// System management mode; secure boot needs it. Default: off.
        pub smm: Option<Feature>,
        /// How KVM shows itself.
        pub kvm: Option<KvmFeature>,
        /// Paravirtual spinlocks. Default: as the machine type has it.
        pub pvspinlock: Option<Feature>,
        /// Hyper-V's enlightenments, for Windows.
        pub hyperv: Option<Hyperv>,
    }

    /// On or off.
    pub struct Feature {
        /// Default: on.
        pub enabled: Option<bool>,
    }

    /// Local APIC.
    pub struct Apic {
        /// Default: on.
        pub enabled: Option<bool>,
        /// Paravirtual end of interrupt. Default: off.
        pub end_of_interrupt: Option<bool>,
    }

    /// How KVM shows itself.
    pub struct KvmFeature {
        /// Whether it hides. Default: no.
        pub hidden: Option<bool>,
    }

    /// Hyper-V's enlightenments.
    pub struct Hyperv {
        /// No watchdog timeouts.
        pub relaxed: Option<Feature>,
        /// Virtual APIC.
        pub vapic: Option<Feature>,
        /// Spinlocks.
        pub spinlocks: Option<Spinlocks>,
        /// Index of virtual processors.
        pub vpindex: Option<Feature>,
        /// Time accounting.
        pub runtime: Option<Feature>,
        /// Synthetic interrupts.
        pub synic: Option<Feature>,
        /// Synthetic timers; needs `synic`.
        pub synictimer: Option<SynicTimer>,
        /// Reset by the hypervisor.
        pub reset: Option<Feature>,
        /// What the hypervisor calls itself.
        pub vendorid: Option<VendorId>,
        /// Frequency registers.
        pub frequencies: Option<Feature>,
        /// Notice of changed frequencies.
        pub reenlightenment: Option<Feature>,
        /// Flushing of address caches; needs `vpindex`.
        pub tlbflush: Option<TlbFlush>,
        /// Interrupts between processors; needs `vpindex`.
        pub ipi: Option<Feature>,
        /// Enlightened VMCS, for guests that run guests on Intel's processors.
        pub evmcs: Option<Feature>,
    }

    /// Spinlocks.
    pub struct Spinlocks {
        /// Default: on.
        pub enabled: Option<bool>,
        /// Tries before the hypervisor is told, 4096 at least. Default: 4096.
        #[serde(rename = "spinlocks")]
        pub retries: Option<u32>,
    }

    /// Synthetic timers.
    pub struct SynicTimer {
        /// Default: on.
        pub enabled: Option<bool>,
        /// Without synthetic interrupts.
        pub direct: Option<Feature>,
    }

    /// What the hypervisor calls itself.
    pub struct VendorId {
        /// Default: on.
        pub enabled: Option<bool>,
        /// At most twelve characters.
        pub vendorid: Option<String>,
    }

    /// Flushing of address caches.
    pub struct TlbFlush {
        /// Default: on.
        pub enabled: Option<bool>,
    }
}
