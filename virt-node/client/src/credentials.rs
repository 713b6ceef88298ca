//! `credentials`: SSH keys and passwords that a guest gets through its agent, in the Secrets that the machine's
//! `accessCredentials` name. Pure functions choose the Secret and its changes.

use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::{JsonPatch, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result, failed, usage};
use crate::site::{INSTANCES, MACHINES, Site, text};

const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
/// The machine's list.
const LIST: &str = "/spec/template/spec/accessCredentials";
/// Longest file with a key.
const FILE_MAX: u64 = 64 << 10;
/// How often a Secret is read again after a conflict.
const ATTEMPTS: usize = 5;

/// User and Secret.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Account {
    /// Name of the VirtualMachine
    name: String,
    /// User in the guest
    #[arg(short, long)]
    user: String,
    /// Secret, where the machine has several
    #[arg(long, value_name = "NAME")]
    secret: Option<String>,
    /// Also change a Secret that the machine does not own
    #[arg(long)]
    force: bool,
}

/// An SSH public key.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "ssh-key", required = true, multiple = false)]
pub(crate) struct PublicKey {
    /// File with the public key; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The public key itself
    #[arg(long, value_name = "KEY")]
    value: Option<String>,
}

impl PublicKey {
    fn read(&self) -> Result<String> {
        let key = match (&self.value, &self.file) {
            (Some(key), _) => key.clone(),
            (None, Some(file)) => {
                let unread = |error| {
                    let what = format!("error getting ssh key: cannot read {}", file.display());
                    Error::with(Kind::System, what, error)
                };
                String::from_utf8_lossy(&dir::read_input(file, FILE_MAX).map_err(unread)?).into_owned()
            }
            (None, None) => String::new(),
        };
        match key.trim() {
            "" => usage("error getting ssh key: it is empty"),
            key => Ok(key.to_owned()),
        }
    }
}

/// Adds an SSH key. `create` is whether a new Secret is made; `None`: where the user has none.
///
/// # Errors
/// The cluster refuses it, the machine runs, or the Secret is not the machine's.
pub(crate) async fn add_key(
    site: &Site,
    account: &Account,
    key: &PublicKey,
    create: Option<bool>,
) -> Result<String> {
    let key = key.read()?;
    let machine = machine(site, &account.name).await?;
    let secrets = key_secrets(&machine, &account.user);
    if create.unwrap_or(secrets.is_empty()) {
        return create_secret(site, account, &machine, &key).await.map(|()| String::new());
    }
    if secrets.is_empty() {
        return refused(format!("no secrets specified for user: {}", account.user));
    }
    let name = chosen(account.secret.as_deref(), &secrets)?;
    let secret = secret(site, name).await?;
    if entries(&secret).any(|(_, content)| content.lines().any(|line| is_of(line, &key))) {
        return Ok(format!("Secret {name:?} already contains this SSH key.\n"));
    }
    owned(account, &secret, &machine)?;
    write(site, name, &json!({"stringData": {random("ssh-key-"): key}})).await?;
    Ok(format!("Successfully added the key to secret {name:?}\n"))
}

/// Removes an SSH key from the user's Secrets.
///
/// # Errors
/// The cluster refuses it, or a Secret is not the machine's.
pub(crate) async fn remove_key(site: &Site, account: &Account, key: &PublicKey) -> Result<String> {
    let key = key.read()?;
    let machine = machine(site, &account.name).await?;
    let secrets = key_secrets(&machine, &account.user);
    if secrets.is_empty() {
        return Ok(format!("No secrets associated with user {}\n", account.user));
    }
    let of_user = match account.secret.as_deref() {
        None => secrets,
        Some(name) if secrets.contains(&name) => vec![name],
        Some(name) => return refused(format!("secret {name} is not associated with user {}", account.user)),
    };
    for name in of_user {
        remove_from(site, account, &machine, name, &key).await?;
    }
    Ok(String::new())
}

/// Sets a password.
///
/// # Errors
/// The cluster refuses it, the machine names no Secret for passwords, or it is not the machine's.
pub(crate) async fn set_password(site: &Site, account: &Account, password: &str) -> Result<String> {
    let machine = machine(site, &account.name).await?;
    let secrets = password_secrets(&machine);
    if secrets.is_empty() {
        return refused("no secrets assigned to UserPassword AccessCredentials");
    }
    let name = chosen(account.secret.as_deref(), &secrets)?;
    owned(account, &secret(site, name).await?, &machine)?;
    write(site, name, &json!({"stringData": {account.user.as_str(): password}})).await?;
    Ok(format!("Successfully set password in secret {name:?}\n"))
}

async fn machine(site: &Site, name: &str) -> Result<Value> {
    let read = site.client.get(MACHINES, &Key::new(&site.namespace, name)).await;
    read.map_err(failed("error getting virtual machine"))
}

async fn secret(site: &Site, name: &str) -> Result<Value> {
    let read = site.client.get(SECRETS, &Key::new(&site.namespace, name)).await;
    read.map_err(failed(format!("error getting secret {name:?}")))
}

