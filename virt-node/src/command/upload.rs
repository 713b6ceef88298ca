//! `virt-node image-upload`: virtctl's flags and output. Creates the DataVolume if absent; the daemon reports its upload
//! server, which gets the file over TLS on this machine.
//!
//! Not here: the server's start ([`crate::daemon`]).

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::kind::Kind;
use api::upload::{Way, archive_path};
use clap::{Args, ValueEnum};
use http::header::{CONTENT_TYPE, HOST};
use http::{Request as HttpRequest, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use indicatif::{ProgressBar, ProgressStyle};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use serve::body;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Daemon, say, text, unexpected};
use crate::error::{Error, Kind as ErrorKind};
use crate::protocol::{Answer, Request, Target};
use virt::validate::SourceDocument;

/// How often it is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;
/// Tries after the first one, each from the file's start, as virtctl's.
const RETRIES: u32 = 5;
/// The server's name in its certificate.
const HOST_NAME: &str = "localhost";

/// The kind of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// A DataVolume.
    Dv,
    /// Its PersistentVolumeClaim: the same here, since each is made for the other.
    Pvc,
}

/// How a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Block,
    Filesystem,
}

/// virtctl's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct ImageUpload {
    /// Kind of the target; on one machine a DataVolume of the same name creates the PersistentVolumeClaim.
    #[arg(value_enum)]
    of: Of,
    /// Its name.
    name: String,
    /// The image: qcow2, raw, VMDK, VHD, VHDX, VDI, ISO, also compressed by gzip, xz or zstd.
    #[arg(long, value_name = "FILE", required_unless_present = "archive_path")]
    image_path: Option<PathBuf>,
    /// Tar archive to extract into the volume.
    #[arg(long, value_name = "FILE", conflicts_with = "image_path")]
    archive_path: Option<PathBuf>,
    /// How large the disk is to be, such as 10Gi; needed where the DataVolume is not there yet.
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// The pool. Default: the one there is.
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// ReadWriteOnce, ReadWriteMany, ReadOnlyMany or ReadWriteOncePod.
    #[arg(long, value_name = "MODE")]
    access_mode: Option<String>,
    /// Whether the disk is a block device or a file.
    #[arg(long, value_enum)]
    volume_mode: Option<Mode>,
    /// The same as --volume-mode block.
    #[arg(long, hide = true, conflicts_with = "volume_mode")]
    block_volume: bool,
    /// Use a DataVolume that is there.
    #[arg(long)]
    no_create: bool,
    /// Seconds until the volume must be ready to be filled.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait_secs: u64,
    /// No effect: the server's certificate is verified, and made for this upload.
    #[arg(long, hide = true)]
    insecure: bool,
    /// No effect: a volume is always made at once.
    #[arg(long, hide = true)]
    force_bind: bool,
    /// No effect: there is no proxy on one machine.
    #[arg(long, hide = true)]
    uploadproxy_url: Option<String>,
}

impl ImageUpload {
    fn file(&self) -> &Path {
        self.image_path.as_deref().or(self.archive_path.as_deref()).unwrap_or(Path::new(""))
    }

    /// The DataVolume as it is made.
    fn document(&self, namespace: &str) -> Result<Value, Error> {
        let size = self.size.as_deref().ok_or_else(|| {
            let text =
                format!("DataVolume {namespace}/{} does not exist: give --size to create it", self.name);
            Error::new(ErrorKind::Usage, text)
        })?;
        let mut storage = json!({"resources": {"requests": {"storage": size}}});
        if let Some(class) = &self.storage_class {
            storage["storageClassName"] = json!(class);
        }
        if let Some(mode) = &self.access_mode {
            storage["accessModes"] = json!([mode]);
        }
        match self.volume_mode {
            Some(Mode::Block) => storage["volumeMode"] = json!("Block"),
            None if self.block_volume => storage["volumeMode"] = json!("Block"),
            Some(Mode::Filesystem) => storage["volumeMode"] = json!("Filesystem"),
            None => {}
        }
        let mut spec = json!({"source": {"upload": {}}, "storage": storage});
        if self.archive_path.is_some() {
            spec["contentType"] = json!("archive");
        }
        let kind = Kind::DataVolume;
        Ok(json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": spec,
        }))
    }
}

