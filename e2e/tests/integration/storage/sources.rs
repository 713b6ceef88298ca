//! Servers with the disk, and the Secrets and ConfigMaps that imports from them name: a store of S3, a registry.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use e2e::peer::registry::{PASSWORD, Registry, USER};
use e2e::peer::s3::{ACCESS_KEY, SECRET_KEY, Store};
use image::layer::{self, Layer, Member};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::storage::setup::{ARCHIVE, CLUSTER, DISK};
use crate::storage::space::Space;

/// A store with `disk.qcow2` and the archive `files.tar` in its bucket `bucket`, and the folder with its buckets.
pub(crate) fn store() -> (Store, TempDir) {
    let root = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    fs::create_dir(root.path().join("bucket")).unwrap();
    fs::copy(&DISK.qcow2, root.path().join("bucket/disk.qcow2")).unwrap();
    fs::copy(&*ARCHIVE, root.path().join("bucket/files.tar")).unwrap();
    (Store::start(CLUSTER.place(), root.path()).unwrap(), root)
}

/// Makes the store's authority and keys in a namespace; gives the source of an import of one of its objects.
pub(crate) fn object(space: &Space, store: &Store, object: &str) -> Value {
    let authority = json!({"ca.pem": store.authority()});
    space.create("ConfigMap", json!({"metadata": {"name": "store-authority"}, "data": authority}));
    let keys = json!({"accessKeyId": ACCESS_KEY, "secretKey": SECRET_KEY});
    space.create("Secret", json!({"metadata": {"name": "store-keys"}, "stringData": keys}));
    let url = store.url("bucket", object);
    json!({"s3": {"url": url, "secretRef": "store-keys", "certConfigMap": "store-authority"}})
}

/// The disk as a layer of a container image, packed in a folder.
pub(crate) fn layer(folder: &Path) -> Layer {
    let members = BTreeMap::from([
        ("disk".to_owned(), Member::Folder { mode: 0o755 }),
        ("disk/disk.qcow2".to_owned(), Member::File { from: DISK.qcow2.clone(), mode: 0o444 }),
    ]);
    layer::pack(&members, &folder.join("layer")).unwrap()
}

/// Pushes a container image with the disk; its name without a scheme.
pub(crate) fn push(registry: &Registry, name: &str) -> String {
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    CLUSTER.run(registry.push(name, &layer(folder.path()), &[])).unwrap()
}

/// Makes the registry's authority and keys in a namespace; gives the fields of `registry` for an image that the
/// importer pulls.
pub(crate) fn pulled(space: &Space, registry: &Registry, image: &str) -> Value {
    let authority = json!({"ca.pem": registry.authority()});
    space.create("ConfigMap", json!({"metadata": {"name": "registry-authority"}, "data": authority}));
    let keys = json!({"accessKeyId": USER, "secretKey": PASSWORD});
    space.create("Secret", json!({"metadata": {"name": "registry-keys"}, "stringData": keys}));
    let url = format!("docker://{image}");
    json!({"url": url, "certConfigMap": "registry-authority", "secretRef": "registry-keys"})
}
