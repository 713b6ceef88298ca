//! SSH keys and passwords that the guest's agent puts into the guest, also while it runs: what the kubelet mounted of the
//! Secrets, and changed since, is brought to the guest once.
//!
//! ```text
//! Secrets in the pod ─► work (pure) ─ digest as noted? ─► commands of the guest's agent ─► note next to the pod's volumes
//! ```
//!
//! Keys of ours end with [`MARK`], as a comment: those that are in no Secret any more are taken out, and others stay.
//!
//! Not here: keys on a CD (`virt::resolve`), the condition (status).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::kubevirt::{AccessCredential, VirtualMachineInstanceSpec};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::pod::Pod;
use super::talk::Talk;
use crate::error::{Error, Kind, Result};
use crate::pods::{PodDirectory, content};

/// End of every key of ours.
const MARK: &str = " access-credentials.kubevirt.io";
/// The note of what was brought.
const NOTE: &str = "ferrovirt-credentials";
/// The message while there is no agent, as upstream.
pub(crate) const OFFLINE: &str = "Guest agent is offline";
/// Most keys of a user.
const KEYS_MAX: usize = 256;

/// Entries of a Secret.
type Entries = BTreeMap<String, Vec<u8>>;
/// Digests of what was brought, by part.
type Brought = BTreeMap<String, String>;

/// Credentials for the guest, by the volumes of the pod with the Secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedCredentials {
    /// Users and the volume with their keys.
    keys: Vec<(Vec<String>, String)>,
    /// Volumes with users and their passwords.
    passwords: Vec<String>,
}

impl WantedCredentials {
    /// Credentials that an instance has the guest's agent bring.
    pub(crate) fn of(spec: &VirtualMachineInstanceSpec, pod: &Pod) -> Self {
        let mut wanted = Self::default();
        for AccessCredential { ssh_public_key, user_password } in &spec.access_credentials {
            let volume = |secret: &str| pod.secrets.get(secret).cloned();
            if let Some(ssh) = ssh_public_key
                && let Some(by) = &ssh.propagation_method.qemu_guest_agent
                && let Some(volume) = ssh.source.secret.as_ref().and_then(|one| volume(&one.secret_name))
            {
                wanted.keys.push((by.users.clone(), volume));
            }
            if let Some(password) = user_password
                && password.propagation_method.qemu_guest_agent.is_some()
                && let Some(volume) = password.source.secret.as_ref().and_then(|one| volume(&one.secret_name))
            {
                wanted.passwords.push(volume);
            }
        }
        wanted
    }

    /// Whether nothing is asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.passwords.is_empty()
    }

    fn volumes(&self) -> BTreeSet<&str> {
        self.keys.iter().map(|(_, volume)| volume).chain(&self.passwords).map(String::as_str).collect()
    }
}

/// A part of what is to be in the guest.
#[derive(Debug, PartialEq, Eq)]
struct Work {
    /// Its name in the note.
    part: String,
    digest: String,
    what: What,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    /// All keys of ours, by user.
    Keys(BTreeMap<String, BTreeSet<String>>),
    /// Passwords, by user.
    Passwords(Entries),
}

/// Parts to be brought for these Secrets, by volume.
fn work(wanted: &WantedCredentials, secrets: &BTreeMap<String, Entries>) -> Vec<Work> {
    let mut all = Vec::new();
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (users, volume) in &wanted.keys {
        let entries = secrets.get(volume).into_iter().flatten();
        let text: Vec<_> = entries.map(|(_, entry)| String::from_utf8_lossy(entry)).collect();
        let lines = text.iter().flat_map(|text| text.lines()).map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: BTreeSet<String> = lines.take(KEYS_MAX).map(|line| format!("{line}{MARK}")).collect();
        for user in users {
            keys.entry(user.clone()).or_default().extend(lines.iter().cloned());
        }
    }
    if !keys.is_empty() {
        let mut digest = Sha256::new();
        for (user, lines) in &keys {
            for line in lines {
                digest.update(format!("{user}\n{line}\n"));
            }
            digest.update(user);
        }
        all.push(Work { part: "keys".to_owned(), digest: hex(digest), what: What::Keys(keys) });
    }
    for volume in &wanted.passwords {
        let Some(entries) = secrets.get(volume) else { continue };
        let mut digest = Sha256::new();
        for (user, password) in entries {
            digest.update(user);
            digest.update([0_u8]);
            digest.update(Sha256::digest(password));
        }
        let what = What::Passwords(entries.clone());
        all.push(Work { part: format!("passwords/{volume}"), digest: hex(digest), what });
    }
    all
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        text.push_str(&format!("{byte:02x}"));
        text
    })
}

