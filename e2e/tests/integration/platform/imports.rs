//! Many DataVolumes at once, imported by the platform as it is installed: all are done, and the operator stays small.
//!
//! How many writes each takes is counted where nothing else of the operator runs, in the tests of storage.

use std::fs::File;
use std::time::Instant;

use e2e::peer::web::Web;
use e2e::processes::Memory;
use serde_json::json;

use crate::platform::place::{DATA_VOLUMES, PLACE, PODS};
use crate::platform::transfers::data_volume;

/// Where the platform is.
const PLATFORM: &str = "kubevirt-hyperconverged";
/// Namespace of the DataVolumes.
const SPACE: &str = "imports";
/// Most memory of the operator that counts, in KiB.
const MEMORY_MAX: u64 = 64 << 10;

#[test]
fn many_data_volumes_at_once_are_imported_by_a_small_operator() {
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 200 } else { 12 };
    PLACE.namespace(SPACE);
    let folder = tempfile::tempdir_in(PLACE.cluster.place().path("")).unwrap();
    File::create(folder.path().join("disk.img")).unwrap().set_len(64 << 20).unwrap();
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let operator = PLACE.until(PLATFORM, "the operator's pod", || {
        let of = |pod: &serde_json::Value| {
            pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("ferrovirt-operator-"))
                && pod["status"]["phase"] == "Running"
        };
        PLACE.list(PODS, PLATFORM).into_iter().find(of)
    });
    let operator = operator["metadata"]["uid"].as_str().unwrap().to_owned();
    let memory = || Memory::of_pod(&operator).unwrap().counted().unwrap();
    let before = memory();
    let begun = Instant::now();
    let names: Vec<String> = (0..count).map(|number| format!("many{number:03}")).collect();
    for name in &names {
        let source = json!({"http": {"url": web.url("disk.img")}});
        let volume = data_volume(name, &source, "96Mi");
        PLACE.create(DATA_VOLUMES, SPACE, &volume);
    }
    let mut most = before;
    for name in &names {
        PLACE.until(SPACE, &format!("{name} is imported"), || {
            most = most.max(memory());
            let volume = PLACE.find(DATA_VOLUMES, SPACE, name)?;
            (volume["status"]["phase"] == "Succeeded").then_some(())
        });
    }
    println!(
        "{count} DataVolumes at once: {:.1?}; operator {before} KiB before, at most {most} KiB while they are imported",
        begun.elapsed(),
    );
    assert!(most <= MEMORY_MAX, "{most} KiB");
    PLACE.remove_namespace(SPACE);
}
