//! The task of an import: one [`Config`], whichever way it was given. Everything is given a meaning and checked
//! here, before anything is opened. Not here: reading arguments (`args`), the environment or files.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use api::import::{CacheMode, Content, Job, PullMethod, SourceKind};
use api::names;
use disk_image::volume::{self, Contract, Holds, Owner, Place};
use disk_image::{compress, transfer};
use url::Url;

use crate::error::{Error, Kind};

/// Patience of a pod with a source that gives nothing: the pod's end is reported, and the kubelet starts it again.
const TO_BEGIN: Duration = Duration::from_secs(5);

/// Where the image is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// No image: an empty disk.
    Blank,
    /// Standard input.
    Stdin,
    /// A local file or block device.
    File(PathBuf),
    /// http, https.
    Http(Url),
    /// s3, or http(s) that speaks S3.
    S3(Url),
    /// gs, or http(s) of Google Cloud Storage.
    Gcs(Url),
    /// docker://
    Registry(String),
    /// A server in the pulled image's container offers the disk.
    NodePull(Url),
    /// oci-archive:
    OciArchive(PathBuf),
    /// nbd://, nbds://, nbd+unix://
    Nbd(Url),
}

impl Location {
    /// The word for it in "Unable to connect to … data source".
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Blank => "none",
            Self::Stdin => "stdin",
            Self::File(_) => "file",
            // The controller's name of a node pull.
            Self::Http(_) | Self::NodePull(_) => "http",
            Self::S3(_) => "s3",
            Self::Gcs(_) => "gcs",
            Self::Registry(_) | Self::OciArchive(_) => "registry",
            Self::Nbd(_) => "nbd",
        }
    }

    /// Where a person named it.
    ///
    /// # Errors
    /// A scheme that is not known, or an address that does not parse.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if text == "-" {
            return Ok(Self::Stdin);
        }
        if text == "blank" {
            return Ok(Self::Blank);
        }
        if let Some(path) = text.strip_prefix("oci-archive:") {
            return Ok(Self::OciArchive(PathBuf::from(path)));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self::File(PathBuf::from(text)));
        };
        let url = || parse_url(text);
        match scheme.to_ascii_lowercase().as_str() {
            "file" => Ok(Self::File(PathBuf::from(rest))),
            "http" | "https" => Ok(Self::Http(url()?)),
            "s3" => Ok(Self::S3(url()?)),
            "gs" => Ok(Self::Gcs(url()?)),
            "docker" => Ok(Self::Registry(text.to_owned())),
            "nbd" | "nbds" | "nbd+unix" => Ok(Self::Nbd(url()?)),
            other => Err(Error::usage(format!(
                "\"{other}://\" is not a source: use http, https, s3, gs, docker, nbd, nbds, nbd+unix, oci-archive:FILE, a file, - or blank"
            ))),
        }
    }
}

fn parse_url(text: &str) -> Result<Url, Error> {
    // The address itself is not repeated: it may carry a password.
    Url::parse(text).map_err(|e| Error::with(Kind::Usage, "the source's address is not a URL", e))
}

/// A URL without what may be secret.
fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    if cleared.is_err() && !url.username().is_empty() {
        return format!("{}://…", url.scheme());
    }
    if url.query().is_some() {
        url.set_query(Some("…"));
    }
    url.set_fragment(None);
    url.as_str().replace("%E2%80%A6", "…")
}

/// An image's name without a user and password, which do not belong there.
fn redacted_image(image: &str) -> String {
    let (scheme, rest) = image.split_once("://").unwrap_or(("docker", image));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    match host.rsplit_once('@') {
        Some((_, host)) if !path.is_empty() => format!("{scheme}://{host}/{path}"),
        Some(_) | None => image.to_owned(),
    }
}

impl fmt::Display for Location {
    /// For people: without user, password and query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("an empty disk"),
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Http(url) | Self::S3(url) | Self::Gcs(url) | Self::NodePull(url) | Self::Nbd(url) => {
                f.write_str(&redacted(url))
            }
            Self::Registry(image) => f.write_str(&redacted_image(image)),
            Self::OciArchive(path) => write!(f, "oci-archive:{}", path.display()),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A user and a password, or an access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) secret: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User")
    }
}

