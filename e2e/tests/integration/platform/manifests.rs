//! Manifests of different shape, as they are written: guests report the same as on one machine (virt-node's test of the
//! same manifests); the report is recorded next to each.

use std::fs;

use e2e::peer::web::Web;
use guests::telling::{self, Manifest};

use crate::platform::console::Console;
use crate::platform::place::{INSTANCES, PLACE, PODS};
use crate::platform::streams::Streams;

/// Those that every run of the tests starts; all are started with `FERROVIRT_SOAK=1`.
const SOME: [&str; 4] = ["blank", "config", "instance", "network"];

#[test]
fn manifests_run_unchanged_and_their_guests_report_the_recorded_facts() {
    let namespace = "manifests";
    PLACE.namespace(namespace);
    // No manifest names a class, and no class is the default of the whole cluster.
    let class = ["annotate", "--overwrite", "storageclass", "hostpath-csi"];
    PLACE.kubectl(&[&class[..], &["storageclass.kubevirt.io/is-default-virt-class=true"]].concat()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    telling::image(&folder.path().join("guest.qcow2"));
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let server = web.url("guest.qcow2");
    let server = server.trim_end_matches("/guest.qcow2");
    let all = std::env::var_os("FERROVIRT_SOAK").is_some();
    let manifests = telling::manifests();
    assert_eq!(manifests.len(), 12);
    for Manifest { name, facts, .. } in &manifests {
        assert!(!facts.is_empty(), "{name} has no recorded facts");
    }
    for manifest in manifests.iter().filter(|one| all || SOME.contains(&one.name.as_str())) {
        let name = &manifest.name;
        let file = PLACE.cluster.place().path("manifest.yaml");
        fs::write(&file, manifest.with_server(server)).unwrap();
        let file = file.to_str().unwrap();
        // A guest does not wait for a console with what it tells.
        let _streams = Streams::follow();
        PLACE.kubectl(&["-n", namespace, "apply", "-f", file]).unwrap();
        let mut console = PLACE.until(namespace, &format!("the console of {name}"), || {
            Console::open(&PLACE, namespace, name).ok()
        });
        let report = console.read_until(telling::TOLD).unwrap();
        assert_eq!(telling::facts(&report).as_ref(), Some(&manifest.facts), "{name}");
        PLACE.kubectl(&["-n", namespace, "delete", "-f", file, "--timeout=120s"]).unwrap();
        PLACE.until(namespace, &format!("{name} is gone"), || {
            (PLACE.list(INSTANCES, namespace).is_empty() && PLACE.list(PODS, namespace).is_empty())
                .then_some(())
        });
    }
    PLACE.remove_namespace(namespace);
}
