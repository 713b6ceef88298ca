//! Hostile calls: invalid variables, enormous configurations, false results. Every ADD either succeeds, and its DEL leaves
//! nothing, or answers one error document, exits non-zero and has changed nothing.

use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::support::place::{Fate, Place, templates};
use crate::support::{Call, bridge, with};

/// Threads, each with a node of its own: most of the time the kernel waits for a grace period after a link's removal.
const PARTS: usize = 6;

#[test]
fn rejects_invalid_variables() {
    let long = "x".repeat(50_000);
    let names = [
        "a/b",
        "a234567890123456",
        "",
        ".",
        "..",
        "a b",
        "a:b",
        "a\nb",
        "é\u{301}",
        "%d",
        "-",
        long.as_str(),
    ];
    std::thread::scope(|scope| {
        for names in names.chunks(names.len() / PARTS) {
            scope.spawn(move || names_that_make_no_sense(names));
        }
        scope.spawn(variables_that_are_no_text);
    });
}

fn names_that_make_no_sense(names: &[&str]) {
    let place = Place::enter();
    let good = place.host.call("ADD", &place.pod, &bridge());
    for name in names {
        for change in [
            |call: &mut Call, name: &str| call.interface = name.to_owned(),
            |call: &mut Call, name: &str| call.container = name.to_owned(),
            |call: &mut Call, name: &str| call.netns = name.to_owned(),
            |call: &mut Call, name: &str| call.verb = format!("x{name}"),
            |call: &mut Call, name: &str| call.path = name.to_owned(),
            |call: &mut Call, name: &str| call.arguments = format!("IgnoreUnknown=1;{name}"),
            |call: &mut Call, name: &str| call.arguments = format!("IgnoreUnknown={name};MAC={name}"),
            |call: &mut Call, name: &str| call.arguments = format!("{name}={name};;=;=="),
        ] {
            let mut call = good.clone();
            change(&mut call, name);
            place.attempt(&call, &format!("{:.200}", format!("{call:?}")), true);
        }
    }
}

fn variables_that_are_no_text() {
    let place = Place::enter();
    let good = place.host.call("ADD", &place.pod, &bridge());
    for variable in ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS", "CNI_PATH"] {
        place.forget_bridge();
        let before = place.names_of_all();
        let mut command = Command::new("env");
        let mut assignment = format!("{variable}=").into_bytes();
        assignment.extend([0xff, 0xfe, b'/']);
        command.arg(std::ffi::OsString::from_vec(assignment)).arg(&good.plugin);
        let answer = place.host.run(command, &good);
        assert!(answer.document.is_some(), "{variable}");
        if answer.success {
            assert!(place.make(&Call { verb: "DEL".to_owned(), ..good.clone() }).success);
            place.forget_bridge();
        }
        assert_eq!(place.names_of_all(), before, "{variable}");
    }
}

#[test]
fn large_configurations_and_none() {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let place = Place::enter();
            let mut call = place.host.call("ADD", &place.pod, &bridge());
            let many: Map<String, Value> =
                (0..60_000).map(|index| (format!("key{index}"), json!([index]))).collect();
            for (config, wanted) in [
                (with(&bridge(), "ignored", json!("x".repeat(1 << 20))).to_string(), true),
                (with(&bridge(), "ignored", Value::Object(many)).to_string(), true),
                (with(&bridge(), "ignored", json!("x".repeat(5 << 20))).to_string(), false),
                ("[".repeat(1 << 20), false),
                (bridge().to_string().replace('}', ",\"a\":") + &"{\"a\":".repeat(10_000), false),
                (" ".repeat(1 << 20), false),
                (String::new(), false),
                ("\0".repeat(100), false),
            ] {
                call.config = config;
                let what = format!("{:.60}", call.config);
                assert_eq!(place.attempt(&call, &what, true) == Fate::Attached, wanted, "{what}");
            }
            // Standard input has no writer, and the answer no reader.
            place.forget_bridge();
            let before = place.names_of_all();
            let status = Command::new("sh")
                .args(["-c", "printf %s \"$CONFIG\" | \"$PLUGIN\" >/dev/full"])
                .env("CONFIG", bridge().to_string())
                .env("PLUGIN", &call.plugin)
                .env("CNI_COMMAND", "ADD")
                .env("CNI_CONTAINERID", "c1")
                .env("CNI_IFNAME", "net1")
                .env("CNI_NETNS", place.pod.path())
                .env("CNI_PATH", "/x")
                .stderr(Stdio::null())
                .status();
            assert!(!status.unwrap().success());
            place.forget_bridge();
            assert_eq!(place.names_of_all(), before, "an attachment whose answer nobody got is undone");
        });
    });
}

/// Every verb with results that were never answered.
#[test]
fn previous_results_that_lie() {
    std::thread::scope(|scope| {
        for part in 0..PARTS {
            scope.spawn(move || every_nth_lie(part));
        }
    });
}

fn every_nth_lie(first: usize) {
    let place = Place::enter();
    let pod = place.pod.path();
    let lies = [
        json!({}),
        json!([]),
        json!("text"),
        json!({"cniVersion": "9.9.9"}),
        json!({"interfaces": {"name": "x"}}),
        json!({"interfaces": [{"name": "eth0", "sandbox": pod}, {"name": "other", "sandbox": ""}]}),
        json!({"interfaces": [{"name": "lo"}, {"name": "br0"}, {"name": "net1", "mac": "nonsense", "sandbox": pod}]}),
        json!({"interfaces": [null, null]}),
        json!({"interfaces": [{"name": "../../etc", "mtu": -1}]}),
        json!({"ips": [{"address": "192.0.2.1/33"}]}),
        json!({"ips": [{"address": "192.0.2.1/24", "interface": 99}]}),
        json!({"ips": [{"address": "192.0.2.1/24", "interface": -1}]}),
        json!({"routes": [{"dst": "nonsense"}]}),
        json!({"dns": [1]}),
        json!({"cniVersion": "0.2.0", "ip4": {"ip": 7}}),
    ];
    for (template, interface) in templates(&place) {
        for lie in lies.iter().skip(first).step_by(PARTS) {
            let config = with(&template, "prevResult", lie.clone());
            let mut call = place.host.call("ADD", &place.pod, &config);
            call.interface = interface.to_owned();
            place.attempt(&call, &config.to_string(), true);
            let before = place.names_of_all();
            for verb in ["CHECK", "DEL", "GC", "STATUS"] {
                call.verb = verb.to_owned();
                if (verb, interface) != ("DEL", "eth0") {
                    place.make(&call);
                }
                assert_eq!(place.names_of_all(), before, "{verb} {config}");
            }
        }
    }
}
