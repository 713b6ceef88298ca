//! The small CDs of a guest: cloud-init's, and files from Secrets, ConfigMaps and the object itself. Not here: their
//! filesystem, which the launcher writes.

use std::collections::BTreeMap;

use api::core::{ConfigMap, Secret};
use api::kubevirt::{CloudInit, DownwardApi, ServiceAccountVolume, SshPropagation, Sysprep};
use api::launch::{MediaFile, Medium};
use api::resource::{Confidential, LocalReference};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::Resolution;
use super::volumes::{Source, source};

/// Most bytes on one of these CDs: what a Secret or ConfigMap can hold.
const CONTENT_MAX: usize = 1 << 20;
/// Label where none is given.
const LABEL: &str = "cfgdata";
/// Longest label of a CD.
const LABEL_MAX: usize = 32;

/// Files by their path.
type Files = BTreeMap<String, Vec<u8>>;

impl Resolution<'_> {
    pub(super) fn media(&mut self) -> Vec<Medium> {
        self.volumes();
        let mut media = Vec::new();
        for (index, volume) in self.spec.volumes.iter().enumerate() {
            let at = format!("volumes[{index}]");
            let built = match source(volume) {
                None | Some(Source::Storage) => None,
                Some(Source::NoCloud(data)) => {
                    let at = format!("{at}.cloudInitNoCloud");
                    Some(("cidata".to_owned(), self.no_cloud(&at, data), at))
                }
                Some(Source::ConfigDrive(data)) => {
                    let at = format!("{at}.cloudInitConfigDrive");
                    Some(("config-2".to_owned(), self.config_drive(&at, data), at))
                }
                Some(Source::Sysprep(data)) => {
                    let at = format!("{at}.sysprep");
                    Some(("sysprep".to_owned(), self.sysprep(&at, data), at))
                }
                Some(Source::ConfigMap(data)) => {
                    let at = format!("{at}.configMap");
                    let files = self.config_map(&format!("{at}.name"), &data.name, data.optional);
                    Some((self.label(&at, data.volume_label.as_ref()), files, at))
                }
                Some(Source::Secret(data)) => {
                    let at = format!("{at}.secret");
                    let files = self.secret(&format!("{at}.secretName"), &data.secret_name, data.optional);
                    Some((self.label(&at, data.volume_label.as_ref()), files, at))
                }
                Some(Source::Downward(data)) => {
                    let at = format!("{at}.downwardAPI");
                    let files = self.downward(&at, data);
                    Some((self.label(&at, data.volume_label.as_ref()), files, at))
                }
                Some(Source::Account(data)) => {
                    let at = format!("{at}.serviceAccount");
                    Some((LABEL.to_owned(), self.account(&at, data), at))
                }
            };
            let Some((label, files, at)) = built else { continue };
            let size: usize = files.values().map(Vec::len).sum();
            if size > CONTENT_MAX {
                self.error(&at, format!("{size} bytes; 1 MiB is the limit"));
                continue;
            }
            let file = |(path, content): (String, Vec<u8>)| MediaFile {
                path,
                content: Confidential(STANDARD.encode(content)),
            };
            media.push(Medium {
                name: volume.name.clone(),
                label,
                files: files.into_iter().map(file).collect(),
            });
        }
        media
    }

    fn label(&mut self, at: &str, label: Option<&String>) -> String {
        let label = label.map_or(LABEL, String::as_str);
        let good = label.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-. ".contains(&b));
        if label.is_empty() || label.len() > LABEL_MAX || !good {
            self.error(&format!("{at}.volumeLabel"), "not one to 32 letters, digits, spaces and _-.");
        }
        label.to_owned()
    }

    /// The identity by which cloud-init knows whether it has run: the guest's, not the run's.
    fn instance_id(&self) -> String {
        let namespace = self.guest.metadata.namespace.as_deref().unwrap_or_default();
        format!("{}.{namespace}", self.guest.metadata.name)
    }

    fn hostname(&mut self) -> String {
        match self.spec.hostname.as_deref() {
            None => self.guest.metadata.name.split('.').next().unwrap_or_default().to_owned(),
            Some(name) => {
                if !name.split('.').all(super::volumes::is_label) {
                    self.error("hostname", "not a host name");
                }
                name.to_owned()
            }
        }
    }

    fn no_cloud(&mut self, at: &str, data: &CloudInit) -> Files {
        let mut meta = json!({"instance-id": self.instance_id(), "local-hostname": self.hostname()});
        let keys = self.ssh_keys(|method| method.no_cloud.is_some());
        if !keys.is_empty() {
            meta["public-keys"] = json!(keys);
        }
        let mut files = Files::from([("meta-data".to_owned(), meta.to_string().into_bytes())]);
        let (user, network) = self.cloud_init(at, data);
        files.insert("user-data".to_owned(), user.unwrap_or_default());
        files.extend(network.map(|network| ("network-config".to_owned(), network)));
        files
    }

    fn config_drive(&mut self, at: &str, data: &CloudInit) -> Files {
        let hostname = self.hostname();
        let mut meta = json!({
            "instance_id": self.instance_id(),
            "uuid": self.guest.smbios_uuid,
            "hostname": hostname,
            "local_hostname": hostname,
        });
        let keys = self.ssh_keys(|method| method.config_drive.is_some());
        if !keys.is_empty() {
            meta["public_keys"] = json!(keys);
        }
        let place = |name: &str| format!("openstack/latest/{name}");
        let mut files = Files::from([(place("meta_data.json"), meta.to_string().into_bytes())]);
        let (user, network) = self.cloud_init(at, data);
        files.extend(user.map(|user| (place("user_data"), user)));
        files.extend(network.map(|network| (place("network_data.json"), network)));
        files
    }

    /// SSH public keys of `accessCredentials` with this propagation, by number: each entry of their Secrets is one.
    fn ssh_keys(&mut self, by: impl Fn(&SshPropagation) -> bool) -> BTreeMap<String, String> {
        let mut keys = Vec::new();
        for (index, credential) in self.spec.access_credentials.iter().enumerate() {
            let Some(ssh) = credential.ssh_public_key.as_ref().filter(|ssh| by(&ssh.propagation_method))
            else {
                continue;
            };
            let Some(secret) = &ssh.source.secret else { continue };
            let field = format!("accessCredentials[{index}].sshPublicKey.source.secret.secretName");
            let entries = self.secret(&field, &secret.secret_name, None);
            keys.extend(entries.into_values().map(|key| String::from_utf8_lossy(&key).trim().to_owned()));
        }
        keys.into_iter().enumerate().map(|(number, key)| (number.to_string(), key)).collect()
    }

    /// User data and network data, each from the one form it is given in.
    fn cloud_init(&mut self, at: &str, data: &CloudInit) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let user = Forms {
            name: "userData",
            text: data.user_data.as_ref(),
            base64: data.user_data_base64.as_ref(),
            secret: data.secret_ref.as_ref(),
            secret_field: "secretRef",
            keys: ["userdata", "userData"],
        };
        let network = Forms {
            name: "networkData",
            text: data.network_data.as_ref(),
            base64: data.network_data_base64.as_ref(),
            secret: data.network_data_secret_ref.as_ref(),
            secret_field: "networkDataSecretRef",
            keys: ["networkdata", "networkData"],
        };
        if user.count() + network.count() == 0 {
            self.error(at, "has neither user data nor network data");
        }
        let user = self.form(at, &user);
        let mut network_data = self.form(at, &network);
        // The Secret of user data may hold network data too.
        if let (0, Some(secret)) = (network.count(), &data.secret_ref) {
            let files = self.objects.secrets.get(&secret.name).map(entries_of_secret);
            let files = files.and_then(Result::ok).unwrap_or_default();
            network_data = network.keys.iter().find_map(|key| files.get(*key).cloned());
        }
        (user, network_data)
    }

    fn form(&mut self, at: &str, forms: &Forms<'_>) -> Option<Vec<u8>> {
        if forms.count() > 1 {
            self.error(&format!("{at}.{}", forms.name), "given in more than one form");
            return None;
        }
        if let Some(text) = forms.text {
            return Some(text.0.clone().into_bytes());
        }
        if let Some(text) = forms.base64 {
            let decoded = STANDARD.decode(text.0.trim());
            if decoded.is_err() {
                self.error(&format!("{at}.{}Base64", forms.name), "not base64");
            }
            return decoded.ok();
        }
        let reference = forms.secret?;
        let field = format!("{at}.{}.name", forms.secret_field);
        let found = self.objects.secrets.contains_key(&reference.name);
        let files = self.secret(&field, &reference.name, None);
        let content = forms.keys.iter().find_map(|key| files.get(*key).cloned());
        if found && content.is_none() && forms.name == "userData" {
            self.error(&field, format!("Secret {:?} has no entry userdata", reference.name));
        }
        content
    }

    fn sysprep(&mut self, at: &str, data: &Sysprep) -> Files {
        match (&data.secret, &data.config_map) {
            (Some(secret), None) => self.secret(&format!("{at}.secret.name"), &secret.name, None),
            (None, Some(map)) => self.config_map(&format!("{at}.configMap.name"), &map.name, None),
            (Some(_), Some(_)) | (None, None) => {
                self.error(at, "needs exactly one of secret and configMap");
                Files::new()
            }
        }
    }

    /// The token of a ServiceAccount, the name of its namespace and the authority of the API server.
    fn account(&mut self, at: &str, data: &ServiceAccountVolume) -> Files {
        let name = data.service_account_name.as_deref().unwrap_or_default();
        let field = format!("{at}.serviceAccountName");
        if name.is_empty() {
            self.error(&field, "missing");
        }
        let Some(accounts) = &self.objects.accounts else { return Files::new() };
        let files = accounts.get(name).cloned();
        if files.is_none() {
            self.error(&field, format!("the guest's pod has no token of ServiceAccount {name:?}"));
        }
        files.unwrap_or_default()
    }

    fn secret(&mut self, field: &str, name: &str, optional: Option<bool>) -> Files {
        let entries = self.objects.secrets.get(name).map(entries_of_secret);
        self.entries(field, "Secret", name, optional, entries)
    }

    fn config_map(&mut self, field: &str, name: &str, optional: Option<bool>) -> Files {
        let entries = self.objects.config_maps.get(name).map(entries_of_map);
        self.entries(field, "ConfigMap", name, optional, entries)
    }

    fn entries(
        &mut self,
        field: &str,
        kind: &str,
        name: &str,
        optional: Option<bool>,
        entries: Option<Result<Files, String>>,
    ) -> Files {
        let problem = match entries {
            Some(Ok(files)) => match files.keys().find(|key| !is_key(key)) {
                None => return files,
                Some(key) => format!(
                    "{kind} {name:?}: {key:?} is not a name of up to {NAME_MAX} letters, digits and -_."
                ),
            },
            Some(Err(key)) => format!("{kind} {name:?}: entry {key:?} is not base64"),
            None if name.is_empty() => "missing".to_owned(),
            None if optional == Some(true) || !self.objects.complete => return Files::new(),
            None => format!("there is no {kind} {name:?}"),
        };
        self.error(field, problem);
        Files::new()
    }

    fn downward(&mut self, at: &str, data: &DownwardApi) -> Files {
        let mut files = Files::new();
        for (index, file) in data.fields.iter().enumerate() {
            let at = format!("{at}.fields[{index}]");
            let parts_are_fine = file.path.split('/').all(|part| is_key(part) && part != ".");
            if !parts_are_fine {
                self.error(&format!("{at}.path"), "not a relative path of letters, digits and -_.");
                continue;
            }
            // Resources of a container are a pod's: the finding about the field says that the file is missing.
            if file.field_ref.is_none() && file.resource_field_ref.is_some() {
                continue;
            }
            let field = file.field_ref.as_ref().map_or("", |field| field.field_path.as_str());
            match self.field(field) {
                Some(content) => drop(files.insert(file.path.clone(), content.into_bytes())),
                None => self.error(
                    &format!("{at}.fieldRef.fieldPath"),
                    format!("{field:?} is not a field of metadata"),
                ),
            }
        }
        files
    }

    /// A field of the object as Kubernetes writes it into a file.
    fn field(&self, path: &str) -> Option<String> {
        let metadata = &self.guest.metadata;
        let all = |map: &BTreeMap<String, String>| {
            map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
        };
        match path {
            "metadata.name" => return Some(metadata.name.clone()),
            "metadata.namespace" => return metadata.namespace.clone(),
            "metadata.uid" => return Some(metadata.uid.clone().unwrap_or_else(|| self.guest.uid.clone())),
            "metadata.labels" => return Some(all(&metadata.labels)),
            "metadata.annotations" => return Some(all(&metadata.annotations)),
            _ => {}
        }
        for (start, map) in
            [("metadata.labels['", &metadata.labels), ("metadata.annotations['", &metadata.annotations)]
        {
            if let Some(key) = path.strip_prefix(start).and_then(|rest| rest.strip_suffix("']")) {
                return Some(map.get(key).cloned().unwrap_or_default());
            }
        }
        None
    }
}

