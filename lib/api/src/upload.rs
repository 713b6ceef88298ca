//! The contract of uploads: the variables an upload server is started with, its paths, and the headers that clients,
//! proxy and server exchange. Names and meanings are those of upstream CDI (`pkg/common`, `cmd/cdi-uploadserver`);
//! resuming follows draft-ietf-httpbis-resumable-upload.
//!
//! [`request`] is a client's request for a token, `token` (feature `token`) its content and verification; [`clone`] is the
//! environment of a clone's sending pod.
//!
//! Not here: files, TLS, HTTP.

use thiserror::Error;

use crate::quantity::{self, QuantityError};

pub mod clone;
pub mod request;
#[cfg(feature = "token")]
pub mod token;

/// How an upload arrives, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The body is the image; answered when the disk is there.
    Sync,
    /// The same; answered when the bytes are stored and found good.
    Async,
    /// The image is the field [`FORM_FIELD`] of a form.
    Form,
    /// Both.
    FormAsync,
    /// The body is a tar archive.
    Archive,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sync, Self::Async, Self::Form, Self::FormAsync, Self::Archive];

    /// The last part of its path.
    pub fn word(self) -> &'static str {
        match self {
            Self::Sync => "upload",
            Self::Async => "upload-async",
            Self::Form => "upload-form",
            Self::FormAsync => "upload-form-async",
            Self::Archive => "upload-archive",
        }
    }

    /// The way of a path, in either version.
    pub fn of_path(path: &str) -> Option<Self> {
        let word = VERSIONS.iter().find_map(|version| path.strip_prefix(version))?;
        Self::ALL.into_iter().find(|way| way.word() == word)
    }

    /// Whether it is answered before everything is done, as clients ask by HEAD.
    pub fn is_async(self) -> bool {
        match self {
            Self::Async | Self::FormAsync => true,
            Self::Sync | Self::Form | Self::Archive => false,
        }
    }

    /// Whether the image is a field of a form.
    pub fn is_form(self) -> bool {
        match self {
            Self::Form | Self::FormAsync => true,
            Self::Sync | Self::Async | Self::Archive => false,
        }
    }
}

/// The path of archives in the version of `path`.
pub fn archive_path(path: &str) -> String {
    let version = VERSIONS.iter().find(|version| path.starts_with(**version)).unwrap_or(&VERSIONS[0]);
    format!("{version}{}", Way::Archive.word())
}

/// Prefix of all paths.
const VERSIONS: [&str; 2] = ["/v1beta1/", "/v1alpha1/"];
/// Prefix of the path of a resumable upload; its name follows. Ours.
pub const RESOURCES: &str = "/v1beta1/uploads/";
/// Field of a form that holds the image.
pub const FORM_FIELD: &str = "file";

/// Header with the content type of a clone; see [`CloneOf`].
pub const CONTENT_TYPE_HEADER: &str = "x-cdi-content-type";
/// Header of a Block volume's clone: bytes of the device, before compression. Ours; stock senders do not send it.
pub const CLONE_SIZE_HEADER: &str = "ferrovirt-clone-size";
/// Header of answers to HEAD: how far the upload is, in per cent. Ours.
pub const PROGRESS_HEADER: &str = "ferrovirt-upload-progress";

/// Content of a clone instead of an image: a stream in snappy's framing format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloneOf {
    /// A tar archive of a Filesystem volume.
    Filesystem,
    /// The bytes of a Block volume.
    Device,
}

impl CloneOf {
    /// The value of [`CONTENT_TYPE_HEADER`].
    pub fn header(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem-clone",
            Self::Device => "blockdevice-clone",
        }
    }

    /// Reads the value of [`CONTENT_TYPE_HEADER`]; anything else is an image, as for upstream.
    pub fn of_header(value: &str) -> Option<Self> {
        [Self::Filesystem, Self::Device].into_iter().find(|clone| clone.header() == value)
    }
}

/// Names of draft-ietf-httpbis-resumable-upload.
pub mod resume {
    /// Header with the number of the draft's wire format.
    pub const VERSION_HEADER: &str = "upload-draft-interop-version";
    /// The wire format that is spoken: drafts of 2025 and after.
    pub const VERSION: &str = "8";
    /// Header: `?1` when the request carries the end of the upload.
    pub const COMPLETE_HEADER: &str = "upload-complete";
    /// Header: bytes before this request's.
    pub const OFFSET_HEADER: &str = "upload-offset";
    /// Header: bytes of the whole upload.
    pub const LENGTH_HEADER: &str = "upload-length";
    /// Header: what the server sets bounds to.
    pub const LIMIT_HEADER: &str = "upload-limit";
    /// Content type of a PATCH.
    pub const PARTIAL: &str = "application/partial-upload";
    /// Type of the problem that an offset is not the server's (RFC 9457).
    pub const MISMATCH: &str = "https://iana.org/assignments/http-problem-types#mismatching-upload-offset";
    /// Type of the problem that an upload is complete already.
    pub const COMPLETED: &str = "https://iana.org/assignments/http-problem-types#completed-upload";
}

