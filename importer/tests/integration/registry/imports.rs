//! Whole imports by the program: as in a pod, killed, and by command line.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::registry::tokens::TokenServer;
use crate::support::{count, importer};
use sources::images::{GZIP, Layer, MIB, PASSWORD, PLAIN, USER, ZSTD, archive, disk};
use sources::registry::{Login, Registry, Store, Tls};

fn run(program: &mut Command) -> Output {
    program.stdin(Stdio::null()).output().unwrap()
}

/// A pod's paths in a folder.
struct Pod(tempfile::TempDir);

impl Pod {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "dev"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    /// Runs the importer under the environment contract; gives its exit code and termination message.
    fn run(&self, tls: &Tls, environment: &[(&str, &str)]) -> (i32, String) {
        let output = run(importer()
            .arg("-v=3")
            .env("FERROVIRT_IMPORTER_ROOT", self.0.path())
            .env("FERROVIRT_IMPORTER_METRICS_PORT", "0")
            .env("IMPORTER_CERT_DIR", tls.certs())
            .env("IMPORTER_SOURCE", "registry")
            .env("IMPORTER_CONTENTTYPE", "kubevirt")
            .env("IMPORTER_IMAGE_SIZE", "64Mi")
            .env("FILESYSTEM_OVERHEAD", "0.06")
            .env("PREALLOCATION", "false")
            .envs(environment.iter().copied()));
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        for secret in [PASSWORD, "hunter2", "eyJ"] {
            assert!(!log.contains(secret), "{log}");
        }
        let message = fs::read_to_string(self.0.path().join("dev/termination-log")).unwrap_or_default();
        (output.status.code().unwrap_or_else(|| panic!("{log}")), message)
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("data/disk.img")
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path().join("data")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn imports_of_the_contract() {
    let (store, tls) = (Store::start(), Arc::new(Tls::make()));
    let tokens = TokenServer::start(&tls, false);
    let registry = Registry::start(store.path(), Some(&tls), &tokens.login());
    let scratch = tempfile::tempdir().unwrap();
    let (late, want) = tables_last(scratch.path());
    let login = [("IMPORTER_ACCESS_KEY_ID", USER), ("IMPORTER_SECRET_KEY", PASSWORD)];
    let with = |image: &str, more: &[(&'static str, String)]| {
        let mut all: Vec<(&str, String)> = vec![("IMPORTER_ENDPOINT", registry.image(image))];
        all.extend(login.map(|(key, value)| (key, value.to_owned())));
        all.extend_from_slice(more);
        let pod = Pod::new();
        let all: Vec<(&str, &str)> = all.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let outcome = pod.run(&tls, &all);
        (pod, outcome)
    };
    // The images' environment asks for a label.
    let complete = concat!(
        r#"{"labels":{"instancetype.kubevirt.io/default-preference":"debian"},"#,
        r#""message":"Import Complete"}"#
    );
    let complete = (0, complete.to_owned());
    // The disk as it is; compressed once more; and a qcow2 that takes two passes, each over the whole layer.
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&late).unwrap();
    for (tag, file) in [("raw", &want), ("late", &late), ("nested", &gz.finish().unwrap())] {
        for kind in [GZIP, PLAIN] {
            store.push("vm", tag, &[Layer::new(kind, &[("disk/vm", file), ("etc/more", b"x")])]);
            let (pod, outcome) = with(&format!("vm:{tag}"), &[]);
            assert_eq!(outcome, complete, "{tag}");
            let disk = fs::read(pod.disk()).unwrap();
            assert!(disk[..want.len()] == want && disk[want.len()..].iter().all(|&byte| byte == 0), "{tag}");
            let meta = fs::metadata(pod.disk()).unwrap();
            assert_eq!((meta.len(), meta.uid(), meta.mode() & 0o777), (60 << 20, 107, 0o660));
            assert_eq!(pod.left(), ["disk.img"]);
        }
    }

    // An image without an index, of one architecture: another one that is asked for was imported all the same.
    let built_for = |name: &str| [("IMPORTER_REGISTRY_IMAGE_ARCHITECTURE", name.to_owned())];
    let (pod, (exit, message)) = with("vm:raw", &built_for("arm64"));
    assert!(
        exit == 1 && message.contains("the image is for linux/amd64, and linux/arm64 was asked for"),
        "{message}"
    );
    assert!(pod.left().is_empty(), "{:?}", pod.left());
    assert_eq!(with("vm:raw", &built_for("amd64")).1, complete);

    // A mounted .dockerconfigjson instead of keys.
    let config = scratch.path().join(".dockerconfigjson");
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    fs::write(&config, json!({"auths": {registry.address.to_string(): {"auth": auth}}}).to_string()).unwrap();
    let none = [
        ("IMPORTER_ACCESS_KEY_ID", String::new()),
        ("IMPORTER_SECRET_KEY", String::new()),
        ("REGISTRY_AUTH_FILE", config.to_str().unwrap().to_owned()),
    ];
    assert_eq!(with("vm:raw", &none).1, complete);

    let pulled = format!(
        "Unable to connect to registry data source: failed to pull image docker://{}/",
        registry.address
    );
    let (pod, (exit, message)) = with("vm:raw", &[("IMPORTER_SECRET_KEY", "hunter2".to_owned())]);
    assert!(exit == 1 && message.starts_with(&pulled), "{message}");
    assert!(message.contains("does not accept the user and password"), "{message}");
    assert!(pod.left().is_empty());
    let (_, (exit, message)) = with("vm:none", &[]);
    assert!(exit == 1 && message.starts_with(&pulled) && message.contains("404"), "{message}");
    let (_, (exit, message)) = with("vm:raw", &[("IMPORTER_CONTENTTYPE", "archive".to_owned())]);
    assert!(exit == 1 && message.contains("archive"), "{message}");

    // Known at the end only: nothing is left of the disk, and the answer is a failure.
    store.push("vm", "two", &[Layer::new(GZIP, &[("disk/a", &want), ("disk/b", b"x")])]);
    let (pod, (exit, message)) = with("vm:two", &[]);
    let words = "Unable to process data: image directory contains more than one file: disk/a and disk/b";
    assert_eq!((exit, message.as_str()), (1, words));
    assert!(pod.left().is_empty(), "{:?}", pod.left());
    for (tag, file) in [("tampered-raw", &want), ("tampered-qcow2", &late)] {
        let (_, _, layers) = store.push("vm", tag, &[Layer::new(PLAIN, &[("disk/x", file), ("y", b"y")])]);
        let path = store.blob(&layers[0]);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - 1;
        bytes[at] ^= 1;
        bytes[512 + 3 * MIB] ^= 1;
        fs::write(path, bytes).unwrap();
        let (pod, (exit, message)) = with(&format!("vm:{tag}"), &[]);
        assert!(exit == 1 && message.contains("does not match its digest"), "{exit} {message}");
        assert!(pod.left().is_empty(), "{:?}", pod.left());
    }
    // After the repair the next try succeeds.
    let (_, _, layers) = store.push("vm", "repaired", &[Layer::new(GZIP, &[("disk/r", &want), ("y", b"z")])]);
    let path = store.blob(&layers[0]);
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 0x10;
    fs::write(&path, bad).unwrap();
    let pod = Pod::new();
    let image = registry.image("vm:repaired");
    let all = [("IMPORTER_ENDPOINT", image.as_str()), login[0], login[1]];
    let (exit, message) = pod.run(&tls, &all);
    assert!(exit == 1 && message.starts_with("Unable to process data: "), "{message}");
    fs::write(&path, good).unwrap();
    assert_eq!(pod.run(&tls, &all), complete);
    assert!(fs::read(pod.disk()).unwrap()[..want.len()] == want);
    assert_eq!(pod.left(), ["disk.img"]);
}

#[test]
fn killed_imports_start_again() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let kills = count(8, 60);
    let raw = disk(24 * MIB, 10);
    let (_, _, layers) = store.push("k", "latest", &[Layer::new(PLAIN, &[("disk/vm", &raw), ("z", b"z")])]);
    let import = |folder: &str| {
        let mut command = importer();
        let cacert = tls.certs();
        command.args([
            &registry.image("k"),
            &format!("{folder}/disk.img"),
            "--cacert",
            cacert.to_str().unwrap(),
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let blob = store.blob(&layers[0]);
    let good = fs::read(&blob).unwrap();
    let mut bad = good.clone();
    bad[4 * MIB] ^= 1;
    let target = path("target");
    fs::create_dir(&target).unwrap();
    let left =
        || -> Vec<_> { fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    for kill in 0..kills {
        // Data that a killed import took from a damaged blob must not survive in the next one.
        fs::write(&blob, if kill % 2 == 0 { &bad } else { &good }).unwrap();
        let mut child = import(&target).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(60 + kill * 431 % 400));
        drop(child.kill());
        child.wait().unwrap();
        // Without a journal the disk is whole, also where the import was killed before it could report so.
        if left() == ["disk.img"] {
            assert!(kill % 2 == 1, "a damaged image was imported");
            fs::remove_file(format!("{target}/disk.img")).unwrap();
        }
    }
    fs::write(&blob, &good).unwrap();
    assert!(import(&target).status().unwrap().success());
    assert!(fs::read(format!("{target}/disk.img")).unwrap() == raw);
    assert_eq!(left(), ["disk.img"]);
}

#[test]
fn a_registry_without_tls_needs_insecure() {
    let store = Store::start();
    let registry = Registry::start(store.path(), None, &Login::Open);
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("disk").to_str().unwrap().to_owned();
    store.push("p", "latest", &[Layer::new(GZIP, &[("disk/d", b"bytes")])]);
    let output = run(importer().args([&registry.image("p"), &target, "--patience", "1"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("--insecure, in a pod INSECURE_TLS"), "{said}");
    let output = run(importer().args([&registry.image("p"), &target, "--insecure"]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&target).unwrap(), b"bytes");
}

#[test]
fn imports_by_command_line() {
    let (store, tls) = (Store::start(), Tls::make());
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let raw = disk(2 * MIB, 8);
    store.push("c", "latest", &[Layer::new(GZIP, &[("disk/vm.img", &raw)])]);
    let image = registry.image("c");
    fs::write(path("user"), format!("{USER}\n{PASSWORD}\n")).unwrap();
    let certs = tls.certs();
    let certs = certs.to_str().unwrap();
    let output = run(importer().args([&image, &path("a"), "--user-file", &path("user"), "--cacert", certs]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(path("a")).unwrap() == raw);

    // Credentials written by docker login are found.
    let auth = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    fs::create_dir(path(".docker")).unwrap();
    fs::write(
        path(".docker/config.json"),
        json!({"auths": {registry.address.to_string(): {"auth": auth}}}).to_string(),
    )
    .unwrap();
    let output = run(importer()
        .env("HOME", folder.path())
        .args(["inspect", &image, "--cacert", certs, "--output", "json"]));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&seen["format"], &seen["virtual_size"]), (&json!("raw"), &json!(2 * MIB)), "{seen}");
    assert_eq!((&seen["file"], &seen["only_file"]), (&json!("disk/vm.img"), &Value::Null), "{seen}");

    // Tables behind the data cost a second pass over the layer.
    let (late, want) = tables_last(folder.path());
    store.push("c", "late", &[Layer::new(GZIP, &[("disk/vm.img", &late)])]);
    let late_image = registry.image("c:late");
    let output = run(importer()
        .args([&late_image, &path("late"), "--user-file", &path("user"), "--cacert", certs])
        .args(["--output", "json"]));
    assert!(fs::read(path("late")).unwrap() == want);
    let done: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(done["bytes_read"].as_u64().unwrap() > late.len() as u64 * 3 / 2, "{done}");

    let output = run(importer().args([&image, &path("b"), "--cacert", certs]));
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("give a user and password"));
    assert!(!Path::new(&path("b")).exists());

    fs::write(path("image.tar"), archive(&[("v1", Layer::new(ZSTD, &[("disk/d", &raw)]))])).unwrap();
    let output = run(importer().args([&format!("oci-archive:{}:v1", path("image.tar")), &path("c")]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(path("c")).unwrap() == raw);

    // Another disk in a lower layer: refused before anything is written, and by inspect as well.
    store.push("c", "two", &[Layer::new(GZIP, &[("disk/a", &raw)]), Layer::new(GZIP, &[("disk/b", b"x")])]);
    let two = registry.image("c:two");
    fs::write(path("kept"), "mine").unwrap();
    for arguments in [vec![two.as_str(), &path("kept"), "--force"], vec!["inspect", &two]] {
        let login = ["--user-file", &path("user"), "--cacert", certs];
        let output = run(importer().args(arguments).args(login));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains("more than one file: disk/b and disk/a"), "{said}");
        assert_eq!(fs::read(path("kept")).unwrap(), b"mine");
    }
    let tar = format!("oci-archive:{}", path("image.tar"));
    let output = run(importer().args(["inspect", &tar]));
    assert!(String::from_utf8_lossy(&output.stdout).contains("disk/d in the layer sha256:"));
    fs::write(path("pair.tar"), archive(&[("v1", Layer::new(ZSTD, &[("disk/d", &raw), ("disk/e", b"x")]))]))
        .unwrap();
    let output = run(importer().args(["inspect", &format!("oci-archive:{}", path("pair.tar"))]));
    assert_eq!(output.status.code(), Some(4));

    // A layer that is no tar, and one that is cut off: nothing is left, and no later try is promised.
    let whole = sources::images::tar(&[("disk/d", &raw)]);
    for (name, bytes) in [("notar", &raw[..]), ("cut", &whole[..MIB])] {
        fs::write(path("bad.tar"), archive(&[("v1", Layer::of_tar(GZIP, bytes))])).unwrap();
        let output = run(importer().args([&format!("oci-archive:{}", path("bad.tar")), &path(name)]));
        assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
        let left = fs::read_dir(folder.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(!left.iter().any(|left| left.contains(name)), "{left:?}");
    }

    // The archive is never written over, under whatever name.
    let before = fs::read(path("image.tar")).unwrap();
    fs::hard_link(path("image.tar"), path("linked")).unwrap();
    for (source, target) in [("image.tar", "image.tar"), ("image.tar:v1", "linked"), ("linked", "image.tar")]
    {
        let source = format!("oci-archive:{}", path(source));
        let output = run(importer().args([&source, &path(target), "--force"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("is the source itself"), "{said}");
        assert!(fs::read(path("image.tar")).unwrap() == before);
    }
}

/// A qcow2 with its table of tables behind its data, and the disk that qemu-img makes of it.
fn tables_last(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (image, raw, data) = (path("late.qcow2"), path("late.raw"), path("data"));
    fs::write(&data, disk(5 * MIB, 7)).unwrap();
    places::run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", &image, "6M"]);
    places::run("qemu-io", &["-f", "qcow2", "-c", &format!("write -q -s {data} 0 5M"), &image]);
    places::run("qemu-img", &["resize", "-q", "-f", "qcow2", &image, "40M"]);
    places::run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &image, &raw]);
    (fs::read(image).unwrap(), fs::read(raw).unwrap())
}

#[test]
fn an_image_with_a_disk_of_no_byte_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("image"), archive(&[("v1", Layer::new(GZIP, &[("disk/disk.img", b"")]))])).unwrap();
    let source = format!("oci-archive:{}", path("image"));
    let output = run(importer().args([&source, &path("out")]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains(&format!("the source is empty: {source} gave no byte")), "{said}");
    assert!(!Path::new(&path("out")).exists(), "something was written");
}