async fn write(site: &Site, name: &str, patch: &Value) -> Result<()> {
    let key = Key::new(&site.namespace, name);
    let written = site.client.merge_patch::<IgnoredAny>(SECRETS, &key, patch).await;
    written.map(drop).map_err(failed(format!("error patching secret {name:?}")))
}

/// Makes a Secret with a key, and names it in the machine: its guest gets it at the next start.
async fn create_secret(site: &Site, account: &Account, machine: &Value, key: &str) -> Result<()> {
    let name = Key::new(&site.namespace, &account.name);
    if !account.force && site.client.find::<IgnoredAny>(INSTANCES, &name).await?.is_some() {
        return refused(format!(
            "virtual machine {} is running. Use --force flag to update a running VM, it will take effect after restart",
            account.name
        ));
    }
    let made = new_secret(machine, key);
    let made: Value =
        site.client.create(SECRETS, &site.namespace, &made).await.map_err(failed("error creating secret"))?;
    let patch = naming(machine, text(&made, "/metadata/name"), &account.user);
    let patched = site.client.json_patch::<IgnoredAny>(MACHINES, &name, &patch).await;
    patched.map(drop).map_err(failed("error patching virtual machine"))
}

async fn remove_from(site: &Site, account: &Account, machine: &Value, name: &str, key: &str) -> Result<()> {
    let object = Key::new(&site.namespace, name);
    for _ in 0..ATTEMPTS {
        let Some(secret) = site.client.find::<Value>(SECRETS, &object).await? else { return Ok(()) };
        owned(account, &secret, machine)?;
        let changes = without(&secret, key);
        if changes.is_empty() {
            return Ok(());
        }
        let version = &secret["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "data": changes});
        match site.client.merge_patch::<IgnoredAny>(SECRETS, &object, &patch).await {
            Err(error) if error.is_conflict() => {}
            written => return written.map(drop).map_err(failed(format!("error patching secret {name:?}"))),
        }
    }
    refused(format!("secret {name:?} changes all the time; try again"))
}

fn refused<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::Refused, text))
}

/// Secrets of a kind of credentials that the guest's agent gets.
fn secrets<'a>(
    machine: &'a Value,
    kind: &'a str,
    is_wanted: impl Fn(&Value) -> bool + 'a,
) -> impl Iterator<Item = &'a str> {
    let all =
        machine.pointer(LIST).and_then(Value::as_array).into_iter().flatten().map(move |one| &one[kind]);
    all.filter(move |one| is_wanted(&one["propagationMethod"]["qemuGuestAgent"]))
        .map(|one| text(one, "/source/secret/secretName"))
        .filter(|name| !name.is_empty())
}

/// Secrets with SSH keys of a user.
fn key_secrets<'a>(machine: &'a Value, user: &'a str) -> Vec<&'a str> {
    let is_users =
        move |agent: &Value| agent["users"].as_array().into_iter().flatten().any(|one| one == user);
    secrets(machine, "sshPublicKey", is_users).collect()
}

/// Secrets with passwords.
fn password_secrets(machine: &Value) -> Vec<&str> {
    secrets(machine, "userPassword", |agent| !agent.is_null()).collect()
}

/// The Secret to change.
fn chosen<'a>(given: Option<&str>, secrets: &[&'a str]) -> Result<&'a str> {
    match (given, secrets) {
        (None, &[one]) => Ok(one),
        (None, _) => {
            usage("multiple secrets specified, use option --secret to specify which secret to modify")
        }
        (Some(name), _) => match secrets.iter().copied().find(|one| *one == name) {
            Some(one) => Ok(one),
            None => refused(format!("secret {name} was not assigned")),
        },
    }
}

/// Refuses a Secret that other machines may use, unless that is forced.
fn owned(account: &Account, secret: &Value, machine: &Value) -> Result<()> {
    let (name, uid) = (&machine["metadata"]["name"], &machine["metadata"]["uid"]);
    let owners = secret["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut owners = owners.filter(|one| one["kind"] == "VirtualMachine");
    if account.force || owners.any(|one| one["name"] == *name && one["uid"] == *uid) {
        return Ok(());
    }
    let secret = text(secret, "/metadata/name");
    refused(format!("secret {secret} does not have an owner reference pointing to VM {}", account.name))
}

/// Entries of a Secret that are text.
fn entries(secret: &Value) -> impl Iterator<Item = (&str, String)> {
    let data = secret["data"].as_object().into_iter().flatten();
    data.filter_map(|(name, content)| {
        let content = BASE64_STANDARD.decode(content.as_str()?).ok()?;
        Some((name.as_str(), String::from_utf8(content).ok()?))
    })
}

/// Whether a line of a file with keys is this key.
fn is_of(line: &str, key: &str) -> bool {
    line.trim().starts_with(key)
}

/// The entries of a Secret that have a key, without it; those that have nothing else go.
fn without(secret: &Value, key: &str) -> Map<String, Value> {
    let changed = entries(secret).filter(|(_, content)| content.lines().any(|line| is_of(line, key)));
    changed
        .map(|(name, content)| {
            let left: Vec<&str> =
                content.lines().filter(|line| !is_of(line, key) && !line.trim().is_empty()).collect();
            let left =
                if left.is_empty() { Value::Null } else { json!(BASE64_STANDARD.encode(left.join("\n"))) };
            (name.to_owned(), left)
        })
        .collect()
}

/// A Secret of a machine with a key.
fn new_secret(machine: &Value, key: &str) -> Value {
    let meta = &machine["metadata"];
    let owner = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": meta["name"], "uid": meta["uid"],
        "controller": true,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "generateName": format!("{}-ssh-key-", text(machine, "/metadata/name")),
            "namespace": meta["namespace"],
            "ownerReferences": [owner],
        },
        "stringData": {random("ssh-key-"): key},
    })
}

