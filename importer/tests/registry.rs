//! Container images: `docker://` against a real registry (Debian's docker-registry) over TLS with a CA of our own, with
//! passwords and with tokens, and `oci-archive:` files.
//!
//! One registry without a login writes a storage folder; others with a login serve the same folder. The token server is
//! the test's own: it signs what the registry's specification asks for.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::error::Error as _;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use disk_image::{Source, Stop};
use importer::source::blocking::Net;
use importer::source::layer::Disk;
use importer::source::oci_archive;
use importer::source::registry::{self, Options};
use importer::source::remote::Reach;
use importer::source::retry::Policy;
use importer::source::tls::Trust;
use importer::{Error, Kind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const USER: &str = "robot";
const PASSWORD: &str = "correct horse";
/// bcrypt of [`PASSWORD`], the only kind the registry takes.
const HTPASSWD: &str = "robot:$2b$04$IAVo48Agf/dYSXcsyTRUW.F65lTOKmPEmHMSBywwdFsA2M7R5Xyma\n";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// A CA, and a server's certificate by it.
struct Tls {
    folder: tempfile::TempDir,
    key: KeyPair,
    der: Vec<u8>,
}

impl Tls {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let server = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("certs")).unwrap();
        fs::write(folder.path().join("certs/ca.crt"), ca.pem()).unwrap();
        fs::write(folder.path().join("server.pem"), server.pem()).unwrap();
        fs::write(folder.path().join("server.key"), key.serialize_pem()).unwrap();
        Self { folder, der: server.der().to_vec(), key }
    }

    fn certs(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        let key = rustls::pki_types::PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.der.clone().into()], key)
            .unwrap();
        Arc::new(config)
    }
}

/// How a registry lets one in.
enum Login<'a> {
    Open,
    Password,
    Token(&'a TokenServer),
}

/// A registry; stopped when dropped.
struct Registry {
    process: Child,
    address: SocketAddr,
    _config: tempfile::TempDir,
}

impl Registry {
    fn start(storage: &Path, tls: Option<&Tls>, login: &Login<'_>) -> Self {
        // Between asking for a free port and using it, somebody else may take it: then another one.
        (0..5).find_map(|_| Self::try_start(storage, tls, login)).expect("the registry does not start")
    }

    fn try_start(storage: &Path, tls: Option<&Tls>, login: &Login<'_>) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = tempfile::tempdir().unwrap();
        let mut yaml = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    \
             rootdirectory: {}\nhttp:\n  addr: {address}\n",
            storage.display()
        );
        if let Some(tls) = tls {
            let folder = tls.folder.path().display();
            yaml += &format!("  tls:\n    certificate: {folder}/server.pem\n    key: {folder}/server.key\n");
        }
        match login {
            Login::Open => {}
            Login::Password => {
                let path = config.path().join("htpasswd");
                fs::write(&path, HTPASSWD).unwrap();
                yaml += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", path.display());
            }
            Login::Token(server) => {
                yaml += &format!(
                    "auth:\n  token:\n    realm: https://{}/token\n    service: the registry\n    issuer: test\n    \
                     rootcertbundle: {}/ca.crt\n",
                    server.address,
                    server.tls.certs().display()
                );
            }
        }
        let path = config.path().join("config.yml");
        fs::write(&path, yaml).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(config.path().join("log")).unwrap())
            .spawn()
            .expect("docker-registry is missing: run make deps");
        let mut registry = Self { process, address, _config: config };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if registry.process.try_wait().unwrap().is_some() {
                return None;
            }
            if TcpStream::connect(address).is_ok() {
                return Some(registry);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    fn image(&self, name: &str) -> String {
        format!("docker://{}/{name}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A storage folder and the registry that fills it.
struct Store {
    folder: tempfile::TempDir,
    writer: Registry,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let writer = Registry::start(folder.path(), None, &Login::Open);
        Self { folder, writer }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where the registry keeps a blob.
    fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.path().join(format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }

    /// One request to the writing registry; gives status and Location.
    fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.writer.address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.writer.address,
            body.len()
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap_or_default();
        (status, location.trim().to_owned())
    }

    fn push_blob(&self, name: &str, bytes: &[u8]) -> String {
        let digest = digest(bytes);
        let (status, location) = self.request("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"");
        assert_eq!(status, 202);
        let path = location.split_once(&self.writer.address.to_string()).unwrap().1;
        let put = format!("{path}&digest={digest}");
        let (status, _) = self.request("PUT", &put, "application/octet-stream", bytes);
        assert_eq!(status, 201);
        digest
    }

    fn push_document(&self, name: &str, tag: &str, kind: &str, document: &Value) -> (String, usize) {
        let bytes = document.to_string().into_bytes();
        let (status, answer) = self.request("PUT", &format!("/v2/{name}/manifests/{tag}"), kind, &bytes);
        assert_eq!(status, 201, "{answer}");
        (digest(&bytes), bytes.len())
    }

    /// Pushes an image as `name:tag`; gives the manifest's digest and length and the layers' digests.
    fn push(&self, name: &str, tag: &str, layers: &[Layer]) -> (String, usize, Vec<String>) {
        let docker = layers.iter().any(|layer| layer.kind == DOCKER_GZIP);
        let (kind, config_kind) = if docker {
            (DOCKER_MANIFEST, "application/vnd.docker.container.image.v1+json")
        } else {
            (OCI_MANIFEST, "application/vnd.oci.image.config.v1+json")
        };
        let config = br#"{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin","INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=debian"]},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        self.push_blob(name, config);
        let digests: Vec<String> = layers.iter().map(|layer| self.push_blob(name, &layer.blob)).collect();
        let manifest = manifest(kind, config_kind, config, layers);
        let (digest, len) = self.push_document(name, tag, kind, &manifest);
        (digest, len, digests)
    }
}

fn manifest(kind: &str, config_kind: &str, config: &[u8], layers: &[Layer]) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|l| json!({"mediaType": l.kind, "digest": digest(&l.blob), "size": l.blob.len()}))
        .collect();
    json!({
        "schemaVersion": 2, "mediaType": kind,
        "config": {"mediaType": config_kind, "digest": digest(config), "size": config.len()},
        "layers": layers,
    })
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A layer as it is pushed.
#[derive(Clone)]
struct Layer {
    kind: &'static str,
    blob: Vec<u8>,
}

impl Layer {
    /// Packs files as the media type says.
    fn new(kind: &'static str, files: &[(&str, &[u8])]) -> Self {
        Self::of_tar(kind, &tar(files))
    }

    fn of_tar(kind: &'static str, tar: &[u8]) -> Self {
        let blob = match kind {
            PLAIN => tar.to_vec(),
            ZSTD => zstd::encode_all(tar, 3).unwrap(),
            _ => {
                let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gz.write_all(tar).unwrap();
                gz.finish().unwrap()
            }
        };
        Self { kind, blob }
    }
}

/// A tar of files; a name that ends in a slash is a folder, content "->x" makes a link to x.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(0);
        if let Some(target) = bytes.strip_prefix(b"->") {
            header.set_entry_type(tar::EntryType::Symlink);
            builder.append_link(&mut header, name, std::str::from_utf8(target).unwrap()).unwrap();
        } else if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, name, io::empty()).unwrap();
        } else {
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// A disk that does not compress to nothing.
fn disk(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if (i >> 18) % 4 == 3 { 0 } else { u8::try_from(state >> 56).unwrap() }
        })
        .collect()
}

