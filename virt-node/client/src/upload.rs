//! `image-upload`: a file into a DataVolume or PersistentVolumeClaim, through the upload proxy of CDI.
//!
//! ```text
//! target: exists or is created ─► ready for the upload ─► proxy, token ─► push ─► filled
//! ```
//!
//! Not here: the objects ([`target`]), the upload itself ([`serve::push`]).

mod target;

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::upload::request::{API_VERSION, PLURAL, UploadTokenRequest};
use api::upload::{Way, archive_path};
use clap::ValueEnum;
use cluster::{Key, Resource};
use indicatif::{ProgressBar, ProgressStyle};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use serve::peer;
use serve::push::{self, Sent, host_and_port};

use crate::error::{Error, Kind, Result, failed, usage};
use crate::output::say;
use crate::site::{Site, text};

const CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// Attempts in a row that bring nothing, as in virtctl.
const RETRIES: u32 = 5;
/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(200);

/// The kind of object to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Of {
    /// DataVolume
    Dv,
    /// PersistentVolumeClaim
    Pvc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Block,
    Filesystem,
}

/// virtctl's flags.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Kind of object
    #[arg(value_enum)]
    of: Of,
    /// Name
    name: String,
    /// Disk image: qcow2, raw, VMDK, VHD, VHDX, VDI or ISO, also compressed by gzip, xz or zstd
    #[arg(long, value_name = "FILE", required_unless_present = "archive_path")]
    image_path: Option<PathBuf>,
    /// Tar archive to unpack into the volume
    #[arg(long, value_name = "FILE", conflicts_with = "image_path")]
    archive_path: Option<PathBuf>,
    /// Size of the volume, such as 10Gi; needed to create one
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// StorageClass [default: the cluster's]
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// Access mode [default: that of the StorageProfile; for pvc ReadWriteOnce]
    #[arg(long, value_name = "MODE", value_parser = ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"])]
    access_mode: Option<String>,
    /// Volume mode
    #[arg(long, value_enum)]
    volume_mode: Option<Mode>,
    /// The same as --volume-mode block
    #[arg(long, hide = true, conflicts_with = "volume_mode")]
    block_volume: bool,
    /// Use an object that exists
    #[arg(long)]
    no_create: bool,
    /// Seconds until the volume must be ready for the upload
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait_secs: u64,
    /// Longest wait for the answer once everything is sent, while the server writes the disk to its end.
    #[arg(long, value_name = "DURATION", default_value = peer::ANSWER_TIMEOUT, value_parser = peer::answer_timeout)]
    answer_timeout: Duration,
    /// URL of the upload proxy [default: that of the CDIConfig]
    #[arg(long, value_name = "URL")]
    uploadproxy_url: Option<String>,
    /// Accept any certificate of the upload proxy
    #[arg(long)]
    insecure: bool,
    /// Certificates that sign the upload proxy's, PEM [default: those of the CDIConfig and of this machine]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Bind a volume that waits for its first consumer
    #[arg(long)]
    force_bind: bool,
    /// Create or change a DataSource of the same name that points to the volume
    #[arg(long)]
    datasource: bool,
    /// Label of the volume: instance type that machines from it get
    #[arg(long, value_name = "NAME")]
    default_instancetype: Option<String>,
    /// Label of the volume: kind of that instance type
    #[arg(long, value_name = "KIND", requires = "default_instancetype")]
    default_instancetype_kind: Option<String>,
    /// Label of the volume: preference that machines from it get
    #[arg(long, value_name = "NAME")]
    default_preference: Option<String>,
    /// Label of the volume: kind of that preference
    #[arg(long, value_name = "KIND", requires = "default_preference")]
    default_preference_kind: Option<String>,
}

impl Options {
    fn file(&self) -> &Path {
        self.image_path.as_deref().or(self.archive_path.as_deref()).unwrap_or(Path::new(""))
    }
}

/// Uploads, and waits until the volume is filled.
///
/// # Errors
/// The file cannot be read, or the cluster or the upload proxy refuses it.
pub(crate) async fn upload(site: &Site, typed: &Options) -> Result<()> {
    let (file, length) = open(typed.file())?;
    target::prepare(site, typed).await?;
    say(&format!("Waiting for PVC {} upload pod to be ready...", typed.name));
    target::ready(site, typed).await?;
    say("Pod now ready");
    let configuration = site.client.find(CONFIGS, &Key::cluster("config")).await;
    let configuration: Option<Value> = configuration.map_err(failed("the CDIConfig cannot be read"))?;
    let configuration = configuration.unwrap_or_default();
    let url = proxy_url(typed, &configuration)?;
    let (host, port) = host_and_port(&url).map_err(pushed)?;
    let tokens = Tokens { site: site.clone(), claim: typed.name.clone() };
    let tls = serve::trust::client(roots(typed, &configuration)?).map(Arc::new);
    let tls = tls.map_err(|error| Error::with(Kind::System, "TLS cannot be set up", error))?;
    let mut proxy =
        push::Site { host, port, tls, path: String::new(), tokens, answer_timeout: typed.answer_timeout };
    proxy.path = match typed.archive_path {
        Some(_) => archive_path(""),
        None => path(&proxy).await?,
    };
    say(&format!("Uploading data to {url}"));
    let sent = Sent::default();
    let shown = Bar::start(length, sent.clone());
    let again = |why: &push::Error| shown.0.suspend(|| say(&format!("{}; retrying", why.chain())));
    let done = proxy.push(&file, length, RETRIES, &sent, again).await;
    drop(shown);
    done.map_err(pushed)?;
    say(
        "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without \
         interrupting the progress",
    );
    target::filled(site, typed).await?;
    say("Processing completed successfully");
    if typed.datasource {
        target::data_source(site, typed).await?;
    }
    say(&format!("Uploading {} completed successfully", typed.file().display()));
    Ok(())
}

