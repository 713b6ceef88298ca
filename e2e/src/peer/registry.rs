//! The distribution project's registry (Debian's docker-registry) over TLS, with a password.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::layer::Layer;
use reqwest::header::{ACCEPT, CONTENT_TYPE, LOCATION};
use reqwest::{Certificate, Client, Method, RequestBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Process, certificate, folder, free_port};
use crate::place::Place;

/// The user for pull and push.
pub const USER: &str = "robot";
/// And with what.
pub const PASSWORD: &str = "correct horse";
/// bcrypt of [`PASSWORD`], the only kind the registry takes.
const HTPASSWD: &str = "robot:$2b$04$IAVo48Agf/dYSXcsyTRUW.F65lTOKmPEmHMSBywwdFsA2M7R5Xyma\n";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    _process: Process,
    address: SocketAddr,
    authority: String,
    client: Client,
    /// Configuration, logs and storage.
    _folder: tempfile::TempDir,
}

impl Registry {
    /// An empty one at the host's address of `place`.
    ///
    /// # Errors
    /// When docker-registry is missing or does not answer.
    pub fn start(place: &Place) -> Result<Self> {
        let host = place.host_address();
        let folder = folder(place)?;
        let own = folder.path().display();
        let (identity, authority) = certificate(host)?;
        fs::write(folder.path().join("server.crt"), &identity.certificate)?;
        fs::write(folder.path().join("server.key"), &identity.key)?;
        fs::write(folder.path().join("htpasswd"), HTPASSWD)?;
        let address = SocketAddr::from((host, free_port(host)?));
        let configuration = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\n\
             storage:\n  filesystem:\n    rootdirectory: {own}/storage\n\
             http:\n  addr: {address}\n  tls:\n    certificate: {own}/server.crt\n    key: {own}/server.key\n\
             auth:\n  htpasswd:\n    realm: test\n    path: {own}/htpasswd\n"
        );
        let file = folder.path().join("config.yml");
        fs::write(&file, configuration)?;
        let arguments = ["serve", &file.display().to_string()];
        let process = Process::start("docker-registry", &arguments, address, &folder.path().join("log"))?;
        let trusted = Certificate::from_pem(authority.as_bytes())?;
        let client = Client::builder().tls_certs_only([trusted]).no_proxy().build()?;
        Ok(Self { _process: process, address, authority, client, _folder: folder })
    }

    /// Host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The certificate to trust, PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The content of an image pull secret, `.dockerconfigjson`.
    pub fn docker_config(&self) -> String {
        let login = STANDARD.encode(format!("{USER}:{PASSWORD}"));
        json!({"auths": {self.address(): {"auth": login}}}).to_string()
    }

    /// Pushes an image of one layer with these variables in its environment; its name without a scheme.
    ///
    /// # Errors
    /// The registry refuses the request.
    pub async fn push(&self, name: &str, layer: &Layer, environment: &[&str]) -> Result<String> {
        self.push_for("amd64", name, layer, environment).await
    }

    /// The same for another architecture, in the words of image configurations.
    ///
    /// # Errors
    /// The registry refuses the request.
    pub async fn push_for(
        &self,
        architecture: &str,
        name: &str,
        layer: &Layer,
        environment: &[&str],
    ) -> Result<String> {
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {"Env": environment},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.diff_id)]},
        });
        let config = config.to_string().into_bytes();
        let content = fs::read(&layer.file)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor(LAYER, &content)],
        });
        self.push_blob(name, config).await?;
        self.push_blob(name, content).await?;
        let url = format!("https://{}/v2/{name}/manifests/1", self.address);
        let put = self.request(Method::PUT, &url).header(CONTENT_TYPE, MANIFEST).body(manifest.to_string());
        put.send().await?.error_for_status()?;
        Ok(format!("{}/{name}:1", self.address))
    }

    /// The digest of an image's manifest, as the registry itself gives it.
    ///
    /// # Errors
    /// The registry has no such image.
    pub async fn digest(&self, name: &str) -> Result<String> {
        let url = format!("https://{}/v2/{name}/manifests/1", self.address);
        let answer =
            self.request(Method::HEAD, &url).header(ACCEPT, MANIFEST).send().await?.error_for_status()?;
        let digest = answer.headers().get("docker-content-digest").context("a manifest has a digest")?;
        Ok(digest.to_str()?.to_owned())
    }

    async fn push_blob(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let url = format!("https://{}/v2/{name}/blobs/uploads/", self.address);
        let begun = self.request(Method::POST, &url).send().await?.error_for_status()?;
        let place = begun.headers().get(LOCATION).context("an upload has a place")?.to_str()?;
        let put = format!("{place}&digest={}", digest(&bytes));
        let ended = self.request(Method::PUT, &put).body(bytes).send().await?;
        ensure!(ended.status().is_success(), "PUT {put}: {}", ended.status());
        Ok(())
    }

    fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.client.request(method, url).basic_auth(USER, Some(PASSWORD))
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}
