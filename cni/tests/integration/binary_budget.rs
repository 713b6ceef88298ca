//! The program as it is shipped: static, small, and with few system calls. `make test` builds it before.

use crate::support::{Host, Namespace, bridge, run, shipped};

/// 3 MiB and 45 packages, procedural macros included.
#[test]
fn it_is_static_and_small() {
    let program = shipped();
    let bytes = std::fs::metadata(&program).unwrap().len();
    let told = std::process::Command::new("ldd").arg(&program).output().unwrap();
    let told = [told.stdout, told.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("statically linked") || told.contains("not a dynamic executable"), "{told}");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let tree =
        run(&cargo, &["tree", "--locked", "--manifest-path", manifest, "-e", "normal", "--prefix", "none"]);
    let packages: std::collections::BTreeSet<&str> =
        tree.lines().filter_map(|line| line.strip_suffix(" (*)").or(Some(line))).collect();
    println!("{bytes} bytes, {} packages", packages.len());
    assert!(bytes <= 3 << 20, "{bytes} bytes");
    assert!(packages.len() <= 45, "{} packages", packages.len());
}

/// 80 for an ADD on layer 2.
#[test]
fn an_add_takes_few_system_calls() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    let plugin = host.folder.path().join("bridge");
    std::fs::remove_file(&plugin).unwrap();
    std::os::unix::fs::symlink(shipped(), &plugin).unwrap();
    let report = host.folder.path().join("report");
    let mut command = host.namespace.command("strace");
    command.args(["-f", "-c", "-o"]).arg(&report).arg(&plugin);
    host.run(command, &host.call("ADD", &pod, &bridge())).result();
    let report = std::fs::read_to_string(report).unwrap();
    // % time, seconds, usecs/call, calls, errors if any, name.
    let columns = |name: &str| {
        let line = report.lines().find(|line| line.ends_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let calls: u32 = columns("total")[3].parse().unwrap();
    // The kernel restarts a write to a setting of a network while another process holds its lock; strace counts each.
    let write = columns(" write");
    let restarts = if write.len() == 6 { write[4].parse::<u32>().unwrap() } else { 0 };
    let calls = calls - restarts;
    println!("{calls} system calls");
    assert!(calls <= 80, "{report}");
}