const MIB: usize = 1 << 20;

fn options(image: String, tls: Option<&Tls>) -> Options {
    let trust = match tls {
        Some(tls) => Trust { folders: vec![tls.certs()], ..Trust::default() },
        None => Trust { insecure: true, ..Trust::default() },
    };
    let retry = Policy {
        patience: Duration::from_secs(5),
        first: Duration::from_secs(3),
        base: Duration::from_millis(10),
        ..Policy::default()
    };
    let reach = Reach { trust, retry, stall: Duration::from_secs(5), ..Reach::default() };
    Options { reach, ..Options::new(image) }
}

fn with_user(image: String, tls: &Tls, password: &str) -> Options {
    Options { user: Some(USER.to_owned()), password: Some(password.to_owned()), ..options(image, Some(tls)) }
}

fn open(options: &Options) -> Result<Disk, Error> {
    registry::open(&Net::new(Stop::new()).unwrap(), options)
}

/// The disk, read to its end and verified.
fn read(disk: &Disk) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut reader = disk.open(0..u64::MAX).unwrap();
    reader.read_to_end(&mut bytes).map_err(|e| Error::with(Kind::Process, "reading", e))?;
    drop(reader);
    disk.verify(&Stop::new())?;
    Ok(bytes)
}

fn pull(options: &Options) -> Result<Vec<u8>, Error> {
    read(&open(options)?)
}

#[track_caller]
fn assert_pulled(options: &Options, want: &[u8]) {
    let got = pull(options).unwrap_or_else(|e| panic!("{}", text(&e)));
    assert!(got == want, "{} bytes, wanted {}", got.len(), want.len());
}

#[track_caller]
fn assert_refused(options: &Options, kind: Kind, words: &str) {
    let error = pull(options).expect_err("nothing was wrong");
    let text = text(&error);
    assert!(error.kind() == kind && text.contains(words), "{:?}: {text}", error.kind());
    assert!(!text.contains(PASSWORD) && !text.contains("Bearer") && !text.contains("eyJ"), "{text}");
}

fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text += &format!(": {error}");
        next = error.source();
    }
    text
}

#[test]
fn disks_of_every_packing_in_every_layer() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(3 * MIB + 512, 1);
    let base = || Layer::new(GZIP, &[("etc/", b""), ("etc/passwd", b"root"), ("disk.img", b"not this one")]);
    for (n, kind) in [GZIP, ZSTD, PLAIN, DOCKER_GZIP].into_iter().enumerate() {
        let with = Layer::new(kind, &[("disk/", b""), ("disk/a.img", &raw), ("etc/after", b"x")]);
        for (place, layers) in [
            ("only", vec![with.clone()]),
            ("first", vec![with.clone(), base(), base()]),
            ("middle", vec![base(), with.clone(), base()]),
            ("last", vec![base(), base(), with.clone()]),
        ] {
            let name = format!("kind{n}");
            store.push(&name, place, &layers);
            assert_pulled(&options(registry.image(&format!("{name}:{place}")), Some(&tls)), &raw);
        }
    }
    // Names as other tools write them, and a file of no bytes.
    for (tag, name) in [("dot", "./disk/x"), ("long", &*format!("disk/{}", "n".repeat(200)))] {
        store.push("names", tag, &[Layer::new(GZIP, &[(name, &raw)])]);
        assert_pulled(&options(registry.image(&format!("names:{tag}")), Some(&tls)), &raw);
    }
    store.push("names", "latest", &[Layer::new(GZIP, &[("disk/empty", b"")])]);
    assert_pulled(&options(registry.image("names"), Some(&tls)), b"");
    let opened = open(&options(registry.image("names:dot"), Some(&tls))).unwrap();
    assert_eq!(opened.file(), "disk/x");
    assert_eq!(opened.environment(), ["PATH=/bin", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=debian"]);
}

#[test]
fn later_layers_hide_earlier_ones() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let layer = |files: &[(&str, &[u8])]| Layer::new(GZIP, files);
    let pulled = |tag: &str, layers: &[Layer]| {
        store.push("w", tag, layers);
        options(registry.image(&format!("w:{tag}")), Some(&tls))
    };
    let none = "Failed to find VM disk image file in the container image";
    let old: &[(&str, &[u8])] = &[("disk/old", b"old")];
    assert_pulled(&pulled("replaced", &[layer(old), layer(&[("disk/old", b"new")])]), b"new");
    assert_pulled(&pulled("added", &[layer(old), layer(&[("disk/new", b"new")])]), b"new");
    assert_pulled(&pulled("other", &[layer(old), layer(&[("disk/.wh.else", b""), ("a", b"")])]), b"old");
    assert_pulled(
        &pulled("moved", &[layer(old), layer(&[("disk/.wh.old", b""), ("disk/new", b"new")])]),
        b"new",
    );
    let two = layer(&[("disk/a", b"a"), ("disk/b", b"b")]);
    assert_pulled(&pulled("one-of-two", &[two.clone(), layer(&[("disk/.wh.a", b"")])]), b"b");
    for (tag, top) in [
        ("removed", layer(&[("disk/.wh.old", b"")])),
        ("opaque", layer(&[("disk/.wh..wh..opq", b"")])),
        ("folder", layer(&[(".wh.disk", b"")])),
        ("link", layer(&[("disk", b"->elsewhere")])),
        ("root", layer(&[(".wh..wh..opq", b"")])),
    ] {
        assert_refused(&pulled(tag, &[layer(old), top]), Kind::Refused, none);
    }
    let above = layer(&[("disk/.wh.old", b"")]);
    assert_pulled(&pulled("again", &[layer(old), above, layer(&[("disk/old", b"back")])]), b"back");
}