/// The forms in which data for cloud-init can be given.
struct Forms<'a> {
    name: &'static str,
    text: Option<&'a Confidential>,
    base64: Option<&'a Confidential>,
    secret: Option<&'a LocalReference>,
    secret_field: &'static str,
    keys: [&'static str; 2],
}

impl Forms<'_> {
    fn count(&self) -> usize {
        usize::from(self.text.is_some())
            + usize::from(self.base64.is_some())
            + usize::from(self.secret.is_some())
    }
}

/// Longest name of a file on a CD.
const NAME_MAX: usize = 100;

/// A key of a Secret or ConfigMap that can be a file on a CD: letters, digits and `-_.`, and no name of a folder.
fn is_key(key: &str) -> bool {
    let good = key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (1..=NAME_MAX).contains(&key.len()) && good && !key.starts_with("..") && key != "."
}

/// Entries, or the key of one that is not base64.
fn entries_of_secret(secret: &Secret) -> Result<Files, String> {
    let decoded = secret.data.iter().map(|(key, value)| Ok((key.clone(), decode(key, &value.0)?)));
    let mut files = decoded.collect::<Result<Files, String>>()?;
    files.extend(secret.string_data.iter().map(|(key, value)| (key.clone(), value.0.clone().into_bytes())));
    Ok(files)
}

/// Entries, or the key of one that is not base64.
fn entries_of_map(map: &ConfigMap) -> Result<Files, String> {
    let decoded = map.binary_data.iter().map(|(key, value)| Ok((key.clone(), decode(key, value)?)));
    let mut files = decoded.collect::<Result<Files, String>>()?;
    files.extend(map.data.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes())));
    Ok(files)
}

fn decode(key: &str, value: &str) -> Result<Vec<u8>, String> {
    // People wrap long lines.
    let value: String = value.split_ascii_whitespace().collect();
    STANDARD.decode(value).map_err(|_| key.to_owned())
}
