//! SSH keys and passwords that are put into a guest.

use crate::resource::{Empty, resource};

resource! {
    /// Credential that is put into the guest; exactly one field is set.
    pub struct AccessCredential {
        /// SSH public keys.
        pub ssh_public_key: Option<SshPublicKey>,
        /// Passwords of users.
        pub user_password: Option<UserPassword>,
    }

    /// SSH public keys for the guest.
    pub struct SshPublicKey {
        /// Way into the guest.
        pub propagation_method: SshPropagation ["x-required" = true],
        /// Origin of the keys.
        pub source: CredentialSource ["x-required" = true],
    }

    /// Way of SSH public keys into the guest; exactly one field is set.
    pub struct SshPropagation {
        /// By the guest's `cloudInitConfigDrive` volume.
        pub config_drive: Option<Empty>,
        /// By the guest's `cloudInitNoCloud` volume.
        pub no_cloud: Option<Empty>,
        /// By the guest agent, also while the guest runs.
        pub qemu_guest_agent: Option<AgentUsers>,
    }

    /// Users in the guest.
    pub struct AgentUsers {
        /// Names of the users that get the keys.
        pub users: Vec<String> ["x-required" = true, "x-kubernetes-list-type" = "set"],
    }

    /// Origin of a credential.
    pub struct CredentialSource {
        /// Secret in the same namespace; each entry is one credential.
        pub secret: Option<SecretReference>,
    }

    /// Secret in the same namespace.
    pub struct SecretReference {
        /// Name of the Secret.
        pub secret_name: String ["x-required" = true],
    }

    /// Passwords of users in the guest.
    pub struct UserPassword {
        /// Way into the guest.
        pub propagation_method: PasswordPropagation ["x-required" = true],
        /// Origin of the passwords: user names are keys, passwords are values.
        pub source: CredentialSource ["x-required" = true],
    }

    /// Way of passwords into the guest.
    pub struct PasswordPropagation {
        /// By the guest agent, also while the guest runs.
        pub qemu_guest_agent: Option<Empty>,
    }
}