#[test]
fn images_without_one_disk_are_refused() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(MIB, 2);
    #[rustfmt::skip]
    let table: [(&str, Vec<u8>, &str); 8] = [
        ("none", tar(&[("disk/", b""), ("disks/a", b"x"), ("a/disk/b", b"x")]), "Failed to find VM disk image file"),
        ("two", tar(&[("disk/a", &raw), ("x", b""), ("disk/b", b"x")]), "image directory contains more than one file: disk/a and disk/b"),
        ("twice", tar(&[("disk/a", &raw), ("disk/a", b"x")]), "more than one file"),
        ("deep", tar(&[("disk/sub/a", b"x")]), "image directory contains another directory: disk/sub/a"),
        ("link", tar(&[("disk/a", b"->b")]), "disk/a is a link"),
        ("up", { let mut t = tar(&[("disk/xx/a", b"x")]); t[5..7].copy_from_slice(b".."); seal(&mut t); t }, "Failed to find"),
        ("notar", b"this is no tar archive at all, but a text of some length".repeat(20), "tar archive"),
        ("cut", tar(&[("disk/a", &raw)])[..MIB / 2].to_vec(), "ends inside disk/a"),
    ];
    for (tag, tar, words) in table {
        store.push("bad", tag, &[Layer::of_tar(GZIP, &tar)]);
        let kind = if matches!(tag, "notar" | "cut") { Kind::Process } else { Kind::Refused };
        assert_refused(&options(registry.image(&format!("bad:{tag}")), Some(&tls)), kind, words);
    }
    store.push("bad", "empty", &[]);
    assert_refused(&options(registry.image("bad:empty"), Some(&tls)), Kind::Refused, "Failed to find");
    assert_refused(&options(registry.image("bad:missing"), Some(&tls)), Kind::Connect, "404");
    assert_refused(
        &options(registry.image("bad:missing"), Some(&tls)),
        Kind::Connect,
        "failed to pull image",
    );
    assert_refused(&options(registry.image("nobody/nothing"), Some(&tls)), Kind::Connect, "404");
    assert_refused(&options(registry.image("UPPER"), Some(&tls)), Kind::Usage, "docker://host");
}

/// Puts the checksum of the first header right.
fn seal(tar: &mut [u8]) {
    tar[148..156].copy_from_slice(b"        ");
    let sum: u32 = tar[..512].iter().map(|&byte| u32::from(byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn the_platforms_image_is_chosen() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    for (kind, list, tag) in [(GZIP, OCI_INDEX, "oci"), (DOCKER_GZIP, DOCKER_LIST, "docker")] {
        let platforms = [("amd64", "", "pc"), ("arm64", "v8", "arm"), ("arm", "v7", "old arm")];
        let entries: Vec<Value> = platforms
            .iter()
            .map(|(architecture, variant, content)| {
                let layer = Layer::new(kind, &[("disk/d", content.as_bytes())]);
                let (digest, size, _) = store.push("multi", &format!("{architecture}-{tag}"), &[layer]);
                let mut platform = json!({"os": "linux", "architecture": architecture});
                if !variant.is_empty() {
                    platform["variant"] = json!(variant);
                }
                let kind = if list == OCI_INDEX { OCI_MANIFEST } else { DOCKER_MANIFEST };
                json!({"mediaType": kind, "digest": digest, "size": size, "platform": platform})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": list, "manifests": entries});
        let (digest, _) = store.push_document("multi", tag, list, &index);
        let image = registry.image(&format!("multi:{tag}"));
        let with = |platform: Option<&str>| Options {
            platform: platform.map(str::to_owned),
            ..options(image.clone(), Some(&tls))
        };
        assert_pulled(&with(Some("amd64")), b"pc");
        assert_pulled(&with(Some("arm64")), b"arm");
        assert_pulled(&with(Some("linux/arm64/v8")), b"arm");
        assert_pulled(&with(Some("arm/v7")), b"old arm");
        let here = if cfg!(target_arch = "x86_64") { "pc" } else { "arm" };
        assert_pulled(&with(None), here.as_bytes());
        let words = "the image is not there for linux/s390x; it is for: linux/amd64, linux/arm64, linux/arm";
        assert_refused(&with(Some("s390x")), Kind::Refused, words);
        let by_digest = registry.image(&format!("multi@{digest}"));
        assert_pulled(
            &Options { platform: Some("amd64".to_owned()), ..options(by_digest, Some(&tls)) },
            b"pc",
        );
    }
}

#[test]
fn tampered_images_fail() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let raw = disk(2 * MIB, 3);
    let flip = |digest: &str, at: usize| {
        let path = store.blob(digest);
        let mut bytes = fs::read(&path).unwrap();
        let at = if at == usize::MAX { bytes.len() - 1 } else { at };
        bytes[at] ^= 0x40;
        fs::write(path, bytes).unwrap();
    };
    // In the disk's data, in another file behind it, and in the zeroes behind the archive.
    for (tag, at) in [("data", MIB), ("behind", 2 * MIB + 1024 + 100), ("end", usize::MAX)] {
        let files: &[(&str, &[u8])] = &[("disk/a", &raw), ("b", tag.as_bytes())];
        let (_, _, layers) = store.push("t", tag, &[Layer::new(PLAIN, files)]);
        flip(&layers[0], at);
        let words = "is not what its digest says";
        assert_refused(&options(registry.image(&format!("t:{tag}")), Some(&tls)), Kind::Digest, words);
    }
    // A layer that only hides something is verified as well.
    let low = Layer::new(PLAIN, &[("disk/a", &raw)]);
    let top = Layer::new(PLAIN, &[("file", b"content of top")]);
    let (_, _, layers) = store.push("t", "top", &[low, top]);
    flip(&layers[1], 512 + 3);
    assert_refused(
        &options(registry.image("t:top"), Some(&tls)),
        Kind::Digest,
        "is not what its digest says",
    );
    // Compressed: the decoder may see it first.
    let (_, _, layers) = store.push("t", "gz", &[Layer::new(GZIP, &[("disk/gz", &raw)])]);
    flip(&layers[0], MIB);
    let error = pull(&options(registry.image("t:gz"), Some(&tls))).unwrap_err();
    assert!(matches!(error.kind(), Kind::Digest | Kind::Process), "{}", text(&error));
    // Shorter than the manifest says.
    let (_, _, layers) = store.push("t", "short", &[Layer::new(PLAIN, &[("disk/short", &raw)])]);
    let path = store.blob(&layers[0]);
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 512]).unwrap();
    assert_refused(&options(registry.image("t:short"), Some(&tls)), Kind::Digest, "its manifest says");
    // A manifest asked for by digest.
    let (digest, _, _) = store.push("t", "m", &[Layer::new(PLAIN, &[("disk/m", &raw)])]);
    let path = store.blob(&digest);
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(path, manifest.replace("\"schemaVersion\":2", "\"schemaVersion\":2 ")).unwrap();
    let image = options(registry.image(&format!("t@{digest}")), Some(&tls));
    // The registry notices by itself, or else we do.
    let error = pull(&image).unwrap_err();
    assert!(matches!(error.kind(), Kind::Digest | Kind::Connect), "{}", text(&error));
}

/// Passes connections on to `target` and cuts each after `every` bytes towards the client.
struct Cutter {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    fn start(target: SocketAddr, every: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter =
            Self { address: listener.local_addr().unwrap(), over: Arc::default(), cuts: Arc::default() };
        let (over, cuts) = (cutter.over.clone(), cutter.cuts.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else { continue };
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    drop(io::copy(&mut up, &mut down));
                    drop(down.shutdown(Shutdown::Both));
                });
                let cuts = cuts.clone();
                std::thread::spawn(move || {
                    let passed = io::copy(&mut (&server).take(every), &mut &client).unwrap_or(0);
                    if passed == every {
                        cuts.fetch_add(1, Ordering::SeqCst);
                    }
                    drop(client.shutdown(Shutdown::Both));
                    drop(server.shutdown(Shutdown::Both));
                });
            }
        });
        cutter
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

