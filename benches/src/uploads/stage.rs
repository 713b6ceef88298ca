//! The surroundings of the programs: an authority, servers that take a body over TLS and keep it or not, nginx as a proxy,
//! and the least of a cluster's API server. Each ends with the process, nginx when dropped.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Result, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use crate::server::Nginx;

/// Bytes that a receiver reads at once.
const READ: usize = 256 << 10;

/// Signs certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub(super) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name and localhost, and its key, PEM.
    pub(super) fn sign(&self, name: &str) -> Result<(String, String)> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), name.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }
}

/// A pair of RSA keys, PEM: private, public.
pub(super) fn token_key() -> Result<(String, String)> {
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Destination of a body.
#[derive(Clone)]
pub(super) enum Keep {
    Nothing,
    /// It is in this file, synced, before it is answered.
    Synced(PathBuf),
}

/// A server that takes bodies.
pub(super) struct Receiver {
    port: u16,
}

impl Receiver {
    pub(super) fn start((certificate, key): &(String, String), keep: Keep) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(key.as_bytes())?,
            )?;
        let config = Arc::new(config);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, keep) = (config.clone(), keep.clone());
                // A client that goes away has its own opinion of that.
                thread::spawn(move || receive(stream, config, &keep).ok());
            }
        });
        Ok(Self { port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

fn receive(stream: TcpStream, config: Arc<ServerConfig>, keep: &Keep) -> Result<()> {
    let mut stream = BufReader::with_capacity(READ, StreamOwned::new(ServerConnection::new(config)?, stream));
    let mut file = match keep {
        Keep::Nothing => None,
        Keep::Synced(path) => Some(File::create(path)?),
    };
    let mut left = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            left = length.trim().parse::<u64>()?;
        }
    }
    while left > 0 {
        let piece = stream.fill_buf()?;
        if piece.is_empty() {
            bail!("it came short");
        }
        let taken = piece.len();
        if let Some(file) = &mut file {
            file.write_all(piece)?;
        }
        stream.consume(taken);
        left = left.saturating_sub(u64::try_from(taken)?);
    }
    if let Some(file) = file {
        file.sync_all()?;
    }
    stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    stream.get_mut().flush()?;
    stream.get_mut().conn.send_close_notify();
    stream.get_mut().flush()?;
    // Until the other end has gone, too.
    let mut rest = [0; 512];
    while stream.read(&mut rest).is_ok_and(|got| got > 0) {}
    Ok(())
}

/// The least of an API server: every claim's upload server is ready.
pub(super) struct Cluster {
    port: u16,
}

impl Cluster {
    pub(super) fn start(authority: &str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let annotation = |key: &str| format!("cdi.kubevirt.io/storage.{key}");
        let claim = json!({
            "metadata": {"annotations": {
                annotation("upload.target"): "", annotation("pod.ready"): "true", annotation("pod.phase"): "Running",
            }},
            "spec": {},
        });
        let answers =
            Arc::new((claim.to_string(), json!({"data": {"ca-bundle.crt": authority}}).to_string()));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answers = answers.clone();
                thread::spawn(move || answer(&stream, &answers).ok());
            }
        });
        Ok(Self { port })
    }

    pub(super) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{}", self.port)}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "cdi"}}],
        })
        .to_string()
    }
}

fn answer(stream: &TcpStream, (claim, bundle): &(String, String)) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut asked = String::new();
        if reader.read_line(&mut asked)? == 0 {
            return Ok(());
        }
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let body = if asked.contains("/configmaps/") { bundle } else { claim };
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        writer.write_all((head + body).as_bytes())?;
    }
}

/// nginx that passes uploads on, without keeping them, to a server at `to`; certificates are in `folder`.
pub(super) fn passing(folder: &Path, to: u16) -> Result<Nginx> {
    let own = folder.display();
    Nginx::start(|port, _| {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {own}/proxy.crt; ssl_certificate_key {own}/proxy.key;\n\
             client_max_body_size 0; client_body_buffer_size 256k;\n\
             location / {{ proxy_pass https://127.0.0.1:{to}; proxy_http_version 1.1; proxy_request_buffering off;\n\
             proxy_buffering off; proxy_ssl_certificate {own}/client.crt; proxy_ssl_certificate_key {own}/client.key; }} }}"
        )
    })
}
