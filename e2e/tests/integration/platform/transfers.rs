//! DataVolumes on the node's own storage that tests fill: from a web server, and by uploads, piece by piece, through the
//! proxy.
//!
//! Not here: the sending itself (`storage::send`).

use futures_util::stream;
use reqwest::{Body, Method};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::platform::place::{DATA_VOLUMES, PLACE};
use crate::storage::send;

/// Bytes of a piece of an upload, and how many there are, one each quarter of a second.
const PIECE: usize = 64 << 10;
const PIECES: u32 = 16;

/// A DataVolume that needs no pod to be bound.
pub(crate) fn data_volume(name: &str, source: &Value, size: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {"name": name, "annotations": {"cdi.kubevirt.io/storage.bind.immediate.requested": ""}},
        "spec": {"source": source, "storage": {
            "storageClassName": "hostpath-csi", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        }},
    })
}

#[track_caller]
fn until(namespace: &str, name: &str, phase: &str) {
    PLACE.until(namespace, &format!("{name} is {phase}"), || {
        let volume = PLACE.find(DATA_VOLUMES, namespace, name)?;
        (volume["status"]["phase"] == phase).then_some(())
    });
}

/// Imports a URL into a DataVolume of its own, which it deletes.
#[track_caller]
pub(crate) fn import(namespace: &str, name: &str, url: &str) {
    PLACE.create(DATA_VOLUMES, namespace, &data_volume(name, &json!({"http": {"url": url}}), "64Mi"));
    until(namespace, name, "Succeeded");
    PLACE.delete(DATA_VOLUMES, namespace, name);
}

/// Uploads a disk piece by piece into a DataVolume of its own, which it deletes.
pub(crate) fn upload(namespace: &str, name: &str) -> Result<(), String> {
    let volume = data_volume(name, &json!({"upload": {}}), "8Mi");
    let made = PLACE.cluster.run(PLACE.client.create::<IgnoredAny>(DATA_VOLUMES, namespace, &volume));
    made.map_err(|error| error.to_string())?;
    until(namespace, name, "UploadReady");
    let token = send::token_of(&PLACE.cluster, namespace, name).map_err(|error| error.to_string())?;
    let pieces = stream::unfold(0, |count| async move {
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        (count < PIECES).then(|| (Ok::<_, std::io::Error>(vec![0; PIECE]), count + 1))
    });
    let (path, body) = ("/v1beta1/upload-async", Body::wrap_stream(pieces));
    let sent = send::try_send_to(&PLACE.cluster, Method::POST, path, &token, body);
    match sent.map_err(|error| format!("{error:?}"))? {
        (200, _) => until(namespace, name, "Succeeded"),
        (status, answer) => return Err(format!("{status} {answer}")),
    }
    PLACE.delete(DATA_VOLUMES, namespace, name);
    Ok(())
}
