//! `uploadproxy push`: sends a file to a claim through a proxy. Not here: the upload itself ([`serve::push`]), how it is
//! shown (`progress`).

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use api::upload::Way;
use rustls::ClientConfig;
use serve::failure::{Error, Kind, Result};
use serve::peer::roots;
use serve::push::{self, Site, host_and_port};

use crate::args::Push;
use crate::cluster::{Kubernetes, Reach};
use crate::progress::Progress;

/// Uploads.
///
/// # Errors
/// The file cannot be read, or the server refuses it or cannot be reached.
pub(crate) async fn push(args: Push) -> Result<()> {
    let (file, length) = open(&args)?;
    let site = site(&args).await?;
    let progress = Progress::start(length);
    let again = |why: &push::Error| tracing::warn!(why = why.chain(), "the upload was interrupted; retrying");
    site.push(&file, length, args.retries, progress.sent(), again).await.map_err(failed)?;
    progress.done();
    tracing::info!(file = %args.file.display(), pvc = %args.pvc, bytes = length, "uploaded");
    Ok(())
}

fn failed(error: push::Error) -> Error {
    let kind = match error.kind() {
        push::Kind::Usage => Kind::Usage,
        push::Kind::Unreachable => Kind::Unreachable,
        push::Kind::Refused => Kind::Refused,
    };
    let (_, message, source) = error.into_parts();
    Error::from_parts(kind, message, source)
}

fn open(args: &Push) -> Result<(Arc<File>, u64)> {
    let unread = |e| Error::with(Kind::Usage, format!("cannot read {}", args.file.display()), e);
    let mut file = File::open(&args.file).map_err(unread)?;
    let kind = file.metadata().map_err(unread)?.file_type();
    let length = file.seek(SeekFrom::End(0)).map_err(unread)?;
    if kind.is_dir() || length == 0 {
        return Err(Error::new(
            Kind::Usage,
            format!("{} is a folder or empty: name the file of an image", args.file.display()),
        ));
    }
    Ok((Arc::new(file), length))
}

enum Tokens {
    Given(String),
    Operation(Kubernetes, api::upload::token::Target),
}

impl push::Tokens for Tokens {
    async fn token(&self) -> Result<String, push::Error> {
        match self {
            Self::Given(token) => Ok(token.clone()),
            Self::Operation(cluster, target) => cluster.token(target).await.map_err(|error| {
                push::Error::with(push::Kind::Unreachable, "no upload token can be had", error)
            }),
        }
    }

    fn is_renewable(&self) -> bool {
        matches!(self, Self::Operation(..))
    }
}

async fn site(args: &Push) -> Result<Site<Tokens>> {
    let reach = Reach { kubeconfig: args.kubeconfig.clone(), server: None };
    let cluster = match (&args.token, &args.url) {
        (Some(_), Some(_)) => None,
        (None, _) | (_, None) => Some(Kubernetes::new(&reach, "")?),
    };
    let url = match (&args.url, &cluster) {
        (Some(url), _) => url.clone(),
        (None, Some(cluster)) => cluster.proxy_url().await?,
        (None, None) => return Err(Error::new(Kind::Usage, "--url is missing")),
    };
    let (host, port) = host_and_port(&url).map_err(failed)?;
    let tokens = match (&args.token, cluster) {
        (Some(token), _) => Tokens::Given(token.clone()),
        (None, Some(cluster)) => Tokens::Operation(cluster, args.pvc.clone()),
        (None, None) => return Err(Error::new(Kind::Usage, "--token is missing")),
    };
    let path = format!("/v1beta1/{}", Way::Sync.word());
    Ok(Site { host, port, tls: trust(args)?, path, tokens, answer_timeout: args.answer_timeout })
}

/// Authorities of accepted certificates.
fn trust(args: &Push) -> Result<Arc<ClientConfig>> {
    let roots = match (&args.ca, args.insecure) {
        (_, true) => None,
        (Some(file), false) => {
            let pem = std::fs::read(file)
                .map_err(|e| Error::with(Kind::Usage, format!("cannot read {}", file.display()), e))?;
            Some(roots(&pem)?)
        }
        (None, false) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Some(roots)
        }
    };
    serve::trust::client(roots)
        .map(Arc::new)
        .map_err(|e| Error::with(Kind::Process, "TLS cannot be set up", e))
}
