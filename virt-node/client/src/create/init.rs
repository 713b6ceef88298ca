//! cloud-init of `create vm`: given data, or data made from a user, a password and SSH keys.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::credentials::{Credentials, Source};
use crate::error::{Error, Kind, Result, usage};

/// The first line of user data.
const HEAD: &str = "#cloud-config";

/// Flags of cloud-init.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "cloud-init-flags")]
pub(super) struct Options {
    /// Data source of cloud-init [default: that of --access-cred, else nocloud]
    #[arg(long, value_enum)]
    cloud_init: Option<Source>,
    /// User data of cloud-init, base64
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["user", "password_file", "ssh_key", "ga_manage_ssh"])]
    cloud_init_user_data: Option<String>,
    /// Network data of cloud-init, base64
    #[arg(long, value_name = "BASE64")]
    cloud_init_network_data: Option<String>,
    /// Default user of the guest
    #[arg(long)]
    user: Option<String>,
    /// File with the user's password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// SSH public key of the user; may be repeated
    #[arg(long, value_name = "KEY")]
    ssh_key: Vec<String>,
    /// Have SELinux in the guest let the agent write users' keys [default: whether --access-cred needs it]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ga_manage_ssh: Option<bool>,
}

impl Options {
    /// The user of `--user`.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// The volume, if any flag asks for one, or a credential.
pub(super) fn volume(typed: &Options, credentials: &Credentials) -> Result<Option<Value>> {
    let source = match (typed.cloud_init, credentials.source) {
        (Some(given), Some(needed)) if given != needed => {
            return usage("--cloud-init contradicts the method of --access-cred");
        }
        (given, needed) => given.or(needed).unwrap_or_default(),
    };
    let agent_writes = typed.ga_manage_ssh.unwrap_or(credentials.by_agent && source != Source::None);
    let user = match &typed.cloud_init_user_data {
        Some(data) => Some(checked("cloud-init-user-data", data)?),
        None => {
            // Keys are on a disk of cloud-init, also without other data.
            let empty = credentials.source.map(|_| format!("{HEAD}\n"));
            made(typed, agent_writes)?.or(empty).map(|text| BASE64_STANDARD.encode(text))
        }
    };
    let network = match &typed.cloud_init_network_data {
        Some(data) => Some(checked("cloud-init-network-data", data)?),
        None => None,
    };
    if user.is_none() && network.is_none() {
        return Ok(None);
    }
    let mut data = json!({});
    for (key, value) in [("userDataBase64", user), ("networkDataBase64", network)] {
        if let Some(value) = value {
            data[key] = json!(value);
        }
    }
    match source {
        Source::Nocloud => Ok(Some(json!({"cloudInitNoCloud": data}))),
        Source::Configdrive => Ok(Some(json!({"cloudInitConfigDrive": data}))),
        Source::None => usage("--cloud-init none contradicts the other flags of cloud-init"),
    }
}

fn checked(flag: &str, data: &str) -> Result<String> {
    match BASE64_STANDARD.decode(data) {
        Ok(_) => Ok(data.to_owned()),
        Err(error) => usage(format!("--{flag} is not base64: {error}")),
    }
}

/// User data from the flags; with `agent_writes`, the guest's agent may write keys.
fn made(typed: &Options, agent_writes: bool) -> Result<Option<String>> {
    let password = match &typed.password_file {
        Some(file) => {
            let text = fs::read_to_string(file);
            let text = text.map_err(|error| {
                Error::with(Kind::Usage, format!("cannot read the password in {}", file.display()), error)
            })?;
            Some(text.trim_end_matches(['\n', '\r']).to_owned())
        }
        None => None,
    };
    if typed.user.is_none() && password.is_none() && typed.ssh_key.is_empty() && !agent_writes {
        return Ok(None);
    }
    let mut data = json!({});
    if let Some(user) = &typed.user {
        data["user"] = json!(user);
    }
    if let Some(password) = password {
        data["password"] = json!(password);
        data["chpasswd"] = json!({"expire": false});
    }
    if !typed.ssh_key.is_empty() {
        data["ssh_authorized_keys"] = json!(typed.ssh_key);
    }
    if agent_writes {
        data["runcmd"] = json!([["setsebool", "-P", "virt_qemu_ga_manage_ssh", "on"]]);
    }
    // JSON is YAML; cloud-init reads it, and no value needs escaping by hand.
    Ok(Some(format!("{HEAD}\n{data}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(volume: &Value) -> String {
        let data = volume.pointer("/cloudInitNoCloud/userDataBase64").and_then(Value::as_str).unwrap();
        String::from_utf8(BASE64_STANDARD.decode(data).unwrap()).unwrap()
    }

    #[test]
    fn users_and_keys_become_user_data() {
        let none = Credentials::default();
        assert_eq!(volume(&Options::default(), &none).unwrap(), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "se\"cret: #\n").unwrap();
        let typed = Options {
            user: Some("me".to_owned()),
            password_file: Some(file.path().to_owned()),
            ssh_key: vec!["ssh-ed25519 AAAA me@here".to_owned()],
            ..Options::default()
        };
        let text = read(&volume(&typed, &none).unwrap().unwrap());
        let (head, body) = text.split_once('\n').unwrap();
        assert_eq!(head, "#cloud-config");
        let data: Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            data,
            json!({"user": "me", "password": "se\"cret: #", "chpasswd": {"expire": false},
                "ssh_authorized_keys": ["ssh-ed25519 AAAA me@here"]})
        );
    }

    #[test]
    fn the_agent_may_write_keys_that_come_by_it() {
        let by_agent = Credentials { by_agent: true, ..Credentials::default() };
        let text = read(&volume(&Options::default(), &by_agent).unwrap().unwrap());
        assert!(text.contains(r#""runcmd":[["setsebool","-P","virt_qemu_ga_manage_ssh","on"]]"#), "{text}");
        let chosen = |cloud_init, ga_manage_ssh| Options { cloud_init, ga_manage_ssh, ..Options::default() };
        assert_eq!(volume(&chosen(None, Some(false)), &by_agent).unwrap(), None);
        assert_eq!(volume(&chosen(Some(Source::None), None), &by_agent).unwrap(), None);
        let asked = volume(&chosen(None, Some(true)), &Credentials::default()).unwrap().unwrap();
        assert!(read(&asked).contains("setsebool"));
    }

    #[test]
    fn given_data_is_checked() {
        let volume = |typed: &Options| volume(typed, &Credentials::default());
        let given = |data: &str, source| Options {
            cloud_init: Some(source),
            cloud_init_user_data: Some(data.to_owned()),
            ..Options::default()
        };
        let drive = volume(&given("eA==", Source::Configdrive)).unwrap().unwrap();
        assert_eq!(drive, json!({"cloudInitConfigDrive": {"userDataBase64": "eA=="}}));
        assert!(volume(&given("%", Source::Nocloud)).is_err());
        assert!(volume(&given("eA==", Source::None)).is_err());
    }
}
