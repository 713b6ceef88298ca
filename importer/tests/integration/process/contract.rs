//! The environment contract of a pod.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

use crate::process::place::{Loop, MIB, Place, assert_exit, disk_bytes, stalled, wait_for};
use crate::support::importer;

/// A process under the environment contract, with its paths below a folder.
struct Pod {
    place: Place,
}

impl Pod {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path("data")).unwrap();
        fs::create_dir(place.path("dev")).unwrap();
        Self { place }
    }

    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = importer();
        command
            .arg("-v=1")
            .envs([
                ("FERROVIRT_IMPORTER_ROOT", self.place.folder.path().to_str().unwrap()),
                ("FERROVIRT_IMPORTER_METRICS_PORT", "0"),
                ("PREALLOCATION", "false"),
                ("FILESYSTEM_OVERHEAD", "0.06"),
                ("OWNER_UID", "1-2-3"),
                ("IMPORTER_CONTENTTYPE", "kubevirt"),
            ])
            .envs(environment.iter().copied());
        command
    }

    fn run(&self, environment: &[(&str, &str)]) -> Output {
        self.command(environment).stdin(Stdio::null()).output().unwrap()
    }

    fn message(&self) -> Option<String> {
        fs::read_to_string(self.place.path("dev/termination-log")).ok()
    }
}

#[test]
fn blank_volumes_of_the_contract() {
    let pod = Pod::new();
    assert_exit(&pod.run(&[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "64Mi")]), 0);
    assert_eq!(pod.message().as_deref(), Some(r#"{"message":"Import Complete"}"#));
    let meta = fs::metadata(pod.place.path("data/disk.img")).unwrap();
    assert_eq!(
        (meta.len(), meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777),
        (60 << 20, 107, 107, 0o660)
    );
    assert_eq!(pod.place.names("data"), ["disk.img"]);

    let pod = Pod::new();
    let blank = [("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "64Mi"), ("PREALLOCATION", "true")];
    assert_exit(&pod.run(&blank), 0);
    assert_eq!(
        pod.message().as_deref(),
        Some(r#"{"preallocationApplied":true,"message":"Import Complete"}"#)
    );
    assert!(fs::metadata(pod.place.path("data/disk.img")).unwrap().blocks() * 512 >= 60 << 20);

    // A device: no action and no message.
    let pod = Pod::new();
    let device = Loop::new(&pod.place, "backing", 4 * MIB as u64, 0x5a);
    std::os::unix::fs::symlink(&device.path, pod.place.path("dev/cdi-block-volume")).unwrap();
    assert_exit(&pod.run(&[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "4Mi")]), 0);
    assert_eq!(pod.message(), None);
    assert!(fs::read(&device.path).unwrap().iter().all(|&b| b == 0x5a));
}

#[test]
fn failures_of_the_contract() {
    for (environment, expected) in [
        (
            &[("IMPORTER_SOURCE", "vddk")][..],
            "Unable to process data: the source \"vddk\" is asked for, which this importer does not support: use CDI's importer for it",
        ),
        (&[("IMPORTER_SOURCE", "http")], "Unable to process data: IMPORTER_ENDPOINT is not set"),
        (
            &[("IMPORTER_SOURCE", "http"), ("PREALLOCATION", "perhaps")],
            "Unable to process data: invalid environment configuration: PREALLOCATION=\"perhaps\" is not one of true, false, 1, 0, t, f",
        ),
        (
            &[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "lots")],
            "Unable to process data: invalid environment configuration: IMPORTER_IMAGE_SIZE: \"lots\" is not a quantity like 10Gi, 500M or 1073741824",
        ),
        (
            &[("IMPORTER_SOURCE", "none"), ("IMPORTER_CONTENTTYPE", "archive")],
            "Unable to process data: the source \"none\" cannot have content type archive; only http, s3 and gcs can",
        ),
        (
            &[
                ("IMPORTER_SOURCE", "registry"),
                ("IMPORTER_ENDPOINT", "docker://r/i"),
                ("IMPORTER_CONTENTTYPE", "archive"),
            ],
            "Unable to process data: the source \"registry\" cannot have content type archive; only http, s3 and gcs can",
        ),
        (
            &[
                ("IMPORTER_SOURCE", "http"),
                ("IMPORTER_ENDPOINT", "http://h/i"),
                ("IMPORTER_CURRENT_CHECKPOINT", "s1"),
            ],
            "Unable to process data: a multi-stage import with checkpoints is asked for, which this importer does not support: use CDI's importer for it",
        ),
    ] {
        let pod = Pod::new();
        assert_exit(&pod.run(environment), 1);
        assert_eq!(pod.message().as_deref(), Some(expected));
        assert!(pod.place.names("data").is_empty());
    }
}

#[test]
fn progress_is_served_as_the_controller_reads_it() {
    let place = Place::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let arguments = ["-", &place.text("disk"), "--metrics", &address];
    let (mut child, input) = stalled(&arguments, &disk_bytes(4 * MIB));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let client = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let get = |path: &str| {
        runtime.block_on(async {
            let answer = client.get(format!("https://{address}{path}")).send().await.ok()?;
            Some((answer.status().as_u16(), answer.text().await.ok()?))
        })
    };
    let (status, page) = wait_for("metrics", || get("/metrics"));
    assert_eq!(status, 200);
    let line = page.lines().find(|line| line.starts_with("kubevirt_cdi_import_progress_total")).unwrap();
    let value = line.strip_prefix("kubevirt_cdi_import_progress_total{ownerUID=\"\"} ").unwrap();
    assert!(value.chars().all(|c| c.is_ascii_digit() || c == '.'), "{line}");
    assert_eq!(get("/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(get("/").unwrap().0, 404);
    // A client without TLS and a silent client delay no other.
    let mut plain = std::net::TcpStream::connect(&address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let _silent = std::net::TcpStream::connect(&address).unwrap();
    assert_eq!(get("/metrics").unwrap().0, 200);
    wait_for("the engine's metric", || {
        get("/metrics")?.1.contains("ferrovirt_import_engine_info{engine=").then_some(())
    });
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// CDI's controller starts it before a clone without a size, which waited for ever without the program.
#[test]
fn virtual_size_is_detected_under_upstreams_name() {
    let pod = Pod::new();
    let program = pod.place.path("cdi-image-size-detection");
    std::os::unix::fs::symlink(importer().get_program(), &program).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("FERROVIRT_IMPORTER_ROOT", pod.place.folder.path());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let raw = pod.place.write("disk.img", &disk_bytes(3 * MIB));
    let packed = pod.place.text("disk.qcow2");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", &packed, "1G"]).status();
    assert!(made.unwrap().success());
    for (path, size) in [(raw.as_str(), "3145728"), (&packed, "1073741824")] {
        assert_exit(&run(&["-image-path", path]), 0);
        assert_eq!(pod.message().as_deref(), Some(size));
        assert_exit(&run(&[&format!("--image-path={path}")]), 0);
    }
    let broken = pod.place.write("broken", b"QFI\xfb\0\0\0\x03 and no more");
    assert_exit(&run(&[]), 1);
    assert_exit(&run(&["-image-path", &broken]), 2);
    assert_exit(&run(&["-image-path", "/nowhere/disk.img"]), 3);
    fs::remove_file(pod.place.path("dev/termination-log")).unwrap();
    fs::create_dir(pod.place.path("dev/termination-log")).unwrap();
    assert_exit(&run(&["-image-path", &raw]), 4);
}