#[test]
fn connections_that_break_are_survived() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    let cutter = Cutter::start(registry.address, 600_000);
    let raw = disk(6 * MIB, 4);
    for (tag, kind) in [("gz", GZIP), ("zst", ZSTD), ("plain", PLAIN)] {
        let layer = Layer::new(kind, &[("disk/a", &raw)]);
        assert!(layer.blob.len() > 4 * MIB);
        store.push("cut", tag, &[layer]);
        let before = cutter.cuts.load(Ordering::SeqCst);
        assert_pulled(&with_user(format!("docker://{}/cut:{tag}", cutter.address), &tls, PASSWORD), &raw);
        let cuts = cutter.cuts.load(Ordering::SeqCst) - before;
        assert!((6..40).contains(&cuts), "{cuts} cuts");
    }
}

#[test]
fn passwords_are_sent_when_asked_for() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    store.push("p", "latest", &[Layer::new(GZIP, &[("disk/a", b"behind a password")])]);
    let image = registry.image("p");
    assert_pulled(&with_user(image.clone(), &tls, PASSWORD), b"behind a password");
    assert_refused(
        &with_user(image.clone(), &tls, "wrong"),
        Kind::Connect,
        "does not accept the user and password",
    );
    assert_refused(&options(image.clone(), Some(&tls)), Kind::Connect, "give a user and password");
    let nobody = Options { reach: Reach::default(), ..with_user(image, &tls, PASSWORD) };
    assert_refused(&nobody, Kind::Connect, "is not trusted");
}