/// Uploads, and waits until the volume is filled.
///
/// # Errors
/// The file, the volume or the server refuses it, or it does not come to its end.
pub(crate) fn upload(state: &Path, namespace: &str, typed: &ImageUpload) -> Result<(), Error> {
    let file = typed.file();
    let unread = |error| Error::with(ErrorKind::Usage, format!("cannot read {}", file.display()), error);
    let mut image = File::open(file).map_err(unread)?;
    let length = image.seek(SeekFrom::End(0)).map_err(unread)?;
    if length == 0 || image.metadata().map_err(unread)?.is_dir() {
        return Err(Error::new(
            ErrorKind::Usage,
            format!("{} is a folder or empty: name the file of an image", file.display()),
        ));
    }
    let mut daemon = Daemon::or_start(state)?;
    let kind = Kind::DataVolume.name().to_owned();
    let target = Target { kind, namespace: namespace.to_owned(), name: typed.name.clone() };
    prepare(&mut daemon, &target, typed)?;
    say(&format!("Waiting for PVC {} upload server to be ready...", target.name))?;
    let path = match typed.archive_path {
        Some(_) => archive_path(""),
        None => format!("/v1beta1/{}", Way::Async.word()),
    };
    let (image, bar) = (Arc::new(image), bar(length));
    let mut tries = 0..RETRIES;
    loop {
        // Asked for each try: a server that was killed is followed by another one, elsewhere and with other certificates.
        let Some(site) = ready(&mut daemon, &target, typed.wait_secs)? else {
            // The answer was lost; an upload that sent less did not fill the volume.
            if bar.position() == length {
                break;
            }
            let text = format!("DataVolume {namespace}/{} was filled by another client", target.name);
            return Err(Error::new(ErrorKind::Content, text));
        };
        if tries.start == 0 {
            say(&format!("Uploading data to {namespace}/{}", target.name))?;
        }
        match send(&site, &path, &image, length, &bar) {
            Ok(()) => break,
            Err((error, Again::Later)) if tries.next().is_some() => {
                say(&format!("{}; retrying", error.chain()))?;
            }
            Err((error, Again::Later | Again::Never)) => {
                bar.abandon();
                return Err(error);
            }
        }
        sleep(Duration::from_secs(1));
    }
    bar.finish();
    done(&mut daemon, &target)?;
    say(&format!("Uploading {} completed successfully", file.display()))
}

/// Sees to it that there is a DataVolume that waits for an upload.
fn prepare(daemon: &mut Daemon, target: &Target, typed: &ImageUpload) -> Result<(), Error> {
    let Target { namespace, name, .. } = target;
    let Some(found) = daemon.object(target)? else {
        if typed.no_create {
            let text =
                format!("DataVolume {namespace}/{name} does not exist; without --no-create it is created");
            return Err(Error::new(ErrorKind::Content, text));
        }
        let value = typed.document(namespace)?;
        let document = SourceDocument { source: "image-upload".to_owned(), number: 1, value };
        daemon.call(Request::Apply { documents: vec![document] })?;
        return say(&format!("DataVolume {namespace}/{name} created"));
    };
    let refused = |text: String| Err(Error::new(ErrorKind::Content, text));
    let archive = text(&found, "/spec/contentType") == "archive";
    if found.pointer("/spec/source/upload").is_none() {
        return refused(format!("DataVolume {namespace}/{name} exists and is not filled by an upload"));
    }
    if text(&found, "/status/phase") == "Succeeded" {
        let again = format!("virt-node delete -n {namespace} dv/{name} makes room for another");
        return refused(format!("DataVolume {namespace}/{name} is filled already; {again}"));
    }
    match (archive, typed.archive_path.is_some()) {
        (true, false) => refused(format!("DataVolume {namespace}/{name} takes an archive: --archive-path")),
        (false, true) => refused(format!("DataVolume {namespace}/{name} takes a disk: --image-path")),
        (true, true) | (false, false) => say(&format!("Using existing DataVolume {namespace}/{name}")),
    }
}

/// An upload server.
struct Site {
    port: u16,
    tls: Arc<ClientConfig>,
}

/// Waits until the volume can be filled; `None` when it is.
fn ready(daemon: &mut Daemon, target: &Target, seconds: u64) -> Result<Option<Site>, Error> {
    let Target { namespace, name, .. } = target;
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        let request = Request::Upload { namespace: namespace.clone(), name: name.clone() };
        match daemon.call(request) {
            Ok(Answer::Upload { port, authority, certificate, key }) => {
                let tls = client(&authority, &certificate, &key)?;
                return Ok(Some(Site { port, tls: Arc::new(tls) }));
            }
            Ok(_) => return Err(unexpected()),
            Err(error) if Instant::now() >= until => {
                let text = format!(
                    "{} after {seconds} seconds; virt-node events -n {namespace} {name} shows why",
                    error.chain()
                );
                return Err(Error::new(ErrorKind::System, text));
            }
            Err(error) if error.kind() == ErrorKind::Content => {
                let Some(found) = daemon.object(target)? else { return Err(error) };
                if text(&found, "/status/phase") == "Succeeded" {
                    return Ok(None);
                }
                // Its volume is being made, or its server.
                sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    }
}

fn client(authority: &str, certificate: &str, key: &str) -> Result<ClientConfig, Error> {
    let pem = |error| Error::with(ErrorKind::System, "cannot use the upload's certificates", error);
    let refused = |error| Error::with(ErrorKind::System, "cannot use the upload's certificates", error);
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.as_bytes()).map_err(pem)?;
    roots.add(authority).map_err(refused)?;
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(pem)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(pem)?;
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .map_err(refused)
}

