//! Shared by unit tests with filesystems of their own: the places of the tests of the built driver, and a driver without a
//! socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::apply::recover::recover;
use crate::config::{self, Config, PoolConfig};
use crate::driver::Driver;
use crate::id::Id;

#[path = "../tests/integration/support/place.rs"]
#[allow(dead_code, reason = "unit tests use a part of it")]
pub(crate) mod place;

use place::Place;

/// Waits until `done`, for at most half a minute.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "not within half a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Names in a folder, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A name.
pub(crate) fn id(text: &str) -> Id {
    Id::read(text).unwrap()
}

/// Configuration of a driver of `node1` with `pools`, and its memory in `state`.
pub(crate) fn config(pools: Vec<PoolConfig>, state: PathBuf) -> Config {
    Config {
        driver: "kubevirt.io.hostpath-provisioner".to_owned(),
        node: id("node1"),
        version: "test".to_owned(),
        socket: state.join("csi.sock"),
        state,
        pools,
        single_node: true,
        registration: None,
        health: None,
        metrics: None,
    }
}

/// A driver of `node1` with the legacy pool, with more keys, on a place's filesystem. It has no worker.
pub(crate) fn driver(place: &Place, more: &str) -> Driver {
    let json = format!(r#"[{{"name":"legacy","path":{:?}{more}}}]"#, place.pool().to_str().unwrap());
    Driver::new(&config(config::pools(&json).unwrap(), place.beside("run")), recover).unwrap().0
}