#[test]
fn credentials_come_from_files() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    store.push("team/p", "latest", &[Layer::new(GZIP, &[("disk/a", b"x")])]);
    let image = registry.image("team/p");
    let path = tls.folder.path().join(".dockerconfigjson");
    let write = |text: Value| fs::write(&path, text.to_string()).unwrap();
    let file = Options { auth_file: Some(path.clone()), ..options(image.clone(), Some(&tls)) };
    let good = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let bad = STANDARD.encode(format!("{USER}:hunter2"));
    let host = registry.address.to_string();
    write(json!({"auths": {host.clone(): {"auth": good}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {format!("https://{host}/v1/"): {"username": USER, "password": PASSWORD}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {host.clone(): {"auth": bad}, format!("{host}/team"): {"auth": good}}}));
    assert_pulled(&file, b"x");
    write(json!({"auths": {"other.example": {"auth": good}}}));
    assert_refused(&file, Kind::Connect, "give a user and password");
    write(json!({"auths": {host: {"auth": bad}}}));
    assert_refused(&file, Kind::Connect, "does not accept");
    // A user given apart comes first.
    let both = Options { auth_file: Some(path.clone()), ..with_user(image, &tls, PASSWORD) };
    assert_pulled(&both, b"x");
    fs::write(&path, "hunter2").unwrap();
    assert_refused(&file, Kind::Usage, "no file of registry credentials");
    fs::remove_file(&path).unwrap();
    assert_refused(&file, Kind::Usage, "cannot read");
}

/// Hands out tokens, as distribution's "Token Authentication Specification" has it.
struct TokenServer {
    address: SocketAddr,
    tls: Arc<Tls>,
    over: Arc<AtomicBool>,
    /// The queries that came.
    seen: Arc<Mutex<Vec<String>>>,
    /// Seconds for which the next tokens are good; 60 when there is no more.
    lives: Arc<Mutex<VecDeque<i64>>>,
}

impl TokenServer {
    fn start(tls: &Arc<Tls>, anonymous: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            tls: tls.clone(),
            over: Arc::default(),
            seen: Arc::default(),
            lives: Arc::default(),
        };
        let (over, seen, lives) = (server.over.clone(), server.seen.clone(), server.lives.clone());
        let tls = tls.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let connection = rustls::ServerConnection::new(tls.config()).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let Some(head) = request_head(&mut stream) else { continue };
                let query = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push(query.clone());
                let login = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
                let known = head.lines().any(|line| {
                    line.split_once(": ")
                        .is_some_and(|(k, v)| k.eq_ignore_ascii_case("authorization") && v == login)
                });
                let named = head.to_ascii_lowercase().contains("\r\nauthorization:");
                let (status, body) = if known || (anonymous && !named) {
                    let life = lives.lock().unwrap().pop_front().unwrap_or(60);
                    ("200 OK", json!({"token": tls.token(&query, life)}).to_string())
                } else {
                    ("401 Unauthorized", "{}".to_owned())
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                drop(stream.write_all(answer.as_bytes()));
                stream.conn.send_close_notify();
                drop(stream.flush());
            }
        });
        server
    }

    fn queries(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn request_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

impl Tls {
    /// A JWT by the server's key, whose certificate the registry trusts through the CA.
    fn token(&self, query: &str, life: i64) -> String {
        let scope = query.split(['?', '&']).find_map(|part| part.strip_prefix("scope=")).unwrap_or_default();
        let scope = scope.replace("%3A", ":").replace("%2F", "/");
        let parts: Vec<&str> = scope.split(':').collect();
        let access = match parts[..] {
            [kind, name, actions] => {
                json!([{"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}])
            }
            _ => json!([]),
        };
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        // The registry allows for a minute of wrong clocks.
        let claims = json!({
            "iss": "test", "sub": USER, "aud": "the registry", "exp": now + life - 60, "nbf": now - 600,
            "iat": now - 600, "jti": "1", "access": access,
        });
        let header = json!({"typ": "JWT", "alg": "ES256", "x5c": [STANDARD.encode(&self.der)]});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.key.serialize_der()).unwrap();
        let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

#[test]
fn tokens_are_fetched_and_renewed() {
    let (store, tls) = (Store::new(), Arc::new(Tls::new()));
    let tokens = TokenServer::start(&tls, false);
    let registry = Registry::start(store.path(), Some(&tls), &Login::Token(&tokens));
    let raw = disk(5 * MIB, 5);
    store.push("a/b", "latest", &[Layer::new(GZIP, &[("disk/a", &raw)])]);
    let image = registry.image("a/b");
    assert_pulled(&with_user(image.clone(), &tls, PASSWORD), &raw);
    let queries = tokens.queries();
    assert_eq!(queries.len(), 1, "{queries:?}");
    for part in ["service=the+registry", "scope=repository%3Aa%2Fb%3Apull", "account=robot"] {
        assert!(queries[0].contains(part), "{queries:?}");
    }
    // Tokens that are over when the blob is asked for, and again between its parts.
    let cutter = Cutter::start(registry.address, 600_000);
    tokens.lives.lock().unwrap().extend([2, 1, 1]);
    let opened = open(&with_user(format!("docker://{}/a/b", cutter.address), &tls, PASSWORD)).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(read(&opened).unwrap() == raw);
    assert!(tokens.queries().len() >= 2);

    assert_refused(&with_user(image.clone(), &tls, "wrong"), Kind::Connect, "/token answered 401");
    assert_refused(
        &with_user(image.clone(), &tls, "wrong"),
        Kind::Connect,
        "does not accept the user and password",
    );
    assert_refused(&options(image, Some(&tls)), Kind::Connect, "give a user and password");
    assert_refused(&with_user(registry.image("a/none"), &tls, PASSWORD), Kind::Connect, "404");
}

#[test]
fn strangers_get_tokens_where_that_is_allowed() {
    let (store, tls) = (Store::new(), Arc::new(Tls::new()));
    let tokens = TokenServer::start(&tls, true);
    let registry = Registry::start(store.path(), Some(&tls), &Login::Token(&tokens));
    store.push("public", "latest", &[Layer::new(ZSTD, &[("disk/a", b"for all")])]);
    assert_pulled(&options(registry.image("public"), Some(&tls)), b"for all");
    assert!(!tokens.queries()[0].contains("account"));
}

#[test]
fn plain_http_only_where_it_was_allowed() {
    let (store, tls) = (Store::new(), Tls::new());
    store.push("h", "latest", &[Layer::new(GZIP, &[("disk/a", b"plain")])]);
    let secure = Registry::start(store.path(), Some(&tls), &Login::Open);
    // Insecure: with TLS, but for anybody; without TLS.
    assert_pulled(&options(secure.image("h"), None), b"plain");
    assert_pulled(&options(store.writer.image("h"), None), b"plain");
    assert_refused(&options(store.writer.image("h"), Some(&tls)), Kind::Connect, "https://");
}

/// A server that answers as told, without TLS; stops when dropped.
struct Fake {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    /// Heads of the requests that came.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn start(handler: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake =
            Self { address: listener.local_addr().unwrap(), over: Arc::default(), seen: Arc::default() };
        let (over, seen, handler) = (fake.over.clone(), fake.seen.clone(), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let (seen, handler) = (seen.clone(), handler.clone());
                std::thread::spawn(move || {
                    let mut first = [0];
                    // A client that tries TLS is hung up on.
                    if stream.peek(&mut first).is_ok()
                        && first[0] != 0x16
                        && let Some(head) = request_head(&mut stream)
                    {
                        seen.lock().unwrap().push(head.clone());
                        drop(handler(&head, &mut stream));
                    }
                    drop(stream.shutdown(Shutdown::Both));
                });
            }
        });
        fake
    }

    fn heads(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn answer(out: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len())?;
    out.write_all(body)
}

/// A body that goes on as long as somebody takes it; notes when that was 64 MiB.
fn endless(out: &mut TcpStream, front: &[u8], taken: &AtomicBool) -> io::Result<()> {
    write!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    out.write_all(front)?;
    for _ in 0..64 {
        out.write_all(&vec![b' '; MIB])?;
    }
    taken.store(true, Ordering::SeqCst);
    Ok(())
}

fn authorized(head: &str) -> bool {
    head.to_ascii_lowercase().contains("\r\nauthorization:")
}

#[test]
fn credentials_stay_with_the_registry() {
    let layer = Layer::new(GZIP, &[("disk/a", &disk(MIB, 9))]);
    let manifest = manifest(OCI_MANIFEST, "c", b"{}", std::slice::from_ref(&layer)).to_string().into_bytes();
    let blob = layer.blob;
    // Blobs lie elsewhere, on a server without ranges, under addresses that are good for one use.
    let elsewhere = Fake::start(move |_, out| answer(out, "200 OK", "", &blob));
    let target = elsewhere.address;
    let registry = Fake::start(move |head, out| {
        let challenge = "WWW-Authenticate: Basic realm=\"x\"\r\n";
        match head.split_whitespace().nth(1).unwrap() {
            "/v2/" => answer(out, "200 OK", "", b""),
            _ if !authorized(head) => answer(out, "401 Unauthorized", challenge, b""),
            path if path.contains("/blobs/") => {
                let location = format!("Location: http://{target}/signed?key=hunter2\r\n");
                answer(out, "307 Temporary Redirect", &location, b"")
            }
            _ => answer(out, "200 OK", "", &manifest),
        }
    });
    let image = format!("docker://{}/a", registry.address);
    let login = Options { user: Some(USER.into()), password: Some(PASSWORD.into()), ..options(image, None) };
    assert_pulled(&login, &disk(MIB, 9));
    let heads = elsewhere.heads();
    assert!(!heads.is_empty() && !heads.iter().any(|head| authorized(head)), "{heads:?}");
    assert!(registry.heads().iter().filter(|head| authorized(head)).count() >= 2);
}

#[test]
fn hostile_registries_are_bounded() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let manifest = Fake::start(|_, out| endless(out, b"{\"schemaVersion\":2", &TAKEN));
    let image = format!("docker://{}/a", manifest.address);
    assert_refused(&options(image, None), Kind::Refused, "is longer than 4194304 bytes");

    // A token without end; one that is no token; a realm that is no address; a challenge that is none.
    let realm = |handler: fn(&mut TcpStream) -> io::Result<()>| Fake::start(move |_, out| handler(out));
    let long = realm(|out| endless(out, b"{\"token\":\"", &TAKEN));
    let none = realm(|out| answer(out, "200 OK", "", b"{\"token\":7,\"eyJ\":1}"));
    for (challenge, words) in [
        (format!("Bearer realm=\"http://{}/t\"", long.address), "a token of more than"),
        (format!("Bearer realm=\"http://{}/t\"", none.address), "gives no token"),
        ("Bearer realm=\"nowhere\"".to_owned(), "no address"),
        ("Bearer".to_owned(), "no address"),
        ("Negotiate".to_owned(), "answered 401"),
        ("Bearer realm=\"".to_owned(), "answered 401"),
    ] {
        let registry = Fake::start(move |head, out| match head.split_whitespace().nth(1).unwrap() {
            "/v2/" => answer(out, "200 OK", "", b""),
            _ => answer(out, "401 Unauthorized", &format!("WWW-Authenticate: {challenge}\r\n"), b""),
        });
        let image = format!("docker://{}/a", registry.address);
        assert_refused(&options(image, None), Kind::Connect, words);
    }
    assert!(!TAKEN.load(Ordering::SeqCst), "64 MiB were read");
}

/// An OCI layout in a tar, with one image per name.
fn archive(images: &[(&str, Layer)]) -> Vec<u8> {
    let config = b"{}";
    let mut files: Vec<(String, Vec<u8>)> = vec![
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        (format!("blobs/{}", digest(config).replace(':', "/")), config.to_vec()),
    ];
    let mut entries = Vec::new();
    for (name, layer) in images {
        let manifest = manifest(
            OCI_MANIFEST,
            "application/vnd.oci.image.config.v1+json",
            config,
            std::slice::from_ref(layer),
        );
        let manifest = manifest.to_string().into_bytes();
        entries.push(json!({
            "mediaType": OCI_MANIFEST, "digest": digest(&manifest), "size": manifest.len(),
            "annotations": {"org.opencontainers.image.ref.name": name},
        }));
        for bytes in [manifest, layer.blob.clone()] {
            files.push((format!("blobs/{}", digest(&bytes).replace(':', "/")), bytes));
        }
    }
    files.push((
        "index.json".to_owned(),
        json!({"schemaVersion": 2, "manifests": entries}).to_string().into_bytes(),
    ));
    tar(&files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect::<Vec<_>>())
}

fn pull_archive(archive: impl Into<PathBuf>) -> Result<Vec<u8>, Error> {
    read(&oci_archive::open(&oci_archive::Options::new(archive), &Stop::new())?)
}

#[test]
fn archives_hold_images() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let raw = disk(3 * MIB, 6);
    for (name, kind) in [("gz", GZIP), ("zst", ZSTD), ("plain", PLAIN)] {
        fs::write(path(name), archive(&[("v1", Layer::new(kind, &[("disk/a", &raw)]))])).unwrap();
        assert!(pull_archive(path(name)).unwrap() == raw, "{name}");
        assert!(pull_archive(format!("{}:v1", path(name).display())).unwrap() == raw, "{name}");
    }
    let fails = |archive: PathBuf, kind: Kind, words: &str| {
        let error = pull_archive(archive).unwrap_err();
        assert!(error.kind() == kind && text(&error).contains(words), "{:?} {}", error.kind(), text(&error));
        text(&error)
    };
    fails(format!("{}:v2", path("gz").display()).into(), Kind::Refused, "no image called v2");
    let two = archive(&[
        ("a", Layer::new(GZIP, &[("disk/a", b"1")])),
        ("b", Layer::new(GZIP, &[("disk/b", b"2")])),
    ]);
    fs::write(path("two:odd"), &two).unwrap();
    assert_eq!(
        pull_archive(format!("{}:b", path("two:odd").display())).err().map(|e| e.kind()),
        Some(Kind::Connect)
    );
    fs::rename(path("two:odd"), path("two")).unwrap();
    assert_eq!(pull_archive(format!("{}:b", path("two").display())).unwrap(), b"2");
    fails(path("two"), Kind::Refused, "the image is not there for");

    // Damage: every byte of a small archive, flipped, gives the disk or an error, and never another disk.
    let small = archive(&[("v1", Layer::new(PLAIN, &[("disk/a", b"0123456789abcdef")]))]);
    for at in (0..small.len()).step_by(7) {
        let mut bytes = small.clone();
        bytes[at] ^= 0x21;
        fs::write(path("bad"), &bytes).unwrap();
        if let Ok(disk) = pull_archive(path("bad")) {
            assert_eq!(disk, b"0123456789abcdef", "byte {at}");
        }
    }
    for at in (0..small.len()).step_by(97) {
        fs::write(path("bad"), &small[..at]).unwrap();
        if let Ok(disk) = pull_archive(path("bad")) {
            assert_eq!(disk, b"0123456789abcdef", "cut at {at}");
        }
    }
    fs::write(path("bad"), tar(&[("manifest.json", b"[]")])).unwrap();
    let told = fails(path("bad"), Kind::Refused, "no index.json");
    assert!(told.starts_with("failed to pull image oci-archive:"), "{told}");
    fs::write(path("bad"), Layer::of_tar(GZIP, &two).blob).unwrap();
    fails(path("bad"), Kind::Refused, "gunzip");
    fails(path("missing"), Kind::Connect, "cannot open");
}

fn run(program: &mut Command) -> Output {
    program.stdin(Stdio::null()).output().unwrap()
}

fn importer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
    command.env_clear().env("PATH", std::env::var("PATH").unwrap());
    command
}

