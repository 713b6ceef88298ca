//! cloud-init of `create vm`: given data, or data made from a user, a password and SSH keys.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, usage};

/// Data sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Source {
    /// No cloud-init.
    None,
    /// A disk labelled cidata.
    #[default]
    Nocloud,
    /// A disk labelled config-2.
    Configdrive,
}

/// Flags of cloud-init.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "cloud-init-flags")]
pub(super) struct Options {
    /// Data source of cloud-init
    #[arg(long, value_enum, default_value = "nocloud")]
    cloud_init: Source,
    /// User data of cloud-init, base64
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["user", "password_file", "ssh_key"])]
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
}

/// The volume, if any flag asks for one.
pub(super) fn volume(typed: &Options) -> Result<Option<Value>> {
    let user = match &typed.cloud_init_user_data {
        Some(data) => Some(checked("cloud-init-user-data", data)?),
        None => made(typed)?.map(|text| BASE64_STANDARD.encode(text)),
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
    match typed.cloud_init {
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

/// User data from the flags.
fn made(typed: &Options) -> Result<Option<String>> {
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
    if typed.user.is_none() && password.is_none() && typed.ssh_key.is_empty() {
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
    // JSON is YAML; cloud-init reads it, and no value needs escaping by hand.
    Ok(Some(format!("#cloud-config\n{data}\n")))
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
        assert_eq!(volume(&Options::default()).unwrap(), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "se\"cret: #\n").unwrap();
        let typed = Options {
            user: Some("me".to_owned()),
            password_file: Some(file.path().to_owned()),
            ssh_key: vec!["ssh-ed25519 AAAA me@here".to_owned()],
            ..Options::default()
        };
        let text = read(&volume(&typed).unwrap().unwrap());
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
    fn given_data_is_checked() {
        let given = |data: &str, source| Options {
            cloud_init: source,
            cloud_init_user_data: Some(data.to_owned()),
            ..Options::default()
        };
        let drive = volume(&given("eA==", Source::Configdrive)).unwrap().unwrap();
        assert_eq!(drive, json!({"cloudInitConfigDrive": {"userDataBase64": "eA=="}}));
        assert!(volume(&given("%", Source::Nocloud)).is_err());
        assert!(volume(&given("eA==", Source::None)).is_err());
    }
}
