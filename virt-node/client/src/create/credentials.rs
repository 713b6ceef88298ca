//! Access credentials of `create vm`: `--access-cred`, with parameters `key:value,…`. Pure.

use clap::ValueEnum;
use serde_json::{Value, json};

use super::parameters::Parameters;
use crate::error::Result;

/// Data sources of cloud-init.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Source {
    /// No cloud-init.
    None,
    /// A disk labelled cidata.
    #[default]
    Nocloud,
    /// A disk labelled config-2.
    Configdrive,
}

/// Flags of access credentials.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "credential-flags")]
pub(super) struct Options {
    /// Keys or passwords of a Secret: src:SECRET[,type:ssh|password][,method:ga|nocloud|configdrive][,user:USER]. With the
    /// method ga, the guest's agent writes the keys of USER [default: --user]; may be repeated
    #[arg(long, value_name = "PARAMETERS")]
    access_cred: Vec<String>,
}

/// Access credentials of a VM, and their needs for cloud-init.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    /// `accessCredentials` of the template.
    pub(super) list: Vec<Value>,
    /// Whether the guest's agent writes keys.
    pub(super) by_agent: bool,
    /// Data source of cloud-init that keys are on.
    pub(super) source: Option<Source>,
}

/// The credentials of a machine. `user` is that of `--user`.
pub(super) fn credentials(typed: &Options, user: Option<&str>) -> Result<Credentials> {
    let mut all = Credentials::default();
    for text in &typed.access_cred {
        let mut given = Parameters::read("access-cred", text)?;
        let secret = json!({"secret": {"secretName": given.need("src")?}});
        let kind = given.take("type").unwrap_or("ssh").to_ascii_lowercase();
        let method = given.take("method").unwrap_or("ga").to_ascii_lowercase();
        let key = |method: Value| json!({"sshPublicKey": {"source": secret, "propagationMethod": method}});
        let credential = match (kind.as_str(), method.as_str()) {
            ("ssh", "ga") => {
                let Some(user) = given.take("user").or(user) else {
                    return Err(given.wrong("user is missing, and so is --user"));
                };
                all.by_agent = true;
                key(json!({"qemuGuestAgent": {"users": [user]}}))
            }
            ("ssh", "nocloud" | "configdrive") => {
                let (source, field) = match method.as_str() {
                    "nocloud" => (Source::Nocloud, "noCloud"),
                    _ => (Source::Configdrive, "configDrive"),
                };
                if all.source.replace(source).is_some_and(|other| other != source) {
                    return Err(given.wrong("another one has the other data source of cloud-init"));
                }
                key(json!({field: {}}))
            }
            ("password", "ga") => {
                json!({"userPassword": {"source": secret, "propagationMethod": {"qemuGuestAgent": {}}}})
            }
            ("ssh", _) => return Err(given.wrong("method is not one of ga, nocloud, configdrive")),
            ("password", _) => return Err(given.wrong("the method of passwords is ga")),
            _ => return Err(given.wrong("type is neither ssh nor password")),
        };
        given.end()?;
        all.list.push(credential);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(texts: &[&str], user: Option<&str>) -> Result<Credentials> {
        let access_cred = texts.iter().map(|text| (*text).to_owned()).collect();
        credentials(&Options { access_cred }, user)
    }

    #[test]
    fn parameters_become_credentials() {
        let source = json!({"secret": {"secretName": "keys"}});
        for (text, source_of_data, method) in [
            ("src:keys,user:ann", None, json!({"qemuGuestAgent": {"users": ["ann"]}})),
            ("type:ssh,src:keys", None, json!({"qemuGuestAgent": {"users": ["typed"]}})),
            ("src:keys,method:noCloud", Some(Source::Nocloud), json!({"noCloud": {}})),
            ("src:keys,method:configdrive", Some(Source::Configdrive), json!({"configDrive": {}})),
        ] {
            let made = made(&[text], Some("typed")).unwrap();
            let wanted = json!({"sshPublicKey": {"source": source, "propagationMethod": method}});
            assert_eq!((made.list, made.source), (vec![wanted], source_of_data), "{text}");
            assert_eq!(made.by_agent, source_of_data.is_none(), "{text}");
        }
        let password = made(&["type:password,src:keys"], None).unwrap();
        let method = json!({"qemuGuestAgent": {}});
        assert_eq!(password.list, [json!({"userPassword": {"source": source, "propagationMethod": method}})]);
        assert!(!password.by_agent);
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (texts, part) in [
            (&["type:ssh"][..], "src is missing"),
            (&["src:keys"], "user is missing"),
            (&["src:keys,method:mail"], "method is not one of"),
            (&["type:password,src:a,method:nocloud"], "the method of passwords"),
            (&["type:password,src:a,user:b"], "user is not a parameter"),
            (&["src:a,method:nocloud,user:b"], "user is not a parameter"),
            (&["type:token,src:a"], "neither ssh nor password"),
            (&["src:a,method:nocloud", "src:b,method:configdrive"], "other data source"),
        ] {
            let error = made(texts, None).unwrap_err().chain();
            assert!(error.contains(part), "{texts:?}: {error}");
        }
    }
}