/// A pod's paths in a folder.
struct Pod(tempfile::TempDir);

impl Pod {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "dev"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Runs the importer under the environment contract; gives its exit code and termination message.
    fn run(&self, tls: &Tls, environment: &[(&str, &str)]) -> (i32, String) {
        let output = run(importer()
            .arg("-v=3")
            .env("FERROVIRT_IMPORTER_ROOT", self.0.path())
            .env("FERROVIRT_IMPORTER_METRICS_PORT", "0")
            .env("IMPORTER_CERT_DIR", tls.certs())
            .env("IMPORTER_SOURCE", "registry")
            .env("IMPORTER_CONTENTTYPE", "kubevirt")
            .env("IMPORTER_IMAGE_SIZE", "64Mi")
            .env("FILESYSTEM_OVERHEAD", "0.06")
            .env("PREALLOCATION", "false")
            .envs(environment.iter().copied()));
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        for secret in [PASSWORD, "hunter2", "eyJ"] {
            assert!(!log.contains(secret), "{log}");
        }
        let message = fs::read_to_string(self.0.path().join("dev/termination-log")).unwrap_or_default();
        (output.status.code().unwrap_or_else(|| panic!("{log}")), message)
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("data/disk.img")
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path().join("data")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn tool(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|_| panic!("{program} is missing: run make deps"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A qcow2 whose table of tables lies behind its data, and the disk that qemu-img makes of it.
fn tables_last(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (image, raw, data) = (path("late.qcow2"), path("late.raw"), path("data"));
    fs::write(&data, disk(5 * MIB, 7)).unwrap();
    tool("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", &image, "6M"]);
    tool("qemu-io", &["-f", "qcow2", "-c", &format!("write -q -s {data} 0 5M"), &image]);
    tool("qemu-img", &["resize", "-q", "-f", "qcow2", &image, "40M"]);
    tool("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &image, &raw]);
    (fs::read(image).unwrap(), fs::read(raw).unwrap())
}

#[test]
fn imports_of_the_contract() {
    let (store, tls) = (Store::new(), Arc::new(Tls::new()));
    let tokens = TokenServer::start(&tls, false);
    let registry = Registry::start(store.path(), Some(&tls), &Login::Token(&tokens));
    let scratch = tempfile::tempdir().unwrap();
    let (late, want) = tables_last(scratch.path());
    let login = [("IMPORTER_ACCESS_KEY_ID", USER), ("IMPORTER_SECRET_KEY", PASSWORD)];
    let with = |image: &str, more: &[(&'static str, String)]| {
        let mut all: Vec<(&str, String)> = vec![("IMPORTER_ENDPOINT", registry.image(image))];
        all.extend(login.map(|(key, value)| (key, value.to_owned())));
        all.extend_from_slice(more);
        let pod = Pod::new();
        let all: Vec<(&str, &str)> = all.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let outcome = pod.run(&tls, &all);
        (pod, outcome)
    };
    // The images' environment asks for a label.
    let complete = concat!(
        r#"{"labels":{"instancetype.kubevirt.io/default-preference":"debian"},"#,
        r#""message":"Import Complete"}"#
    );
    let complete = (0, complete.to_owned());
    // The disk as it is; compressed once more; and a qcow2 that takes two passes, each over the whole layer.
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&late).unwrap();
    for (tag, file) in [("raw", &want), ("late", &late), ("nested", &gz.finish().unwrap())] {
        for kind in [GZIP, PLAIN] {
            store.push("vm", tag, &[Layer::new(kind, &[("disk/vm", file), ("etc/more", b"x")])]);
            let (pod, outcome) = with(&format!("vm:{tag}"), &[]);
            assert_eq!(outcome, complete, "{tag}");
            let disk = fs::read(pod.disk()).unwrap();
            assert!(disk[..want.len()] == want && disk[want.len()..].iter().all(|&byte| byte == 0), "{tag}");
            let meta = fs::metadata(pod.disk()).unwrap();
            assert_eq!((meta.len(), meta.uid(), meta.mode() & 0o777), (60 << 20, 107, 0o660));
            assert_eq!(pod.left(), ["disk.img"]);
        }
    }

    // A mounted .dockerconfigjson instead of keys.
    let config = scratch.path().join(".dockerconfigjson");
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    fs::write(&config, json!({"auths": {registry.address.to_string(): {"auth": auth}}}).to_string()).unwrap();
    let none = [
        ("IMPORTER_ACCESS_KEY_ID", String::new()),
        ("IMPORTER_SECRET_KEY", String::new()),
        ("REGISTRY_AUTH_FILE", config.to_str().unwrap().to_owned()),
    ];
    assert_eq!(with("vm:raw", &none).1, complete);

    let pulled = format!(
        "Unable to connect to registry data source: failed to pull image docker://{}/",
        registry.address
    );
    let (pod, (exit, message)) = with("vm:raw", &[("IMPORTER_SECRET_KEY", "hunter2".to_owned())]);
    assert!(exit == 1 && message.starts_with(&pulled), "{message}");
    assert!(message.contains("does not accept the user and password"), "{message}");
    assert!(pod.left().is_empty());
    let (_, (exit, message)) = with("vm:none", &[]);
    assert!(exit == 1 && message.starts_with(&pulled) && message.contains("404"), "{message}");
    let (_, (exit, message)) = with("vm:raw", &[("IMPORTER_CONTENTTYPE", "archive".to_owned())]);
    assert!(exit == 1 && message.contains("archive"), "{message}");

    // Known at the end only: nothing is left of the disk, and the answer is a failure.
    store.push("vm", "two", &[Layer::new(GZIP, &[("disk/a", &want), ("disk/b", b"x")])]);
    let (pod, (exit, message)) = with("vm:two", &[]);
    let words = "Unable to process data: image directory contains more than one file: disk/a and disk/b";
    assert_eq!((exit, message.as_str()), (1, words));
    assert!(pod.left().is_empty(), "{:?}", pod.left());
    for (tag, file) in [("tampered-raw", &want), ("tampered-qcow2", &late)] {
        let (_, _, layers) = store.push("vm", tag, &[Layer::new(PLAIN, &[("disk/x", file), ("y", b"y")])]);
        let path = store.blob(&layers[0]);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
        bytes[512 + 3 * MIB] ^= 1;
        fs::write(path, bytes).unwrap();
        let (pod, (exit, message)) = with(&format!("vm:{tag}"), &[]);
        assert!(exit == 1 && message.contains("is not what its digest says"), "{exit} {message}");
        assert!(pod.left().is_empty(), "{:?}", pod.left());
    }
    // After the repair the next try succeeds.
    let (_, _, layers) = store.push("vm", "repaired", &[Layer::new(GZIP, &[("disk/r", &want), ("y", b"z")])]);
    let path = store.blob(&layers[0]);
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 0x10;
    fs::write(&path, bad).unwrap();
    let pod = Pod::new();
    let image = registry.image("vm:repaired");
    let all = [("IMPORTER_ENDPOINT", image.as_str()), login[0], login[1]];
    let (exit, message) = pod.run(&tls, &all);
    assert!(exit == 1 && message.starts_with("Unable to process data: "), "{message}");
    fs::write(&path, good).unwrap();
    assert_eq!(pod.run(&tls, &all), complete);
    assert!(fs::read(pod.disk()).unwrap()[..want.len()] == want);
    assert_eq!(pod.left(), ["disk.img"]);
}

#[test]
fn killed_imports_start_again() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let kills: u64 = if std::env::var_os("FERROVIRT_SOAK").is_some() { 60 } else { 8 };
    let raw = disk(24 * MIB, 10);
    let (_, _, layers) = store.push("k", "latest", &[Layer::new(PLAIN, &[("disk/vm", &raw), ("z", b"z")])]);
    let import = |folder: &str| {
        let mut command = importer();
        let cacert = tls.certs();
        command.args([
            &registry.image("k"),
            &format!("{folder}/disk.img"),
            "--cacert",
            cacert.to_str().unwrap(),
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let blob = store.blob(&layers[0]);
    let good = fs::read(&blob).unwrap();
    let mut bad = good.clone();
    bad[4 * MIB] ^= 1;
    let target = path("target");
    fs::create_dir(&target).unwrap();
    for kill in 0..kills {
        // What a killed import took from a damaged blob must not survive in the next one.
        fs::write(&blob, if kill % 2 == 0 { &bad } else { &good }).unwrap();
        let mut child = import(&target).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + kill * 431 % 400));
        drop(child.kill());
        if child.wait().unwrap().success() {
            assert!(kill % 2 == 1, "a damaged image was imported");
            fs::remove_file(format!("{target}/disk.img")).unwrap();
        }
    }
    fs::write(&blob, &good).unwrap();
    assert!(import(&target).status().unwrap().success());
    assert!(fs::read(format!("{target}/disk.img")).unwrap() == raw);
    let left: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["disk.img"]);
}

#[test]
fn imports_by_command_line() {
    let (store, tls) = (Store::new(), Tls::new());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let raw = disk(2 * MIB, 8);
    store.push("c", "latest", &[Layer::new(GZIP, &[("disk/vm.img", &raw)])]);
    let image = registry.image("c");
    fs::write(path("user"), format!("{USER}\n{PASSWORD}\n")).unwrap();
    let certs = tls.certs();
    let certs = certs.to_str().unwrap();
    let output = run(importer().args([&image, &path("a"), "--user-file", &path("user"), "--cacert", certs]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(path("a")).unwrap() == raw);

    // What docker login wrote is found.
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    fs::create_dir(path(".docker")).unwrap();
    fs::write(
        path(".docker/config.json"),
        json!({"auths": {registry.address.to_string(): {"auth": auth}}}).to_string(),
    )
    .unwrap();
    let output = run(importer()
        .env("HOME", folder.path())
        .args(["inspect", &image, "--cacert", certs, "--output", "json"]));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&seen["format"], &seen["virtual_size"]), (&json!("raw"), &json!(2 * MIB)), "{seen}");

    // Tables behind the data cost a second pass over the layer.
    let (late, want) = tables_last(folder.path());
    store.push("c", "late", &[Layer::new(GZIP, &[("disk/vm.img", &late)])]);
    let late_image = registry.image("c:late");
    let output = run(importer()
        .args([&late_image, &path("late"), "--user-file", &path("user"), "--cacert", certs])
        .args(["--output", "json"]));
    assert!(fs::read(path("late")).unwrap() == want);
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(done["bytes_read"].as_u64().unwrap() > late.len() as u64 * 3 / 2, "{done}");

    let output = run(importer().args([&image, &path("b"), "--cacert", certs]));
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("give a user and password"));
    assert!(!Path::new(&path("b")).exists());

    fs::write(path("image.tar"), archive(&[("v1", Layer::new(ZSTD, &[("disk/d", &raw)]))])).unwrap();
    let output = run(importer().args([&format!("oci-archive:{}:v1", path("image.tar")), &path("c")]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(path("c")).unwrap() == raw);
}