fn open(file: &Path) -> Result<(Arc<File>, u64)> {
    let unread = |error| Error::with(Kind::Usage, format!("cannot read {}", file.display()), error);
    let mut image = File::open(file).map_err(unread)?;
    let length = image.seek(SeekFrom::End(0)).map_err(unread)?;
    if length == 0 || image.metadata().map_err(unread)?.is_dir() {
        return usage(format!("{} is a folder or empty: name the file of an image", file.display()));
    }
    Ok((Arc::new(image), length))
}

fn proxy_url(typed: &Options, configuration: &Value) -> Result<String> {
    let named =
        [text(configuration, "/spec/uploadProxyURLOverride"), text(configuration, "/status/uploadProxyURL")];
    let url = typed.uploadproxy_url.as_deref().or_else(|| named.into_iter().find(|url| !url.is_empty()));
    match url {
        Some(url) if url.contains("://") => Ok(url.to_owned()),
        Some(url) => Ok(format!("https://{url}")),
        None => usage(
            "uploadproxy URL not found: the CDIConfig names none; give --uploadproxy-url, for example of a \
             kubectl port-forward to service/cdi-uploadproxy with --insecure",
        ),
    }
}

/// Authorities of accepted certificates; `None`: any certificate.
fn roots(typed: &Options, configuration: &Value) -> Result<Option<RootCertStore>> {
    if typed.insecure {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    let mut add = |pem: &[u8], what: &str| -> Result<()> {
        let wrong = || Error::new(Kind::Usage, format!("{what} holds something other than PEM certificates"));
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|_| wrong())?).map_err(|_| wrong())?;
        }
        Ok(())
    };
    if let Some(file) = &typed.ca {
        let unread = |error| Error::with(Kind::Usage, format!("cannot read {}", file.display()), error);
        add(&std::fs::read(file).map_err(unread)?, &file.display().to_string())?;
        return Ok(Some(roots));
    }
    add(text(configuration, "/status/uploadProxyCA").as_bytes(), "status.uploadProxyCA of the CDIConfig")?;
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(Some(roots))
}

/// The asynchronous path where the proxy has it, as virtctl chooses it.
async fn path(proxy: &push::Site<Tokens>) -> Result<String> {
    let asynchronous = format!("/v1beta1/{}", Way::Async.word());
    Ok(match proxy.has(&asynchronous).await.map_err(pushed)? {
        true => asynchronous,
        false => format!("/v1beta1/{}", Way::Sync.word()),
    })
}

fn pushed(error: push::Error) -> Error {
    let kind = match error.kind() {
        push::Kind::Usage => Kind::Usage,
        push::Kind::Unreachable => Kind::System,
        push::Kind::Refused => Kind::Refused,
    };
    Error::with(kind, "the upload failed", error)
}

/// Tokens from the cluster, which live five minutes: each request gets its own.
struct Tokens {
    site: Site,
    claim: String,
}

impl push::Tokens for Tokens {
    async fn token(&self) -> Result<String, push::Error> {
        let path = format!("/apis/{API_VERSION}/namespaces/{}/{PLURAL}", self.site.namespace);
        let answer: Result<UploadTokenRequest, _> =
            self.site.client.post(&path, &UploadTokenRequest::of(&self.claim)).await;
        let answer = answer.map_err(|error| {
            let kind = match error.is_transient() {
                true => push::Kind::Unreachable,
                false => push::Kind::Refused,
            };
            push::Error::with(kind, "the API server issues no upload token", error)
        })?;
        let token = answer.status.and_then(|status| status.token).map(|token| token.0);
        token.ok_or_else(|| {
            push::Error::new(
                push::Kind::Refused,
                "the API server's answer to an UploadTokenRequest has no status.token",
            )
        })
    }

    fn is_renewable(&self) -> bool {
        true
    }
}

/// A bar on a terminal.
struct Bar(ProgressBar, tokio::task::JoinHandle<()>);

impl Bar {
    fn start(length: u64, sent: Sent) -> Self {
        let bar = ProgressBar::new(length);
        let style = "{wide_bar} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let drawn = bar.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(FRAME).await;
                drawn.set_position(sent.now());
            }
        });
        Self(bar, task)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.1.abort();
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        options: Options,
    }

    pub(super) fn typed(words: &str) -> Options {
        Typed::try_parse_from(format!("x {words}").split(' ')).unwrap().options
    }

    #[test]
    fn the_proxy_is_named_by_flag_override_or_status() {
        let configuration = |over: &str, status: &str| json!({"spec": {"uploadProxyURLOverride": over}, "status": {"uploadProxyURL": status}});
        let of = |words: &str, configuration: &Value| {
            proxy_url(&typed(&format!("dv a --image-path f{words}")), configuration)
        };
        assert_eq!(of("", &configuration("", "h")).unwrap(), "https://h");
        assert_eq!(of("", &configuration("o", "h")).unwrap(), "https://o");
        assert_eq!(of(" --uploadproxy-url https://u:1", &configuration("o", "h")).unwrap(), "https://u:1");
        assert!(of("", &json!({})).unwrap_err().chain().contains("--uploadproxy-url"));
    }

    #[test]
    fn any_certificate_is_accepted_only_on_request() {
        assert!(roots(&typed("dv a --image-path f --insecure"), &json!({})).unwrap().is_none());
        assert!(roots(&typed("dv a --image-path f"), &json!({})).unwrap().is_some());
        let broken =
            json!({"status": {"uploadProxyCA": "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"}});
        assert!(roots(&typed("dv a --image-path f"), &broken).is_err());
    }
}
