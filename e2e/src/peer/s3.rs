//! An S3 store over TLS, by s3s-fs: folders as buckets, files as objects, one access key.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

use super::certificate;
use crate::place::Place;

/// The access key that the store knows.
pub const ACCESS_KEY: &str = "KEY";
/// Its secret.
pub const SECRET_KEY: &str = "SECRET";

/// A running store, in this process.
#[derive(Debug)]
pub struct Store {
    address: SocketAddr,
    authority: String,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Store {
    /// Serves the folders of `root` as buckets at the host's address of `place`.
    ///
    /// # Errors
    /// When the address or the folder cannot be used.
    pub fn start(place: &Place, root: &Path) -> Result<Self> {
        let host = place.host_address();
        let files = s3s_fs::FileSystem::new(root).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let (identity, authority) = certificate(host)?;
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind((host, 0)))
            .context("the node's link has no such address")?;
        let address = listener.local_addr()?;
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), service.clone());
                tokio::spawn(async move {
                    // Clients that go away are their own business.
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { address, authority, runtime: Some(runtime) })
    }

    /// Address of an object, in the path style.
    pub fn url(&self, bucket: &str, object: &str) -> String {
        format!("https://{}/{bucket}/{object}", self.address)
    }

    /// The certificate to trust, PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
