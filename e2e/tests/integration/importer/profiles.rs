//! Restrictions of the node's security on the importer, its way of writing under them, and the memory that takes.

use std::sync::LazyLock;

use e2e::Cluster;
use e2e::node::LOW_MEMLOCK;
use e2e::peer::flaky::Flaky;
use e2e::volume::Volume;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::Api;
use serde_json::{Value, json};

use crate::importer::disks::Disk;
use crate::importer::memory::{Peaks, Sampler};
use crate::importer::pod::Import;
use crate::importer::{CLUSTER, MIB, count, metrics, namespace};

/// The three calls of io_uring give EPERM, as with containerd 2's default.
const NO_IO_URING: &str = "no-io-uring.json";
/// Opening with O_DIRECT gives EINVAL, as on a filesystem that does not have it.
pub(crate) const NO_DIRECT: &str = "no-direct.json";

const O_DIRECT: u32 = 0x4000;
const EPERM: u32 = 1;
const EINVAL: u32 = 22;

/// Gives the node what the tests' pods name.
pub(crate) fn prepare(cluster: &Cluster) {
    let profile = |refused: &[Value]| json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": refused});
    let ring = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
    let ring = json!({"names": ring, "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM});
    cluster.add_seccomp_profile(NO_IO_URING, &profile(&[ring])).unwrap();
    let direct = [("open", 1), ("openat", 2)].map(|(call, flags)| {
        let flag =
            json!({"index": flags, "value": O_DIRECT, "valueTwo": O_DIRECT, "op": "SCMP_CMP_MASKED_EQ"});
        json!({"names": [call], "action": "SCMP_ACT_ERRNO", "errnoRet": EINVAL, "args": [flag]})
    });
    cluster.add_seccomp_profile(NO_DIRECT, &profile(&direct)).unwrap();
    let classes = Api::<RuntimeClass>::all(cluster.client());
    let class = json!({"metadata": {"name": LOW_MEMLOCK}, "handler": LOW_MEMLOCK});
    cluster.create(&classes, class).unwrap();
}

/// The way of writing in the importer's log, the last one.
pub(crate) fn engine(log: &str) -> String {
    let line = log.lines().filter_map(|line| line.split_once(" engine=")).next_back();
    line.map(|(_, engine)| engine.trim()).unwrap_or_else(|| panic!("no engine in the log:\n{log}")).to_owned()
}

/// Deflated clusters take the most memory: they are read, unpacked and written.
static DEFLATED: LazyLock<Disk> =
    LazyLock::new(|| Disk::create("deflated", count(512, 4096), count(256, 1024), true));

struct Profile {
    name: &'static str,
    seccomp: Value,
    runtime_class: Option<&'static str>,
    /// The ways that the importer may report under it; mostly one.
    allowed: &'static [Reported],
}

struct Reported {
    /// How the engine's description starts, and what it gives as the reason.
    engine: &'static str,
    why: &'static str,
    /// As the metric has them.
    labels: &'static str,
}

fn check_memory(profile: &Profile, reported: &Reported, peaks: &Peaks) {
    assert!(peaks.samples > 10, "{peaks}");
    if reported.engine.contains("direct") {
        assert!(peaks.usage <= 96 * MIB, "{}: {peaks}", profile.name);
    } else {
        assert!(peaks.rss <= 64 * MIB, "{}: {peaks}", profile.name);
        // Much more than that was written.
        assert!(peaks.cache <= 64 * MIB, "{}: {peaks}", profile.name);
    }
}

fn import(namespace: &str, claim: &str, profile: &Profile) {
    let server = Flaky::start(CLUSTER.place(), &DEFLATED.qcow2, 64 * MIB).unwrap();
    let size = DEFLATED.size * 2;
    let volume = Volume::filesystem(&CLUSTER, namespace, claim, size).unwrap();
    let mut import = Import::new(&CLUSTER, namespace, &volume, size, server.url());
    import.seccomp = profile.seccomp.clone();
    import.runtime_class = profile.runtime_class;
    // Buffers that the ring may not register are logged at this verbosity.
    import.verbosity = 3;
    let running = import.start();
    let sampler = Sampler::start(running.memory_group());
    let metric = |reported: &Reported| format!("ferrovirt_import_engine_info{{{}}}", reported.labels);
    let mut page = String::new();
    let end = running.until("the end", |running| {
        let counts =
            |now: &str| profile.allowed.iter().any(|one| metrics::value(now, &metric(one)).is_some());
        if page.is_empty()
            && let Some(now) = metrics::page(running)
            && counts(&now)
        {
            page = now;
        }
        running.status()?.state?.terminated
    });
    let (peaks, log) = (sampler.stop(), running.log());
    assert_eq!(end.exit_code, 0, "{log}");
    let engine = engine(&log);
    println!("{}: {engine}; {peaks}", profile.name);
    let fits = |one: &&Reported| engine.starts_with(one.engine) && engine.contains(one.why);
    let reported = profile.allowed.iter().find(fits).unwrap_or_else(|| panic!("{engine}"));
    assert_eq!(metrics::value(&page, &metric(reported)), Some(1.0), "{engine}, but the page says:\n{page}");
    DEFLATED.assert_in(&volume);
    check_memory(profile, reported, &peaks);
}

#[test]
fn every_way_to_write_has_the_same_bytes_and_little_memory() {
    let namespace = namespace("profiles");
    let default = json!({"type": "RuntimeDefault"});
    let localhost = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
    let profiles = [
        Profile {
            name: "RuntimeDefault",
            seccomp: default.clone(),
            runtime_class: None,
            allowed: &[Reported {
                engine: "io_uring, direct",
                why: "",
                labels: r#"engine="io_uring",direct="true""#,
            }],
        },
        Profile {
            name: "no io_uring",
            seccomp: localhost(NO_IO_URING),
            runtime_class: None,
            allowed: &[Reported {
                engine: "pwrite, direct",
                why: "io_uring is refused: Operation not permitted",
                labels: r#"engine="pwrite",direct="true""#,
            }],
        },
        Profile {
            name: "memlock 64 KiB",
            seccomp: default,
            runtime_class: Some(LOW_MEMLOCK),
            // The kernel counts the locked memory of all pods of the user: next to another importer even the ring may be
            // refused.
            allowed: &[
                Reported {
                    engine: "io_uring, direct",
                    why: "registering buffers is refused: Cannot allocate memory",
                    labels: r#"engine="io_uring",direct="true""#,
                },
                Reported {
                    engine: "pwrite, direct",
                    why: "io_uring is refused: Cannot allocate memory",
                    labels: r#"engine="pwrite",direct="true""#,
                },
            ],
        },
        Profile {
            name: "no O_DIRECT",
            seccomp: localhost(NO_DIRECT),
            runtime_class: None,
            allowed: &[Reported {
                engine: "pwrite, page cache",
                why: "direct I/O is refused at opening: Invalid argument",
                labels: r#"engine="pwrite",direct="false""#,
            }],
        },
    ];
    for (index, profile) in profiles.iter().enumerate() {
        import(namespace, &format!("disk{index}"), profile);
    }
}
