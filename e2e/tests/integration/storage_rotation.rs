//! Uploads while the keys of tokens and the authorities of certificates are replaced: none fails. And the settings of a
//! CDI object, which are all transfers'.
//!
//! A cluster of its own: time passes faster for its keys and authorities than for transfers, which have hours in truth.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use e2e::peer::flaky::Flaky;
use e2e::peer::registry::Registry;
use operator::storage::keys::{SECRET, SigningKeys};
use operator::storage::tokens::{ANNOUNCED, PERIOD, RETIRED};
use serde_json::{Value, json};

use crate::storage::clones;
use crate::storage::send::upload;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, MIB, PLATFORM, apply, assert_same};
use crate::storage::sources;
use crate::storage::space::{Space, until};

/// Makes all signing keys older by some seconds, as if the clock had moved on for them alone.
fn age_keys(seconds: u64) {
    let platform = Space(PLATFORM.to_owned());
    let secret = platform.get("Secret", SECRET).unwrap();
    let text = |name: &str| BASE64_STANDARD.decode(secret["data"][name].as_str().unwrap()).unwrap();
    let mut ring: Value = serde_json::from_slice(&text("ring")).unwrap();
    for key in ring.as_array_mut().unwrap() {
        key["made"] = json!(key["made"].as_u64().unwrap().saturating_sub(seconds));
    }
    let ring = BASE64_STANDARD.encode(ring.to_string());
    platform.patch("Secret", SECRET, &json!({"data": {"ring": ring}}));
}

/// When the signing keys were made, oldest first, and the newest one's public half.
fn keys_made() -> (Vec<u64>, String) {
    let secret = Space(PLATFORM.to_owned()).get("Secret", SECRET).unwrap();
    let keys = SigningKeys::from(&secret);
    let newest = keys.ring.keys().last().unwrap().public.clone();
    (keys.ring.keys().iter().map(|key| key.made).collect(), newest)
}

/// The Secrets with the authorities of transfers.
const AUTHORITIES: [&str; 3] =
    ["cdi-uploadproxy-signer", "cdi-uploadserver-signer", "cdi-uploadserver-client-signer"];

/// An authority's store.
fn store(secret: &str) -> Value {
    let secret = Space(PLATFORM.to_owned()).get("Secret", secret).unwrap();
    serde_json::from_slice(&BASE64_STANDARD.decode(secret["data"]["store"].as_str().unwrap()).unwrap())
        .unwrap()
}

/// Makes the newest of each authority older, as if the clock had moved on for them alone; certificates refer to it by its
/// time.
fn age_authorities(seconds: u64) {
    let platform = Space(PLATFORM.to_owned());
    for secret in AUTHORITIES {
        let mut store = store(secret);
        let newest = store["authorities"].as_array_mut().unwrap().last_mut().unwrap();
        let from = newest["from"].clone();
        let aged = json!(from.as_u64().unwrap() - seconds);
        newest["from"] = aged.clone();
        for leaf in store["leaves"].as_object_mut().unwrap().values_mut() {
            if leaf["signed_by"] == from {
                leaf["signed_by"] = aged.clone();
            }
        }
        let text = BASE64_STANDARD.encode(store.to_string());
        platform.patch("Secret", secret, &json!({"data": {"store": text}}));
    }
}

/// Whether each authority's store is like this.
fn authorities(are: impl Fn(&Value) -> bool) -> Option<()> {
    AUTHORITIES.iter().all(|secret| are(&store(secret))).then_some(())
}

/// The Secrets with the certificates that the upload proxy has.
const CERTIFICATES: [&str; 2] = ["cdi-uploadproxy-server-cert", "cdi-uploadserver-client-cert"];

/// Whether the kubelet has brought a line into the upload proxy's pod.
fn proxy_has(line: &str) -> Option<()> {
    let pod = Space(PLATFORM.to_owned());
    let pods = pod.names("Pod");
    let name = pods.iter().find(|name| name.starts_with("cdi-uploadproxy-"))?;
    let uid = pod.get("Pod", name)?["metadata"]["uid"].as_str()?.to_owned();
    let folder = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~secret");
    let found =
        Command::new("grep").args(["-rqF", line]).arg(CLUSTER.node_path(&folder).unwrap()).status().unwrap();
    found.success().then_some(())
}

/// Whether it has brought the certificates there as they are now.
fn proxy_has_certificates() -> Option<()> {
    for secret in CERTIFICATES {
        let secret = Space(PLATFORM.to_owned()).get("Secret", secret)?;
        let certificate = BASE64_STANDARD.decode(secret["data"]["tls.crt"].as_str()?).unwrap();
        proxy_has(String::from_utf8(certificate).unwrap().lines().nth(3)?)?;
    }
    Some(())
}