/// Settings of the sources, by source.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// "Key: value" lines.
    pub(crate) headers: Vec<String>,
    /// The same, to be kept from logs.
    pub(crate) secret_headers: Vec<String>,
    /// Basic authentication, S3 keys, registry login.
    pub(crate) user: Option<User>,
    /// Folders and files of CA certificates.
    pub(crate) authorities: Vec<PathBuf>,
    /// Certificates are not verified.
    pub(crate) insecure: bool,
    /// http_proxy, https_proxy, no_proxy.
    pub(crate) proxy: Proxy,
    /// GCS credentials.
    pub(crate) google_credentials: Option<PathBuf>,
    /// Platform of a registry image.
    pub(crate) architecture: Option<String>,
    /// Credentials per registry, used when there is no user.
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Node pull.
    pub(crate) ready_file: Option<PathBuf>,
    /// Node pull.
    pub(crate) done_file: Option<PathBuf>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("insecure", &self.insecure).finish_non_exhaustive()
    }
}

/// Proxies, as in the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) http: Option<String>,
    pub(crate) https: Option<String>,
    pub(crate) none_for: Option<String>,
}

impl Proxy {
    /// Settings missing here are taken from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            http: self.http.or(other.http),
            https: self.https.or(other.https),
            none_for: self.none_for.or(other.none_for),
        }
    }

    /// From variables; the lower-case names are the contract's, upper-case ones are read where these are not set.
    pub(crate) fn from_env(get: impl Fn(&str) -> Option<String>) -> Self {
        let either =
            |lower: &str| get(lower).or_else(|| get(&lower.to_uppercase())).filter(|value| !value.is_empty());
        // HTTP_PROXY in upper case may come from a request header of a CGI script; curl ignores it, and so do we.
        Self {
            http: get("http_proxy").filter(|v| !v.is_empty()),
            https: either("https_proxy"),
            none_for: either("no_proxy"),
        }
    }
}

/// How much of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Largest window a compressed stream may declare, in bytes.
    pub(crate) window: u64,
    /// Buffers of image data, in bytes.
    pub(crate) memory: usize,
    /// Connections at most.
    pub(crate) connections: usize,
    /// No byte for this long is an error.
    pub(crate) stall: Duration,
    /// Failures are retried for this long without progress.
    pub(crate) patience: Duration,
    /// The same before the first byte.
    pub(crate) first: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 128 << 20,
            memory: 24 << 20,
            connections: 8,
            stall: Duration::from_secs(600),
            patience: Duration::from_secs(300),
            first: Duration::from_secs(30),
        }
    }
}

impl Limits {
    /// The bounds of the transfer.
    pub(crate) fn transfer(&self) -> transfer::Limits {
        transfer::Limits {
            windows: compress::Limits { window: self.window, windows: self.window.max(128 << 20) },
            memory: self.memory,
            connections: self.connections,
            ..transfer::Limits::default()
        }
    }
}

/// The content of a volume of this content type.
pub(crate) fn holds(content: Content) -> Holds {
    match content {
        Content::Kubevirt => Holds::Disk,
        Content::Archive => Holds::Files,
    }
}

/// How the result is reported to a person or script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Text,
    Json,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// A bar that is redrawn.
    Bar,
    /// A line now and then.
    Plain,
    /// The percentage alone on standard output, for a program: a line whenever it is another one.
    Lines,
    /// Nothing.
    None,
}

/// One import.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) location: Location,
    pub(crate) access: Access,
    /// Bounds of the source.
    pub(crate) limits: Limits,
    /// How the target is written.
    pub(crate) volume: volume::Config,
    pub(crate) output: Output,
    pub(crate) show: Show,
    /// Label of the progress metric.
    pub(crate) owner_uid: String,
    /// Where metrics are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// Where the termination message goes.
    pub(crate) termination_log: Option<PathBuf>,
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn given_path(text: String) -> Option<PathBuf> {
    given(text).map(PathBuf::from)
}

/// Where the contract's paths are looked for: `/` in a pod, elsewhere without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) folder: PathBuf,
    pub(crate) metrics_port: u16,
}

impl Default for Root {
    fn default() -> Self {
        Self { folder: PathBuf::from("/"), metrics_port: names::METRICS_PORT }
    }
}

impl Root {
    pub(crate) fn path(&self, contract: &str) -> PathBuf {
        self.folder.join(contract.trim_start_matches('/'))
    }
}

