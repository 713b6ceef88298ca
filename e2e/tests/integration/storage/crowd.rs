//! Many DataVolumes at once: all are done, through every phase, with few writes each.

use std::time::{Duration, Instant};

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::platform;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, assert_same};
use crate::storage::space::{Space, until};
use crate::storage::timeline::{Timeline, median};

/// Most writes of the operator for one DataVolume, without events and reports of progress. That the driver or the kubelet
/// takes seconds is reported within them.
const WRITES: usize = 12;

#[test]
fn many_data_volumes_at_once_are_imported_with_few_writes_each() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let count = if soak { 200 } else { 12 };
    let space = Space::new("crowd");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    let timeline = Timeline::start(&space);
    let begun = Instant::now();
    let names: Vec<String> = (0..count).map(|number| format!("many{number:03}")).collect();
    for name in &names {
        space.data_volume(name, &source, IMMEDIATE, "Filesystem", &json!({}));
    }
    for name in &names {
        space.phases(name, "Succeeded");
    }
    let took = begun.elapsed();
    until("the prime claims are gone", || {
        space.names("PersistentVolumeClaim").iter().all(|one| !one.starts_with("prime-")).then_some(())
    });
    let (mut made, mut ended, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for name in &names {
        assert_same(&space.file(name));
        let phases = timeline.phases(name);
        assert_eq!(phases, ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"], "{name}");
        let claim = space.get("PersistentVolumeClaim", name).unwrap();
        let prime = format!("prime-{}", claim["metadata"]["uid"].as_str().unwrap());
        let pod = format!("importer-{prime}");
        let at = |kind, name, state| timeline.at(kind, name, state);
        made.push(at("Pod", &pod, "made").duration_since(at("DataVolume", name, "made")));
        ended.push(at("DataVolume", name, "Succeeded").duration_since(at("Pod", &pod, "done")));
        let volume = claim["spec"]["volumeName"].as_str().unwrap();
        writes.push(platform::writes(&space.0, &[name, &prime, volume]));
    }
    println!(
        "{count} DataVolumes at once: {took:.1?}; created until pod created p50 {:.0?}, pod done until Succeeded p50 {:.0?}",
        median(made),
        median(ended),
    );
    if let Some(most) = writes.iter().max_by_key(|writes| writes.len()) {
        println!("most writes: {most:#?}");
    }
    for (name, writes) in names.iter().zip(&writes) {
        // A transfer that takes seconds shows its progress, by one write each time.
        let progress = timeline.states("Progress", name);
        let waited = space.events(name).iter().any(|(reason, _)| reason.starts_with("Provisioning"));
        println!("{name}: {} writes, waited for the driver: {waited}, progress: {progress:?}", writes.len());
        // Small counts run next to other tests: one more write for a slow start.
        let most = WRITES + progress.len() + usize::from(!soak && waited);
        let running = timeline.states("Running", name);
        assert!(!writes.is_empty() && writes.len() <= most, "{name}: {writes:#?}, {running:#?}");
    }
    assert!(!soak || took < Duration::from_secs(600), "{took:?}");
}