/// The patch of a machine that names a Secret with keys of a user.
fn naming(machine: &Value, secret: &str, user: &str) -> JsonPatch {
    let credential = json!({"sshPublicKey": {
        "source": {"secret": {"secretName": secret}},
        "propagationMethod": {"qemuGuestAgent": {"users": [user]}},
    }});
    match machine.pointer(LIST).is_some_and(Value::is_array) {
        true => JsonPatch::new().add(format!("{LIST}/-"), credential),
        false => JsonPatch::new().test(LIST, Value::Null).add(LIST, [credential]),
    }
}

fn random(prefix: &str) -> String {
    let end: String = std::iter::repeat_with(fastrand::alphanumeric).take(6).collect();
    format!("{prefix}{}", end.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAA";

    fn machine() -> Value {
        let agent = |users: &[&str]| json!({"qemuGuestAgent": {"users": users}});
        let source = |name: &str| json!({"secret": {"secretName": name}});
        let key = |name: &str, method: Value| json!({"sshPublicKey": {"source": source(name), "propagationMethod": method}});
        json!({"metadata": {"name": "vm", "namespace": "shop", "uid": "u"}, "spec": {"template": {"spec": {
            "accessCredentials": [
                key("both", agent(&["me", "you"])), key("mine", agent(&["me"])), key("first", json!({"noCloud": {}})),
                {"userPassword": {"source": source("words"), "propagationMethod": {"qemuGuestAgent": {}}}},
            ],
        }}}})
    }

    fn account(force: bool) -> Account {
        Account { name: "vm".into(), user: "me".into(), secret: None, force }
    }

    #[test]
    fn secrets_are_those_of_the_user_that_the_agent_gets() {
        let machine = machine();
        assert_eq!(key_secrets(&machine, "me"), ["both", "mine"]);
        assert_eq!(key_secrets(&machine, "you"), ["both"]);
        assert!(key_secrets(&machine, "root").is_empty() && key_secrets(&json!({}), "me").is_empty());
        assert_eq!(password_secrets(&machine), ["words"]);
        assert_eq!(chosen(None, &["a"]).unwrap(), "a");
        assert_eq!(chosen(Some("b"), &["a", "b"]).unwrap(), "b");
        assert_eq!(chosen(None, &["a", "b"]).unwrap_err().kind(), Kind::Usage);
        assert_eq!(chosen(Some("c"), &["a", "b"]).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn secrets_of_others_are_changed_by_force_only() {
        let of = |uid: &str| {
            let owner = json!({"kind": "VirtualMachine", "name": "vm", "uid": uid});
            json!({"metadata": {"name": "s", "ownerReferences": [owner]}})
        };
        assert!(owned(&account(false), &of("u"), &machine()).is_ok());
        assert!(owned(&account(false), &of("other"), &machine()).is_err());
        assert!(owned(&account(true), &of("other"), &machine()).is_ok());
    }

    #[test]
    fn a_key_goes_and_others_stay() {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let shared = format!("{KEY} me@a\n\nssh-rsa BBBB\n");
        let secret = json!({"data": {
            "alone": encoded(KEY), "shared": encoded(&shared), "other": encoded("ssh-rsa BBBB"),
        }});
        let changes = Value::Object(without(&secret, KEY));
        assert_eq!(changes, json!({"alone": null, "shared": encoded("ssh-rsa BBBB")}));
        assert!(without(&secret, "ssh-dss").is_empty());
    }

    #[test]
    fn a_new_secret_is_the_machines_and_named_there() {
        let made = new_secret(&machine(), KEY);
        assert_eq!(made["metadata"]["generateName"], "vm-ssh-key-");
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
        let (name, key) = made["stringData"].as_object().unwrap().iter().next().unwrap();
        assert!(name.starts_with("ssh-key-") && name.len() == 14 && key == KEY, "{name} {key}");
        let there = naming(&machine(), "s", "me");
        assert_eq!(there.operations()[0]["path"], format!("{LIST}/-"));
        let patch = naming(&json!({}), "s", "me");
        let operations: Vec<&Value> = patch.operations().iter().map(|one| &one["op"]).collect();
        assert_eq!(operations, ["test", "add"]);
        let credential = &patch.operations()[1]["value"][0]["sshPublicKey"];
        assert_eq!(credential["propagationMethod"]["qemuGuestAgent"]["users"], json!(["me"]));
        assert_eq!(credential["source"]["secret"]["secretName"], "s");
    }
}