impl Config {
    /// The import that the environment contract describes. `secret_headers` are the lines of the files under
    /// /extraheaders.
    ///
    /// # Errors
    /// Sources that are not supported (imageio, vddk, glance, checkpoints) or that upstream refuses, and values that do not parse.
    pub(crate) fn from_job(job: Job, secret_headers: Vec<String>, root: &Root) -> Result<Self, Error> {
        refuse(&job)?;
        let location = location(&job)?;
        let node_pull = matches!(location, Location::NodePull(_));
        // Exhaustive: a new variable of the contract is given a meaning here or does not compile.
        let Job {
            source: _,
            endpoint: _,
            content,
            image_size,
            owner_uid,
            filesystem_overhead,
            preallocation,
            insecure_tls,
            cache_mode,
            access_key_id,
            secret_key,
            google_credentials,
            cert_dir,
            proxy_cert_dir,
            http_proxy,
            https_proxy,
            no_proxy,
            extra_headers,
            checksum,
            pull_method: _,
            ready_file,
            done_file,
            registry_architecture,
            registry_auth_file,
            disk_id: _,
            uuid: _,
            backing_file: _,
            thumbprint: _,
            current_checkpoint: _,
            previous_checkpoint: _,
            final_checkpoint: _,
        } = job;
        // Upstream: the checksum is for http, and ignored for node pull.
        let checksum = given(checksum)
            .filter(|_| !node_pull)
            .map(|text| text.parse().map_err(|e: String| Error::usage(format!("IMPORTER_CHECKSUM: {e}"))))
            .transpose()?;
        let user = (!access_key_id.is_empty() || !secret_key.is_empty())
            .then_some(User { name: access_key_id, secret: secret_key });
        let limits = Limits { first: TO_BEGIN, ..Limits::default() };
        Ok(Self {
            location,
            access: Access {
                headers: extra_headers,
                secret_headers,
                user,
                authorities: [given_path(proxy_cert_dir), given_path(cert_dir)]
                    .into_iter()
                    .flatten()
                    .collect(),
                insecure: insecure_tls,
                proxy: Proxy {
                    http: given(http_proxy),
                    https: given(https_proxy),
                    none_for: given(no_proxy),
                },
                google_credentials: given_path(google_credentials),
                architecture: given(registry_architecture),
                registry_auth_file: given_path(registry_auth_file),
                ready_file: given_path(ready_file),
                done_file: given_path(done_file),
            },
            volume: volume::Config {
                contract: Contract::Environment,
                holds: holds(content),
                place: Place::Volume {
                    data: root.path(names::DATA_DIR),
                    disk: root.path(names::DATA_DIR).join(names::DISK_FILE),
                    device: root.path(names::BLOCK_DEVICE),
                },
                owner: Some(Owner { mode: names::DISK_MODE, id: names::QEMU_ID }),
                scratch: Some(root.path(names::SCRATCH_DIR)),
                remember: true,
                journal: None,
                size: image_size,
                overhead: filesystem_overhead,
                preallocate: preallocation,
                // Past the page cache where that works is our default; TRYNONE asks for just that.
                direct: matches!(cache_mode, CacheMode::TryNone | CacheMode::Default),
                engine: None,
                checksum,
                format: None,
                force: true,
                limits: limits.transfer(),
            },
            limits,
            output: Output::Text,
            show: Show::None,
            owner_uid,
            metrics: Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, root.metrics_port))),
            termination_log: Some(root.path(names::TERMINATION_LOG)),
        })
    }
}

/// Imports that are out of what this program does.
fn refuse(job: &Job) -> Result<(), Error> {
    let name = job.source.word();
    let out = |why: &str| {
        Err(Error::new(
            Kind::Refused,
            format!("{why}, which this importer does not support: use CDI's importer for it"),
        ))
    };
    match job.source {
        SourceKind::Imageio | SourceKind::Vddk | SourceKind::Glance => {
            return out(&format!("the source \"{name}\" is asked for"));
        }
        SourceKind::Http | SourceKind::S3 | SourceKind::Gcs | SourceKind::Registry | SourceKind::None => {}
    }
    let checkpoints = [&job.current_checkpoint, &job.previous_checkpoint, &job.final_checkpoint];
    if checkpoints.iter().any(|checkpoint| !checkpoint.is_empty()) {
        return out("a multi-stage import with checkpoints is asked for");
    }
    if job.content == Content::Archive && job.pull_method == PullMethod::Node {
        return Err(Error::usage("a node pull cannot have content type archive; only http, s3 and gcs can"));
    }
    match (job.content, job.source) {
        (Content::Archive, SourceKind::Registry | SourceKind::None) => Err(Error::usage(format!(
            "the source \"{name}\" cannot have content type archive; only http, s3 and gcs can"
        ))),
        (Content::Archive | Content::Kubevirt, _) => Ok(()),
    }
}