/// Whether the same may succeed another time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Later,
    Never,
}

/// One try. `bar` shows how far it is.
fn send(
    site: &Site,
    path: &str,
    image: &Arc<File>,
    length: u64,
    bar: &ProgressBar,
) -> Result<(), (Error, Again)> {
    let broke = |error: io::Error| {
        (Error::with(ErrorKind::System, "the connection to the upload server broke", error), Again::Later)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(broke)?;
    bar.set_position(0);
    runtime.block_on(async {
        let stream = TcpStream::connect(("127.0.0.1", site.port)).await.map_err(broke)?;
        let name = ServerName::try_from(HOST_NAME).map_err(io::Error::other).map_err(broke)?;
        let stream = TlsConnector::from(Arc::clone(&site.tls)).connect(name, stream).await.map_err(broke)?;
        let lost = |error: hyper::Error| broke(io::Error::other(error));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let connection = tokio::spawn(connection);
        let shown = bar.clone();
        let body = body::of_file(Arc::clone(image), 0..length, move |sent| shown.inc(sent));
        let request = HttpRequest::post(path)
            .header(HOST, HOST_NAME)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(body)
            .map_err(|error| broke(io::Error::other(error)))?;
        let (head, body) = sender.send_request(request).await.map_err(lost)?.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        // Words that do not come whole are left out.
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        connection.abort();
        let words = String::from_utf8_lossy(&body).trim().to_owned();
        match head.status {
            StatusCode::OK => Ok(()),
            // Another upload runs, or one broke just now.
            StatusCode::SERVICE_UNAVAILABLE => Err((Error::new(ErrorKind::System, words), Again::Later)),
            _ => Err((Error::new(ErrorKind::Content, words), Again::Never)),
        }
    })
}

/// How far a file of this length is on its way; seen on a terminal only.
fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    let style =
        "{wide_bar} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

/// Waits until the volume is filled.
fn done(daemon: &mut Daemon, target: &Target) -> Result<(), Error> {
    let Target { namespace, name, .. } = target;
    say("Upload done; waiting for the volume")?;
    loop {
        let Some(found) = daemon.object(target)? else {
            let text = format!("DataVolume {namespace}/{name} was deleted during the command");
            return Err(Error::new(ErrorKind::Content, text));
        };
        if text(&found, "/status/phase") == "Succeeded" {
            return Ok(());
        }
        let failed = found["status"]["conditions"].as_array().into_iter().flatten().find(|condition| {
            condition["type"] == "Running" && condition["status"] == "False" && condition["reason"] == "Error"
        });
        if let Some(failed) = failed {
            let text = format!("DataVolume {namespace}/{name}: {}", text(failed, "/message"));
            return Err(Error::new(ErrorKind::System, text));
        }
        sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        upload: ImageUpload,
    }

    fn typed(words: &str) -> ImageUpload {
        Typed::try_parse_from(format!("x {words}").split(' ')).map(|typed| typed.upload).unwrap()
    }

    #[test]
    fn virtctls_flags_become_a_data_volume() {
        let words = "dv a --size 1Gi --image-path f --storage-class p --access-mode ReadWriteMany --volume-mode block --force-bind --insecure --uploadproxy-url https://x";
        let document = typed(words).document("n").unwrap();
        assert_eq!(document["metadata"], json!({"name": "a", "namespace": "n"}));
        let storage = json!({
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "p",
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Block",
        });
        assert_eq!(document["spec"], json!({"source": {"upload": {}}, "storage": storage}));
        let archive = typed("pvc a --size 1Gi --archive-path f").document("n").unwrap();
        assert_eq!(archive["spec"]["contentType"], "archive");
        assert!(archive["spec"]["storage"].get("volumeMode").is_none());
        let unsized_one = typed("dv a --image-path f").document("n").unwrap_err();
        assert!(unsized_one.chain().contains("--size"), "{}", unsized_one.chain());
        assert!(Typed::try_parse_from(["x", "dv", "a"]).is_err(), "there is no file");
    }
}