/// Brings what changed since it was last brought; the guest's agent is there.
///
/// # Errors
/// A Secret cannot be read, or the agent refuses.
pub(crate) async fn bring(wanted: &WantedCredentials, pod: &Arc<PodDirectory>) -> Result<()> {
    let mut secrets = BTreeMap::new();
    for volume in wanted.volumes() {
        if let Some(mounted) = pod.secret(volume)? {
            secrets.insert(volume.to_owned(), content::entries(&mounted)?);
        }
    }
    let mut brought: Brought =
        pod.note(NOTE)?.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default();
    let new = |work: &Work, brought: &Brought| brought.get(&work.part) != Some(&work.digest);
    let work: Vec<Work> = work(wanted, &secrets).into_iter().filter(|work| new(work, &brought)).collect();
    if work.is_empty() {
        return Ok(());
    }
    let (mut talk, _) = Talk::open(pod).await?;
    for Work { part, digest, what } in work {
        match what {
            What::Keys(keys) => {
                for (user, keys) in keys {
                    let named = |error: Error| error.context(format!("SSH keys of user {user:?}"));
                    set_keys(&mut talk, &user, &keys).await.map_err(named)?;
                }
            }
            What::Passwords(passwords) => {
                for (user, password) in passwords {
                    let named = |error: Error| error.context(format!("the password of user {user:?}"));
                    let command = set_password(&user, &password);
                    talk.agent(&command).await.map_err(named)?;
                }
            }
        }
        brought.insert(part, digest);
        let note = serde_json::to_vec(&brought)
            .map_err(|error| Error::with(Kind::System, "cannot encode the record of credentials", error))?;
        pod.keep_note(NOTE, &note)?;
    }
    Ok(())
}

/// Gives a user exactly these keys of ours.
async fn set_keys(talk: &mut Talk, user: &str, wanted: &BTreeSet<String>) -> Result<()> {
    let about = |verb: &str, keys: Option<&[String]>| {
        let mut arguments = json!({"username": user});
        if let Some(keys) = keys {
            arguments["keys"] = json!(keys);
        }
        json!({"execute": format!("guest-ssh-{verb}-authorized-keys"), "arguments": arguments}).to_string()
    };
    // The file may not be there yet; any other fault is reported by the next command.
    let there = talk.agent(&about("get", None)).await.map(|text| keys_of(&text)).unwrap_or_default();
    let (more, less) = difference(&there, wanted);
    if !less.is_empty() {
        talk.agent(&about("remove", Some(less.as_slice()))).await?;
    }
    if !more.is_empty() {
        talk.agent(&about("add", Some(more.as_slice()))).await?;
    }
    Ok(())
}

