//! Counters of a running guest, as the launcher answers them.

use api::launcher::{Answer, RefusedKind, Request};
use guest::CallError;

use crate::support::running::{HALTS, Launcher};

#[test]
fn a_running_guest_has_counters_of_its_cpu_memory_disks_and_interfaces() {
    let launcher = Launcher::new();
    let refused = launcher.ask(Request::Stats);
    assert!(matches!(refused, Err(CallError::Refused(RefusedKind::State, _))), "{refused:?}");
    let document = launcher.document(HALTS);
    launcher.launch(&document);
    launcher.until_serial("K");
    let Answer::Stats(stats) = launcher.ask(Request::Stats).unwrap() else { panic!("counters") };
    for name in [
        "cpu.time",
        "cpu.user",
        "cpu.system",
        "balloon.current",
        "balloon.maximum",
        "balloon.rss",
        "vcpu.0.state",
        "vcpu.0.time",
        "block.0.rd.reqs",
        "block.0.rd.bytes",
        "block.0.wr.times",
        "block.0.fl.reqs",
    ] {
        assert!(stats.numbers.contains_key(name), "{name}: {stats:?}");
    }
    // The firmware has read the boot sector.
    assert!(stats.numbers["block.0.rd.bytes"] >= 512, "{stats:?}");
    assert!(stats.numbers["cpu.time"] > 0 && stats.numbers["balloon.rss"] > 1024, "{stats:?}");
    assert_eq!(stats.names["block.0"], document.disks[0].name);
    assert_eq!(stats.numbers.get("net.count").copied().unwrap_or(0), document.interfaces.len() as u64);
}