#[test]
fn no_upload_fails_while_authorities_and_the_signing_key_change() {
    const HOUR: u64 = 3600;
    let space = Space::new("uploads-rotation");
    let over = AtomicBool::new(false);
    let count = AtomicU32::new(0);
    // Its server starts before everything changes.
    space.data_volume("early", &json!({"upload": {}}), IMMEDIATE, "Filesystem", &json!({}));
    space.phases("early", "UploadReady");
    thread::scope(|scope| {
        let uploads = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) || count.load(Ordering::Relaxed) == 0 {
                let name = format!("disk-{}", count.load(Ordering::Relaxed));
                space.data_volume(&name, &json!({"upload": {}}), IMMEDIATE, "Filesystem", &json!({}));
                space.phases(&name, "UploadReady");
                upload(&space, &name);
                space.phases(&name, "Succeeded");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stopped = || uploads.is_finished().then_some(());
        // Longer than an upload takes.
        let some_uploads = |what: &str| {
            let beginning = count.load(Ordering::Relaxed);
            until(what, || {
                (count.load(Ordering::Relaxed) >= beginning + 2 || stopped().is_some()).then_some(())
            });
        };
        let before = keys_made().0;
        // The last key and the last authorities are due for their successors.
        age_keys(PERIOD);
        age_authorities(24 * HOUR);
        let (made, public) = until("a successor is made", || {
            let (made, public) = keys_made();
            (made.len() > before.len() || stopped().is_some()).then_some((made, public))
        });
        assert!(made.len() > before.len(), "an upload failed");
        until("other authorities are made", || {
            authorities(|store| store["authorities"].as_array().unwrap().len() == 2).or_else(stopped)
        });
        // It signs when verifiers have had time to read it: the kubelet brings it into the proxy's pod.
        until("the proxy has the successor", || proxy_has(public.lines().nth(1)?).or_else(stopped));
        some_uploads("both are known");
        age_keys(ANNOUNCED);
        // An hour later servers and the proxy have certificates of the other authorities; servers that started before do
        // not know that of clients.
        age_authorities(HOUR);
        until("the proxy's certificate is replaced", || {
            let (store, newest) =
                (store(AUTHORITIES[0]), |store: &Value| store["authorities"][1]["from"].clone());
            (store["leaves"]["leaf"]["signed_by"] == newest(&store)).then_some(()).or_else(stopped)
        });
        some_uploads("the successors sign");
        upload(&space, "early");
        space.phases("early", "Succeeded");
        // Three quarters of the time that the other authority stays.
        age_authorities(9 * HOUR);
        until("the other authority signs for clients", || {
            authorities(|store| {
                let newest = &store["authorities"][1]["from"];
                store["leaves"].as_object().unwrap().values().all(|leaf| leaf["signed_by"] == *newest)
            })
            .or_else(stopped)
        });
        // A bundle without an authority comes hours after the last certificate of it; clients of the proxy trust the
        // bundle, and a server that of its start.
        until("the proxy has its certificates of the successors", || {
            proxy_has_certificates().or_else(stopped)
        });
        some_uploads("clients are known by the successor");
        age_keys(RETIRED + 1);
        age_authorities(12 * HOUR);
        until("the last ones are dropped", || {
            let keys = keys_made().0.len() == before.len();
            let one = |store: &Value| store["authorities"].as_array().unwrap().len() == 1;
            authorities(one).filter(|()| keys).or_else(stopped)
        });
        some_uploads("only the successors are left");
        over.store(true, Ordering::Relaxed);
        uploads.join().unwrap();
    });
    let count = count.load(Ordering::Relaxed);
    println!("{count} uploads while authorities and the signing key changed; one server waited from before");
}

#[test]
fn a_cdi_object_sets_the_clone_strategy_and_the_proxy_and_registries_of_imports() {
    let (space, web) = clones::golden("settings", IMMEDIATE);
    // It answers every request with the disk, whatever the address is.
    let proxy = Flaky::start(CLUSTER.place(), &DISK.qcow2, 4 * MIB).unwrap();
    let address = proxy.url().trim_end_matches("/disk").to_owned();
    let data = json!({"ca.pem": web.authority()});
    let map = json!({"metadata": {"name": "proxy-authority"}, "data": data});
    Space(PLATFORM.to_owned()).create("ConfigMap", map);
    // Its certificate is of an authority of its own.
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let image = sources::push(&registry, "disks/untrusted");
    let mut untrusted = sources::pulled(&space, &registry, &image);
    untrusted.as_object_mut().unwrap().remove("certConfigMap").unwrap();
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: cdi.kubevirt.io/v1beta1\nkind: CDI\nmetadata: {{name: cdi}}\nspec:\n  \
             cloneStrategyOverride: copy\n  config:\n    featureGates: [HonorWaitForFirstConsumer]\n    \
             importProxy: {{HTTPProxy: \"{address}\", trustedCAProxy: proxy-authority}}\n    \
             insecureRegistries: [\"{}\"]\n",
            registry.address()
        ),
    );
    until("CDIConfig has the settings", || {
        let config = space.get("CDIConfig", "config")?;
        (config["status"]["importProxy"]["HTTPProxy"] == address).then_some(())
    });
    // The class's strategy is csi-clone.
    let golden = json!({"pvc": {"namespace": space.0, "name": "golden"}});
    space.data_volume("copy", &golden, IMMEDIATE, "Filesystem", &json!({}));
    let http = json!({"http": {"url": "http://images.invalid/disk.qcow2"}});
    space.data_volume("proxied", &http, IMMEDIATE, "Filesystem", &json!({}));
    space.data_volume("untrusted", &json!({"registry": untrusted}), IMMEDIATE, "Filesystem", &json!({}));
    let maps = || {
        let mut maps = space.all("ConfigMap");
        maps.retain(|map| map["metadata"]["name"].as_str().unwrap().starts_with("import-proxy-cm-"));
        maps
    };
    until("the importer has the proxy's authority", || {
        maps().first().map(|map| assert_eq!(map["data"], data))
    });
    for name in ["copy", "proxied", "untrusted"] {
        space.phases(name, "Succeeded");
        assert_same(&space.file(name));
    }
    let copy = space.get("PersistentVolumeClaim", "copy").unwrap();
    assert_eq!(copy["metadata"]["annotations"]["cdi.kubevirt.io/cloneType"], "copy");
    assert!(proxy.sent() > 0);
    until("the authority is gone with the importer", || maps().is_empty().then_some(()));
}