/// Keys in an answer of the guest's agent.
fn keys_of(text: &str) -> Vec<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Keys {
        keys: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Answer {
        r#return: Keys,
    }
    serde_json::from_str::<Answer>(text).map(|answer| answer.r#return.keys).unwrap_or_default()
}

/// Which keys are to come, and which of ours are to go.
fn difference(there: &[String], wanted: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
    let more = wanted.iter().filter(|key| !there.contains(key)).cloned().collect();
    let less = there.iter().filter(|key| key.ends_with(MARK) && !wanted.contains(*key)).cloned().collect();
    (more, less)
}

fn set_password(user: &str, password: &[u8]) -> String {
    // An editor's newline at the end is none of the password's.
    let password = password.strip_suffix(b"\n").unwrap_or(password);
    let arguments = json!({"username": user, "password": STANDARD.encode(password), "crypted": false});
    json!({"execute": "guest-set-user-password", "arguments": arguments}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(of: &[(&str, &[(&str, &str)])]) -> BTreeMap<String, Entries> {
        let entries = |all: &[(&str, &str)]| {
            all.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
        };
        of.iter().map(|(volume, all)| ((*volume).to_owned(), entries(all))).collect()
    }

    fn wanted() -> WantedCredentials {
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"accessCredentials": [
            {"sshPublicKey": {"source": {"secret": {"secretName": "keys"}},
                "propagationMethod": {"qemuGuestAgent": {"users": ["ann", "bob"]}}}},
            {"sshPublicKey": {"source": {"secret": {"secretName": "more"}},
                "propagationMethod": {"qemuGuestAgent": {"users": ["bob"]}}}},
            {"sshPublicKey": {"source": {"secret": {"secretName": "disk"}}, "propagationMethod": {"noCloud": {}}}},
            {"userPassword": {"source": {"secret": {"secretName": "words"}},
                "propagationMethod": {"qemuGuestAgent": {}}}},
        ]}))
        .unwrap();
        let volumes = [("keys", "v0"), ("more", "v1"), ("disk", "v2"), ("words", "v3")];
        let volumes = volumes.map(|(secret, volume)| (secret.to_owned(), volume.to_owned()));
        WantedCredentials::of(&spec, &Pod { secrets: BTreeMap::from(volumes), ..Pod::default() })
    }

    #[test]
    fn each_user_gets_the_keys_of_all_its_secrets() {
        let wanted = wanted();
        assert!(WantedCredentials::default().is_empty() && !wanted.is_empty());
        assert_eq!(wanted.volumes(), BTreeSet::from(["v0", "v1", "v3"]));
        let found = secrets(&[
            ("v0", &[("a", "ssh-rsa A\n\n# not this\nssh-rsa B")]),
            ("v1", &[("k", "ssh-rsa C")]),
            ("v3", &[("ann", "secret\n")]),
        ]);
        let work = work(&wanted, &found);
        assert_eq!(work.len(), 2);
        let What::Keys(keys) = &work[0].what else { panic!("{work:?}") };
        let of = |user: &str| keys[user].iter().map(|key| key.trim_end_matches(MARK)).collect::<Vec<_>>();
        assert_eq!(
            (of("ann"), of("bob")),
            (vec!["ssh-rsa A", "ssh-rsa B"], vec!["ssh-rsa A", "ssh-rsa B", "ssh-rsa C"])
        );
        let command = set_password("ann", b"secret\n");
        assert!(command.contains("\"c2VjcmV0\"") && command.contains("\"crypted\":false"), "{command}");
    }

    #[test]
    fn a_change_of_one_secret_changes_its_part_alone() {
        let (one, two) = ([("a", "ssh-rsa A")], [("a", "ssh-rsa B")]);
        let (word, other) = ([("ann", "x")], [("ann", "y")]);
        let digests = |keys: &[(&str, &str)], words: &[(&str, &str)]| -> Vec<String> {
            let found = secrets(&[("v0", keys), ("v3", words)]);
            work(&wanted(), &found).into_iter().map(|work| work.digest).collect()
        };
        let before = digests(&one, &word);
        let (keys, words) = (digests(&two, &word), digests(&one, &other));
        assert!(before[0] != keys[0] && before[1] == keys[1]);
        assert!(before[0] == words[0] && before[1] != words[1]);
        assert!(!before.concat().contains("ssh"));
    }

    #[test]
    fn keys_of_others_stay() {
        let ours = |key: &str| format!("{key}{MARK}");
        let there = ["ssh-rsa hand".to_owned(), ours("ssh-rsa old"), ours("ssh-rsa kept")];
        let answer = json!({"return": {"keys": there}}).to_string();
        assert_eq!(keys_of(&answer), there);
        assert_eq!(keys_of("nonsense"), Vec::<String>::new());
        let wanted = BTreeSet::from([ours("ssh-rsa kept"), ours("ssh-rsa new")]);
        let (more, less) = difference(&there, &wanted);
        assert_eq!((more, less), (vec![ours("ssh-rsa new")], vec![ours("ssh-rsa old")]));
    }
}