/// Annotations of claims with the progress of an upload's server, as upstream's controller writes them.
pub mod annotation {
    /// On a claim that may be uploaded to; the value has no meaning.
    pub const TARGET: &str = "cdi.kubevirt.io/storage.upload.target";
    /// Phase of the server's pod: `Running`, `Succeeded`.
    pub const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
    /// `true` while the server answers its probe.
    pub const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
    /// On a claim that a populator fills: the claim that the server really has.
    pub const PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
    /// `kubevirt` (default) or `archive`.
    pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
}

/// Kind of `dataSourceRef` of a claim that the upload populator fills.
pub const POPULATOR_KIND: &str = "VolumeUploadSource";
/// Common name of the proxy's certificate, by which servers know it.
pub const PROXY_CLIENT: &str = "client.upload-server.cdi.kubevirt.io";
/// Entry of the Secret with the proxy's certificate: lowest TLS version and cipher suites, one in a line.
pub const PROXY_PROFILE: &str = "tls.profile";

/// The Service of a claim's upload server (`pkg/util/naming`): `cdi-upload-` and the claim's name, dots as dashes; a
/// name that is no label then keeps its front and gets a hash.
pub fn service_name(claim: &str) -> String {
    /// Longest DNS label, and longest name of an object.
    const LABEL: usize = 63;
    const NAME: usize = 253;
    let mut base = format!("cdi-upload-{claim}");
    if base.len() > NAME {
        base = format!("cdi-upload-{:08x}", fnv1a(&base));
    }
    let base = base.replace('.', "-");
    if base.len() <= LABEL {
        return base;
    }
    // Names are ASCII. The hash and both dashes are ten characters.
    let front: String = base.chars().take(LABEL - 10 - "cdi".len()).collect();
    format!("{front}-{:08x}-cdi", fnv1a(&base))
}

/// FNV-1a, 32 bits.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// An upload server's environment variables, as data. Empty texts mean "not given".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Server {
    /// LISTEN_ADDRESS; all addresses, if not given.
    pub listen_address: String,
    /// LISTEN_PORT; [`crate::names::UPLOAD_PORT`], if not given.
    pub listen_port: Option<u16>,
    /// TLS_KEY_FILE.
    pub key_file: String,
    /// TLS_CERT_FILE.
    pub cert_file: String,
    /// CLIENT_CERT_FILE: certificates of the clients' authority.
    pub client_cert_file: String,
    /// CLIENT_NAME: common name of the one client.
    pub client_name: String,
    /// TLS_CIPHERS: names of cipher suites of TLS 1.2, comma between.
    pub tls_ciphers: String,
    /// TLS_MIN_VERSION: `VersionTLS12` or `VersionTLS13`.
    pub tls_min_version: String,
    /// UPLOAD_IMAGE_SIZE: the PVC's request in bytes.
    pub image_size: Option<u64>,
    /// FILESYSTEM_OVERHEAD: share of a Filesystem volume that is not the disk's; 0 for block.
    pub filesystem_overhead: f64,
    /// PREALLOCATION.
    pub preallocation: bool,
    /// DESTINATION: the disk, or the device.
    pub destination: String,
    /// DEADLINE: when to end without an upload, RFC 3339.
    pub deadline: String,
    /// OWNER_UID: label of the progress metric. Ours.
    pub owner_uid: String,
}

/// Why an environment is no server's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServerError {
    /// UPLOAD_IMAGE_SIZE is no quantity.
    #[error("UPLOAD_IMAGE_SIZE: {0}")]
    Size(QuantityError),
    /// LISTEN_PORT is no port.
    #[error("LISTEN_PORT=\"{0}\" is not a port")]
    Port(String),
}

impl Server {
    /// Reads variables; others are ignored. An overhead that is no number from 0 to 1 is 0, and a PREALLOCATION that is
    /// no bool is false, as upstream.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_env<K, V>(variables: impl IntoIterator<Item = (K, V)>) -> Result<Self, ServerError>
    where
        K: AsRef<str>,
        V: Into<String>,
    {
        let mut server = Self::default();
        for (name, value) in variables {
            let value: String = value.into();
            match name.as_ref() {
                "LISTEN_PORT" if !value.is_empty() => {
                    server.listen_port = Some(value.parse().map_err(|_| ServerError::Port(value))?);
                }
                "UPLOAD_IMAGE_SIZE" if !value.is_empty() => {
                    server.image_size = Some(quantity::bytes(&value).map_err(ServerError::Size)?);
                }
                "FILESYSTEM_OVERHEAD" => {
                    let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                    server.filesystem_overhead = share.unwrap_or(0.0);
                }
                "PREALLOCATION" => {
                    server.preallocation = matches!(&*value, "1" | "t" | "T" | "true" | "TRUE" | "True");
                }
                name => {
                    if let Some(text) = server.text_mut(name) {
                        *text = value;
                    }
                }
            }
        }
        Ok(server)
    }

