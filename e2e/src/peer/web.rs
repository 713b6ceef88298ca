//! nginx with the files of one folder, in plain and with TLS, with ranges.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;

use super::{Process, certificate, folder, free_port};
use crate::place::Place;

/// A running nginx.
#[derive(Debug)]
pub struct Web {
    _process: Process,
    host: Ipv4Addr,
    plain: u16,
    tls: u16,
    authority: String,
    /// Configuration, logs and temporary files.
    _folder: tempfile::TempDir,
}

impl Web {
    /// Serves the files of `root` at the host's address of `place`.
    ///
    /// # Errors
    /// When nginx is missing or does not answer.
    pub fn start(place: &Place, root: &Path) -> Result<Self> {
        let host = place.host_address();
        let folder = folder(place)?;
        let own = folder.path().display();
        let (identity, authority) = certificate(host)?;
        fs::write(folder.path().join("server.crt"), &identity.certificate)?;
        fs::write(folder.path().join("server.key"), &identity.key)?;
        let [plain, tls] = [free_port(host)?, free_port(host)?];
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name}; "))
            .concat();
        let configuration = format!(
            "user root; daemon off; worker_processes 1; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; sendfile on; {temporary}\n\
             server {{ listen {host}:{plain}; listen {host}:{tls} ssl; root {root};\n\
             ssl_certificate {own}/server.crt; ssl_certificate_key {own}/server.key; }} }}\n",
            root = root.display()
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration)?;
        let file = file.display().to_string();
        let prefix = own.to_string();
        let process = Process::start(
            "nginx",
            &["-p", &prefix, "-e", &format!("{prefix}/error.log"), "-c", &file],
            SocketAddr::from((host, tls)),
            &folder.path().join("log"),
        )?;
        Ok(Self { _process: process, host, plain, tls, authority, _folder: folder })
    }

    /// Address of a file, without encryption.
    pub fn url(&self, file: &str) -> String {
        format!("http://{}:{}/{file}", self.host, self.plain)
    }

    /// Address of a file with TLS, by a certificate of [`Web::authority`].
    pub fn https_url(&self, file: &str) -> String {
        format!("https://{}:{}/{file}", self.host, self.tls)
    }

    /// The certificate to trust, PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}
