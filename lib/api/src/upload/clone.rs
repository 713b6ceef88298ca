//! The contract of a clone's sending pod: the variables it is started with, as data. Names and meanings are those of
//! upstream CDI (`cmd/cdi-cloner`, `pkg/controller/clone-controller.go`). Not here: what is sent (`CloneOf`), TLS, files.

use thiserror::Error;

use crate::resource::Confidential;

/// Folder at which a Filesystem volume that is cloned is mounted.
pub const SOURCE_DIR: &str = "/var/run/cdi/clone/source";
/// Counter 0–100; its only label is [`crate::names::OWNER_LABEL`].
pub const CLONE_PROGRESS: &str = "kubevirt_cdi_clone_progress_total";

/// The environment variables of a clone's sending pod, as data. Empty texts mean "not given".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// CLIENT_KEY: the key of [`Source::client_cert`] itself, PEM.
    pub client_key: Confidential,
    /// CLIENT_CERT: the certificate itself, PEM; the upload server knows this clone by its common name.
    pub client_cert: String,
    /// SERVER_CA_CERT: certificates of the upload servers' authority, PEM.
    pub server_ca_cert: String,
    /// UPLOAD_URL: where the volume is sent to.
    pub upload_url: String,
    /// OWNER_UID: label of the progress metric, the uid of the target claim.
    pub owner_uid: String,
    /// PREALLOCATION: of interest to the receiver alone.
    pub preallocation: bool,
    /// VOLUME_MODE.
    pub mode: Mode,
    /// MOUNT_POINT: the device, or the folder at which the volume is mounted.
    pub mount_point: String,
}

/// Mode of the sent volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Its files.
    #[default]
    Filesystem,
    /// Its bytes.
    Block,
}

/// Why an environment is no sender's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SourceError {
    /// VOLUME_MODE is none.
    #[error("VOLUME_MODE=\"{0}\" is neither block nor filesystem")]
    Mode(String),
}

impl Source {
    /// Reads variables; others are ignored. A PREALLOCATION that is no bool is false, as upstream; a volume whose mode is
    /// not given has files.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_env<K, V>(variables: impl IntoIterator<Item = (K, V)>) -> Result<Self, SourceError>
    where
        K: AsRef<str>,
        V: Into<String>,
    {
        let mut source = Self::default();
        for (name, value) in variables {
            let value: String = value.into();
            match name.as_ref() {
                "CLIENT_KEY" => source.client_key = Confidential(value),
                "CLIENT_CERT" => source.client_cert = value,
                "SERVER_CA_CERT" => source.server_ca_cert = value,
                "UPLOAD_URL" => source.upload_url = value,
                "OWNER_UID" => source.owner_uid = value,
                "PREALLOCATION" => {
                    source.preallocation = matches!(&*value, "1" | "t" | "T" | "true" | "TRUE" | "True");
                }
                "VOLUME_MODE" => {
                    source.mode = match value.to_ascii_lowercase().as_str() {
                        "block" => Mode::Block,
                        "filesystem" | "" => Mode::Filesystem,
                        _ => return Err(SourceError::Mode(value)),
                    };
                }
                "MOUNT_POINT" => source.mount_point = value,
                _ => {}
            }
        }
        Ok(source)
    }

    /// The variables that [`Source::from_env`] reads back as `self`.
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mode = match self.mode {
            Mode::Filesystem => "filesystem",
            Mode::Block => "block",
        };
        let preallocation = self.preallocation.to_string();
        [
            ("CLIENT_KEY", self.client_key.0.as_str()),
            ("CLIENT_CERT", self.client_cert.as_str()),
            ("SERVER_CA_CERT", self.server_ca_cert.as_str()),
            ("UPLOAD_URL", self.upload_url.as_str()),
            ("OWNER_UID", self.owner_uid.as_str()),
            ("PREALLOCATION", preallocation.as_str()),
            ("VOLUME_MODE", mode),
            ("MOUNT_POINT", self.mount_point.as_str()),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_read_back() {
        let text = |name: &str| format!("value of {name}");
        let source = Source {
            client_key: Confidential(text("key")),
            client_cert: text("cert"),
            server_ca_cert: text("ca"),
            upload_url: text("url"),
            owner_uid: text("uid"),
            preallocation: true,
            mode: Mode::Block,
            mount_point: text("mount"),
        };
        assert_eq!(Source::from_env(source.to_env()), Ok(source.clone()));
        assert_eq!(Source::from_env(Source::default().to_env()), Ok(Source::default()));
        assert!(!format!("{source:?}").contains("value of key"), "keys are not shown");
    }

    #[test]
    fn modes_are_two() {
        let read = |value| Source::from_env([("VOLUME_MODE", value)]).map(|source| source.mode);
        assert_eq!((read("Block"), read("block")), (Ok(Mode::Block), Ok(Mode::Block)));
        assert_eq!((read("filesystem"), read("")), (Ok(Mode::Filesystem), Ok(Mode::Filesystem)));
        assert_eq!(read("tape"), Err(SourceError::Mode("tape".into())));
    }
}