fn location(job: &Job) -> Result<Location, Error> {
    let endpoint = || match job.endpoint.as_str() {
        "" => Err(Error::usage("IMPORTER_ENDPOINT is not set")),
        text => Ok(text),
    };
    Ok(match job.source {
        SourceKind::None => Location::Blank,
        // The controller calls the source of a node pull http (upstream `setRegistryNodeImportEnvVars`).
        SourceKind::Http if job.pull_method == PullMethod::Node => {
            registry(PullMethod::Node, Location::parse(endpoint()?)?)?
        }
        SourceKind::Http => Some(Location::parse(endpoint()?)?)
            .filter(|found| matches!(found, Location::Http(_)))
            .ok_or_else(|| Error::usage("IMPORTER_ENDPOINT is not an http or https address"))?,
        SourceKind::S3 => Location::S3(parse_url(endpoint()?)?),
        SourceKind::Gcs => Location::Gcs(parse_url(endpoint()?)?),
        SourceKind::Registry => registry(job.pull_method, Location::parse(endpoint()?)?)?,
        SourceKind::Imageio | SourceKind::Vddk | SourceKind::Glance => {
            return Err(Error::new(
                Kind::Refused,
                format!("the source \"{}\" is not supported", job.source.word()),
            ));
        }
    })
}

fn registry(method: PullMethod, found: Location) -> Result<Location, Error> {
    match method {
        PullMethod::Node => node_pull(found),
        PullMethod::Pod if matches!(found, Location::Registry(_) | Location::OciArchive(_)) => Ok(found),
        PullMethod::Pod => Err(Error::usage("IMPORTER_ENDPOINT is neither docker:// nor oci-archive:")),
    }
}

