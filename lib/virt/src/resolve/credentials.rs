//! Rules of `accessCredentials`, as upstream's admission has them.
//!
//! Not here: what is on a CD (media), what the guest's agent brings.

use api::kubevirt::{AccessCredential, CredentialSource, SshPropagation};

use super::Resolution;
use super::volumes::is_object_name;

impl Resolution<'_> {
    pub(super) fn credentials(&mut self) {
        let spec = self.spec;
        for (index, credential) in spec.access_credentials.iter().enumerate() {
            let at = format!("accessCredentials[{index}]");
            match credential {
                AccessCredential { ssh_public_key: Some(ssh), user_password: None } => {
                    self.origin(&format!("{at}.sshPublicKey.source"), &ssh.source);
                    self.way(&format!("{at}.sshPublicKey.propagationMethod"), &ssh.propagation_method);
                }
                AccessCredential { ssh_public_key: None, user_password: Some(password) } => {
                    self.origin(&format!("{at}.userPassword.source"), &password.source);
                    if password.propagation_method.qemu_guest_agent.is_none() {
                        let field = format!("{at}.userPassword.propagationMethod");
                        self.error(&field, "must have exactly one propagationMethod set: qemuGuestAgent: {}");
                    }
                }
                _ => self.error(&at, "must have exactly one access credential type set"),
            }
        }
    }

    fn origin(&mut self, at: &str, source: &CredentialSource) {
        let name = source.secret.as_ref().map_or("", |secret| secret.secret_name.as_str());
        if name.is_empty() {
            self.error(at, "must have exactly one source set: a Secret, by its name");
        } else if !is_object_name(name) {
            let text = "not a name of lower-case letters, digits, - and .";
            self.error(&format!("{at}.secret.secretName"), text);
        }
    }

    fn way(&mut self, at: &str, way: &SshPropagation) {
        let SshPropagation { config_drive, no_cloud, qemu_guest_agent } = way;
        let ways = [config_drive.is_some(), no_cloud.is_some(), qemu_guest_agent.is_some()];
        if ways.iter().filter(|one| **one).count() != 1 {
            return self.error(at, "must have exactly one propagationMethod set");
        }
        let volumes = &self.spec.volumes;
        let lacks = match (config_drive, no_cloud) {
            (Some(_), _) if volumes.iter().all(|one| one.cloud_init_config_drive.is_none()) => "configDrive",
            (_, Some(_)) if volumes.iter().all(|one| one.cloud_init_no_cloud.is_none()) => "noCloud",
            _ => "",
        };
        if !lacks.is_empty() {
            let text =
                format!("requires a {lacks} volume to exist when the {lacks} propagationMethod is in use.");
            self.error(at, text);
        }
        if let Some(by) = qemu_guest_agent {
            if by.users.is_empty() {
                self.error(at, "qemuGuestAgent requires at least one user to be present in the users list");
            } else if by.users.iter().any(String::is_empty) {
                self.error(&format!("{at}.qemuGuestAgent.users"), "a user without a name");
            }
        }
    }
}