    /// The variables that [`Server::from_env`] reads back as `self`.
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            ("LISTEN_PORT".to_owned(), self.listen_port.map(|port| port.to_string()).unwrap_or_default()),
            ("UPLOAD_IMAGE_SIZE".to_owned(), self.image_size.map(|n| n.to_string()).unwrap_or_default()),
            ("FILESYSTEM_OVERHEAD".to_owned(), self.filesystem_overhead.to_string()),
            ("PREALLOCATION".to_owned(), self.preallocation.to_string()),
        ];
        let mut copy = self.clone();
        for name in TEXTS {
            if let Some(text) = copy.text_mut(name) {
                variables.push((name.to_owned(), std::mem::take(text)));
            }
        }
        variables.retain(|(_, value)| !value.is_empty());
        variables
    }

    /// The field of a variable that is taken as it is.
    fn text_mut(&mut self, name: &str) -> Option<&mut String> {
        Some(match name {
            "LISTEN_ADDRESS" => &mut self.listen_address,
            "TLS_KEY_FILE" => &mut self.key_file,
            "TLS_CERT_FILE" => &mut self.cert_file,
            "CLIENT_CERT_FILE" => &mut self.client_cert_file,
            "CLIENT_NAME" => &mut self.client_name,
            "TLS_CIPHERS" => &mut self.tls_ciphers,
            "TLS_MIN_VERSION" => &mut self.tls_min_version,
            "DESTINATION" => &mut self.destination,
            "DEADLINE" => &mut self.deadline,
            "OWNER_UID" => &mut self.owner_uid,
            _ => return None,
        })
    }
}

/// Every variable [`Server::text_mut`] knows.
const TEXTS: [&str; 10] = [
    "LISTEN_ADDRESS",
    "TLS_KEY_FILE",
    "TLS_CERT_FILE",
    "CLIENT_CERT_FILE",
    "CLIENT_NAME",
    "TLS_CIPHERS",
    "TLS_MIN_VERSION",
    "DESTINATION",
    "DEADLINE",
    "OWNER_UID",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_read_back() {
        let mut server = Server {
            listen_port: Some(8443),
            image_size: Some(1 << 30),
            filesystem_overhead: 0.055,
            preallocation: true,
            ..Server::default()
        };
        for name in TEXTS {
            *server.text_mut(name).unwrap() = format!("value of {name}");
        }
        assert_eq!(Server::from_env(server.to_env()), Ok(server));
        assert_eq!(Server::from_env(Server::default().to_env()), Ok(Server::default()));
    }

    #[test]
    fn values_are_read_as_upstream_reads_them() {
        let read = |name, value| Server::from_env([(name, value)]);
        assert_eq!(read("UPLOAD_IMAGE_SIZE", "1Gi").unwrap().image_size, Some(1 << 30));
        assert!(matches!(read("UPLOAD_IMAGE_SIZE", "big"), Err(ServerError::Size(_))));
        assert!(matches!(read("LISTEN_PORT", "65536"), Err(ServerError::Port(_))));
        assert_eq!(read("FILESYSTEM_OVERHEAD", "2").unwrap().filesystem_overhead, 0.0);
        assert!(!read("PREALLOCATION", "yes").unwrap().preallocation);
    }

    #[test]
    fn services_have_upstreams_names() {
        assert_eq!(service_name("pvc"), "cdi-upload-pvc");
        assert_eq!(service_name("a.b"), "cdi-upload-a-b");
        assert_eq!(service_name(&"x".repeat(52)), format!("cdi-upload-{}", "x".repeat(52)));
        // FNV-1a's published values.
        assert_eq!((fnv1a(""), fnv1a("a"), fnv1a("foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
        let long = service_name(&"x".repeat(60));
        let hash = fnv1a(&format!("cdi-upload-{}", "x".repeat(60)));
        assert_eq!(long, format!("cdi-upload-{}-{hash:08x}-cdi", "x".repeat(39)));
        for length in 53..=253 {
            assert!(service_name(&"y".repeat(length)).len() <= 63, "{length}");
        }
    }

    #[test]
    fn paths_have_ways() {
        for version in VERSIONS {
            for way in Way::ALL {
                assert_eq!(Way::of_path(&format!("{version}{}", way.word())), Some(way));
            }
        }
        for path in ["", "/", "/v1beta1/", "/v1beta1/upload/", "/v2/upload", "/v1beta1/uploads/x", "upload"] {
            assert_eq!(Way::of_path(path), None, "{path}");
        }
    }
}