/// The server in the pulled image's container, by its address.
///
/// # Errors
/// For anything but http.
pub(crate) fn node_pull(found: Location) -> Result<Location, Error> {
    match found {
        Location::Http(url) => Ok(Location::NodePull(url)),
        other @ (Location::Blank
        | Location::Stdin
        | Location::File(_)
        | Location::S3(_)
        | Location::Gcs(_)
        | Location::Registry(_)
        | Location::NodePull(_)
        | Location::OciArchive(_)
        | Location::Nbd(_)) => Err(Error::usage(format!("a node pull needs an http address, not {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(source: SourceKind, endpoint: &str) -> Job {
        Job { source, endpoint: endpoint.into(), ..Job::default() }
    }

    fn config(job: Job) -> Result<Config, Error> {
        Config::from_job(job, Vec::new(), &Root::default())
    }

    #[test]
    fn sources_of_the_contract() {
        for (source, endpoint, method, expected) in [
            (SourceKind::None, "", PullMethod::Pod, Some("none")),
            (SourceKind::Http, "https://h/i.qcow2", PullMethod::Pod, Some("http")),
            (SourceKind::Http, "", PullMethod::Pod, None),
            (SourceKind::Http, "/etc/passwd", PullMethod::Pod, None),
            (SourceKind::Http, "file:///etc/passwd", PullMethod::Pod, None),
            (SourceKind::S3, "https://s3.amazonaws.com/b/k", PullMethod::Pod, Some("s3")),
            (SourceKind::Gcs, "gs://b/k", PullMethod::Pod, Some("gcs")),
            (SourceKind::Registry, "docker://r/i:t", PullMethod::Pod, Some("registry")),
            (SourceKind::Registry, "oci-archive:/a.tar", PullMethod::Pod, Some("registry")),
            (SourceKind::Http, "http://localhost:8100/disk.img", PullMethod::Node, Some("http")),
            (SourceKind::Http, "docker://r/i:t", PullMethod::Node, None),
            (SourceKind::Registry, "http://localhost:8100/disk.img", PullMethod::Node, Some("http")),
            (SourceKind::Registry, "http://localhost:8100/disk.img", PullMethod::Pod, None),
            (SourceKind::Registry, "docker://r/i:t", PullMethod::Node, None),
            (SourceKind::Registry, "/local", PullMethod::Pod, None),
            (SourceKind::Imageio, "https://h/", PullMethod::Pod, None),
            (SourceKind::Vddk, "https://h/", PullMethod::Pod, None),
            (SourceKind::Glance, "https://h/", PullMethod::Pod, None),
        ] {
            let job = Job { pull_method: method, ..job(source, endpoint) };
            let found = config(job).ok().map(|config| config.location.word());
            assert_eq!(found, expected, "{source:?} {endpoint} {method:?}");
        }
    }

    #[test]
    fn removed_sources_are_rejected_by_name() {
        for source in [SourceKind::Imageio, SourceKind::Vddk, SourceKind::Glance] {
            let error = config(job(source, "https://h/")).unwrap_err();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(error.to_string().contains(source.word()), "{error}");
        }
        let warm = Job { current_checkpoint: "snap".into(), ..job(SourceKind::Http, "http://h/") };
        assert!(config(warm).unwrap_err().to_string().contains("checkpoints"));
        let node =
            Job { pull_method: PullMethod::Node, ..job(SourceKind::Http, "http://localhost:8100/disk.img") };
        assert!(matches!(config(node.clone()).unwrap().location, Location::NodePull(_)));
        assert!(
            config(Job { content: Content::Archive, ..node }).unwrap_err().to_string().contains("archive")
        );
        for source in [SourceKind::Registry, SourceKind::None] {
            let archive = Job { content: Content::Archive, ..job(source, "docker://r/i") };
            assert!(config(archive).unwrap_err().to_string().contains("archive"));
        }
        for source in [SourceKind::S3, SourceKind::Gcs] {
            let archive = Job { content: Content::Archive, ..job(source, "https://h/bucket/files.tar") };
            assert!(matches!(config(archive).unwrap().volume.holds, Holds::Files));
        }
    }

    #[test]
    fn checksums_hold_where_upstream_has_them() {
        let sum = "md5:d41d8cd98f00b204e9800998ecf8427e";
        let with = |job: Job| config(Job { checksum: sum.into(), ..job });
        assert!(with(job(SourceKind::Http, "http://h/")).unwrap().volume.checksum.is_some());
        let node = Job {
            pull_method: PullMethod::Node,
            ..job(SourceKind::Registry, "http://localhost:8100/disk.img")
        };
        assert!(with(node).unwrap().volume.checksum.is_none());
        let bad = Job { checksum: "crc32:00".into(), ..job(SourceKind::Http, "http://h/") };
        assert_eq!(config(bad).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn sources_people_type() {
        for (text, expected) in [
            ("-", "stdin"),
            ("blank", "none"),
            ("disk.img", "file"),
            ("/dev/vda", "file"),
            ("file:///tmp/a b", "file"),
            ("HTTP://h/x", "http"),
            ("s3://b/k", "s3"),
            ("gs://b/k", "gcs"),
            ("docker://quay.io/a/b:c", "registry"),
            ("oci-archive:/x.tar", "registry"),
            ("nbd://h/e", "nbd"),
            ("nbds://h/e", "nbd"),
            ("nbd+unix:///e?socket=/s", "nbd"),
        ] {
            assert_eq!(Location::parse(text).unwrap().word(), expected, "{text}");
        }
        assert_eq!(Location::parse("ftp://h/x").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn secrets_are_not_shown() {
        for (text, expected) in [
            ("https://u:secret@h/i.qcow2?sig=secret#f", "https://h/i.qcow2?…"),
            ("s3://key:secret@b/k", "s3://b/k"),
            ("https://h/i", "https://h/i"),
            ("docker://u:secret@h/i", "docker://h/i"),
            ("docker://h:5000/i:t", "docker://h:5000/i:t"),
            ("docker://i@sha256:0", "docker://i@sha256:0"),
        ] {
            let location = Location::parse(text).unwrap();
            assert_eq!(location.to_string(), expected);
            assert_eq!(format!("{location:?}"), expected);
        }
        let error = Location::parse("https://u:secret@[bad/").unwrap_err();
        assert!(!error.to_string().contains("secret"));
        let user = User { name: "name".into(), secret: "secret".into() };
        let access =
            Access { user: Some(user), secret_headers: vec!["a: secret".into()], ..Access::default() };
        assert!(!format!("{access:?}").contains("secret"));
    }
}
