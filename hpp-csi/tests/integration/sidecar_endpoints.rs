//! The built driver's endpoints other than CSI: the kubelet's plugin registration, health, metrics; and its shutdown.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use csi::pools::pools_client::PoolsClient;
use csi::pools::{ListRequest, Pool};
use csi::registration::registration_client::RegistrationClient;
use csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use csi::*;

use crate::support::place::{Place, run};
use crate::support::{
    Client, Driver, GIB, MIB, block, eventually, from_volume, mount, names, one_pool_of, parameters, pool,
    stage, volume,
};

/// The bytes that grpc-go 1.72 sent when it was dialled as the kubelet dials: GetInfo, a registration, a refusal. Its
/// authority is the path of the socket, percent-encoded and in Huffman's code.
const KUBELET: &str = "\
    505249202a20485454502f322e300d0a0d0a534d0d0a0d0a0000000400000000000000000401000000000000880104000000\
    018386459c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41b05458534d6a8b0a55161b0b3596d4a8\
    b0f554587adb197b9ac4ae63af39d09ac699d6aec3f7320c7a8b62d61665d072755f8b1d75d0620d263d4c4d65647a8a9aca\
    c8b4c7602bba25c340027465864d833505b11f40899acac8b24d494f6a7f867df7dd71c7ed00000500010000000100000000\
    000000040800000000000000006900000806000000000002041010090e0707000039010400000003838645a862ba2d98d558\
    598c84d83498f52fb4b31909b06931ea6349d2697d6d2cc6426c1a4c7ab72469b51fc3c2c1c07f00867df7dc6422b7000007\
    000100000003000000000208010000040800000000000000000500000806000000000002041010090e070700000f01040000\
    00058386bfc4c3c2c17e867df7dc034f5b000013000100000005000000000e120c6e6f2073756368206e616d650000040800\
    000000000000000500000806000000000002041010090e07070000210700000000000000000500000000636c69656e742074\
    72616e73706f72742073687574646f776e";

/// Asks the registration socket as the kubelet does.
fn registered(socket: &Path) -> PluginInfo {
    let client = Client::new(socket);
    client.runtime().block_on(async {
        let mut kubelet = RegistrationClient::new(client.channel());
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        kubelet.notify_registration_status(status).await.unwrap();
        info
    })
}

