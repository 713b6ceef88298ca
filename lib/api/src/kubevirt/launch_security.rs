//! Confidential computing.

use crate::resource::{Empty, resource};

resource! {
    /// Confidential computing; one field is set.
    pub struct LaunchSecurity {
        /// AMD SEV.
        pub sev: Option<Sev>,
        /// AMD SEV-SNP (no fields).
        pub snp: Option<Empty>,
        /// Intel TDX (no fields).
        pub tdx: Option<Empty>,
    }

    /// AMD SEV.
    pub struct Sev {
        /// Guest waits for attestation before it starts (no fields).
        pub attestation: Option<Empty>,
        /// Guest owner's Diffie-Hellman key, base64.
        pub dh_cert: Option<String>,
        /// Guest policy.
        pub policy: Option<SevPolicy>,
        /// Guest owner's session blob, base64.
        pub session: Option<String>,
    }

    /// AMD SEV guest policy.
    pub struct SevPolicy {
        /// Whether the register state is encrypted (SEV-ES). Default: false.
        pub encrypted_state: Option<bool>,
    }
}
