//! An OCI archive: an image layout (OCI image specification 1.1, `image-layout.md`) in one tar file.
//!
//! All tags share the layers. Each tag is named twice, as containerd and as the other tools look for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::layer::{EPOCH, Layer, sha256};

/// One name under which the layers are known, and what runs under it.
#[derive(Clone, Debug)]
pub struct Tag {
    /// Repository, with its registry, without the tag.
    pub repository: String,
    /// The tag.
    pub name: String,
    /// The program and the arguments before the pod's.
    pub entrypoint: Vec<String>,
    /// The numeric user that a pod without one of its own gets; `None`: root.
    pub user: Option<u32>,
}

impl Tag {
    /// The reference for a pod's `image`.
    pub fn reference(&self) -> String {
        format!("{}:{}", self.repository, self.name)
    }
}

/// Writes the archive of `tags`, all with the same `layers` from the lowest to the highest, to `file`, and returns the
/// SHA-256 of its index, hexadecimal: the digest of everything in it.
///
/// # Errors
/// When a layer cannot be read or the archive cannot be written.
pub fn write(file: &Path, layers: &[Layer], tags: &[Tag]) -> Result<String> {
    let created = File::create(file).with_context(|| format!("cannot create {}", file.display()))?;
    let mut tar = tar::Builder::new(io::BufWriter::new(created));
    let mut blobs = BTreeSet::new();
    put(&mut tar, "oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes())?;
    for layer in layers {
        if blobs.insert(layer.digest.clone()) {
            let content = File::open(&layer.file)?;
            let mut header = header(layer.size);
            tar.append_data(&mut header, format!("blobs/sha256/{}", layer.digest), content)?;
        }
    }
    let mut manifests = Vec::new();
    for tag in tags {
        let config = blob(&mut tar, &mut blobs, &config(layers, tag))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers
                .iter()
                .map(|layer| {
                    descriptor(
                        "application/vnd.oci.image.layer.v1.tar+gzip",
                        &(layer.digest.clone(), layer.size),
                    )
                })
                .collect::<Vec<_>>(),
        });
        let manifest = blob(&mut tar, &mut blobs, &manifest)?;
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["platform"] = json!({"architecture": "amd64", "os": "linux"});
        entry["annotations"] = json!({
            "io.containerd.image.name": tag.reference(),
            "org.opencontainers.image.ref.name": tag.name,
        });
        manifests.push(entry);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    let index = index.to_string();
    put(&mut tar, "index.json", index.as_bytes())?;
    tar.into_inner()?.flush()?;
    Ok(sha256(index.as_bytes()))
}

fn config(layers: &[Layer], tag: &Tag) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", layer.diff_id)).collect();
    let mut config = json!({
        "Entrypoint": tag.entrypoint,
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    });
    if let Some(user) = tag.user {
        config["User"] = json!(format!("{user}:{user}"));
    }
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

fn descriptor(media_type: &str, (digest, size): &(String, u64)) -> Value {
    json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
}

/// Stores a document once; its digest and size.
fn blob(
    tar: &mut tar::Builder<impl Write>,
    known: &mut BTreeSet<String>,
    document: &Value,
) -> Result<(String, u64)> {
    let text = document.to_string();
    let digest = sha256(text.as_bytes());
    if known.insert(digest.clone()) {
        put(tar, &format!("blobs/sha256/{digest}"), text.as_bytes())?;
    }
    Ok((digest, u64::try_from(text.len())?))
}

fn put(tar: &mut tar::Builder<impl Write>, name: &str, content: &[u8]) -> Result<()> {
    let mut header = header(u64::try_from(content.len())?);
    tar.append_data(&mut header, name, content)?;
    Ok(())
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(EPOCH);
    header.set_uid(0);
    header.set_gid(0);
    header
}
