//! Images to push, and what is read from them.

use std::io;
use std::io::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The user for registries with a password.
pub const USER: &str = "robot";
/// The password.
pub const PASSWORD: &str = "correct horse";
/// bcrypt of [`PASSWORD`], the only kind the registry takes.
pub const HTPASSWD: &str = "robot:$2b$04$IAVo48Agf/dYSXcsyTRUW.F65lTOKmPEmHMSBywwdFsA2M7R5Xyma\n";
/// A layer by gzip.
pub const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// A layer as it is.
pub const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
/// A layer by zstd.
pub const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// Docker's name of a layer by gzip.
pub const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// An image's manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Several images.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Docker's name of a manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker's name of an index.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The manifest of an image.
pub fn manifest(kind: &str, config_kind: &str, config: &[u8], layers: &[Layer]) -> Value {
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

/// SHA-256 as registries write it.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A layer as it is pushed.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its media type.
    pub kind: &'static str,
    /// Its bytes.
    pub blob: Vec<u8>,
}

impl Layer {
    /// Packs files as the media type requires.
    ///
    /// # Panics
    /// When it cannot be packed.
    pub fn new(kind: &'static str, files: &[(&str, &[u8])]) -> Self {
        Self::of_tar(kind, &tar(files))
    }

    /// Packs a tar as the media type requires.
    ///
    /// # Panics
    /// When it cannot be packed.
    pub fn of_tar(kind: &'static str, tar: &[u8]) -> Self {
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
///
/// # Panics
/// When it cannot be packed.
pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
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
///
/// # Panics
/// Never.
pub fn disk(len: usize, seed: u64) -> Vec<u8> {
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

/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;

/// An OCI layout in a tar, with one image per name.
///
/// # Panics
/// When it cannot be packed.
pub fn archive(images: &[(&str, Layer)]) -> Vec<u8> {
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