#[test]
fn the_agent_can_ask_for_the_state_of_pools() {
    let place = Place::new("xfs", GIB);
    for (more, enforced) in [(r#","enforce":"none""#, false), (r#","enforce":"loop""#, true)] {
        let driver = one_pool_of("node1", &place, more, &[]);
        let client = driver.client();
        let state = || {
            let mut pools = PoolsClient::new(client.channel());
            let answer = client.runtime().block_on(pools.list(ListRequest {})).unwrap().into_inner();
            let [pool] = <[Pool; 1]>::try_from(answer.pools).unwrap();
            pool
        };
        let before = state();
        assert!(before.ready && !before.read_only && before.enforced == enforced, "{before:?}");
        assert!(before.free_bytes > before.size_bytes / 2, "{before:?}");
        assert!(before.limit_bytes <= before.size_bytes, "{before:?}");
        client.create(volume("disk", 300 * MIB, block()));
        let after = state();
        let reserved = after.reserved_bytes - before.reserved_bytes;
        assert!((300 << 20..301 << 20).contains(&reserved), "{before:?} {after:?}");
        assert!(after.buffered_volumes.is_empty(), "{after:?}");
        client.delete_volume(DeleteVolumeRequest { volume_id: "disk".into(), ..Default::default() }).unwrap();
    }
}

#[test]
fn the_kubelet_can_ask_for_the_registration_repeatedly() {
    let place = Place::new("xfs", GIB);
    let registry = place.beside("registry");
    let socket = registry.join("kubevirt.io.hostpath-provisioner-reg.sock");
    let arguments = [
        format!("--registration-socket={}", socket.display()),
        "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let driver = one_pool_of("node1", &place, "", &arguments);
    eventually("the registration socket", || socket.exists());
    // A kubelet, and the next one after its restart.
    for _ in 0..2 {
        let info = registered(&socket);
        assert_eq!(info.r#type, "CSIPlugin");
        assert_eq!(info.name, "kubevirt.io.hostpath-provisioner");
        assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/csi-hostpath/csi.sock");
        assert_eq!(info.supported_versions, ["1.0.0"]);
    }
    assert_eq!(names(&registry), ["kubevirt.io.hostpath-provisioner-reg.sock"], "and nothing else to ask");
    fs::remove_file(&socket).unwrap();
    eventually("the registration socket again", || socket.exists());
    registered(&socket);
    assert!(driver.log().contains("the kubelet has registered the driver"));

    let client = Client::new(&socket);
    client.runtime().block_on(async {
        let refused = RegistrationStatus { plugin_registered: false, error: "no such name".to_owned() };
        RegistrationClient::new(client.channel()).notify_registration_status(refused).await.unwrap();
    });
    assert!(driver.log().contains("no such name"), "it goes on, and says so");
    drop(client);
    assert_eq!(driver.stop(), Some(0));
    assert_eq!(names(&registry), [] as [&str; 0], "the kubelet forgets us");
}

#[test]
fn the_kubelets_own_bytes_are_answered() {
    let place = Place::new("xfs", GIB);
    let socket = place.beside("registry").join("reg.sock");
    let arguments = [
        &format!("--registration-socket={}", socket.display()),
        "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock",
    ];
    let driver = one_pool_of("node1", &place, "", &arguments);
    eventually("the registration socket", || socket.exists());
    let mut kubelet = UnixStream::connect(&socket).unwrap();
    kubelet.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let bytes = (0..KUBELET.len()).step_by(2).map(|at| u8::from_str_radix(&KUBELET[at..at + 2], 16).unwrap());
    kubelet.write_all(&bytes.collect::<Vec<u8>>()).unwrap();
    kubelet.shutdown(Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    kubelet.read_to_end(&mut answers).unwrap();
    let answers = String::from_utf8_lossy(&answers);
    assert_eq!(answers.matches("grpc-status\u{1}0").count(), 3, "{answers:?}");
    assert!(answers.contains("kubevirt.io.hostpath-provisioner"), "{answers:?}");
    assert!(driver.log().contains("the kubelet has registered the driver"));
    assert!(driver.log().contains("no such name"));
}

fn curl(arguments: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--insecure", "--max-time", "10"])
        .args(arguments)
        .output()
        .unwrap()
}

fn body(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The address on which the driver serves `what`, from its log.
fn address(driver: &Driver, what: &str) -> String {
    let mark = format!("serving {what} address=");
    eventually(what, || driver.log().contains(&mark));
    driver.log().split(&mark).last().unwrap().split_whitespace().next().unwrap().to_owned()
}

#[test]
fn health_is_that_the_socket_answers() {
    let place = Place::new("xfs", GIB);
    let driver = one_pool_of("node1", &place, "", &["--health-address=127.0.0.1:0"]);
    let url = format!("http://{}/healthz", address(&driver, "health"));
    let asked = || body(&curl(&["--write-out", " %{http_code}", &url]));
    assert_eq!(asked(), "ok 200");
    // A pool that is missing is no reason to restart the driver.
    place.take_away();
    assert_eq!(asked(), "ok 200");
    place.put_back();
    fs::rename(driver.socket(), place.beside("away").join("csi.sock")).unwrap();
    assert!(asked().ends_with(" 500"), "{}", asked());
}

/// The value of a metric, with its labels as they are written.
fn value(page: &str, name: &str) -> i64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
}

#[test]
fn metrics_cover_pools_volumes_and_devices() {
    let place = Place::new("xfs", 4 * GIB);
    let driver = one_pool_of("node1", &place, "", &["--metrics-address=127.0.0.1:0"]);
    let client = driver.client();
    client.create(volume("plain", 200 * MIB, mount()));
    client.create(volume("disk", 300 * MIB, block()));
    let staging = place.beside("staging").join("disk");
    client.node_stage_volume(stage("disk", &staging, block())).unwrap();
    client.create(CreateVolumeRequest {
        volume_content_source: from_volume("disk"),
        ..volume("clone", 300 * MIB, block())
    });
    let url = format!("https://{}/metrics", address(&driver, "metrics"));
    let page = body(&curl(&[&url]));
    assert_eq!(value(&page, "kubevirt_hpp_pool_path_shared_with_os"), 0);
    assert_eq!(value(&page, r#"kubevirt_hpp_pool_ready{pool="legacy"}"#), 1);
    assert_eq!(value(&page, r#"kubevirt_hpp_pool_enforced_info{pool="legacy",by="none"}"#), 1);
    assert!(driver.log().contains("not enforced in this pool"), "{}", driver.log());
    assert_eq!(value(&page, r#"kubevirt_hpp_pool_promised_bytes{pool="legacy"}"#), 800 * MIB);
    for (name, bytes) in [("plain", 200 * MIB), ("disk", 300 * MIB), ("clone", 300 * MIB)] {
        for what in ["capacity", "promised"] {
            let metric = format!(r#"kubevirt_hpp_volume_{what}_bytes{{pool="legacy",volume="{name}"}}"#);
            assert_eq!(value(&page, &metric), bytes);
        }
        value(&page, &format!(r#"kubevirt_hpp_volume_used_bytes{{pool="legacy",volume="{name}"}}"#));
    }
    let device = page.lines().find(|line| line.starts_with("kubevirt_hpp_volume_loop_info{")).unwrap();
    for part in [r#"volume="disk""#, r#"device="/dev/loop"#, r#"direct="true""#, r#"read_only="false""#] {
        assert!(device.contains(part), "{device}");
    }
    assert_eq!(page.matches("kubevirt_hpp_volume_loop_info{").count(), 1, "one device");
    assert_eq!(value(&page, "kubevirt_hpp_clone_seconds_count"), 1);
    assert!(value(&page, "kubevirt_hpp_fsync_seconds_count") >= 6);
    client.unstage("disk", &staging);
    place.take_away();
    let page = body(&curl(&[&url]));
    assert_eq!(value(&page, r#"kubevirt_hpp_pool_ready{pool="legacy"}"#), 0);
    place.put_back();
    let old = curl(&["--tls-max", "1.2", &url]);
    assert!(!old.status.success(), "only TLS 1.3 unless told otherwise: {old:?}");
}

/// Writes every second block of a file, so that none is beside another.
fn scatter(file: &Path, blocks: u64) {
    let file = fs::File::options().create(true).truncate(false).write(true).open(file).unwrap();
    for block in 0..blocks {
        file.write_all_at(&[1; 4096], block * 8192).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
fn metrics_count_the_extents_of_disks() {
    for filesystem in ["xfs", "ext4"] {
        let place = Place::new(filesystem, GIB);
        let arguments = ["--metrics-address=127.0.0.1:0"];
        let driver = one_pool_of("node1", &place, "", &arguments);
        let client = driver.client();
        client.create(volume("folder", 20 * MIB, mount()));
        client.create(volume("block", 20 * MIB, block()));
        client.create(volume("empty", 20 * MIB, mount()));
        // What a pod puts in the disk's place is not opened.
        client.create(volume("planted", 20 * MIB, mount()));
        run("mkfifo", &[place.pool().join("planted/disk.img").to_str().unwrap()]);
        scatter(&place.pool().join("folder/disk.img"), 300);
        scatter(&place.pool().join(".hpp-csi/block/block"), 200);
        drop((client, driver));
        // A driver looks at its volumes when it starts, and once a minute.
        let pools = format!("[{}]", pool("legacy", &place.pool(), ""));
        let driver = Driver::start(&place.beside("again"), "node1", &pools, &arguments);
        let page = body(&curl(&[&format!("https://{}/metrics", address(&driver, "metrics"))]));
        let extents = |name: &str| format!(r#"kubevirt_hpp_volume_extents{{pool="legacy",volume="{name}"}}"#);
        for (name, blocks) in [("folder", 300), ("block", 200)] {
            // XFS allocates ahead: what lies between two blocks may be an extent, too.
            let counted = value(&page, &extents(name));
            assert!((blocks..=2 * blocks + 1).contains(&counted), "{filesystem}, {name}: {counted}");
        }
        for none in ["empty", "planted"] {
            assert!(!page.contains(&extents(none)), "{filesystem}: {page}");
        }
    }
}

#[test]
fn a_pool_on_the_systems_own_filesystem_is_reported() {
    let place = Place::new("xfs", GIB);
    // Its own memory is on the pool's filesystem, as the kubelet's is when the pool is on the node's root.
    let state = place.pool().join("state");
    fs::create_dir(&state).unwrap();
    let state = format!("--statedir={}", state.display());
    let driver = one_pool_of("node1", &place, "", &["--metrics-address=127.0.0.1:0", &state]);
    let page = body(&curl(&[&format!("https://{}/metrics", address(&driver, "metrics"))]));
    assert_eq!(value(&page, "kubevirt_hpp_pool_path_shared_with_os"), 1);
}

/// System calls of the driver while `during` runs.
fn calls(driver: &Driver, log: &Path, during: impl FnOnce()) -> usize {
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(log)
        .args(["-p", &driver.id().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // It traces when it has seen something: the worker's and the runtime's threads wake now and then.
    eventually("strace", || {
        let status = fs::read_to_string(format!("/proc/{}/status", driver.id())).unwrap();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|of| of.trim() != "0"))
    });
    std::thread::sleep(Duration::from_millis(200));
    during();
    let id = rustix::process::Pid::from_child(&strace);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    strace.wait().unwrap();
    fs::read_to_string(log).unwrap().lines().count()
}

#[test]
fn a_thousand_volumes_cost_the_metrics_no_system_call_each() {
    let place = Place::new("xfs", GIB);
    let arguments = ["--metrics-address=127.0.0.1:0"];
    let driver = one_pool_of("node1", &place, r#","overcommit":100"#, &arguments);
    let client = driver.client();
    let url = format!("https://{}/metrics", address(&driver, "metrics"));
    let scrape = || assert!(curl(&[&url]).status.success());
    scrape();
    let log = place.beside("trace").join("log");
    let few = calls(&driver, &log, scrape);
    for n in 0..1000 {
        client.create(volume(&format!("v{n}"), MIB, mount()));
    }
    let many = calls(&driver, &log, scrape);
    println!("system calls of a scrape: {few} without volumes, {many} with 1000");
    // A longer page takes a few more writes, and the worker may run its round at the same time.
    assert!(many < few + 400, "{few} and {many}");
}

#[test]
fn a_call_that_runs_when_the_driver_is_stopped_comes_to_its_end() {
    let place = Place::new("ext4", GIB);
    let driver = one_pool_of("node1", &place, r#","copy":true"#, &[]);
    let client = driver.client();
    client.create(volume("golden", 100 * MIB, mount()));
    let disk = place.pool().join("golden/disk.img");
    run("dd", &["if=/dev/urandom", &format!("of={}", disk.display()), "bs=1M", "count=64", "status=none"]);
    let request = CreateVolumeRequest {
        volume_content_source: from_volume("golden"),
        parameters: parameters(&[("copy", "true")]),
        ..volume("copy", 100 * MIB, mount())
    };
    let (socket, begun) = (driver.socket(), place.pool().join(".hpp-csi/tmp/node1/cv.copy/disk.img"));
    std::thread::scope(|scope| {
        let made = scope.spawn(|| client.create_volume(request));
        eventually("the copy begins", || begun.exists());
        assert_eq!(driver.stop(), Some(0));
        made.join().unwrap().unwrap();
    });
    assert!(!socket.exists());
    assert!(fs::read(place.pool().join("copy/disk.img")).unwrap() == fs::read(disk).unwrap());
}
